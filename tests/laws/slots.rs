//! The laws for callers with slots next to callers without, and next to scores that are ahead of
//! their grants.

use kit::{guards::Guards, scene::*};

use super::{
    kinds::{Lawful, fullest},
    world::{Grant, MILLISECOND, World, check_in_redis, limit, nanos, refused_until, take},
};

#[derive(Clone, Copy, Debug)]
struct Step {
    pause: u64,
    permits: u32,
    /// The caller.
    caller: Caller,
    /// The fate of a grant.
    fate: Fate,
}

#[derive(Clone, Copy, Debug)]
enum Caller {
    Slots(u32),
    Plain,
    /// A lease: scored by so many tenths of what a score may lead its grant
    Ahead(u64),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Kept,
    GivenBack,
    Settled(u32),
}

fn step(interval: u64) -> impl Strategy<Value = Step> {
    let pause = prop_oneof![
        4 => Just(0),
        8 => 0..=interval / 4 + 1,
        4 => 0..=interval / 50 + 1,
        1 => Just(interval - 1),
        1 => Just(interval + interval / 10),
    ];
    let caller = prop_oneof![
        6 => prop_oneof![Just(10), Just(10), Just(100), Just(10_000)].prop_map(Caller::Slots),
        2 => Just(Caller::Plain),
        1 => (0u64..=10).prop_map(Caller::Ahead),
    ];
    let fate = prop_oneof![
        8 => Just(Fate::Kept),
        1 => Just(Fate::GivenBack),
        1 => (0u32..5).prop_map(Fate::Settled),
    ];
    let permits = prop_oneof![6 => 1u32..4, 1 => 1u32..14];
    (pause, permits, caller, fate).prop_map(|(pause, permits, caller, fate)| Step {
        pause,
        permits,
        caller,
        fate,
    })
}

fn steps() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    limit().prop_flat_map(|limit| {
        let interval = nanos(limit.interval()) / MILLISECOND;
        let steps = proptest::collection::vec(step(interval), 1..60);
        (Just(limit), steps)
    })
}

/// Takes permits ahead of their score, as a process with a lease does.
type Lease<'a> = &'a dyn Fn(&RateLimiter, Duration, u32);

/// One limiter, as each caller has it.
struct Shared<'a, S> {
    world: &'a World<S>,
    plain: RateLimiter,
    limit: Limit,
    /// Puts a grant into the log whose score leads it; not every store can.
    lease: Option<Lease<'a>>,
    granted: Vec<Grant>,
}

impl<'a, S: Store> Shared<'a, S> {
    async fn new(world: &'a World<S>, limit: Limit, lease: Option<Lease<'a>>) -> Self {
        Self {
            world,
            plain: world.limiter(limit).await,
            limit,
            lease,
            granted: Vec::new(),
        }
    }

    fn of(&self, caller: Caller) -> RateLimiter {
        match caller {
            Caller::Slots(slots) => self.plain.clone().slots(slots).unwrap(),
            Caller::Plain | Caller::Ahead(_) => self.plain.clone(),
        }
    }

    async fn step(&mut self, step: Step) {
        self.world.advance(millis(step.pause));
        let (at, limiter) = (self.world.now(), self.of(step.caller));
        if let (Caller::Ahead(tenths), Some(lease)) = (step.caller, self.lease) {
            let free = limiter.available_permits().await.unwrap();
            let permits = u64::from(step.permits).min(free);
            if permits > 0 {
                let permits = u32::try_from(permits).unwrap();
                let interval = nanos(self.limit.interval()) / MILLISECOND;
                let ahead = millis(interval / 10 * tenths / 10);
                lease(&limiter, at + ahead, permits);
                self.granted.push(Grant { at, permits });
            }
            return;
        }
        let Decision::Allow(grant) = limiter.try_acquire_many(step.permits).await.unwrap() else {
            return;
        };
        let permits = match step.fate {
            Fate::Kept => step.permits,
            Fate::GivenBack => {
                limiter.give_back(&grant);
                0
            }
            // More than was granted is debt, and no grant.
            Fate::Settled(keep) => {
                limiter.settle(&grant, keep);
                keep.min(step.permits)
            }
        };
        self.granted.push(Grant { at, permits });
    }
}

