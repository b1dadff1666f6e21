//! A store, a clock that the test moves, and random traffic.

use super::kinds::Lawful;
use kit::{
    guards::Guards,
    scene::*,
    topologies::{Topology, connected},
};
use tokio::runtime::Runtime;

use super::plain::Plain;
use tower_ratelimit::backend::{Backend, BackendStore, Settings};

/// In nanoseconds.
pub(crate) const NANOSECOND: u64 = 1;
pub(crate) const MILLISECOND: u64 = 1_000_000;

pub(crate) struct World<S> {
    pub(crate) store: S,
    pub(crate) clock: ManualClock,
    /// The clock is moved by multiples of it
    pub(crate) unit: u64,
    topology: Topology,
    runtime: Runtime,
}

impl World<MemoryStore> {
    pub(crate) fn memory(unit: u64) -> Self {
        let store = async |clock| MemoryStore::builder().clock(clock).build();
        Self::new(Topology::Tcp, unit, store)
    }
}

impl World<BackendStore> {
    /// A store of one's own, with a value for each limiter.
    pub(crate) fn backend(unit: u64) -> Self {
        Self::new(Topology::Tcp, unit, async |clock| {
            backend(Plain::default(), clock)
        })
    }
}

/// Returns a store of one's own that a busy machine does not make late.
pub(crate) fn backend(backend: impl Backend, clock: impl Clock) -> BackendStore {
    let settings = Settings {
        deadline: secs(20),
        clock: Some(Arc::new(clock)),
        ..Settings::default()
    };
    BackendStore::new(backend, settings).expect("settings")
}

impl World<RedisStore> {
    pub(crate) fn redis(guards: Guards) -> Self {
        Self::of(Topology::Tcp, guards, |store| store)
    }

    fn of(
        topology: Topology,
        guards: Guards,
        with: impl Fn(RedisStoreBuilder) -> RedisStoreBuilder,
    ) -> Self {
        Self::new(topology, MILLISECOND, async |clock| {
            let store = with(topology.store().prefix(&unique("laws")));
            connected(guards.put_on(store.client_clock(clock))).await
        })
    }

    /// The server that holds the keys of a limiter, to look at them by hand.
    pub(crate) fn server_of(&self, limiter: &RateLimiter) -> &'static RedisServer {
        self.topology.server_of(limiter.name())
    }
}

/// A store whose decisions a busy machine does not turn into answers by policy.
pub(crate) fn redis_store(guards: Guards) -> RedisStore {
    guards.put_on(Topology::Tcp.store().prefix(&unique("laws")))
}

impl<S: Store> World<S> {
    fn new(topology: Topology, unit: u64, store: impl AsyncFnOnce(ManualClock) -> S) -> Self {
        let (clock, runtime) = (ManualClock::new(), runtime());
        Self {
            store: runtime.block_on(store(clock.clone())),
            clock,
            unit,
            topology,
            runtime,
        }
    }

    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Returns a limiter that no other test uses.
    pub(crate) async fn limiter(&self, limit: Limit) -> RateLimiter {
        self.limiter_of(Way::Log, limit).await
    }

