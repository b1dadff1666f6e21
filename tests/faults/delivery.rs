//! Calls that arrive twice take nothing twice.

use super::proxy::Proxy;
use crate::scene::*;

fn through(proxy: &Proxy) -> RedisStore {
    let store = patient(proxy.url()).connect_timeout(LONG);
    store.build().unwrap()
}

/// A limiter of ten permits an hour that Redis knows already.
async fn limiter(server: &RedisServer, store: &RedisStore) -> RateLimiter {
    let name = unique("orders");
    let direct = RateLimiter::new(&RedisStore::open(server.url()).unwrap(), &name).unwrap();
    assert!(direct.try_set_rate(Limit::per_hour(10)).await.unwrap());
    let limiter = RateLimiter::new(store, &name).unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 10);
    limiter
}

async fn granted(limiter: &RateLimiter, permits: u32) -> Decision {
    let decision = limiter.try_acquire_many(permits).await.unwrap();
    assert_eq!(decision.source(), Source::Store);
    assert!(decision.is_allowed(), "{decision:?}");
    decision
}

#[tokio::test]
async fn a_call_whose_reply_was_lost_is_resent_and_takes_nothing_twice() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = through(&proxy);
    let limiter = limiter(&server, &store).await;
    let _ = granted(&limiter, 1).await;

    server.cli(&["CONFIG", "RESETSTAT"]);
    proxy.cut_replies(1);
    let decision = granted(&limiter, 4).await;
    assert_eq!(proxy.replies_cut(), 1);
    assert_eq!(server.scripts_called(), 2, "executed, and sent again");
    assert_eq!(decision.limits().next().unwrap().remaining(), Some(5));
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
}

/// The one that took the last permits finds none left when it is sent again, but its own.
#[tokio::test]
async fn a_resent_call_for_the_last_permits_is_still_granted() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = through(&proxy);
    let limiter = limiter(&server, &store).await;
    let _ = granted(&limiter, 1).await;

    proxy.cut_replies(1);
    let _ = granted(&limiter, 9).await;
    assert_eq!(proxy.replies_cut(), 1);
    assert_eq!(limiter.available_permits().await.unwrap(), 0);
    assert!(!limiter.try_acquire().await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_call_that_is_delivered_twice_takes_nothing_twice() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    proxy.double();
    let store = through(&proxy);
    let limiter = limiter(&server, &store).await;
    let before = proxy.doubled();
    for (permits, left) in [(1, 9), (4, 5), (5, 0)] {
        let decision = granted(&limiter, permits).await;
        assert_eq!(decision.limits().next().unwrap().remaining(), Some(left));
    }
    assert!(
        proxy.doubled() >= before + 3,
        "{before}, then {}",
        proxy.doubled()
    );
    assert!(!limiter.try_acquire().await.unwrap().is_allowed());
    assert_eq!(limiter.available_permits().await.unwrap(), 0);
}

/// The ways to count in which nothing tells one call from another.
fn undistinguished(limiter: &RateLimiter) -> [RateLimiter; 3] {
    [
        limiter.clone().algorithm(Algorithm::FixedWindow),
        limiter.clone().algorithm(Algorithm::Gcra),
        limiter.clone().slots(10).unwrap(),
    ]
}

/// Redis cannot tell a repetition of these calls, so they are sent once: a call whose reply is lost
/// has taken its permits, and is an error.
#[tokio::test]
async fn a_call_like_any_other_whose_reply_was_lost_is_not_resent() {
    for way in 0..3 {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.address());
        let store = through(&proxy);
        let limiter = &undistinguished(&limiter(&server, &store).await)[way];
        let _ = granted(limiter, 1).await;

        server.cli(&["CONFIG", "RESETSTAT"]);
        proxy.cut_replies(1);
        let error = limiter.try_acquire_many(4).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        store.close().await;
        assert_eq!(server.scripts_called(), 1);
        assert_eq!(limiter.available_permits().await.unwrap(), 5);
    }
}

/// A receipt for such a call, if its reply is lost, may have been carried out. So it is never sent
/// again.
#[tokio::test]
async fn a_receipt_like_any_other_whose_reply_was_lost_is_not_resent() {
    for way in 0..3 {
        receipts_are_sent_once(way).await;
    }
}

async fn receipts_are_sent_once(way: usize) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = through(&proxy);
    let limiter = &undistinguished(&limiter(&server, &store).await)[way];
    let mut receipts = Vec::new();
    for permits in [1, 2, 6] {
        let Decision::Allow(grant) = granted(limiter, permits).await else {
            panic!("it was granted");
        };
        receipts.extend(grant.receipts().to_vec());
    }
    // So that the server knows the script.
    limiter.give_back(&receipts[0]);
    store.close().await;
    assert_eq!(limiter.available_permits().await.unwrap(), 2);

    server.cli(&["CONFIG", "RESETSTAT"]);
    proxy.cut_replies(1);
    limiter.give_back(&receipts[1]);
    // Those that are to be sent again are waited for, too.
    store.close().await;
    assert_eq!(server.scripts_called(), 1);
    assert_eq!(store.lost_receipts(), 1);
    assert_eq!(limiter.available_permits().await.unwrap(), 4);
}
