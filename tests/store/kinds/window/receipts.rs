//! Receipts of windows: void after their window, and never credited twice.

use super::*;

#[tokio::test]
async fn a_receipt_is_void_after_its_window_in_memory() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    let limiter = Window::hourly(&store, 5).await;
    let late = take(&limiter, 2).await;
    clock.advance(HOUR);
    let in_time = take(&limiter, 2).await;
    limiter.give_back(&in_time.receipts()[0]);
    assert_eq!(free(&limiter).await, 3);
    clock.advance(millis(1));
    take(&limiter, 4).await;
    limiter.give_back(&late.receipts()[0]);
    assert_eq!(free(&limiter).await, 1);
}

#[tokio::test]
async fn a_receipt_is_void_after_its_window_in_redis() {
    let (store, server) = (redis_store().build().unwrap(), RedisServer::shared());
    let limiter = Window::hourly(&store, 5).await;
    let late = take(&limiter, 2).await;
    let value = format!("{{{}}}:value", limiter.name());
    // As if an hour less a second had passed.
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
    let store = redis_store().build().unwrap();
    let limiter = Window::hourly(&store, 5).await;
    let grant = take(&limiter, 2).await;
    limiter.set_rate(Limit::new(5, HOUR / 2)).await.unwrap();
    take(&limiter, 5).await;
    limiter.give_back(&grant.receipts()[0]);
    store.close().await;
    assert_eq!(free(&limiter).await, 0);
}
