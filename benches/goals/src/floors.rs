//! The least that a row's promise costs: its users get the same, left behind by hand, with the
//! smallest types that can say it. Beside that nothing is done but to find a key and to count.

use std::{
    cell::RefCell,
    collections::VecDeque,
    convert::Infallible,
    hash::{BuildHasher, Hasher, RandomState},
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes};
use hashbrown::{HashTable, hash_table::Entry};
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use tower::{Service, service_fn};
use tower_ratelimit::Limit;

use crate::requests::USER;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What users get beside the grant with the request, or the decision with a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Two fields of draft 11
    fields: bool,
}

impl Left {
    pub(crate) const ALL: Self = Self { fields: true };
    pub(crate) const NO_FIELDS: Self = Self { fields: false };
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    pub(crate) remaining: u64,
    pub(crate) seconds: u64,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "a handler would read it")]
struct Grant {
    decision: Decision,
    id: u64,
    permits: u64,
}

/// What counts the permits of one key. Times are microseconds.
pub(crate) trait Count: Default + Send + 'static {
    /// Takes a permit, or returns when there will be one.
    fn take(&mut self, rate: Rate, now: u64) -> Result<Decision, u64>;
}

/// A limit as it is counted by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    permits: u64,
    interval: u64,
    emission: u64,
}

/// When all that was taken is through.
#[derive(Debug, Default)]
pub(crate) struct Gcra(u64);

impl Count for Gcra {
    #[inline]
    fn take(&mut self, rate: Rate, now: u64) -> Result<Decision, u64> {
        let backlog = self.0.saturating_sub(now) + rate.emission;
        if backlog > rate.interval {
            return Err(backlog - rate.interval);
        }
        self.0 = now + backlog;
        Ok(Decision {
            remaining: (rate.interval - backlog) / rate.emission,
            seconds: seconds(backlog),
        })
    }
}

/// How many were taken in which millisecond, and how many in all.
#[derive(Debug, Default)]
pub(crate) struct Log(VecDeque<(u64, u64)>, u64);

impl Count for Log {
    #[inline]
    fn take(&mut self, rate: Rate, now: u64) -> Result<Decision, u64> {
        let Self(log, used) = self;
        while let Some((at, taken)) = log.front()
            && at + rate.interval <= now
        {
            *used -= taken;
            log.pop_front();
        }
        if *used == rate.permits {
            return Err(log.front().map_or(0, |(at, _)| at + rate.interval - now));
        }
        let at = now / 1000 * 1000;
        *used += 1;
        match log.back_mut() {
            Some((last, taken)) if *last == at => *taken += 1,
            _ => log.push_back((at, 1)),
        }
        Ok(Decision {
            remaining: rate.permits - *used,
            seconds: seconds(rate.interval),
        })
    }
}

/// What was taken ahead, and until when it counts.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    balance: u64,
    until: u64,
}

impl Count for Lease {
    #[inline]
    fn take(&mut self, rate: Rate, now: u64) -> Result<Decision, u64> {
        if self.balance == 0 || now >= self.until {
            *self = Self {
                balance: rate.permits,
                until: now + rate.interval,
            };
        }
        self.balance -= 1;
        Ok(Decision {
            remaining: self.balance,
            seconds: seconds(self.until - now),
        })
    }
}

fn seconds(micros: u64) -> u64 {
    micros.div_ceil(1_000_000)
}

/// Names, and what counts each.
type Shard<C> = HashTable<(Box<[u8]>, C)>;

/// Each key with its count. The secret hash resists who would choose keys that collide.
struct Table<C> {
    secret: RandomState,
    shards: [Mutex<Shard<C>>; 64],
    began: Instant,
}

impl<C: Count> Table<C> {
    fn new() -> Self {
        Self {
            secret: RandomState::new(),
            shards: [const { Mutex::new(HashTable::new()) }; 64],
            began: Instant::now(),
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.secret.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    #[inline]
    fn take(&self, key: &[u8], rate: Rate) -> Result<Decision, u64> {
        let hash = self.hash(key);
        let now = self.began.elapsed().as_micros() as u64;
        let mut shard = self.shards[(hash >> 32) as usize % 64].lock().unwrap();
        let is_it = |(known, _): &(Box<[u8]>, C)| **known == *key;
        let slot = match shard.entry(hash, is_it, |(known, _)| self.hash(known)) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(place) => place.insert((key.into(), C::default())).into_mut(),
        };
        slot.1.take(rate, now)
    }
}

/// What is made when a rule is built.
pub(crate) struct Rule {
    /// No other rule has it.
    id: u64,
    rate: Rate,
    left: Left,
    /// The first field up to the number
    before: Box<[u8]>,
    policy: HeaderValue,
    name: &'static str,
    ids: AtomicU64,
}

impl Rule {
    pub(crate) fn new(name: &'static str, limit: Limit, left: Left) -> Self {
        static RULES: AtomicU64 = AtomicU64::new(0);
        let (permits, interval) = (limit.permits(), limit.interval());
        let policy = format!("\"{name}\";q={permits};w={}", interval.as_secs().max(1));
        let interval = interval.as_micros() as u64;
        Self {
            id: RULES.fetch_add(1, Ordering::Relaxed),
            rate: Rate {
                permits,
                interval,
                emission: interval.div_ceil(permits),
            },
            left,
            before: format!("\"{name}\";r=").into_bytes().into(),
            policy: policy.try_into().unwrap(),
            name,
            ids: AtomicU64::new(0),
        }
    }