    pub(crate) async fn limiter_of(&self, kind: Way, limit: Limit) -> RateLimiter {
        kind.of(&self.store, &unique("law"), limit).await
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Sends the traffic, each request after its pause.
    pub(crate) async fn send(&self, limiter: &RateLimiter, traffic: &[Request]) -> Vec<Grant> {
        let mut grants = Vec::new();
        for request in traffic {
            self.advance(request.pause);
            if take(limiter, request.permits).await.is_ok() {
                grants.push(self.grant(request.permits));
            }
        }
        grants
    }

    /// A grant of now.
    pub(crate) fn grant(&self, permits: u32) -> Grant {
        let at = self.now();
        Grant { at, permits }
    }
}

/// Ok if granted, else the announced wait; `None` where there is none.
pub(crate) async fn take(limiter: &RateLimiter, permits: u32) -> Result<(), Option<Duration>> {
    let decision = limiter.try_acquire_many(permits).await.expect("a decision");
    wait_of(&decision)
}

pub(crate) fn wait_of(decision: &Decision) -> Result<(), Option<Duration>> {
    assert!(matches!(decision.source(), Source::Store | Source::Cache));
    match decision {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(refusal) => {
            let wait = refusal.retry_after();
            assert_eq!(wait.is_none(), refusal.kind() == RefusalKind::AboveRate);
            Err(wait)
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) pause: Duration,
    pub(crate) permits: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) at: Duration,
    pub(crate) permits: u32,
}

pub(crate) fn limit() -> impl Strategy<Value = Limit> {
    let interval = prop_oneof![
        2 => proptest::sample::select(&[1u64, 2, 3, 7, 10, 15, 101][..]),
        2 => Just(100),
        4 => Just(1000),
        1 => Just(60_000)
    ];
    let rate = prop_oneof![8 => 1u64..12, 1 => Just(100)];
    (rate, interval).prop_map(|(rate, interval)| Limit::new(rate, millis(interval)))
}

/// Traffic dense enough to be refused now and then, with requests up to a little above most rates.
/// Its pauses are multiples of `unit`.
pub(crate) fn traffic(limit: Limit, unit: u64, most: usize) -> impl Strategy<Value = Vec<Request>> {
    let interval = nanos(limit.interval()) / unit;
    // About a microsecond, which a store in memory counts by.
    let near = if unit < MILLISECOND { 2000 } else { 1 };
    let pause = prop_oneof![
        4 => Just(0),
        2 => 0..=near,
        8 => 0..=interval / 4 + 1,
        2 => interval - near..=interval + near,
        1 => Just(interval + interval / 10),
        1 => Just(interval + MILLISECOND / unit - 1),
    ];
    let whole = u32::try_from(limit.permits()).expect("a small limit");
    let permits = prop_oneof![6 => 1u32..4, 1 => 1u32..14, 1 => 1..=whole];
    let request = (pause, permits).prop_map(move |(pause, permits)| Request {
        pause: Duration::from_nanos(pause * unit),
        permits,
    });
    proptest::collection::vec(request, 1..most)
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a time of today")
}

/// A limit, and traffic for it.
pub(crate) fn histories(unit: u64) -> impl Strategy<Value = (Limit, Vec<Request>)> {
    limit().prop_flat_map(move |limit| (Just(limit), traffic(limit, unit, 60)))
}

/// A limit, the traffic before, a request, and where before its wait to probe (in thousandths).
pub(crate) type Probed = (Limit, Vec<Request>, u32, Vec<u32>);

pub(crate) fn probed(unit: u64) -> impl Strategy<Value = Probed> {
    histories(unit).prop_flat_map(|(limit, traffic)| {
        let request = 1..=u32::try_from(limit.permits()).expect("a small limit");
        let probes = proptest::collection::vec(0u32..1000, 3);
        (Just(limit), Just(traffic), request, probes)
    })
}

/// L2 and L3: refused at every instant before the announced one, and no refusal takes anything.
///
/// Ends at that instant. Returns the wait and the permits that were free meanwhile; `None` if the
/// request was granted.
pub(crate) async fn refused_until<S: Store>(
    world: &World<S>,
    limiter: &RateLimiter,
    rate: u64,
    permits: u32,
    probes: &[u32],
) -> Option<(Duration, Vec<u64>)> {
    let begun = world.now();
    let wait = take(limiter, permits).await.err()?;
    let wait = wait.expect("no more than the rate is asked for");
    assert!(!wait.is_zero());
    let whole = |time| Duration::from_nanos(time / world.unit * world.unit);
    let part = |part: &u32| whole(nanos(wait * *part / 1000));
    let mut instants: Vec<_> = probes.iter().map(part).collect();
    instants.push(whole(nanos(wait) - 1));
    instants.sort_unstable();
    let mut seen = Vec::new();
    for instant in instants {
        world.advance(begun + instant - world.now());
        let before = free(limiter).await;
        seen.push(before);
        assert!(before < u64::from(permits));
        let refused = take(limiter, permits).await;
        assert_eq!(
            refused,
            Err(Some(wait - instant)),
            "{instant:?} of {wait:?}"
        );
        let above = u32::try_from(rate).expect("a small limit") + 1;
        assert_eq!(take(limiter, above).await, Err(None));
        assert_eq!(free(limiter).await, before);
    }
    let due = nanos(wait).div_ceil(world.unit) * world.unit;
    world.advance(begun + Duration::from_nanos(due) - world.now());
    Some((wait, seen))
}

/// Checks a law on every kind of Redis and in every combination of guards. Each pair has a share of
/// the cases, and all go at once: a receipt may be sent again a second later, which is waited for.
pub(crate) fn check_in_redis<I: std::fmt::Debug>(
    cases: u32,
    inputs: &(impl Strategy<Value = I> + Sync),
    law: impl Fn(&World<RedisStore>, I) + Sync,
) {
    check_in_redis_with(cases, |store| store, inputs, law);
}

/// Does the same with something else about the stores.
pub(crate) fn check_in_redis_with<I: std::fmt::Debug>(
    cases: u32,
    with: impl Fn(RedisStoreBuilder) -> RedisStoreBuilder + Sync,
    inputs: &(impl Strategy<Value = I> + Sync),
    law: impl Fn(&World<RedisStore>, I) + Sync,
) {
    let (topologies, guards) = (Topology::all(), Guards::all());
    let pairs = topologies.len().max(guards.len());
    let each = cases.div_ceil(u32::try_from(pairs).expect("a few"));
    let all = topologies.iter().cycle().zip(guards.iter().cycle());
    let check_on = |topology, guards| {
        println!("{guards:?}");
        let world = World::of(topology, guards, &with);
        check(each, inputs, |input| law(&world, input));
    };
    thread::scope(|scope| {
        for (&topology, &guards) in all.take(pairs) {
            scope.spawn(move || check_on(topology, guards));
        }
    });
}

/// Makes of a law a test on each of these stores, of so many cases by each way. What stands in bars
/// names the world, the way and the input.
macro_rules! law {
    ($input:expr, |$world:ident, $way:pat_param, $in:ident| $law:expr;
     $($store:ident: $cases:literal by $ways:expr),+ $(,)?) => {
        $(#[test]
        fn $store() {
            for $way in $ways {
                $crate::world::law!(@$store $cases, $input, $world, $in, $law);
            }
        })+
    };
    (@in_memory $($of:tt)+) => { $crate::world::law!(@of memory(MILLISECOND), $($of)+) };
    (@in_memory_by_nanoseconds $($of:tt)+) => { $crate::world::law!(@of memory(NANOSECOND), $($of)+) };
    (@in_a_store_of_ones_own $($of:tt)+) => { $crate::world::law!(@of backend(MILLISECOND), $($of)+) };
    (@in_redis $($of:tt)+) => { $crate::world::law!(@with |store| store, $($of)+) };
    (@in_redissons_format $($of:tt)+) => { $crate::world::law!(@with |store| store.redisson(), $($of)+) };
    (@of $new:ident($unit:ident), $cases:expr, $input:expr, $world:ident, $in:ident, $law:expr) => {
        let $world = &$crate::world::World::$new($crate::world::$unit);
        check($cases, &$input, |$in| $law);
    };
    (@with $with:expr, $cases:expr, $input:expr, $world:ident, $in:ident, $law:expr) => {
        $crate::world::check_in_redis_with($cases, $with, &$input, |$world, $in| $law);
    };
}
pub(crate) use law;

/// Does the same in every combination of guards, all at once: what takes real time.
pub(crate) async fn in_all_at_once<F>(test: impl Fn(Guards) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let tests: Vec<_> = (Guards::all().into_iter())
        .map(|guards| (guards, tokio::spawn(test(guards))))
        .collect();
    for (guards, test) in tests {
        assert!(test.await.is_ok(), "{guards:?}");
    }
}
