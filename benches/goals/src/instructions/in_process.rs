//! The rows of one process: a request through the whole layer, and the yardsticks beside it.

use std::{
    convert::Infallible,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode};
use tokio::{runtime::Runtime, task::JoinSet};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{
    Algorithm, Decision, Limit, MemoryStore, RateLimitLayer, RedisStore, Source,
};

use crate::{
    governor::Direct,
    requests::{by_user, nothing, request, users},
    support::RedisServer,
};

/// How many requests are counted.
pub(crate) const REQUESTS: usize = 2000;
const MANY: usize = 100_000;
/// Shares no divisor with the number of keys: the requests come to different ones, and no two
/// neighbours do.
const STRIDE: usize = 61_803;

/// Never reached, and soon forgotten: the log holds the grants of the last ten milliseconds.
const AMPLE: Limit = Limit::new(1 << 40, Duration::from_millis(10));
/// As fast as GCRA counts, and more at once than a row asks for.
const FASTEST: Limit = Limit::new(60_000_000, Duration::from_secs(60));
const HOURLY: Limit = Limit::per_hour(1);
/// So much that leases grow until one suffices for all requests of a row, and that none expires.
const LEASED: Limit = Limit::per_hour(1 << 30);

/// Longer than anything takes here, where every instruction is counted.
const DEADLINE: Duration = Duration::from_secs(60);

/// A row, and how its requests are made.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    begin: fn(&Runtime) -> Asker,
}

/// The requests of a row, with the server that must outlive them.
struct Asker {
    status: StatusCode,
    /// Makes one request, and drops its answer.
    ask: Box<dyn FnMut() -> StatusCode>,
    /// How many requests come before those that are counted.
    before: usize,
    _server: Option<RedisServer>,
}

pub(crate) const ROWS: [Row; 12] = [
    Row {
        name: "bare service",
        begin: |_| asker(nothing(), 1, StatusCode::OK),
    },
    Row {
        name: "governor, admitted",
        begin: |_| governor(u32::MAX, Duration::from_nanos(1), StatusCode::OK),
    },
    Row {
        name: "governor, refused",
        begin: |_| governor(1, Duration::from_secs(3600), StatusCode::TOO_MANY_REQUESTS),
    },
    Row {
        name: "admitted, GCRA",
        begin: |_| memory(FASTEST, Algorithm::Gcra, 1, true),
    },
    Row {
        name: "admitted, GCRA, 100,000 keys",
        begin: |_| memory(FASTEST, Algorithm::Gcra, MANY, true),
    },
    Row {
        name: "admitted, sliding log",
        begin: |_| memory(AMPLE, Algorithm::SlidingLog, 1, true),
    },
    Row {
        name: "refused, GCRA, without fields",
        begin: |_| memory(HOURLY, Algorithm::Gcra, 1, false),
    },
    Row {
        name: "refused, GCRA",
        begin: |_| memory(HOURLY, Algorithm::Gcra, 1, true),
    },
    Row {
        name: "refused, deny cache",
        begin: deny_cache,
    },
    Row {
        name: "admitted, lease",
        begin: lease,
    },
    Row {
        name: "admitted, Redis",
        begin: |_| redis(1),
    },
    Row {
        name: "admitted, Redis, 50 keys at once",
        begin: |_| redis(50),
    },
];

/// Counts a row: this process runs under callgrind, which collects in [`counted_requests`] alone.
pub(crate) fn count(row: &Row) {
    // Everything happens on this thread, which does nothing else while it counts.
    let runtime = one_thread();
    let mut asker = (row.begin)(&runtime);
    let _inside = runtime.enter();
    for _ in 0..asker.before {
        (asker.ask)();
    }
    let unexpected = counted_requests(&mut *asker.ask, asker.status);
    assert_eq!(unexpected, 0, "answers other than {}", asker.status);
}

fn one_thread() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

/// Makes the requests that are counted: callgrind knows it by its name.
#[inline(never)]
fn counted_requests(ask: &mut dyn FnMut() -> StatusCode, status: StatusCode) -> usize {
    (0..REQUESTS).filter(|_| ask() != status).count()
}

/// Asks for each of so many keys in turn.
fn asker<S, B>(mut service: S, keys: usize, status: StatusCode) -> Asker
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + 'static,
{
    let users = users(keys);
    let mut place = 0;
    Asker {
        status,
        ask: Box::new(move || {
            place = (place + STRIDE) % users.len();
            ask(&mut service, &users[place])
        }),
        // Each key has been seen, and values that are made once are made.
        before: keys.max(64),
        _server: None,
    }
}

