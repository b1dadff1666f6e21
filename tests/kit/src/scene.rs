//! What most tests are written with: the names they use, and the steps they take.

pub use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};
use std::{
    fmt::Debug,
    future::{Ready, poll_fn, ready},
};

pub use http::{HeaderMap, Request, Response, StatusCode, header};
pub use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
pub use tokio::task::{JoinSet, block_in_place};
pub use tower::{Layer, ServiceExt, service_fn};
#[cfg(feature = "test-util")]
pub use tower_ratelimit::testing::ManualClock;
pub use tower_ratelimit::{
    Algorithm, Clock, ConfigError, ConfigErrorKind, Decision, ErrorKind, ExpireWhen, FailurePolicy,
    Grant, Limit, MemoryStore, RateLimitBody, RateLimitLayer, RateLimiter, Refusal, RefusalKind,
    Rule, Source, Store, SystemClock, Tiers, TimeToLive,
    key::{
        ClientIp, Constant, FromExtension, FromHeader, KeyExtractor, PeerAddr, PeerIp, Route,
        Secret,
    },
    limit_by,
};
#[cfg(feature = "redis")]
pub use tower_ratelimit::{BreakerState, RedisStore, RedisStoreBuilder};
use tower_ratelimit::{Error, IntoRules, Rules};

pub use crate::{LONG, RedisServer, Reply, unique};

/// A second, and so long that nothing comes free on its own while a test runs.
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3600);

pub const fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}

pub const fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Returns a store whose decisions a busy machine does not turn into answers by policy.
#[cfg(feature = "redis")]
pub fn patient(url: impl AsRef<str>) -> RedisStoreBuilder {
    patiently(RedisStore::builder(url))
}

/// Returns a store that gives a call up at this deadline, over one connection for all of it: what
/// was sent is carried out in the end.
#[cfg(feature = "redis")]
pub fn hasty(url: impl AsRef<str>, deadline: Duration) -> RedisStoreBuilder {
    patient(url).deadline(deadline)
}

/// Returns a store of any topology that is as patient.
#[cfg(feature = "redis")]
pub fn patiently(store: RedisStoreBuilder) -> RedisStoreBuilder {
    let store = store.connect_timeout(LONG).response_timeout(LONG);
    store.deadline(LONG)
}

/// Returns a patient store on the server that tests share, with names of its own for the limiters
/// of rules; each refusal is the script's.
#[cfg(feature = "redis")]
pub fn shared_redis() -> RedisStoreBuilder {
    let store = patient(RedisServer::shared().url()).prefix(&unique("t"));
    store.deny_cache(Duration::ZERO)
}

/// Returns a patient store by a clock that is moved; it keeps refusals.
#[cfg(all(feature = "redis", feature = "test-util"))]
pub fn by_clock(server: &RedisServer, clock: &ManualClock) -> RedisStoreBuilder {
    patient(server.url()).client_clock(clock.clone())
}

/// Returns the same on the shared server, where the limiters of its rules are other tests' as well.
#[cfg(all(feature = "redis", feature = "test-util"))]
pub fn shared_by_clock(clock: &ManualClock) -> RedisStoreBuilder {
    by_clock(RedisServer::shared(), clock)
}

/// Returns a zone whose midnight is hours away: the server's clock, by which calendars count, is
/// not moved.
pub fn zone_by_day() -> &'static str {
    match SystemClock.now().as_secs() / 3600 % 24 {
        0..12 => "UTC",
        _ => "Pacific/Kiritimati",
    }
}

/// A store, and the end of what it does in the background.
pub trait Settles: Store + Clone {
    fn settled(&self) -> impl Future<Output = ()>;
}

impl Settles for MemoryStore {
    async fn settled(&self) {}
}

#[cfg(feature = "redis")]
impl Settles for RedisStore {
    async fn settled(&self) {
        self.close().await;
        assert_eq!(self.health().lost_receipts, 0);
    }
}

/// Asks until it holds; returns how long that took.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < LONG, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    began.elapsed()
}