/// L1, and not under without need: the first request finds all there is.
fn never_over<S: Settles>(
    world: &World<S>,
    (limit, steps): (Limit, Vec<Step>),
    lease: Option<Lease<'_>>,
) {
    world.run(async {
        let mut shared = Shared::new(world, limit, lease).await;
        for step in &steps {
            shared.step(*step).await;
            world.store.settled().await;
        }
        let full = fullest(&shared.granted, limit.interval());
        assert!(full <= limit.permits(), "{:?}", shared.granted);
        if u64::from(steps[0].permits) <= limit.permits() {
            assert!(!shared.granted.is_empty(), "{:?}", steps[0]);
        }
        // L5, whatever happened: no permit was lost.
        world.advance(Way::Slots(10).whole(limit));
        let debt_is_paid = shared.plain.available_permits().await.unwrap();
        assert_eq!(debt_is_paid, limit.permits());
    });
}

#[test]
fn no_interval_has_more_than_the_rate_in_memory() {
    let world = World::memory(MILLISECOND);
    check(600, &steps(), |input| {
        never_over(&world, input, None);
    });
}

#[test]
fn no_interval_has_more_than_the_rate_in_redis() {
    check_in_redis(250, &steps(), |world, input| {
        never_over(world, input, Some(&by_hand(world)));
    });
}

/// A history; at its end a caller, its permits, and when to probe before the wait (in thousandths).
type Probed = (Limit, Vec<Step>, u32, Caller, Vec<u32>);

fn probed() -> impl Strategy<Value = Probed> {
    (steps(), 0u32..3).prop_flat_map(|((limit, steps), caller)| {
        let request = 1..=u32::try_from(limit.permits()).unwrap();
        let probes = proptest::collection::vec(0u32..1000, 3);
        let caller = [Caller::Plain, Caller::Slots(10), Caller::Slots(100)][caller as usize];
        (Just(limit), Just(steps), request, Just(caller), probes)
    })
}

/// L2 and L3: refused until the announced instant, granted at it, and no refusal takes anything.
fn exact_wait<S: Settles>(
    world: &World<S>,
    (limit, steps, permits, caller, probes): Probed,
    lease: Option<Lease<'_>>,
) {
    world.run(async {
        let mut shared = Shared::new(world, limit, lease).await;
        for step in steps {
            shared.step(step).await;
            world.store.settled().await;
        }
        let limiter = shared.of(caller);
        let refused = refused_until(world, &limiter, limit.permits(), permits, &probes);
        if let Some((wait, _)) = refused.await {
            assert!(wait <= Way::Slots(10).whole(limit), "{wait:?}");
            assert_eq!(take(&limiter, permits).await, Ok(()), "after {wait:?}");
        }
    });
}

#[test]
fn a_wait_is_exact_and_refusals_are_free_in_memory() {
    let world = World::memory(MILLISECOND);
    check(600, &probed(), |input| {
        exact_wait(&world, input, None);
    });
}

#[test]
fn a_wait_is_exact_and_refusals_are_free_in_redis() {
    check_in_redis(300, &probed(), |world, input| {
        exact_wait(world, input, None);
    });
}

/// Refusals are not cached: permits that another process takes meanwhile delay the announced
/// instant.
#[test]
fn a_wait_is_exact_beside_what_another_process_took_ahead() {
    let world = World::redis(Guards::all()[0]);
    check(150, &probed(), |input| {
        exact_wait(&world, input, Some(&by_hand(&world)));
    });
}

fn by_hand(world: &World<RedisStore>) -> impl Fn(&RateLimiter, Duration, u32) {
    |limiter, score, permits| lease(world.server_of(limiter), limiter, score, permits)
}

/// Writes the entry of a process with a lease: its permits count until an interval after its end.
fn lease(server: &RedisServer, limiter: &RateLimiter, score: Duration, permits: u32) {
    let name = limiter.name();
    let (value, log) = (format!("{{{name}}}:value"), format!("{{{name}}}:permits"));
    // A value is there only where something was taken.
    let script = "if redis.call('EXISTS', KEYS[1]) == 0 then \
                    redis.call('SET', KEYS[1], redis.call('HGET', KEYS[3], 'rate')) end \
                  redis.call('DECRBY', KEYS[1], ARGV[2]) \
                  redis.call('ZADD', KEYS[2], ARGV[1], \
                    struct.pack('<Bc0I4', 16, string.sub(redis.sha1hex(ARGV[3]), 1, 16), ARGV[2]))";
    server.command(&[
        "EVAL",
        script,
        "3",
        &value,
        &log,
        name,
        &score.as_millis().to_string(),
        &permits.to_string(),
        &unique("lease"),
    ]);
}
