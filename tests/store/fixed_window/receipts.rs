//! Receipts of windows: void after their window, and never credited twice.

use super::{HOUR, free, hourly, take, until};
use crate::scene::*;

async fn a_receipt_gives_back_once(store: impl Store) {
    let limiter = hourly(&store, 20).await;
    let grant = take(&limiter, 3).await;
    take(&limiter, 10).await;
    let copies = vec![grant.clone(); 8];
    for copy in &copies {
        for receipt in copy.receipts() {
            limiter.give_back(receipt);
        }
    }
    until(async || free(&limiter).await == 10).await;
    // A later one is carried out after all that were sent before.
    let later = take(&limiter, 1).await;
    limiter.give_back(&later.receipts()[0]);
    limiter.give_back(&grant.receipts()[0]);
    until(async || free(&limiter).await == 10).await;
    // Another limiter's has no effect, and stays good for its own.
    let other = hourly(&store, 20).await;
    let grant = take(&other, 4).await;
    limiter.give_back(&grant.receipts()[0]);
    assert_eq!((free(&other).await, free(&limiter).await), (16, 10));
    other.give_back(&grant.receipts()[0]);
    until(async || free(&other).await == 20).await;
}

#[tokio::test]
async fn a_receipt_gives_back_once_in_memory() {
    a_receipt_gives_back_once(MemoryStore::new()).await;
}

#[tokio::test]
async fn a_receipt_gives_back_once_in_redis() {
    let store = super::redis_store().build().unwrap();
    a_receipt_gives_back_once(store.clone()).await;
    store.close().await;
    assert_eq!(store.lost_receipts(), 0);
}

#[tokio::test]
async fn a_receipt_is_void_after_its_window_in_memory() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    let limiter = hourly(&store, 5).await;
    let late = take(&limiter, 2).await;
    clock.advance(HOUR);
    let in_time = take(&limiter, 2).await;
    limiter.give_back(&in_time.receipts()[0]);
    assert_eq!(free(&limiter).await, 3);
    clock.advance(Duration::from_millis(1));
    take(&limiter, 4).await;
    limiter.give_back(&late.receipts()[0]);
    assert_eq!(free(&limiter).await, 1);
}

#[tokio::test]
async fn a_receipt_is_void_after_its_window_in_redis() {
    let (store, server) = (super::redis_store().build().unwrap(), RedisServer::shared());
    let limiter = hourly(&store, 5).await;
    let late = take(&limiter, 2).await;
    let value = format!("{{{}}}:value", limiter.name());
    // As if an hour had passed, but for a second.
    server.command(&["DEL", &value]);
    take(&limiter, 4).await;
    server.command(&["PEXPIRE", &value, "3500000"]);
    limiter.give_back(&late.receipts()[0]);
    store.close().await;
    assert_eq!(free(&limiter).await, 1);
    // And where none is open.
    let late = take(&limiter, 1).await;
    server.command(&["DEL", &value]);
    limiter.give_back(&late.receipts()[0]);
    store.close().await;
    assert_eq!(server.cli(&["EXISTS", &value]), "0");
}

#[tokio::test]
async fn a_receipt_of_a_reset_limit_is_void() {
    let store = super::redis_store().build().unwrap();
    let limiter = hourly(&store, 5).await;
    let grant = take(&limiter, 2).await;
    limiter.set_rate(Limit::new(5, HOUR / 2)).await.unwrap();
    take(&limiter, 5).await;
    limiter.give_back(&grant.receipts()[0]);
    store.close().await;
    assert_eq!(free(&limiter).await, 0);
}

/// The server that is asked has lost its scripts: what did not run is sent again, with its text, and only that.
#[tokio::test]
async fn a_server_without_the_script_credits_once() {
    let server = RedisServer::start();
    let store = super::store_on(&server).build().unwrap();
    let limiter = hourly(&store, 20).await;
    let mut grants = Vec::new();
    for _ in 0..6 {
        grants.push(take(&limiter, 2).await);
    }
    server.command(&["SCRIPT", "FLUSH"]);
    for grant in &grants[..5] {
        limiter.give_back(&grant.receipts()[0]);
    }
    store.close().await;
    assert_eq!(free(&limiter).await, 18);
    assert_eq!(store.lost_receipts(), 0);
}

/// Without a runtime nothing is sent, and the receipt is spent: the permits come back with the next window.
#[test]
fn a_receipt_without_a_runtime_is_lost() {
    let store = super::redis_store().build().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (limiter, grant): (RateLimiter, _) = runtime.block_on(async {
        let limiter = hourly(&store, 5).await;
        let grant = take(&limiter, 2).await;
        (limiter, grant)
    });
    drop(runtime);
    limiter.give_back(&grant.receipts()[0]);
    assert_eq!(store.lost_receipts(), 1);
}