/// Checks a law, which is an assertion about one input, with so many random ones.
pub fn check<I: Debug>(cases: u32, inputs: &impl Strategy<Value = I>, law: impl Fn(I)) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(inputs, |input| {
        law(input);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Awaits a scenario, which might otherwise never end.
pub async fn in_time(scenario: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(2 * LONG, scenario).await;
    ended.expect("it hangs");
}

/// Polls a future once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets all pending work go as far as it can.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Lets a future begin, and its command reach the socket. Its result is not awaited.
///
/// On a runtime of one thread, with the connection made: its task runs while this one yields.
pub async fn begin<F: Future + ?Sized>(mut future: Pin<&mut F>) {
    let pending = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(pending.await, "decided at once");
    settle().await;
}

/// A service that answers with nothing.
#[allow(
    clippy::needless_pass_by_value,
    reason = "services take their requests"
)]
pub fn serve<B>(request: Request<B>) -> Ready<Result<Response<String>, Infallible>> {
    ready(Ok(answer_to(&request, "")))
}

/// Returns a response with the decision on its request, for a test to read.
pub fn answer_to<B>(request: &Request<B>, body: &str) -> Response<String> {
    let mut response = Response::new(body.to_owned());
    if let Some(grant) = request.extensions().get::<Grant>() {
        let decision = Decision::Allow(grant.clone());
        response.extensions_mut().insert(decision);
    }
    response
}

/// Returns a layer of these rules.
pub fn layer_of(store: &impl Store, rules: impl IntoRules) -> RateLimitLayer {
    let layer = RateLimitLayer::builder(store).otherwise(rules);
    layer.build().unwrap()
}

/// Returns a layer with these rules and lists.
pub fn layer_by(store: &impl Store, rules: Rules) -> RateLimitLayer {
    RateLimitLayer::builder(store).rules(rules).build().unwrap()
}

/// Returns a request of this method and path, as `GET /`, with these fields.
pub fn asking(line: &str, fields: &[(&str, &str)]) -> Request<String> {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(String::new()).unwrap()
}

/// Sends a request through a layer to a service that answers with nothing.
pub async fn send<B>(
    layer: &RateLimitLayer,
    request: Request<B>,
) -> Response<RateLimitBody<String>> {
    let service = layer.layer(service_fn(serve));
    service.oneshot(request).await.unwrap()
}

/// Returns the decision on a request.
pub async fn decide<B>(layer: &RateLimitLayer, request: Request<B>) -> Decision {
    decision_of(&send(layer, request).await).clone()
}

pub fn decision_of<B>(answer: &Response<B>) -> &Decision {
    answer.extensions().get().expect("a decision")
}

#[track_caller]
pub fn granted(decision: Decision) -> Grant {
    match decision {
        Decision::Allow(grant) => grant,
        Decision::Deny(refusal) => panic!("{refusal:?}"),
    }
}

#[track_caller]
pub fn refused(decision: Decision) -> Refusal {
    match decision {
        Decision::Deny(refusal) => refusal,
        Decision::Allow(grant) => panic!("{grant:?}"),
    }
}

/// Returns the error, which is of this kind.
#[track_caller]
pub fn fails<T: Debug>(result: Result<T, Error>, kind: ErrorKind) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// Asserts that what was built is a mistake of this kind, whose text begins so.
#[track_caller]
pub fn mistake<T: Debug>(built: Result<T, ConfigError>, kind: ConfigErrorKind, said: &str) {
    let error = built.unwrap_err();
    assert_eq!(error.kind(), kind);
    assert!(error.to_string().starts_with(said), "{error}");
}

/// Returns the processor time of this thread in nanoseconds, as Linux counts it.
pub fn processor_time() -> u64 {
    // Linux counts it whenever it schedules.
    thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// Returns a runtime of this thread, for tests that choose when it runs.
pub fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Returns a new limiter whose limit is set.
pub async fn limited(store: &impl Store, limit: Limit) -> RateLimiter {
    let limiter = RateLimiter::new(store, &unique("orders")).unwrap();
    assert!(limiter.try_set_rate(limit).await.unwrap());
    limiter
}

pub async fn take(limiter: &RateLimiter, permits: u32) -> Grant {
    granted(limiter.try_acquire_many(permits).await.unwrap())
}

pub async fn free(limiter: &RateLimiter) -> u64 {
    limiter.available_permits().await.unwrap()
}

/// Returns how long until there is room; `None` where there is, and it is taken.
pub async fn wait(limiter: &RateLimiter, permits: u32) -> Option<Duration> {
    match limiter.try_acquire_many(permits).await.unwrap() {
        Decision::Allow(_) => None,
        Decision::Deny(refusal) => Some(refusal.retry_after().unwrap()),
    }
}

/// A way to count, in Redisson's format or in our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Log,
    /// A log with so many slots in each interval.
    Slots(u32),
    Window,
    OwnLog,
    OwnWindow,
    Gcra,
}

