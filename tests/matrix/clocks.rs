//! Row 22: clocks that are wrong, the server's and those of callers.

use kit::{proxy::Proxy, scene::*};
use std::time::SystemTime;

use super::{
    guards::BUDGET,
    oracles,
    stage::{EXACT, Expected, Scene, Stage, UNKNOWN, aside, patient},
};

/// Sets the server's clock back by this many milliseconds from a limiter's view: its log is that
/// much ahead.
async fn set_back(scene: &Scene, by: i64) {
    const SHIFT: &str = "local log = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') \
        for at = 1, #log, 2 do redis.call('ZADD', KEYS[1], log[at + 1] + ARGV[1], log[at]) end return #log";
    for own in [false, true] {
        let limiters = scene.load.limiters.iter();
        let logs: Vec<_> = limiters
            .filter(|it| !it.is_calendar() && it.in_own_format() == own)
            .map(|limiter| limiter.log())
            .collect();
        until("something is in use", async || {
            let shift = if own { SHIFT_OWN } else { SHIFT };
            let shifted = logs.iter().map(|log| {
                let shift = ["EVAL", shift, "1", log, &by.to_string()];
                scene.server.cli(&shift).parse::<usize>().unwrap()
            });
            shifted.sum::<usize>() > 0
        })
        .await;
    }
}

/// The same for a log in our own format: the times of its records, when each limit was last granted
/// by, and when it ends.
pub const SHIFT_OWN: &str = "local state = redis.call('GET', KEYS[1]) \
    if not state then return 0 end \
    local function shift(at) \
      local time = struct.pack('<I6', struct.unpack('<I6', state, at) + ARGV[1]) \
      state = string.sub(state, 1, at - 1) .. time .. string.sub(state, at + 6) \
    end \
    local first = #state - 9 - 30 * string.byte(state, -3) \
    for at = 17, first - 1, 22 do shift(at) end \
    for at = first + 24, #state - 10, 30 do shift(at) end \
    shift(#state - 9) \
    redis.call('SET', KEYS[1], state, 'KEEPTTL') \
    return (first - 1) / 22";

/// No wait becomes longer than the score offset allows, the fourth oracle, and all permits are free
/// as soon: what is ahead is set back at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_server_whose_clock_is_set_back() {
    const STEP: i64 = 2_000;
    let scene = Scene::begin("row 22, back").await;
    for _ in 0..2 {
        set_back(&scene, STEP).await;
        scene.load.decided(10).await;
    }
    scene.judge(EXACT).await;
}

/// Permits in use seem to have expired: as with lost data, one more rate in the interval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_server_whose_clock_is_set_forth() {
    let scene = Scene::begin("row 22, forth").await;
    for _ in 0..3 {
        set_back(&scene, -10_000).await;
        scene.load.decided(10).await;
        // Longer than an interval, of the server's real time: the bound is for one step in each.
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    scene.judge(UNKNOWN).await;
}

/// A clock of a caller, so many milliseconds ahead of the machine's.
#[derive(Clone, Copy, Debug)]
struct Skewed(i64);

impl Clock for Skewed {
    fn now(&self) -> Duration {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let skew = Duration::from_millis(self.0.unsigned_abs());
        match self.0 {
            0.. => now + skew,
            _ => now - skew,
        }
    }
}

/// A caller counts by its own clock, an hour ahead or behind, beside callers that count by the
/// server's. Each grant of the one ahead forgets the permits in use, and is itself in use until
/// another caller needs its permits and finds that its time is impossible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_caller_whose_clock_is_an_hour_off() {
    let scene = Scene::begin("row 22, callers").await;
    let shared = scene.load.limiters.iter().find(|it| !it.name.contains('{'));
    let shared = shared.expect("a RateLimiter");
    let (name, rate) = (shared.name.clone(), shared.allowed.rate as u32);
    let mut taken = 0;
    for hours in [1, -1] {
        let store = RedisStore::builder(scene.server.url());
        let store = patient(store.client_clock(Skewed(hours * 3_600_000)));
        let wrong = RateLimiter::new(&store, &name).unwrap();
        for _ in 0..10 {
            taken += u32::from(wrong.try_acquire().await.unwrap().is_allowed());
            scene.load.decided(1).await;
        }
    }
    assert!(taken > 0, "the wrong one was granted nothing");
    scene.healed().await;
    let store = patient(RedisStore::builder(scene.server.url()));
    let needy = RateLimiter::new(&store, &name).unwrap();
    until("some are in use", async || {
        let decision = needy.try_acquire_many(rate).await.unwrap();
        !decision.is_allowed()
    })
    .await;
    drop((needy, store));
    let off = Expected {
        over: f64::from(taken),
        ..UNKNOWN
    };
    scene.judge(off).await;
}

/// Callers count by clocks of their own, 200 ms apart: an entry expired for one is not for the
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_callers_whose_clocks_differ() {
    let server = aside(RedisServer::start);
    let proxy = Proxy::start(server.address());
    let open = |handle| {
        let clock = Skewed([100, -100][handle]);
        RedisStore::builder(proxy.url()).client_clock(clock)
    };
    let direct = RedisStore::builder(server.url());
    let row = "row 22, skewed";
    let stage = Stage::begin(row, &[&server], open, direct, BUDGET);
    let stage = stage.steady().await;
    stage.load.decided(60).await;
    stage.healed().await;
    oracles::few_connections(&proxy.came(), 2, 0);
    let skewed = Expected {
        skew: Duration::from_millis(200),
        ..UNKNOWN
    };
    stage.judge(skewed, &[&server]).await;
}
