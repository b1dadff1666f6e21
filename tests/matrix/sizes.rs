//! Row 25: more requests, more keys and more expired entries than usual.
//!
//! `TOWER_RATELIMIT_KEYS` sets the number of keys (20,000). A release build needs some minutes for
//! a million.

use kit::scene::*;
use std::num::NonZeroUsize;

use tower::Service;

use super::{
    long::machine::resident,
    observed::CROWD,
    random::setting,
    record::UNRECORDED,
    stage::{EXACT, Scene, patient, set},
};

/// One key, as fast as this machine can, in either format: refusals are cached, grants share calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_25_a_key_that_is_asked_for_all_the_time() {
    let scene = Scene::begin("row 25, hot").await;
    let store = scene.load.handles[0].clone();
    let of_redisson = RateLimiter::new(&store, &unique("hot")).unwrap();
    let limit = Limit::new(100, Duration::from_secs(1));
    set(&of_redisson, limit).await;
    let own = limit.named(CROWD).single(&store).unwrap();
    drop(store);
    scene.load.idle(true).await;
    for (hot, rule) in [(of_redisson, None), (own, Some(CROWD))] {
        is_asked_for_all_the_time(&scene, hot, rule).await;
    }
    scene.load.idle(false).await;
    // And all lanes at once.
    scene.load.pace(1);
    scene.load.decided(20).await;
    scene.load.pace(8);
    scene.judge(EXACT).await;
}

/// Asks for a limiter of 100 permits in a second, while the load pauses.
async fn is_asked_for_all_the_time(scene: &Scene, hot: RateLimiter, rule: Option<&'static str>) {
    let before = scene.server.scripts_called();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (hot, observed) = (hot.clone(), scene.load.observed.clone());
        tasks.spawn(async move {
            let (mut asked, mut granted, mut failed) = (0_u64, 0_u64, 0_u64);
            while began.elapsed() < Duration::from_secs(2) {
                for _ in 0..50 {
                    asked += 1;
                    let answer = hot.try_acquire().await;
                    observed.less(rule, Some(&answer));
                    match answer {
                        Ok(decision) => granted += u64::from(decision.is_allowed()),
                        Err(_) => failed += 1,
                    }
                }
                tokio::task::yield_now().await;
            }
            (asked, granted, failed)
        });
    }
    drop(hot);
    let (mut asked, mut granted, mut failed) = (0, 0, 0);
    for of_task in tasks.join_all().await {
        asked += of_task.0;
        granted += of_task.1;
        failed += of_task.2;
    }
    let took = began.elapsed();
    let calls = scene.server.scripts_called() - before;
    println!(
        "row 25, hot: {asked} requests in {took:?}, {granted} granted, {failed} failed, \
         {calls} calls of a script"
    );
    // The server's account: an interval is a second, and may have begun anywhere.
    assert!(
        granted >= 1 && granted <= 100 * (took.as_secs() + 2),
        "{granted}"
    );
    // However fast the machine asks: a call grants, or its refusal stands for a second or until
    // there is room, or it fails and is given back.
    let most = 2 * (granted + failed + took.as_secs() + 2);
    assert!(calls <= most, "{calls} calls, and {most} at most");
}

