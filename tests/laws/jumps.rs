//! L2 and L5 by a clock that jumps, back and forth and by any time: who asks all the time has the
//! whole limit in each interval again, 1.1 intervals after the last jump at the latest (by GCRA
//! 2.2, as a debt looks the same), and at the end of each wait on the way there is room.

use kit::{MOVE, scene::*};
use tower_ratelimit::Ban;

use super::{
    kinds::{Lawful, WAYS},
    world::{MILLISECOND, World, nanos, wait_of},
};

/// In milliseconds; below zero back.
type Jump = i64;

/// A limit; before each jump requests, each after a pause in thousandths of the interval.
type Input = (Limit, Vec<(Vec<u64>, Jump)>);

fn jump(interval: i64) -> impl Strategy<Value = Jump> {
    let by = prop_oneof![
        2 => 1..=interval / 5,
        3 => interval / 10..=2 * interval,
        3 => interval..=100 * interval,
        1 => Just(3_600_000),
    ];
    (by, 0..3).prop_map(|(by, way)| if way == 0 { by } else { -by })
}

fn input() -> impl Strategy<Value = Input> {
    let limit = (prop_oneof![4 => 1u64..8, 1 => 8u64..40], 0usize..3);
    limit.prop_flat_map(|(rate, which)| {
        // Long enough for a machine that is busy while it asks.
        let interval = [60_000_u64, 61_003, 900_000][which];
        let requests = prop_oneof![
            2 => proptest::collection::vec(Just(0), 0..50),
            2 => proptest::collection::vec(0u64..300, 0..20),
        ];
        let steps = proptest::collection::vec((requests, jump(interval.cast_signed())), 1..4);
        (Just(Limit::new(rate, millis(interval))), steps)
    })
}

/// A caller that is told how long to wait.
trait Caller {
    async fn ask(&self) -> Result<(), Duration>;
}

impl Caller for RateLimiter {
    async fn ask(&self) -> Result<(), Duration> {
        let decision = self.try_acquire().await.unwrap();
        wait_of(&decision).map_err(|wait| wait.expect("no more than the rate is asked for"))
    }
}

impl Caller for RateLimitLayer {
    async fn ask(&self) -> Result<(), Duration> {
        let decision = decide(self, Request::new(String::new())).await;
        wait_of(&decision).map_err(|wait| wait.expect("no more than the rate is asked for"))
    }
}

/// Asks all the time for so long. Returns how often there was room.
async fn granted_in(
    caller: &impl Caller,
    time: Duration,
    longest: Duration,
    pass: &impl Fn(i64),
) -> u64 {
    let (mut passed, mut sum) = (Duration::ZERO, 0);
    loop {
        let Err(wait) = caller.ask().await else {
            sum += 1;
            continue;
        };
        assert!(wait <= longest, "{wait:?} of {longest:?}");
        if passed + wait > time {
            return sum;
        }
        // A store in memory says microseconds.
        let wait = millis(nanos(wait).div_ceil(MILLISECOND));
        pass(i64::try_from(wait.as_millis()).unwrap());
        passed += wait;
        assert_eq!(caller.ask().await, Ok(()), "after {wait:?}");
        sum += 1;
    }
}

/// The law of a way to count.
async fn law(caller: &impl Caller, way: Way, pass: &impl Fn(i64), (limit, steps): Input) {
    let whole = way.whole(limit);
    let interval = limit.interval();
    for (requests, jump) in steps {
        for pause in requests {
            pass(i64::try_from(interval.as_millis()).unwrap() * pause.cast_signed() / 1000);
            let _ = caller.ask().await;
        }
        pass(jump);
    }
    let longest = match way {
        Way::Gcra => whole / 10 * 22,
        _ => whole + interval / 10,
    };
    let _ = granted_in(caller, longest, longest, pass).await;
    // Each wait is rounded up, and so may be later by a millisecond.
    let rounded = millis(4 * limit.permits());
    let granted = granted_in(caller, 3 * whole + rounded, longest, pass).await;
    assert!(
        granted >= 3 * limit.permits(),
        "{granted} in 3 of {limit:?}"
    );
}

#[test]
fn in_memory() {
    let world = World::memory(MILLISECOND);
    let pass = move_clock(&world);
    for way in WAYS {
        check(150, &input(), |input| {
            world.run(async {
                let limiter = world.limiter_of(way, input.0).await;
                law(&limiter, way, &pass, input).await;
            });
        });
    }
}

#[test]
fn in_memory_of_lists() {
    let world = World::memory(MILLISECOND);
    let pass = move_clock(&world);
    for remaining in [true, false] {
        check(100, &input(), |input| {
            world.run(async {
                let layer = list_of(&world.store, input.0, remaining);
                law(&layer, Way::Log, &pass, input).await;
            });
        });
    }
}

/// Returns what moves the clock of a world in memory.
fn move_clock(world: &World<MemoryStore>) -> impl Fn(i64) {
    let clock = world.clock.clone();
    move |by| {
        let moved = clock.now().as_millis().cast_signed() + i128::from(by);
        clock.set(Duration::from_millis(u64::try_from(moved).unwrap()));
    }
}

/// Two limits of one request, of which one decides: the second, or with permits left the first.
fn list_of(store: &impl Store, limit: Limit, remaining: bool) -> RateLimitLayer {
    let wide = Limit::new(100 * limit.permits(), limit.interval());
    let mut rules = [("wide", wide), ("narrow", limit)]
        .map(|(name, limit)| limit.by(Constant("all")).named(&unique(name)));
    rules.rotate_left(remaining.into());
    let layer = RateLimitLayer::builder(store).count_remaining(remaining);
    layer.otherwise(rules).build().unwrap()
}

