//! A store, a clock that is moved, and random traffic.

use crate::scene::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;

use super::{guards::Guards, topologies::Topology, topologies::connected};

pub(crate) struct World<S> {
    pub(crate) store: S,
    pub(crate) clock: ManualClock,
    topology: Topology,
    runtime: Runtime,
}

impl World<MemoryStore> {
    pub(crate) fn memory() -> Self {
        Self::new(Topology::Tcp, async |clock| MemoryStore::new().clock(clock))
    }
}

impl World<RedisStore> {
    pub(crate) fn redis(guards: Guards) -> Self {
        Self::on(Topology::Tcp, guards)
    }

    fn on(topology: Topology, guards: Guards) -> Self {
        Self::new(topology, async |clock| {
            let store = topology.store().prefix(&unique("laws"));
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
    fn new(topology: Topology, store: impl AsyncFnOnce(ManualClock) -> S) -> Self {
        let clock = ManualClock::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        Self {
            store: runtime.block_on(store(clock.clone())),
            clock,
            topology,
            runtime,
        }
    }

    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// A limiter that nobody else has.
    pub(crate) async fn limiter(&self, limit: Limit) -> RateLimiter {
        let limiter = RateLimiter::new(&self.store, &unique("law")).expect("a name");
        assert!(limiter.try_set_rate(limit).await.expect("a store"));
        limiter
    }

    /// Milliseconds, by the clock.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).expect("a time of today")
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Sends the traffic, each request after its pause.
    pub(crate) async fn send(&self, limiter: &RateLimiter, traffic: &[Request]) -> Vec<Grant> {
        let mut grants = Vec::new();
        for request in traffic {
            self.advance(request.pause);
            if take(limiter, request.permits).await.is_ok() {
                grants.push(Grant {
                    at: self.now(),
                    permits: request.permits,
                });
            }
        }
        grants
    }
}

/// Ok if granted, else the announced wait in ms, rounded up; `None` where there is none.
pub(crate) async fn take(limiter: &RateLimiter, permits: u32) -> Result<(), Option<u64>> {
    let decision = limiter.try_acquire_many(permits).await.expect("a decision");
    wait_of(&decision)
}

pub(crate) fn wait_of(decision: &Decision) -> Result<(), Option<u64>> {
    assert!(matches!(decision.source(), Source::Store | Source::Cache));
    match decision {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(refusal) => {
            let wait = refusal.retry_after();
            assert_eq!(wait.is_none(), refusal.kind() == RefusalKind::AboveRate);
            // A store in memory tells it to the nanosecond.
            let millis = |wait: Duration| wait.as_nanos().div_ceil(1_000_000);
            Err(wait.map(|wait| u64::try_from(millis(wait)).expect("a wait")))
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) pause: u64,
    pub(crate) permits: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    pub(crate) permits: u32,
}

pub(crate) fn limit() -> impl Strategy<Value = Limit> {
    let interval = prop_oneof![
        1 => Just(1u64),
        1 => Just(7),
        2 => Just(100),
        4 => Just(1000),
        1 => Just(60_000)
    ];
    (1u64..12, interval)
        .prop_map(|(rate, interval)| Limit::new(rate, Duration::from_millis(interval)))
}

/// Traffic dense enough to be refused now and then, with requests up to a little above most rates.
pub(crate) fn traffic(limit: Limit, most: usize) -> impl Strategy<Value = Vec<Request>> {
    let interval = u64::try_from(limit.interval().as_millis()).expect("an interval");
    let pause = prop_oneof![
        4 => Just(0),
        8 => 0..=interval / 4 + 1,
        1 => Just(interval - 1),
        1 => Just(interval),
        1 => Just(interval + interval / 10),
    ];
    let request = (pause, prop_oneof![6 => 1u32..4, 1 => 1u32..14]);
    let request = request.prop_map(|(pause, permits)| Request { pause, permits });
    proptest::collection::vec(request, 1..most)
}

/// Checks a law that is an assertion about one random input.
pub(crate) fn check<I: std::fmt::Debug>(
    cases: u32,
    inputs: &impl Strategy<Value = I>,
    law: impl Fn(I),
) {
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

/// Checks a law on every kind of Redis and in every combination of guards: each pair has its part of the cases.
pub(crate) fn check_in_redis<I: std::fmt::Debug>(
    cases: u32,
    inputs: &impl Strategy<Value = I>,
    law: impl Fn(&World<RedisStore>, I),
) {
    let (topologies, guards) = (Topology::all(), Guards::all());
    let pairs = topologies.len().max(guards.len());
    let each = cases.div_ceil(u32::try_from(pairs).expect("a few"));
    let all = topologies.iter().cycle().zip(guards.iter().cycle());
    for (&topology, &guards) in all.take(pairs) {
        println!("{guards:?}");
        let world = World::on(topology, guards);
        check(each, inputs, |input| law(&world, input));
    }
}

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