/// Each request with a new key: the traces are bounded, and expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_25_keys_that_are_all_different() {
    let number = NonZeroUsize::new(20_000).unwrap();
    let keys = setting("TOWER_RATELIMIT_KEYS", number).get();
    let scene = Scene::begin("row 25, keys").await;
    let store = scene.load.handles[0].clone();
    let rule = Limit::per_minute(1)
        .by(FromHeader::new("x-user"))
        .named("once");
    let service = RateLimitLayer::new(&store, rule).layer(service_fn(serve::<()>));
    drop(store);
    let memory = resident();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let service = service.clone();
        tasks.spawn(async move {
            let mut by_policy = 0_usize;
            for key in (task..keys).step_by(32) {
                // Each is to be met by the store, however long that takes all of them.
                let first = Instant::now();
                while ask(&service, key).await != Source::Store {
                    by_policy += 1;
                    assert!(first.elapsed() < LONG, "{key} of {keys}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            by_policy
        });
    }
    drop(service);
    let by_policy: usize = tasks.join_all().await.into_iter().sum();
    let grown = resident()
        .zip(memory)
        .map(|(now, before)| now.saturating_sub(before));
    println!(
        "row 25, keys: {keys} in {:?}, {by_policy} times by policy before; {grown:?} kB more in memory, in Redis {:?} bytes at most",
        began.elapsed(),
        scene.server.figure("memory", "used_memory_peak:")
    );
    let stored: usize = scene.server.cli(&["DBSIZE"]).parse().unwrap();
    let most = keys + 3 * scene.load.limiters.len();
    assert!(stored <= most, "{stored} keys");
    for _ in 0..200 {
        let (key, left) = random_key(&scene.server);
        if key.contains(UNRECORDED) {
            assert!(left > 0 && left <= 120_000, "{key} stays for {left} ms");
        }
    }
    if let Some(grown) = grown {
        // However many keys there were.
        assert!(grown < 200_000, "{grown} kB more");
    }
    scene.judge(EXACT).await;
}

/// Any key, and for how many ms it stays: in one step, in which none expires.
fn random_key(server: &RedisServer) -> (String, i64) {
    const LOOK: &str = "local key = redis.call('RANDOMKEY') return {key, redis.call('PTTL', key)}";
    match server.command(&["EVAL", LOOK, "0"]) {
        Reply::Array(reply) => (reply[0].to_string(), reply[1].to_string().parse().unwrap()),
        other => panic!("{other}"),
    }
}

/// Returns the source of the decision for a new key.
async fn ask<S, B>(service: &S, key: usize) -> Source
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let request = Request::builder().header("x-user", format!("{UNRECORDED}{key}"));
    let Ok(answer) = service.clone().oneshot(request.body(()).unwrap()).await;
    decision_of(&answer).source()
}

/// One call finds half a million permits that have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_25_permits_that_expire_all_at_once() {
    const PERMITS: u64 = 500_000;
    const CHUNK: u64 = 5_000;
    let scene = Scene::begin("row 25, expired").await;
    let direct = patient(RedisStore::builder(scene.server.url()));
    let name = unique("expired");
    let full = RateLimiter::new(&direct, &name).unwrap();
    // Long enough for the permit that is taken below to stay in use until that is looked at.
    let limit = Limit::new(PERMITS, Duration::from_secs(60));
    assert!(full.try_set_rate(limit).await.unwrap());
    let (log, value) = (format!("{{{name}}}:permits"), format!("{{{name}}}:value"));
    let fill = "local now = redis.call('TIME')[1] * 1000 - 120000 \
        for chunk = 1, ARGV[2] / 500 do local words = {} for n = 1, 500 do words[2 * n - 1] = now \
        words[2 * n] = struct.pack('<Bc0I4', 16, string.format('%016d', ARGV[1] + chunk * 500 + n), 1) end \
        redis.call('ZADD', KEYS[1], unpack(words)) end";
    for first in (0..PERMITS).step_by(CHUNK as usize) {
        let (first, chunk) = ((first * 2).to_string(), CHUNK.to_string());
        let reply = scene.server.cli(&["EVAL", fill, "1", &log, &first, &chunk]);
        assert_eq!(reply, "(nil)");
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.server.cli(&["ZCARD", &log]), PERMITS.to_string());
    scene.server.cli(&["SET", &value, "0"]);
    scene.load.decided(2).await;
    let began = Instant::now();
    let decision = full.try_acquire().await.unwrap();
    let took = began.elapsed();
    println!("row 25, expired: one call takes {took:?} where {PERMITS} permits have expired");
    assert!(decision.is_allowed(), "{decision:?}");
    assert_eq!(decision.source(), Source::Store);
    let left = full.available_permits().await.unwrap();
    assert_eq!(left, PERMITS - 1);
    drop((full, direct));
    scene.judge(EXACT).await;
}
