//! Scenes of one process: a request through the whole layer, and the yardsticks beside it.

use std::{
    convert::Infallible,
    hint::black_box,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{runtime::Runtime, task::JoinSet};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, Limit, MemoryStore, RateLimitLayer, RateLimitLayerBuilder, RedisStore,
    RedisStoreBuilder, Rule, Source, observe::Metrics, redis,
};

use crate::{
    floors::{Count, Gcra, Hand, Lease, Left, Log, limited},
    governor::Direct,
    requests::{by_user, decide, nothing, one_thread, request, users},
};
use kit::RedisServer;

/// How many requests are counted.
pub(crate) const REQUESTS: usize = 2000;
pub(crate) const MANY: usize = 100_000;
/// Shares no divisor with the number of keys: the requests come to different ones, and no two
/// neighbours do.
const STRIDE: usize = 61_803;

/// Never reached, and soon forgotten: the log holds the grants of the last ten milliseconds.
pub(crate) const AMPLE: Limit = Limit::new(1 << 40, Duration::from_millis(10));
/// As fast as GCRA counts, and more at once than a row asks for.
pub(crate) const FASTEST: Limit = Limit::new(60_000_000, Duration::from_secs(60));
const HOURLY: Limit = Limit::per_hour(1);
/// So much that leases grow until one suffices for all requests of a row, and that none expires.
const LEASED: Limit = Limit::per_hour(1 << 30);

/// The name of a rule that has none
const RULE: &str = "default";
/// Longer than anything takes here, where every instruction is counted.
const DEADLINE: Duration = Duration::from_secs(60);

/// A scene, and how its requests are made.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// Takes how many requests will be made.
    pub(crate) begin: fn(&Runtime, usize) -> Asker,
}

/// The requests of a scene, with the server that must outlive them.
pub(crate) struct Asker {
    pub(crate) status: StatusCode,
    /// Makes one request, and drops its answer.
    pub(crate) ask: Box<dyn FnMut() -> StatusCode>,
    /// How many requests come before those that are counted.
    pub(crate) before: usize,
    _server: Option<RedisServer>,
}

const fn scene(name: &'static str, begin: fn(&Runtime, usize) -> Asker) -> Scene {
    Scene { name, begin }
}

#[rustfmt::skip]
pub(crate) const SCENES: [Scene; 33] = [
    scene("bare service", |_, _| asker(nothing(), 1, StatusCode::OK)),
    scene("by hand, extension and fields", |_, _| by_hand()),
    scene("by hand, admitted, GCRA", |_, _| floor::<Gcra>(FASTEST, 1, Left::ALL)),
    scene("by hand, admitted, GCRA, without fields", |_, _| {
        floor::<Gcra>(FASTEST, 1, Left::NO_FIELDS)
    }),
    scene("by hand, admitted, GCRA, 100,000 keys", |_, _| floor::<Gcra>(FASTEST, MANY, Left::ALL)),
    scene("by hand, admitted, sliding log", |_, _| floor::<Log>(AMPLE, 1, Left::ALL)),
    scene("by hand, admitted, sliding log, 100,000 keys", |_, _| {
        floor::<Log>(AMPLE, MANY, Left::ALL)
    }),
    scene("by hand, refused, without fields", |_, _| floor::<Gcra>(HOURLY, 1, Left::NO_FIELDS)),
    scene("by hand, refused", |_, _| floor::<Gcra>(HOURLY, 1, Left::ALL)),
    scene("by hand, refused, 100,000 keys", |_, _| floor::<Gcra>(HOURLY, MANY, Left::ALL)),
    scene("by hand, admitted, lease", |_, _| floor::<Lease>(LEASED, 1, Left::ALL)),
    scene("by hand, EVALSHA of `return 1` by redis-rs", |_, _| evalsha()),
    scene("governor, admitted", |_, _| governor(u32::MAX, Duration::from_nanos(1), StatusCode::OK)),
    scene("governor, refused", |_, _| {
        governor(1, Duration::from_secs(3600), StatusCode::TOO_MANY_REQUESTS)
    }),
    scene("admitted, GCRA", |_, _| memory(FASTEST, Algorithm::Gcra, 1, |layer| layer)),
    scene("admitted, GCRA, decision in the response", |_, _| {
        memory(FASTEST, Algorithm::Gcra, 1, |layer| layer.decision_in_response())
    }),
    scene("admitted, GCRA, without fields", |_, _| {
        memory(FASTEST, Algorithm::Gcra, 1, |layer| layer.headers([]))
    }),
    scene("admitted, GCRA, 100,000 keys", |_, _| {
        memory(FASTEST, Algorithm::Gcra, MANY, |layer| layer)
    }),
    scene("admitted, fixed window", |_, _| memory(AMPLE, Algorithm::FixedWindow, 1, |layer| layer)),
    scene("admitted, sliding log", |_, _| memory(AMPLE, Algorithm::SlidingLog, 1, |layer| layer)),
    scene("admitted, list of three limits", |_, _| three_limits()),
    scene("admitted, sliding log, 100,000 keys", |_, _| {
        memory(AMPLE, Algorithm::SlidingLog, MANY, |layer| layer)
    }),
    scene("refused, GCRA, without fields", |_, _| {
        memory(HOURLY, Algorithm::Gcra, 1, |layer| layer.headers([]))
    }),
    scene("refused, GCRA", |_, _| memory(HOURLY, Algorithm::Gcra, 1, |layer| layer)),
    scene("refused, GCRA, 100,000 keys", |_, _| {
        memory(HOURLY, Algorithm::Gcra, MANY, |layer| layer)
    }),
    scene("refused, deny cache, no observer", |runtime, _| {
        deny_cache(runtime, |store| store.summary(None))
    }),
    scene("refused, deny cache", |runtime, _| deny_cache(runtime, |store| store)),
    scene("refused, deny cache, metrics", |runtime, _| {
        deny_cache(runtime, |store| store.observe(counting()))
    }),
    scene("admitted, lease", lease),
    scene("admitted, Redis", |_, _| by_redis(LEASED.by(by_user()), 100, 1)),
    scene("admitted, Redis, 50 keys at once", |_, _| by_redis(LEASED.by(by_user()), 100, 50)),
    scene("admitted, Redis, 50 keys at once, leases do not pay", |_, _| {
        by_redis(unleased(), 100, 50)
    }),
    scene("admitted, Redis, 50 at once on a key", |_, _| by_redis(LEASED.by(by_user()), 1, 50)),
];

