//! Settlements over a bad connection: once, or counted as lost.

use super::{proxy::Proxy, wait::until};
use crate::scene::*;

/// Returns a limiter of a hundred permits of which ten are taken.
async fn ten_taken(store: &RedisStore, interval: Duration) -> (RateLimiter, Receipt) {
    let limiter = RateLimiter::new(store, &unique("settled")).unwrap();
    limiter.set_rate(Limit::new(100, interval)).await.unwrap();
    let Decision::Allow(grant) = limiter.try_acquire_many(10).await.unwrap() else {
        panic!("no other caller takes any");
    };
    (limiter, grant.receipts()[0].clone())
}

fn through(proxy: &Proxy) -> RedisStore {
    patient(proxy.url()).build().unwrap()
}

#[tokio::test]
async fn a_settlement_whose_reply_was_lost_is_sent_again_and_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = through(&proxy);
    for (kept, left) in [(0, 100), (3, 97), (25, 75), (250, -150)] {
        let (limiter, receipt) = ten_taken(&store, HOUR).await;
        let cut = proxy.replies_cut();
        proxy.cut_replies(1);
        limiter.settle(&receipt, kept);
        store.close().await;
        assert_eq!(proxy.replies_cut(), cut + 1);
        let value = server.cli(&["GET", &format!("{{{}}}:value", limiter.name())]);
        assert_eq!(value, left.to_string(), "settled at {kept}");
    }
    assert_eq!((store.lost_receipts(), store.lost_charges()), (0, 0));
}

#[tokio::test]
async fn a_settlement_that_is_delivered_twice_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    proxy.double();
    let store = through(&proxy);
    for (kept, left) in [(0, 100), (3, 97), (25, 75)] {
        let (limiter, receipt) = ten_taken(&store, HOUR).await;
        let doubled = proxy.doubled();
        limiter.settle(&receipt, kept);
        store.close().await;
        assert!(proxy.doubled() > doubled);
        assert_eq!(limiter.available_permits().await.unwrap(), left, "{kept}");
    }
}

#[tokio::test]
async fn a_charge_is_kept_while_redis_is_away() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = through(&proxy);
    // So that the script is known.
    let (limiter, receipt) = ten_taken(&store, HOUR).await;
    limiter.settle(&receipt, 3);
    store.close().await;
    let (limiter, receipt) = ten_taken(&store, HOUR).await;
    proxy.refuse(true);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.cli(&["CONFIG", "RESETSTAT"]);
    limiter.settle(&receipt, 30);
    let closing = tokio::time::timeout(Duration::from_millis(50), store.close());
    assert!(closing.await.is_err(), "nothing was sent yet");
    proxy.refuse(false);
    store.close().await;
    assert_eq!(store.lost_charges(), 0);
    assert_eq!(
        server.scripts_called(),
        1,
        "sent when it could be, and once"
    );
    assert_eq!(limiter.available_permits().await.unwrap(), 70);
}

/// Its entry may have been there and gone, so that it would be charged twice.
#[tokio::test]
async fn a_charge_is_not_sent_again_later_than_its_interval() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = through(&proxy);
    let (limiter, receipt) = ten_taken(&store, Duration::from_millis(1500)).await;
    proxy.refuse(true);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    limiter.settle(&receipt, 30);
    limiter.settle(&receipt, 2);
    until("it is lost", async || store.lost_charges() == 1).await;
    proxy.refuse(false);
    // What gives back may be sent at any time, and was not given up.
    store.close().await;
    assert_eq!((store.lost_receipts(), store.lost_charges()), (0, 1));
    until("nothing is owed", async || {
        limiter
            .available_permits()
            .await
            .is_ok_and(|left| left == 100)
    })
    .await;
}
