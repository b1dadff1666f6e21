//! Counts the allocations of a request, and prints them in the order of `rows/allocations.rs`.
//!
//! A program of its own: counting takes time, which others measure.

#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod database;
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod floors;
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod requests;

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use http::{HeaderValue, StatusCode};
use tokio::{sync::oneshot, task::JoinSet};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{Decision, Limit, RateLimitLayer, Source, redis};

use self::{
    database::{Database, patient},
    floors::{Left, Rule},
    requests::{by_user, nothing, one_thread, request, users},
};

const REQUESTS: usize = 1000;
const AT_ONCE: usize = 50;

fn main() {
    let [called, polled, bare] = refusals();
    println!("{called} {polled} {bare}");
    let [lone, batch, hand, hands, evalsha] = grants();
    println!("{lone} {batch} {evalsha}");
    println!("{hand} {hands} {evalsha}");
}

fn layer(database: &Database, limit: Limit) -> RateLimitLayer {
    RateLimitLayer::new(
        &patient(&database.url()).build().unwrap(),
        limit.by(by_user()),
    )
}

async fn is_admitted(layer: &RateLimitLayer, user: &HeaderValue) -> bool {
    let answer = layer.layer(nothing()).oneshot(request(user)).await;
    answer.unwrap().status() == StatusCode::OK
}

/// Those of a refusal that is repeated from memory: where it is decided and answered, and when its
/// future is polled. Those of the service without the layer.
fn refusals() -> [f64; 3] {
    let (runtime, database) = (one_thread(), Database::start());
    let (user, layer) = (users(1)[0].clone(), layer(&database, Limit::per_hour(1)));
    let is_cached = |response: &http::Response<_>| {
        let decision = response.extensions().get::<Decision>();
        decision.is_some_and(|decision| decision.source() == Source::Cache)
    };
    let (mut counted, mut called, mut polled) = (0, 0, 0);
    while counted < REQUESTS {
        let mut service = layer.layer(nothing());
        let request = request(&user);
        let _inside = runtime.enter();
        let mut call = None;
        let first = measure(|| call = Some(service.call(request)));
        let mut call = pin!(call.unwrap());
        let mut answer = Poll::Pending;
        let second = measure(|| {
            answer = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        match answer {
            Poll::Ready(Ok(response)) if is_cached(&response) => {
                counted += 1;
                called += first.count_total;
                polled += second.count_total;
            }
            Poll::Ready(_) => {}
            // Its second is over: Redis is asked again.
            Poll::Pending => drop(runtime.block_on(call)),
        }
    }
    let request = request(&user);
    let bare = measure(|| drop(runtime.block_on(nothing().call(request))));
    let each = |count: u64| count as f64 / REQUESTS as f64;
    [each(called), each(polled), bare.count_total as f64]
}

/// Those of a grant by a server, the connection's included, and making the request and its task
/// not: one at a time, and with others at once; the same by hand. Those of a bare EVALSHA.
fn grants() -> [f64; 5] {
    let (runtime, database) = (one_thread(), Database::start());
    let (users, layer) = (users(AT_ONCE), layer(&database, Limit::per_minute(1 << 40)));
    let each = |mut call: Box<dyn FnMut() + '_>| {
        // The first brings the script.
        (0..2 * AT_ONCE).for_each(|_| call());
        let counted = measure(|| (0..REQUESTS).for_each(|_| call()));
        counted.count_total as f64 / REQUESTS as f64
    };
    let making = each(Box::new(|| drop(request(&users[0]))));
    let lone = each(Box::new(|| {
        assert!(runtime.block_on(is_admitted(&layer, &users[0])));
    }));
    let at_once = |ask: &dyn Fn(&mut JoinSet<()>, usize)| {
        each(Box::new(|| {
            let mut callers = JoinSet::new();
            (0..AT_ONCE).for_each(|user| ask(&mut callers, user));
            runtime.block_on(callers.join_all());
        })) / AT_ONCE as f64
    };
    let handle = runtime.handle();
    let waiting = at_once(&|callers, _| {
        callers.spawn_on(tokio::task::yield_now(), handle);
    });
    let batch = at_once(&|callers, user| {
        let (layer, user) = (layer.clone(), users[user].clone());
        let ask = async move { assert!(is_admitted(&layer, &user).await) };
        callers.spawn_on(ask, handle);
    });
    let hand = Arc::new(Hand::new(runtime.block_on(Line::of(&database))));
    let alone = each(Box::new(|| {
        runtime.block_on(hand.passes(&users[0], hand.line.ask(&[0], |_, _| {})));
    }));
    let together = at_once(&|callers, user| {
        let (hand, header) = (Arc::clone(&hand), users[user].clone());
        let ask = async move { hand.passes(&header, hand.asks_with_others(user)).await };
        callers.spawn_on(ask, handle);
    });
    let connection = runtime.block_on(database.connection());
    let hash = database.cli(&["SCRIPT", "LOAD", "return 1"]);
    let evalsha = each(Box::new(|| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&hash).arg(1).arg("key").arg("argument");
        let one = runtime.block_on(call.query_async(&mut connection.clone()));
        assert_eq!(one, Ok(1));
    }));
    [
        lone - making,
        batch - waiting - making,
        alone - making,
        together - waiting - making,
        evalsha,
    ]
}