/// Counts a scene: this process runs under callgrind, which collects in [`counted_requests`] alone.
pub(crate) fn count(scene: &Scene) {
    // Everything happens on this thread, which does nothing else while it counts.
    let runtime = one_thread();
    let mut asker = (scene.begin)(&runtime, REQUESTS);
    let _inside = runtime.enter();
    for _ in 0..asker.before {
        (asker.ask)();
    }
    let unexpected = counted_requests(&mut *asker.ask, asker.status);
    assert_eq!(unexpected, 0, "answers other than {}", asker.status);
}

/// Makes the requests that are counted: callgrind knows it by its name.
#[inline(never)]
fn counted_requests(ask: &mut dyn FnMut() -> StatusCode, status: StatusCode) -> usize {
    (0..REQUESTS).filter(|_| ask() != status).count()
}

/// Asks for each of so many keys in turn.
pub(crate) fn asker<S, B>(mut service: S, keys: usize, status: StatusCode) -> Asker
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

pub(crate) fn memory(
    limit: Limit,
    algorithm: Algorithm,
    keys: usize,
    set: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
) -> Asker {
    let store = MemoryStore::builder().max_limiters(2 * keys).build();
    // No limiter is forgotten for two minutes.
    let rule = limit.by(by_user()).algorithm(algorithm);
    let layer = set(RateLimitLayer::builder(&store).otherwise(rule));
    asker(
        layer.build().unwrap().layer(nothing()),
        keys,
        status_by(limit),
    )
}

fn status_by(limit: Limit) -> StatusCode {
    if limit == HOURLY {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    }
}

/// The least that a row's promise costs.
fn floor<C: Count>(limit: Limit, keys: usize, left: Left) -> Asker {
    let hand = Hand::<C>::new(RULE, limit, left);
    asker(limited(nothing(), hand), keys, status_by(limit))
}

/// What a layer leaves behind for others, and nothing else: no key, no name, no limit. A grant of
/// the same size is in the extensions of the request; a field is copied, and one is shared.
fn by_hand() -> Asker {
    #[derive(Clone)]
    #[allow(dead_code, reason = "a handler would read it")]
    struct Grant(Arc<[u64; 46]>, u64);
    let mut inner = nothing();
    let policy = HeaderValue::from_bytes(b"\"default\";q=60000000;w=60").unwrap();
    let service = service_fn(move |mut request: Request<()>| {
        let grant = Arc::new(black_box([1; 46]));
        let (left, policy) = (black_box(b"\"default\";r=59999999;t=1"), policy.clone());
        let in_request = Grant(Arc::clone(&grant), 0);
        request.extensions_mut().insert(in_request);
        let response = inner.call(request);
        async move {
            let mut response = response.await?;
            let headers = response.headers_mut();
            headers.append("ratelimit", HeaderValue::from_bytes(left).unwrap());
            headers.append("ratelimit-policy", policy);
            // Until the response is over.
            drop(grant);
            Ok(response)
        }
    });
    asker(service, 1, StatusCode::OK)
}

