//! Counts the allocations of a request, and prints them in the order of `rows/allocations.rs`.
//!
//! A program of its own: counting takes time, which others measure.

#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod database;
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod requests;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use tokio::{runtime::Runtime, task::JoinSet};
use tower::{Layer, Service};
use tower_ratelimit::{Decision, Limit, RateLimitLayer, Source, redis};

use self::{
    database::{Database, patient},
    requests::{by_user, nothing, passes, request, users},
};

const REQUESTS: usize = 1000;
const AT_ONCE: usize = 50;

fn main() {
    let [deciding, answering, bare] = refusals();
    println!("{deciding} {} {bare}", deciding + answering);
    let [lone, batch, evalsha] = grants();
    println!("{lone} {batch} {evalsha}");
}

/// Everything happens on the thread that counts.
fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

fn layer(database: &Database, limit: Limit) -> RateLimitLayer {
    RateLimitLayer::new(
        &patient(&database.url()).build().unwrap(),
        limit.by(by_user()),
    )
}

/// Those of a refusal that is repeated from memory: where it is decided, and of its answer. Those
/// of the service without the layer.
fn refusals() -> [f64; 3] {
    let (runtime, database) = (runtime(), Database::start());
    let (user, layer) = (users(1)[0].clone(), layer(&database, Limit::per_hour(1)));
    let is_cached = |response: &http::Response<_>| {
        let decision = response.extensions().get::<Decision>();
        decision.is_some_and(|decision| decision.source() == Source::Cache)
    };
    let (mut counted, mut deciding, mut answering) = (0, 0, 0);
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
                deciding += first.count_total;
                answering += second.count_total;
            }
            Poll::Ready(_) => {}
            // Its second is over: Redis is asked again.
            Poll::Pending => drop(runtime.block_on(call)),
        }
    }
    let request = request(&user);
    let bare = measure(|| drop(runtime.block_on(nothing().call(request))));
    let each = |count: u64| count as f64 / REQUESTS as f64;
    [each(deciding), each(answering), bare.count_total as f64]
}

/// Those of a grant by a server, the connection's included, and making the request and its task
/// not: one at a time, and with others at once. Those of a bare EVALSHA.
fn grants() -> [f64; 3] {
    let (runtime, database) = (runtime(), Database::start());
    let (users, layer) = (users(AT_ONCE), layer(&database, Limit::per_minute(1 << 40)));
    let each = |mut call: Box<dyn FnMut() + '_>| {
        // The first brings the script.
        (0..2 * AT_ONCE).for_each(|_| call());
        let counted = measure(|| (0..REQUESTS).for_each(|_| call()));
        counted.count_total as f64 / REQUESTS as f64
    };
    let making = each(Box::new(|| drop(request(&users[0]))));
    let lone = each(Box::new(|| {
        assert!(runtime.block_on(passes(&layer, &users[0])));
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
        let ask = async move { assert!(passes(&layer, &user).await) };
        callers.spawn_on(ask, handle);
    });
    let connection = runtime.block_on(database.connection());
    let hash = database.cli(&["SCRIPT", "LOAD", "return 1"]);
    let evalsha = each(Box::new(|| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&hash).arg(5);
        for word in ["k1", "k2", "k3", "k4", "k5", "a1", "a2", "a3"] {
            call.arg(word);
        }
        let one = runtime.block_on(call.query_async(&mut connection.clone()));
        assert_eq!(one, Ok(1));
    }));
    [lone - making, batch - waiting - making, evalsha]
}
