//! Limiters whose limit is in the code: what is known by a name. And a clock that begins at zero.

use super::*;

on_both_stores!(a_name_alone_has_no_limit);

type ByName<S> = fn(&S, &str) -> Result<RateLimiter, ConfigError>;

/// In our own format: what needs the limit is an error that says what has one.
async fn a_name_alone_has_no_limit(store: impl Settles) {
    let gcra = Way::Gcra.limited(&store, Limit::new(5, HOUR)).await;
    let quota = Limit::monthly(5).named(&unique("quota")).single(&store);
    let quota = quota.unwrap();
    let exact = limited(&store, Limit::per_hour(9)).await;
    let by = |algorithm| {
        let limit = Limit::per_hour(5).named(&unique("own"));
        limit.algorithm(algorithm).single(&store).unwrap()
    };
    let (log, window) = (by(Algorithm::SlidingLog), by(Algorithm::FixedWindow));
    for (limiter, algorithm, by_name) in [
        (gcra, Algorithm::Gcra, RateLimiter::new as ByName<_>),
        (quota, Algorithm::Calendar, RateLimiter::new),
        (log, Algorithm::SlidingLog, RateLimiter::of_rule),
        (window, Algorithm::FixedWindow, RateLimiter::of_rule),
    ] {
        let grant = take(&limiter, 2).await;
        let by_name = by_name(&store, limiter.name()).unwrap();
        let by_name = by_name.algorithm(algorithm);
        let said = fails(by_name.try_acquire().await, ErrorKind::Limit).to_string();
        for right in [
            "Limit::named(",
            ".single(",
            ".keyed(",
            "RateLimitLayer::limiter",
        ] {
            assert!(said.contains(right), "{said}");
        }
        fails(by_name.try_acquire_for(1, SECOND).await, ErrorKind::Limit);
        fails(by_name.acquire().await, ErrorKind::Limit);
        fails(by_name.available_permits().await, ErrorKind::Limit);
        fails(by_name.release(1).await, ErrorKind::Limit);
        fails(by_name.limit().await, ErrorKind::Limit);
        let other = Limit::per_minute(9);
        fails(by_name.try_set_rate(other).await, ErrorKind::Limit);
        fails(by_name.rename(&unique("other")).await, ErrorKind::Limit);
        let all = RateLimiter::all([&limiter, &exact]).unwrap();
        granted(all.try_acquire().await.unwrap());
        let all = RateLimiter::all([&by_name, &exact]).unwrap();
        fails(all.try_acquire().await, ErrorKind::Limit);
        // What the name is enough for.
        assert_eq!(by_name.repair().await.unwrap(), 0);
        by_name.give_back(&grant);
        store.settled().await;
        assert_eq!(free(&limiter).await, 4);
        for by_name in [
            &by_name,
            &RateLimiter::of_rule(&store, limiter.name()).unwrap(),
        ] {
            let left = by_name.time_to_live().await.unwrap();
            assert!(matches!(left, TimeToLive::Left(_)), "{left:?}");
        }
        by_name.ban_for(HOUR).await.unwrap();
        assert!(limiter.banned_until().await.unwrap().is_some());
        assert!(by_name.unban().await.unwrap());
        assert!(by_name.delete().await.unwrap());
        assert!(!by_name.exists().await.unwrap());
        assert_eq!(free(&limiter).await, 5);
    }
}

/// Zero means the server's clock to a script.
#[tokio::test]
async fn a_clock_that_begins_at_zero_counts() {
    let clock = ManualClock::new();
    clock.set(Duration::ZERO);
    let store = shared_redis().client_clock(clock.clone()).build().unwrap();
    let limiter = Way::Gcra.limited(&store, Limit::new(1, 10 * SECOND)).await;
    take(&limiter, 1).await;
    clock.advance(millis(1));
    assert!(wait(&limiter, 1).await.unwrap() <= 10 * SECOND);
    clock.advance(10 * SECOND);
    take(&limiter, 1).await;
}