/// Asks once. Nothing that is counted waits: it is answered when it is polled first.
fn ask<S, B>(service: &mut S, user: &HeaderValue) -> StatusCode
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(())) = service.poll_ready(&mut context) else {
        panic!("the service is not ready");
    };
    let answer = pin!(service.call(request(user))).poll(&mut context);
    let Poll::Ready(Ok(response)) = answer else {
        panic!("a request waits for a server");
    };
    response.status()
}

fn governor(burst: u32, refill: Duration, status: StatusCode) -> Asker {
    asker(Direct::new(nothing(), burst, refill), 1, status)
}

fn memory(limit: Limit, algorithm: Algorithm, keys: usize, fields: bool) -> Asker {
    let store = MemoryStore::new().max_limiters(2 * keys);
    // No limiter is forgotten, however slow the machine is.
    let kept = limit.keep_alive(Duration::from_secs(86_400)).unwrap();
    let mut layer =
        RateLimitLayer::builder(&store).otherwise(kept.by(by_user()).algorithm(algorithm));
    if !fields {
        layer = layer.headers([]);
    }
    let status = if limit == HOURLY {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    asker(layer.build().unwrap().layer(nothing()), keys, status)
}

/// Grants by a server, so many at a time, each of another user: what they cost its client.
fn redis(at_once: usize) -> Asker {
    let server = RedisServer::start();
    let layer = RateLimitLayer::new(&store(&server, Duration::ZERO), LEASED.by(by_user()));
    // Of its own: the one that counts is entered, and drives nothing.
    let runtime = one_thread();
    let (service, users, mut place) = (layer.layer(nothing()), users(100), 0);
    let mut answers = Vec::new();
    Asker {
        status: StatusCode::OK,
        // The first asks for those that follow, too.
        ask: Box::new(move || {
            if at_once == 1 {
                place = (place + 1) % users.len();
                let answer = service.clone().oneshot(request(&users[place]));
                return runtime.block_on(answer).unwrap().status();
            }
            if answers.is_empty() {
                let mut callers = JoinSet::new();
                for _ in 0..at_once {
                    place = (place + 1) % users.len();
                    let answer = service.clone().oneshot(request(&users[place]));
                    callers.spawn_on(answer, runtime.handle());
                }
                let all = runtime.block_on(callers.join_all());
                answers.extend(all.into_iter().map(|answer| answer.unwrap().status()));
            }
            answers.pop().unwrap()
        }),
        // Each limiter is there, and its script is known.
        before: 200,
        _server: Some(server),
    }
}

/// A refusal that is repeated from memory for as long as there can be one.
fn deny_cache(runtime: &Runtime) -> Asker {
    let server = RedisServer::start();
    let store = store(&server, Duration::from_secs(60));
    let layer = RateLimitLayer::new(&store, HOURLY.by(by_user()));
    runtime.block_on(async { while source(&layer).await != Source::Cache {} });
    of_redis(server, &layer, StatusCode::TOO_MANY_REQUESTS)
}

/// Grants out of a lease that has just begun, and is large enough for all requests.
fn lease(runtime: &Runtime) -> Asker {
    let server = RedisServer::start();
    let store = store(&server, Duration::ZERO);
    let rule = LEASED.by(by_user()).lease(LEASED.interval() / 10);
    let layer = RateLimitLayer::new(&store, rule);
    runtime.block_on(async {
        let mut granted = 0;
        // One that is used up is followed by a larger one.
        while granted < 2 * REQUESTS {
            granted = 0;
            while source(&layer).await == Source::Lease {
                granted += 1;
            }
        }
    });
    of_redis(server, &layer, StatusCode::OK)
}

fn store(server: &RedisServer, deny_cache: Duration) -> RedisStore {
    RedisStore::builder(server.url())
        .deadline(DEADLINE)
        .response_timeout(DEADLINE)
        .deny_cache(deny_cache)
        .build()
        .unwrap()
}

/// Asks once, and returns where the decision came from.
async fn source(layer: &RateLimitLayer) -> Source {
    let user = &users(1)[0];
    let response = layer.layer(nothing()).oneshot(request(user)).await.unwrap();
    response.extensions().get::<Decision>().unwrap().source()
}

fn of_redis(server: RedisServer, layer: &RateLimitLayer, status: StatusCode) -> Asker {
    Asker {
        _server: Some(server),
        ..asker(layer.layer(nothing()), 1, status)
    }
}
