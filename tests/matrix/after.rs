//! What is looked at when the load of a row has ended: waits that are kept, the fourth oracle, and
//! permits that are all free again, the seventh.

use kit::{OwnLog, Reply, label_and_used, monitor::time_of, scene::*};
use std::fmt::Debug;

use super::{lanes::Limiter, stage::aside};

/// Asks again while a connection that a fault left behind is replaced.
async fn retried<T: Debug>(ask: impl AsyncFn() -> Result<T, tower_ratelimit::Error>) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => {
                let kind = error.kind();
                let passes = matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
                assert!(passes && began.elapsed() < LONG, "{kind:?}: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Checks the second half of O4: on a key without other callers, a caller that comes back on time
/// is admitted.
pub async fn waits_are_kept(store: &RedisStore) {
    let limit = Limit::new(2, Duration::from_millis(300));
    let of_redisson = RateLimiter::new(store, &unique("idle")).unwrap();
    retried(async || of_redisson.try_set_rate(limit).await).await;
    let own = limit.named(&unique("idle")).single(store).unwrap();
    for idle in [of_redisson, own] {
        its_waits_are_kept(&idle, limit).await;
    }
}

async fn its_waits_are_kept(idle: &RateLimiter, limit: Limit) {
    for _ in 0..3 {
        let mut asked = 0;
        let wait = loop {
            match retried(async || idle.try_acquire().await).await {
                Decision::Allow(_) => asked += 1,
                Decision::Deny(refusal) => break refusal.retry_after(),
            }
            // One that a busy machine keeps from asking for so long finds room again.
            assert!(asked < 200, "O3: no call is refused");
        };
        let wait = wait.expect("O4: a refusal says how long to wait");
        assert!(!wait.is_zero() && wait <= limit.interval(), "O4: {wait:?}");
        // What a refusal announces is what is tested, by the server's clock.
        tokio::time::sleep(wait).await;
        let decision = retried(async || idle.try_acquire().await).await;
        assert_eq!(decision.source(), Source::Store);
        assert!(decision.is_allowed(), "O4: after {wait:?}: {decision:?}");
    }
}

/// Asks for each limiter of several keys once: the next call after a log is lost counts its permits
/// as used.
pub async fn losses_are_noticed(direct: &RedisStore, limiters: &[Limiter]) {
    for limiter in limiters.iter().filter(|it| !it.in_own_format()) {
        let limit = RateLimiter::new(direct, &limiter.name).unwrap();
        if let Err(error) = limit.available_permits().await {
            assert!(
                error.kind() == ErrorKind::NotInitialized,
                "{}: {error}",
                limiter.name
            );
        }
    }
}

/// Checks O7: when an interval and the score offset are over by the clock of the first server, the
/// permits left are the limit.
pub async fn all_is_free(
    direct: &RedisStore,
    limiters: &[Limiter],
    late: Duration,
    servers: &[&RedisServer],
) {
    let now = || time_of(servers[0]);
    // Of a Cluster, a node that has not the hash slot has an error.
    let value = |key: &str| {
        let mut answers = servers.iter().map(|it| it.command(&["GET", key]));
        let answer = answers.find(|answer| !matches!(answer, Reply::Error(_)));
        answer.expect("a server has the key")
    };
    let late = late.as_millis() as i64;
    let longest = (limiters.iter().filter(|it| !it.is_calendar())).map(|limiter| limiter.allowed);
    let longest = longest.map(|allowed| allowed.interval + allowed.ahead());
    let over = aside(now) + longest.max().unwrap_or(0) + late;
    // By the servers' clocks, which go as fast as they like.
    while aside(now) <= over {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for limiter in limiters {
        let (name, rate) = (&limiter.name, limiter.allowed.rate);
        if limiter.is_calendar() {
            let used = match aside(|| value(&limiter.log())) {
                Reply::Nil => 0,
                state => label_and_used(&state.into_bytes()).1,
            };
            assert!((0..=rate).contains(&used), "O7: {name}: {used}");
            continue;
        }
        let limit = limiter.open(direct);
        match limit.available_permits().await {
            Ok(left) => assert_eq!(left as i64, rate, "O7: {name}"),
            // Lost with the data, and not asked for since.
            Err(error) if error.kind() == ErrorKind::NotInitialized => continue,
            Err(error) => panic!("O7: {name}: {error}"),
        }
        // In the books, too.
        let more = async || {
            let more = limit.try_acquire().await.unwrap();
            assert!(more.is_allowed(), "O7: {name}");
        };
        if limiter.in_own_format() {
            let (began, interval) = (Instant::now(), limiter.allowed.interval);
            let state = loop {
                more().await;
                match aside(|| value(&limiter.log())) {
                    // A busy machine may look when it has expired.
                    Reply::Nil => assert!(began.elapsed() < LONG, "O7: {name}: no state"),
                    state => break state.into_bytes(),
                }
            };
            let state = OwnLog::of(&state).expect("a log");
            // As of the grant: a busy machine may look later.
            let now = state.records.iter().map(|it| it.time).max().unwrap();
            assert_eq!(state.in_use(now, interval), 1, "O7: {name}: {state:?}");
            let by_window = state.in_use_by_window(now, interval);
            assert_eq!(by_window, Some(1), "O7: {name}: {state:?}");
            continue;
        }
        more().await;
        let books = aside(|| value(&limiter.value())).to_string();
        assert_eq!(books, (rate - 1).to_string(), "O7: {name}");
    }
}
