//! One task of a load, which sends one request after the other.

use kit::scene::*;
use tower::util::BoxCloneSyncService;
use tower_ratelimit::Error;

use super::{
    answer::{Answer, By, Outcome, failure, outcome},
    guards::{LEASE, MAX_WAIT},
    lanes::{How, LANES, Lane, USERS, ban, identity, rule},
    load::Counts,
    random::Random,
};

type Http = BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

/// The way in which a task sends requests.
#[derive(Clone)]
pub enum Asking {
    Http(Http),
    Limiter(RateLimiter),
}

pub struct Caller {
    pub counts: Arc<Counts>,
    pub asking: Asking,
    pub handle: usize,
    pub index: usize,
    pub random: Random,
}

impl Caller {
    pub async fn run(mut self) {
        let lane = &LANES[self.index];
        while !self.counts.stop.load(Ordering::SeqCst) {
            if self.counts.idle.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            let user = match lane.how {
                // Too many requests of one user, and far fewer than they may of the others.
                How::Banning(_) if self.random.below(8) > 0 => 0,
                How::Banning(_) => 1 + self.random.below(USERS as u64 - 1) as usize,
                _ => self.random.below(USERS as u64) as usize,
            };
            let permits = match lane.how {
                How::Limiter => 1 + self.random.below(3) as u32,
                How::Calendar => 1 + self.random.below(1000) as u32,
                _ => 1,
            };
            let max_wait = match lane.how {
                How::Waiter => MAX_WAIT,
                _ => Duration::ZERO,
            };
            self.counts.sent.fetch_add(1, Ordering::SeqCst);
            let sent = self.counts.began.elapsed();
            let outcome = self.ask(lane, user, permits).await;
            let took = self.counts.began.elapsed() - sent;
            if let (Ok(Outcome::Unset), Asking::Limiter(limiter)) = (&outcome, &self.asking) {
                self.set_rate(lane, limiter).await;
            }
            match outcome {
                Ok(outcome) => self.counts.note(&Answer {
                    handle: self.handle,
                    lane: self.index,
                    user,
                    permits,
                    sent,
                    took,
                    budget: self.counts.budget + max_wait,
                    outcome,
                }),
                Err(wrong) => {
                    let mut all = self.counts.wrong.lock().unwrap();
                    // The first few are enough to read.
                    if all.len() < 5 {
                        all.insert(wrong);
                    }
                }
            }
            self.counts.answered.fetch_add(1, Ordering::SeqCst);
            let pause = self.counts.pause.load(Ordering::SeqCst) * 1000;
            let pause = pause / 2 + self.random.below(pause + 1);
            // The load's pace.
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
    }

    /// The limit of a `RateLimiter` is lost with the server's data: the first caller to notice sets
    /// it again.
    async fn set_rate(&self, lane: &'static Lane, limiter: &RateLimiter) {
        for allowed in lane.limits() {
            // Fails with the server, and is then tried by the next.
            let _ = limiter.try_set_rate(allowed.limit()).await;
        }
    }

    async fn ask(&self, lane: &'static Lane, user: usize, permits: u32) -> Result<Outcome, String> {
        match &self.asking {
            Asking::Http(service) => {
                let request = Request::builder().header("x-user", identity(Some(user)));
                let request = request.body(()).unwrap();
                let Ok(answer) = service.clone().oneshot(request).await;
                read(lane, &answer)
            }
            Asking::Limiter(limiter) if lane.how == How::Waiter => {
                decided(lane, limiter.try_acquire_for(permits, MAX_WAIT)).await
            }
            Asking::Limiter(limiter) => decided(lane, limiter.try_acquire_many(permits)).await,
        }
    }
}

/// A service behind a layer, which counts what comes through.
pub fn service(store: &RedisStore, lane: &'static Lane, counts: &Arc<Counts>) -> Http {
    let mut rules = Vec::new();
    for (place, allowed) in lane.limits().enumerate() {
        let (limit, name) = (allowed.limit(), rule(lane, place).unwrap());
        let rule = if allowed.by_user {
            Rule::new(&name, limit, FromHeader::new("x-user"))
        } else {
            Rule::new(&name, limit, Constant("all"))
        };
        let rule = match lane.policy() {
            Some(policy) => rule.on_failure(policy),
            None => rule,
        };
        rules.push(match lane.how {
            How::Leased(_) => rule.lease(LEASE),
            How::Banning(_) => rule.ban(ban()),
            _ => rule,
        });
    }
    let layer = RateLimitLayer::builder(store).otherwise(rules).build();
    let counts = Arc::clone(counts);
    let inner = service_fn(move |request: Request<()>| {
        counts.passed.fetch_add(1, Ordering::SeqCst);
        serve(request)
    });
    let layered = layer.unwrap().layer(inner);
    Http::new(layered.map_response(|answer: Response<_>| answer.map(drop)))
}

/// An HTTP answer says what its one decision says.
fn read(lane: &'static Lane, answer: &Response<()>) -> Result<Outcome, String> {
    let decision = answer.extensions().get::<Decision>();
    let decision = decision.ok_or("an answer without its decision")?;
    let outcome = outcome(lane, decision)?;
    let policy = lane
        .policy()
        .ok_or("an answer of a layer, and none is there")?;
    let expected = match outcome {
        Outcome::Granted(By::Local) | Outcome::Refused(By::Local, _) if lane.how != How::Local => {
            None
        }
        // No request costs more than a share, and all limits are known: if there is a share, it
        // decides.
        Outcome::Granted(By::Policy) if policy != FailurePolicy::Allow => None,
        Outcome::Refused(By::Policy, _) if policy != FailurePolicy::Deny => None,
        Outcome::Granted(_) => Some(StatusCode::OK),
        Outcome::Refused(By::Policy, _) => Some(StatusCode::SERVICE_UNAVAILABLE),
        Outcome::Refused(..) => Some(StatusCode::TOO_MANY_REQUESTS),
        Outcome::Banned(..) => Some(StatusCode::FORBIDDEN),
        Outcome::Failed(_) | Outcome::Unset => None,
    };
    match expected {
        Some(status) if status == answer.status() => Ok(outcome),
        _ => Err(format!(
            "{}: {} for {outcome:?} under {policy:?}",
            lane.name,
            answer.status()
        )),
    }
}

/// A limiter's answer, which has no policy.
async fn decided(
    lane: &'static Lane,
    ask: impl Future<Output = Result<Decision, Error>>,
) -> Result<Outcome, String> {
    match ask.await {
        Ok(decision) => outcome(lane, &decision),
        Err(error) => failure(error.kind()),
    }
}
