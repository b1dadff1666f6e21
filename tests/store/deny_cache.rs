//! L4: a cached refusal is the one that the store would return, and costs it nothing.

mod floods;

use kit::scene::*;

#[tokio::test]
async fn it_is_for_a_minute_at_most_and_can_be_switched_off() {
    let clock = ManualClock::new();
    let store = |cap| {
        let store = shared_by_clock(&clock);
        store.deny_cache(cap).build()
    };
    for cap in [Duration::MAX, millis(60_001)] {
        let error = store(cap).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Store);
        let said = format!("a deny cache keeps refusals for a minute at most, not for {cap:?}");
        assert_eq!(error.to_string(), said);
    }
    let off = store(Duration::ZERO).unwrap();
    let longest = store(secs(60)).unwrap();
    for (store, source) in [(off, Source::Store), (longest, Source::Cache)] {
        let limiter = limited(&store, Limit::per_hour(1)).await;
        take(&limiter, 1).await;
        let first = limiter.try_acquire().await.unwrap();
        assert_eq!(first.source(), Source::Store);
        clock.advance(millis(1));
        assert_eq!(limiter.try_acquire().await.unwrap().source(), source);
    }
}

/// Another process, as one of Java, changes or deletes a limit. What this one knew of its requests
/// for more than the limit ends with the first call that finds so, whatever it asks.
#[tokio::test]
async fn a_call_that_finds_another_limit_or_none_drops_what_is_known_of_the_name() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let [store, others] = [(); 2].map(|()| {
        by_clock(&server, &clock)
            .deny_cache(secs(60))
            .build()
            .unwrap()
    });
    let every_two_seconds = |permits| Limit::new(permits, secs(2));
    for way in Way::STORED {
        let limiter = limited(&store, every_two_seconds(3)).await;
        let other = way.limiter(RateLimiter::new(&others, limiter.name()).unwrap());
        let limiter = way.limiter(limiter);
        let knows = async |permits| {
            let decision = limiter.try_acquire_many(permits).await.unwrap();
            let source = decision.source();
            assert_eq!(refused(decision).kind(), RefusalKind::AboveRate, "{way:?}");
            source == Source::Cache
        };
        assert_eq!((knows(5).await, knows(5).await), (false, true));
        for finds in 0..4 {
            // Raised: a refusal finds it, too.
            assert!(other.reset_rate(every_two_seconds(7)).await.unwrap());
            match finds {
                0 => assert!(!knows(9).await),
                _ => assert!(limiter.limit().await.unwrap().is_some()),
            }
            take(&limiter, 5).await;
            assert_eq!((knows(8).await, knows(8).await), (false, true));
            assert!(other.delete().await.unwrap());
            match finds {
                0 => drop(fails(
                    limiter.try_acquire().await,
                    ErrorKind::NotInitialized,
                )),
                1 => drop(fails(
                    limiter.available_permits().await,
                    ErrorKind::NotInitialized,
                )),
                2 => assert!(limiter.limit().await.unwrap().is_none()),
                _ => assert!(!limiter.exists().await.unwrap()),
            }
            let asked = limiter.try_acquire_many(8).await;
            fails(asked, ErrorKind::NotInitialized);
            assert!(other.try_set_rate(every_two_seconds(3)).await.unwrap());
            assert_eq!((knows(5).await, knows(5).await), (false, true));
        }
    }
}

/// As a loop that was ported from Java, where the call sleeps.
#[tokio::test]
async fn a_loop_around_a_hopeless_wait_asks_redis_once() {
    let server = RedisServer::start();
    let store = by_clock(&server, &ManualClock::new()).deny_cache(secs(60));
    let store = store.build().unwrap();
    for way in Way::ALL {
        let limiter = way.limited(&store, Limit::per_hour(1)).await;
        take(&limiter, 1).await;
        let hopeless = async || limiter.try_acquire_for(1, millis(100)).await.unwrap();
        let first = hopeless().await;
        first.assert_refused();
        assert_eq!(first.source(), Source::Store);
        let before = server.scripts_called();
        for _ in 0..1000 {
            let refused = hopeless().await;
            refused.assert_refused();
            assert_eq!(refused.source(), Source::Cache);
        }
        // Nor does one that does not wait.
        let refused = limiter.try_acquire().await.unwrap();
        refused.assert_refused();
        assert_eq!(refused.source(), Source::Cache);
        assert_eq!(server.scripts_called(), before, "{way:?}");
    }
}

/// A settlement that charges more leaves less room: the waiter's turn is later than announced.
#[tokio::test]
async fn an_extra_charge_has_waiters_asked_for_again() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let store = by_clock(&server, &clock).deny_cache(secs(60));
    let store = store.build().unwrap();
    let limiter = limited(&store, Limit::per_hour(2)).await;
    let grant = take(&limiter, 1).await;
    take(&limiter, 1).await;
    clock.advance(secs(60));
    let waiter = limiter.clone();
    let waits = tokio::spawn(async move { waiter.acquire().await });
    until("it waits", async || clock.sleepers() > 0).await;
    let before = server.scripts_called();
    limiter.settle(&grant, 2);
    store.close().await;
    // That of the settlement, and the waiter's.
    until("it asks again", async || {
        server.scripts_called() >= before + 2
    })
    .await;
    // No clock was moved: nothing else wakes it.
    assert!(!waits.is_finished());
    waits.abort();
}