/// Three limits that each request is charged for, together or not at all.
fn three_limits() -> Asker {
    let rule = |name| {
        let limit = FASTEST.by(by_user()).named(name);
        limit.algorithm(Algorithm::Gcra)
    };
    let layer = RateLimitLayer::builder(&MemoryStore::new());
    let layer = layer.otherwise(["a", "b", "c"].map(rule));
    asker(layer.build().unwrap().layer(nothing()), 1, StatusCode::OK)
}

/// A call that a decision by a server cannot do without, by the client alone, one at a time.
fn evalsha() -> Asker {
    let (server, runtime) = (RedisServer::start(), one_thread());
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = runtime
        .block_on(client.get_multiplexed_async_connection())
        .unwrap();
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg("return 1");
    let hash: String = runtime.block_on(load.query_async(&mut connection)).unwrap();
    Asker {
        status: StatusCode::OK,
        ask: Box::new(move || {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&hash)
                .arg(1)
                .arg("ratelimit:{user-0000000}:floor~");
            call.arg(&[1_u8; 34][..]);
            let one: i64 = runtime.block_on(call.query_async(&mut connection)).unwrap();
            assert_eq!(one, 1);
            StatusCode::OK
        }),
        before: 200,
        _server: Some(server),
    }
}

/// Grants by a server to so many users in turn, so many at a time: what they cost its client.
fn by_redis(rule: Rule, keys: usize, at_once: usize) -> Asker {
    let server = RedisServer::start();
    let store = store(&server, Duration::ZERO).build().unwrap();
    let layer = RateLimitLayer::new(&store, rule);
    // Of its own: the one that counts is entered, and drives nothing.
    let runtime = one_thread();
    let (service, users, mut place) = (layer.layer(nothing()), users(keys), 0);
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

/// A rule that leases, and leaves too few permits for any: an eighth of them would have to serve
/// four callers.
fn unleased() -> Rule {
    let limit = Limit::per_hour(31);
    limit.by(by_user()).lease(limit.interval() / 10)
}

/// A refusal that is repeated from memory for as long as there can be one.
fn deny_cache(
    runtime: &Runtime,
    observed: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder,
) -> Asker {
    let server = RedisServer::start();
    let store = observed(store(&server, Duration::from_secs(60)))
        .build()
        .unwrap();
    let layer = RateLimitLayer::new(&store, HOURLY.by(by_user()));
    runtime.block_on(async { while source(&layer).await != Source::Cache {} });
    of_redis(server, &layer, StatusCode::TOO_MANY_REQUESTS)
}

/// Counts by the recorder of Prometheus, as services do.
fn counting() -> Arc<Metrics> {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| PrometheusBuilder::new().install_recorder().unwrap());
    Arc::new(Metrics::new())
}

/// Grants out of a lease that has just begun, and is large enough for all requests.
fn lease(runtime: &Runtime, requests: usize) -> Asker {
    let server = RedisServer::start();
    let store = store(&server, Duration::ZERO).build().unwrap();
    let rule = LEASED.by(by_user()).lease(LEASED.interval() / 10);
    let layer = RateLimitLayer::new(&store, rule);
    runtime.block_on(async {
        let mut granted = 0;
        // One that is used up is followed by a larger one.
        while granted < 2 * requests {
            granted = 0;
            while source(&layer).await == Source::Lease {
                granted += 1;
            }
        }
    });
    of_redis(server, &layer, StatusCode::OK)
}

fn store(server: &RedisServer, deny_cache: Duration) -> RedisStoreBuilder {
    RedisStore::builder(server.url())
        .deadline(DEADLINE)
        .connect_timeout(DEADLINE)
        .response_timeout(DEADLINE)
        .deny_cache(deny_cache)
}

/// Asks once, and returns where the decision came from.
async fn source(layer: &RateLimitLayer) -> Source {
    decide(layer, &users(1)[0]).await.source()
}

fn of_redis(server: RedisServer, layer: &RateLimitLayer, status: StatusCode) -> Asker {
    Asker {
        _server: Some(server),
        ..asker(layer.layer(nothing()), 1, status)
    }
}