fn move_server(mark: &str) -> impl Fn(i64) {
    move |by| {
        let (keys, by) = (format!("*{mark}*"), by.to_string());
        let moved = RedisServer::shared().cli(&["EVAL", MOVE, "0", &by, &keys]);
        assert_eq!(moved, "(nil)");
    }
}

#[test]
fn by_the_clock_of_a_server() {
    let (runtime, store) = (runtime(), shared_redis().build().unwrap());
    for way in WAYS {
        check(15, &input(), |input| {
            runtime.block_on(async {
                let name = unique("jumps");
                let limiter = way.of(&store, &name, input.0).await;
                law(&limiter, way, &move_server(&name), input).await;
            });
        });
    }
}

/// Rules, alone and in lists, with the permits left and without: each has a script of its own for
/// the usual case.
#[test]
fn by_the_clock_of_a_server_for_rules() {
    let runtime = runtime();
    for (listed, remaining) in [(false, true), (false, false), (true, true), (true, false)] {
        check(12, &input(), |input| {
            let mark = unique("jumps");
            let store = patient(RedisServer::shared().url()).prefix(&mark);
            let store = store.deny_cache(Duration::ZERO).build().unwrap();
            let layer = if listed {
                list_of(&store, input.0, remaining)
            } else {
                let layer = RateLimitLayer::builder(&store).count_remaining(remaining);
                layer
                    .otherwise(input.0.by(Constant("all")))
                    .build()
                    .unwrap()
            };
            let pass = move_server(&mark);
            runtime.block_on(law(&layer, Way::Log, &pass, input));
        });
    }
}

/// By callers' clocks no score is set back, as a slow one proves nothing: the waits are until what
/// a fast one wrote is over. `repair` is for that.
#[test]
fn by_the_clock_of_its_caller_repair_sets_back_what_is_ahead() {
    let world = World::redis(kit::guards::Guards::all()[0]);
    world.run(async {
        let minute = secs(60);
        let limiter = world.limiter(Limit::new(3, minute)).await;
        for _ in 0..3 {
            assert_eq!(limiter.ask().await, Ok(()));
        }
        world.clock.set(world.now() - HOUR);
        assert_eq!(limiter.ask().await, Err(HOUR + minute));
        assert_eq!(limiter.repair().await.unwrap(), 0);
        let wait = minute + minute / 10;
        assert_eq!(limiter.ask().await, Err(wait));
        world.advance(wait);
        assert_eq!(free(&limiter).await, 3);
    });
}

#[test]
fn repair_sets_back_what_is_ahead() {
    let world = World::memory(MILLISECOND);
    world.run(async {
        // Of our own, each call sets back what it finds too far ahead.
        for way in WAYS.into_iter().filter(|way| !Way::OWN.contains(way)) {
            let limit = Limit::new(3, secs(60));
            let limiter = world.limiter_of(way, limit).await;
            while limiter.ask().await.is_ok() {}
            world.clock.set(world.now() - HOUR);
            assert_eq!(limiter.repair().await.unwrap(), 0, "{way:?}");
            world.advance(way.whole(limit) + secs(6));
            assert_eq!(free(&limiter).await, 3, "{way:?}");
        }
    });
}

const BANNED: Duration = secs(900);

/// A ban lasts no longer than itself, however a clock jumps while it is in force, and so does the
/// time for which its level is known; refusals that count do so for no longer than they should.
async fn ban_law(layer: &RateLimitLayer, pass: &impl Fn(i64), jumps: Vec<Jump>) {
    let ask = async || refusal_of(decide(layer, Request::new(String::new())).await);
    let is_banned = async || matches!(ask().await, Some((RefusalKind::Banned, _)));
    let ask_until_banned = async || while !is_banned().await {};
    ask_until_banned().await;
    for jump in jumps {
        pass(jump);
        if let Some((RefusalKind::Banned, wait)) = ask().await {
            assert!(wait <= BANNED, "{wait:?} after {jump}");
            pass(i64::try_from(wait.as_millis()).unwrap() - 1000);
            assert!(is_banned().await, "a second before the end, after {jump}");
            pass(1001);
        }
        assert!(!is_banned().await, "at the end, after {jump}");
        ask_until_banned().await;
        // By whatever it was doubled before.
        pass(2 * 900_000 + 1000);
        ask_until_banned().await;
    }
}

fn refusal_of(decision: Decision) -> Option<(RefusalKind, Duration)> {
    match decision {
        Decision::Allow(_) => None,
        Decision::Deny(refusal) => Some((refusal.kind(), refusal.retry_after().unwrap())),
    }
}

fn banning(store: &impl Store) -> RateLimitLayer {
    let ban = Ban::after(3).within(secs(100)).lasting(BANNED);
    let limit = Limit::new(1, secs(7)).by(Constant("all"));
    layer_of(store, limit.named(&unique("bans")).ban(ban))
}

fn jumps() -> impl Strategy<Value = Vec<Jump>> {
    proptest::collection::vec(prop_oneof![-4_000_000i64..900_000, Just(-3_600_000)], 1..4)
}

#[test]
fn bans_in_memory() {
    let world = World::memory(MILLISECOND);
    let pass = move_clock(&world);
    check(100, &jumps(), |jumps| {
        world.run(ban_law(&banning(&world.store), &pass, jumps));
    });
}

#[test]
fn bans_by_the_clock_of_a_server() {
    let runtime = runtime();
    check(20, &jumps(), |jumps| {
        let mark = unique("jumps");
        let store = patient(RedisServer::shared().url()).prefix(&mark);
        let store = store.deny_cache(Duration::ZERO).build().unwrap();
        runtime.block_on(ban_law(&banning(&store), &move_server(&mark), jumps));
    });
}