    fn field(&self, decision: Decision) -> HeaderValue {
        let (mut text, mut end) = ([0; 96], 0);
        let mut push = |part: &[u8]| {
            text[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        };
        push(&self.before);
        push(itoa::Buffer::new().format(decision.remaining).as_bytes());
        push(b";t=");
        push(itoa::Buffer::new().format(decision.seconds).as_bytes());
        HeaderValue::from_bytes(&text[..end]).unwrap()
    }

    /// Leaves a grant with the request.
    pub(crate) fn leave(&self, decision: Decision, extensions: &mut Extensions) {
        extensions.insert(Grant {
            decision,
            id: self.ids.fetch_add(1, Ordering::Relaxed),
            permits: 1,
        });
    }

    /// Leaves a grant with the response.
    pub(crate) fn finish(&self, decision: Decision, response: &mut Response<Body>) {
        if self.left.fields {
            let headers = response.headers_mut();
            headers.insert(RATELIMIT, self.field(decision));
            headers.insert(POLICY, self.policy.clone());
        }
    }

    /// An answer is rendered once a second, and cloned.
    fn refuse(&self, seconds: u64) -> Response<Body> {
        thread_local! { static LAST: RefCell<Option<Rendered>> = const { RefCell::new(None) }; }
        LAST.with_borrow_mut(|last| {
            let is_it = |last: &&mut Rendered| (last.rule, last.seconds) == (self.id, seconds);
            match last.as_mut().filter(is_it) {
                Some(last) => last.answer(),
                None => last.insert(self.render(seconds)).answer(),
            }
        })
    }

    /// The fields and the body of the layer.
    fn render(&self, seconds: u64) -> Rendered {
        let mut headers = HeaderMap::with_capacity(6);
        let problem = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, problem);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        if self.left.fields {
            let remaining = 0;
            headers.insert(RATELIMIT, self.field(Decision { remaining, seconds }));
            headers.insert(POLICY, self.policy.clone());
        }
        let body = format!(
            "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Quota Exceeded\",\"status\":429,\"detail\":\"too many requests: retry after {seconds} seconds\",\
             \"violated-policies\":[\"{}\"]}}\n",
            self.name
        );
        Rendered {
            rule: self.id,
            seconds,
            headers,
            body: body.into(),
        }
    }
}

struct Rendered {
    rule: u64,
    seconds: u64,
    headers: HeaderMap,
    body: Bytes,
}

impl Rendered {
    fn answer(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// What the services of one layer share.
pub(crate) struct Hand<C> {
    rule: Rule,
    table: Table<C>,
}

impl<C: Count> Hand<C> {
    pub(crate) fn new(name: &'static str, limit: Limit, left: Left) -> Arc<Self> {
        let (rule, table) = (Rule::new(name, limit, left), Table::new());
        Arc::new(Self { rule, table })
    }
}

/// Limits by a header field, as the layer does.
pub(crate) fn limited<C, S, B>(
    mut inner: S,
    hand: Arc<Hand<C>>,
) -> impl Service<Request<B>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static
where
    C: Count,
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: 'static,
{
    service_fn(move |mut request: Request<B>| {
        let hand = Arc::clone(&hand);
        let user = request.headers().get(USER).expect("a user");
        let decided = match hand.table.take(user.as_bytes(), hand.rule.rate) {
            Ok(decision) => {
                hand.rule.leave(decision, request.extensions_mut());
                Ok((decision, inner.call(request)))
            }
            // Made in the future: a refusal is decided here.
            Err(wait) => Err((seconds(wait), mem::take(request.extensions_mut()))),
        };
        async move {
            let (decision, answer) = match decided {
                Ok(granted) => granted,
                Err((seconds, mut extensions)) => {
                    let mut response = hand.rule.refuse(seconds);
                    extensions.clear();
                    let remaining = 0;
                    extensions.insert(Decision { remaining, seconds });
                    *response.extensions_mut() = extensions;
                    return Ok(response);
                }
            };
            let mut response = answer.await?;
            hand.rule.finish(decision, &mut response);
            Ok(response)
        }
    })
}

/// Refuses all, and counts nothing.
pub(crate) fn refused<B: 'static>(
    name: &'static str,
    limit: Limit,
) -> impl Service<Request<B>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let rule = Rule::new(name, limit, Left::ALL);
    let rendered = Arc::new(rule.render(Duration::from_secs(3600).as_secs()));
    service_fn(move |_: Request<B>| std::future::ready(Ok(rendered.answer())))
}
