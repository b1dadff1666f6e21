//! `RateLimiter::all`: several limiters of exact names, without HTTP.

use kit::scene::*;
use tower_ratelimit::AllOf;

use crate::limiter::pending;

use super::world::{left, refused_by};

on_both_by_a_clock!(
    each_takes_its_own,
    an_error_of_one_charges_none,
    what_cannot_be_asked_together,
    a_wait_beyond_the_timeout_is_refused_at_once,
    room_of_one_wakes_those_who_wait_for_all,
);

/// Limiters of these rates, each in an interval of its own in ms.
async fn limiters<const N: usize>(store: &impl Store, limits: [(u64, u64); N]) -> [RateLimiter; N] {
    let limiters = limits.map(|_| RateLimiter::new(store, &unique("all")).unwrap());
    for (limiter, (rate, interval)) in limiters.iter().zip(limits) {
        let limit = Limit::new(rate, Duration::from_millis(interval));
        assert!(limiter.try_set_rate(limit).await.unwrap());
    }
    limiters
}

async fn taken(all: &AllOf, permits: u32) -> bool {
    all.try_acquire_many(permits).await.unwrap().is_allowed()
}

async fn each_takes_its_own(store: impl Store, _: ManualClock) {
    let limiters = limiters(&store, [(9, 1000), (5, 1000)]).await;
    let all = RateLimiter::all(&limiters).unwrap();
    let decision = all.try_acquire_each(&[7, 2]).await.unwrap();
    // The one closest to exhaustion is first.
    assert_eq!(permits_taken(&granted(decision)), [7, 2]);
    assert_eq!(left(&limiters).await, [2, 3]);
    let refusal = refused(all.try_acquire_each(&[1, 4]).await.unwrap());
    assert_eq!(
        refused_by(&refusal),
        [(limiters[1].name().to_owned(), Some(1000))]
    );
    for wrong in [&[][..], &[1], &[1, 1, 1], &[0, 1], &[1, 0]] {
        let error = all.try_acquire_each(wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permits, "{wrong:?}");
    }
    assert_eq!(left(&limiters).await, [2, 3]);
}

async fn an_error_of_one_charges_none(store: impl Store, _: ManualClock) {
    let [first, last] = limiters(&store, [(5, 1000), (5, 1000)]).await;
    let unset = RateLimiter::new(&store, &unique("unset")).unwrap();
    let all = RateLimiter::all([&first, &unset, &last]).unwrap();
    fails(all.try_acquire().await, ErrorKind::NotInitialized);
    fails(all.acquire().await, ErrorKind::NotInitialized);
    assert_eq!(left(&[first.clone(), last.clone()]).await, [5, 5]);
    assert!(!unset.exists().await.unwrap(), "it does not exist");
    unset.try_set_rate(Limit::per_second(1)).await.unwrap();
    assert!(taken(&all, 1).await);

    let above = refused(all.try_acquire_many(2).await.unwrap());
    assert_eq!(above.kind(), RefusalKind::AboveRate);
    assert_eq!(above.retry_after(), None);
    fails(all.acquire_many(2).await, ErrorKind::AboveRate);
    assert_eq!(left(&[first, last]).await, [4, 4]);
}

async fn what_cannot_be_asked_together(store: impl Store, _: ManualClock) {
    let [one, other] =
        ["one", "other"].map(|name| RateLimiter::new(&store, &unique(name)).unwrap());
    let foreign = RateLimiter::new(&MemoryStore::new(), "foreign").unwrap();
    let not_together = |limiters: &[&RateLimiter], reason: &str| {
        let error = RateLimiter::all(limiters.iter().copied()).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Rule);
        let said = "permits of these limiters cannot be taken together: ";
        assert!(error.to_string().starts_with(said), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    };
    not_together(&[], "none");
    not_together(&[&one, &other, &one], "twice");
    not_together(&[&one, &foreign], "different store");
    assert!(RateLimiter::all([&one, &other]).is_ok());
    let debug = format!("{:?}", RateLimiter::all([&one]).unwrap());
    assert!(!debug.contains(one.name()), "{debug}");
}

async fn a_wait_beyond_the_timeout_is_refused_at_once(store: impl Store, clock: ManualClock) {
    let limiters = limiters(&store, [(2, 1000), (4, 3000)]).await;
    let all = RateLimiter::all(&limiters).unwrap();
    assert!(limiters[1].try_acquire_many(4).await.unwrap().is_allowed());
    let millis = Duration::from_millis;
    for max_wait in [Duration::ZERO, millis(1), millis(2999)] {
        let refused = refused(all.try_acquire_for(1, max_wait).await.unwrap());
        assert_eq!(refused.retry_after(), Some(millis(3000)));
    }
    let mut waiting = pin!(all.try_acquire_for(1, millis(3000)));
    pending(&mut waiting, &clock).await;
    assert_eq!(left(&limiters).await, [2, 0]);
    clock.advance(millis(3000));
    assert!(waiting.await.unwrap().is_allowed());
    assert_eq!(left(&limiters).await, [1, 3]);
}

async fn room_of_one_wakes_those_who_wait_for_all(store: impl Store, clock: ManualClock) {
    let limiters = limiters(&store, [(9, 1000), (2, 60_000)]).await;
    let all = RateLimiter::all(&limiters).unwrap();
    let granted = granted(limiters[1].try_acquire_many(2).await.unwrap());
    let mut waiting = pin!(all.acquire());
    pending(&mut waiting, &clock).await;
    limiters[1].give_back(&granted);
    waiting.await.unwrap();
    assert_eq!(left(&limiters).await, [8, 1]);

    assert!(limiters[1].try_acquire().await.unwrap().is_allowed());
    let mut waiting = pin!(all.acquire());
    pending(&mut waiting, &clock).await;
    let raised = Limit::new(3, Duration::from_secs(60));
    assert!(limiters[1].update_rate(raised).await.unwrap());
    waiting.await.unwrap();
    assert_eq!(left(&limiters).await, [7, 0]);
}
