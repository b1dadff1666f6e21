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

    /// Returns a limiter that no other test uses.
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
    let interval = interval_of(limit);
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

/// A limit, and traffic for it.
pub(crate) fn histories() -> impl Strategy<Value = (Limit, Vec<Request>)> {
    limit().prop_flat_map(|limit| (Just(limit), traffic(limit, 60)))
}

/// A limit, the traffic before, a request, and where before its wait to probe (in thousandths).
pub(crate) type Probed = (Limit, Vec<Request>, u32, Vec<u64>);

pub(crate) fn probed() -> impl Strategy<Value = Probed> {
    histories().prop_flat_map(|(limit, traffic)| {
        let request = 1..=u32::try_from(limit.permits()).expect("a small limit");
        let probes = proptest::collection::vec(0u64..1000, 3);
        (Just(limit), Just(traffic), request, probes)
    })
}

pub(crate) fn interval_of(limit: Limit) -> u64 {
    u64::try_from(limit.interval().as_millis()).expect("an interval")
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
    probes: &[u64],
) -> Option<(u64, Vec<u64>)> {
    let begun = world.now();
    let wait = take(limiter, permits).await.err()?;
    let wait = wait.expect("no more than the rate is asked for");
    assert!(wait > 0);
    let mut instants: Vec<_> = probes.iter().map(|part| wait * part / 1000).collect();
    instants.push(wait - 1);
    instants.sort_unstable();
    let mut seen = Vec::new();
    for instant in instants {
        world.advance(begun + instant - world.now());
        let before = free(limiter).await;
        seen.push(before);
        assert!(before < u64::from(permits));
        let refused = take(limiter, permits).await;
        assert_eq!(refused, Err(Some(wait - instant)), "{instant} of {wait} ms");
        let above = u32::try_from(rate).expect("a small limit") + 1;
        assert_eq!(take(limiter, above).await, Err(None));
        assert_eq!(free(limiter).await, before);
    }
    world.advance(begun + wait - world.now());
    Some((wait, seen))
}

/// Sends the traffic; of each three requests one is abandoned, one given back, and one kept.
pub(crate) async fn abandon_and_give_back<S: Store>(
    world: &World<S>,
    limiter: &RateLimiter,
    traffic: &[Request],
) {
    for (number, request) in traffic.iter().enumerate() {
        world.advance(request.pause);
        if number % 3 == 0 {
            let call = pin!(limiter.try_acquire_many(request.permits));
            let _ = call.poll(&mut Context::from_waker(Waker::noop()));
            continue;
        }
        let decision = limiter.try_acquire_many(request.permits).await;
        if let (1, Decision::Allow(grant)) = (number % 3, decision.expect("a decision")) {
            limiter.give_back(&grant.receipts()[0]);
        }
    }
}

/// Asks without a pause for so long, four at a time; returns how many permits were granted.
pub(crate) async fn granted_in(limiter: &RateLimiter, time: Duration) -> u64 {
    let end = Instant::now() + time;
    let mut sum = 0;
    while Instant::now() < end {
        let callers = [1, 2, 1, 3].map(|permits| {
            let limiter = limiter.clone();
            tokio::spawn(async move { (permits, take(&limiter, permits).await.is_ok()) })
        });
        for caller in callers {
            let (permits, granted) = caller.await.expect("an answer");
            sum += u64::from(permits) * u64::from(granted);
        }
    }
    sum
}

/// Waits in real time as announced, at most this often, and is granted then. Returns how often it
/// waited.
pub(crate) async fn waits_are_long_enough(
    limiter: &RateLimiter,
    requests: impl IntoIterator<Item = u32>,
    longest: u64,
    most: usize,
) -> usize {
    let deadline = Instant::now() + LONG;
    let mut waited = 0;
    for permits in requests {
        if waited == most {
            break;
        }
        assert!(Instant::now() < deadline, "waits that do not end");
        if let Err(wait) = take(limiter, permits).await {
            let wait = wait.expect("no more than the rate is asked for");
            assert!((1..=longest).contains(&wait), "{wait}");
            // By another clock than the server's, which rounds down to a millisecond this clock has
            // not reached.
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(take(limiter, permits).await, Ok(()), "after {wait} ms");
            waited += 1;
        }
    }
    waited
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

/// Checks a law on every kind of Redis and in every combination of guards. Each pair has a share of
/// the cases.
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