/// The least that a grant by a server takes: its keys are spelt already, its settings are of one
/// rule, and what is left behind is of the smallest types.
struct Hand {
    line: Line,
    rule: Rule,
    waiting: Mutex<Vec<(usize, oneshot::Sender<u64>)>>,
}

struct Line {
    connection: redis::aio::MultiplexedConnection,
    hash: String,
    keys: Vec<String>,
}

impl Line {
    async fn of(database: &Database) -> Self {
        let script = "if #KEYS == 1 then return 9 end local left = {} for at = 1, #KEYS do \
                      left[at] = 9 end return left";
        let key = |user| format!("ratelimit:{{user-{user:07}}}:floor~");
        Self {
            connection: database.connection().await,
            hash: database.cli(&["SCRIPT", "LOAD", script]),
            keys: (0..AT_ONCE).map(key).collect(),
        }
    }

    /// Asks for these users in one call, and answers each.
    async fn ask(&self, users: &[usize], mut answer: impl FnMut(usize, u64)) -> u64 {
        let mut call = redis::Cmd::with_capacity(users.len() + 4, 64 * users.len() + 128);
        call.arg("EVALSHA").arg(&self.hash).arg(users.len());
        for user in users {
            call.arg(&self.keys[*user]);
        }
        // As long as those of a decision are.
        call.arg(&[1_u8; 1000][..16 + 18 * users.len()]);
        let reply = call.query_async(&mut self.connection.clone()).await;
        match reply.unwrap() {
            redis::Value::Int(left) => left as u64,
            redis::Value::Array(all) => {
                let left = all
                    .into_iter()
                    .map(|left| redis::from_redis_value(left).unwrap());
                left.enumerate()
                    .for_each(|(place, left)| answer(place, left));
                0
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Hand {
    fn new(line: Line) -> Self {
        Self {
            line,
            rule: Rule::new("default", Limit::per_minute(1 << 40), Left::ALL),
            waiting: Mutex::default(),
        }
    }

    async fn passes(&self, user: &HeaderValue, ask: impl Future<Output = u64>) {
        let mut request = request(user);
        let (remaining, seconds) = (ask.await, 60);
        let decision = floors::Decision { remaining, seconds };
        self.rule.leave(decision, request.extensions_mut());
        let mut response = nothing().call(request).await.unwrap();
        self.rule.finish(decision, &mut response);
    }

    /// The last of all asks for all.
    async fn asks_with_others(&self, user: usize) -> u64 {
        let (answer, answered) = oneshot::channel();
        let all = {
            let mut waiting = self.waiting.lock().unwrap();
            waiting.push((user, answer));
            (waiting.len() == AT_ONCE).then(|| waiting.drain(..).unzip())
        };
        if let Some((users, answers)) = all {
            let (users, answers): (Vec<_>, Vec<_>) = (users, answers);
            let mut answers = answers.into_iter();
            let answer = |_, left| answers.next().unwrap().send(left).unwrap();
            self.line.ask(&users, answer).await;
        }
        answered.await.unwrap()
    }
}