impl Way {
    pub const ALL: [Self; 6] = [
        Self::Log,
        Self::Slots(10),
        Self::Window,
        Self::OwnLog,
        Self::OwnWindow,
        Self::Gcra,
    ];
    /// Those whose limit a store has; of the others it is in the code alone.
    pub const STORED: [Self; 3] = [Self::Log, Self::Slots(10), Self::Window];
    /// Those of rules, and of whatever has its limit in the code.
    pub const OWN: [Self; 3] = [Self::OwnLog, Self::OwnWindow, Self::Gcra];

    /// Returns a new limiter of this limit.
    pub async fn limited(self, store: &impl Store, limit: Limit) -> RateLimiter {
        self.named(store, &unique("orders"), limit).await
    }

    /// Returns the limiter of this limit and this name, which has no limit yet. Where the limit is
    /// in the code, the name is a part of its own.
    pub async fn named(self, store: &impl Store, name: &str, limit: Limit) -> RateLimiter {
        if Self::OWN.contains(&self) {
            let limit = limit.named(name).algorithm(self.algorithm());
            return limit.keyed(store).unwrap().of(name);
        }
        let limiter = self.limiter(RateLimiter::new(store, name).unwrap());
        assert!(limiter.try_set_rate(limit).await.unwrap());
        limiter
    }

    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Log | Self::Slots(_) | Self::OwnLog => Algorithm::SlidingLog,
            Self::Window | Self::OwnWindow => Algorithm::FixedWindow,
            Self::Gcra => Algorithm::Gcra,
        }
    }

    pub fn limiter(self, limiter: RateLimiter) -> RateLimiter {
        match self {
            Self::Slots(slots) => limiter.slots(slots).unwrap(),
            _ => limiter.algorithm(self.algorithm()),
        }
    }

    /// Returns the rule counted so; in slots, if its store keeps all in Redisson's format.
    pub fn rule(self, rule: Rule) -> Rule {
        match self {
            Self::Slots(slots) => rule.slots(slots),
            _ => rule.algorithm(self.algorithm()),
        }
    }
}

/// Makes of each `async fn check(store: impl Store)` two tests, one for each store.
#[macro_export]
macro_rules! on_both_stores {
    ($($check:ident),+ $(,)?) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $check() {
                super::$check($crate::scene::MemoryStore::new()).await;
            })+
        }
        mod in_redis {
            $(#[tokio::test]
            async fn $check() {
                super::$check($crate::scene::shared_redis().build().unwrap()).await;
            })+
        }
    };
}
pub use on_both_stores;

/// The same for `async fn check(store: impl Settles, clock: ManualClock)`: the clock is moved.
#[macro_export]
macro_rules! on_both_by_a_clock {
    ($($check:ident),+ $(,)?) => {
        mod memory_by_a_clock {
            $(#[tokio::test]
            async fn $check() {
                let clock = $crate::scene::ManualClock::new();
                let store = $crate::scene::MemoryStore::builder().clock(clock.clone()).build();
                $crate::scene::in_time(super::$check(store, clock)).await;
            })+
        }
        mod redis_by_a_clock {
            $(#[tokio::test]
            async fn $check() {
                let clock = $crate::scene::ManualClock::new();
                let store = $crate::scene::shared_redis().client_clock(clock.clone());
                let check = super::$check(store.build().unwrap(), clock);
                $crate::scene::in_time(check).await;
            })+
        }
    };
}
pub use on_both_by_a_clock;

/// The same, also for a store whose rules count in Redisson's format.
#[macro_export]
macro_rules! on_all_by_a_clock {
    ($($check:ident),+ $(,)?) => {
        $crate::scene::on_both_by_a_clock!($($check),+);
        mod redisson_by_a_clock {
            $(#[tokio::test]
            async fn $check() {
                let clock = $crate::scene::ManualClock::new();
                let store = $crate::scene::shared_redis().client_clock(clock.clone());
                let check = super::$check(store.redisson().build().unwrap(), clock);
                $crate::scene::in_time(check).await;
            })+
        }
    };
}
pub use on_all_by_a_clock;

/// Returns what a grant took, of each limit in its order.
pub fn permits_taken(grant: &Grant) -> Vec<u32> {
    let taken = grant.limits().map(|limit| limit.taken());
    taken.filter(|permits| *permits > 0).collect()
}
