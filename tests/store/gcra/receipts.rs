//! Receipts: they give back what still lies ahead, once, and charge more as debt.

use super::{
    Answer, HOUR, decision_of, free, hourly, named, of_five, redis_store, send, store_on, take,
    until,
};
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
    let store = redis_store().build().unwrap();
    a_receipt_gives_back_once(store.clone()).await;
    store.close().await;
    assert_eq!(store.lost_receipts(), 0);
}

/// Of ten an hour, one is through every six minutes.
#[tokio::test]
async fn a_receipt_gives_back_what_lies_ahead() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    for (after, back) in [(0, 4), (6, 3), (7, 3), (23, 1), (24, 0), (30, 0)] {
        let limiter = hourly(&store, 10).await;
        let grant = take(&limiter, 4).await;
        clock.advance(Duration::from_secs(60 * after));
        let before = free(&limiter).await;
        limiter.give_back(&grant.receipts()[0]);
        assert_eq!(free(&limiter).await - before, back, "after {after} minutes");
    }
    // Behind what others took, all of it lies ahead.
    let limiter = hourly(&store, 10).await;
    take(&limiter, 5).await;
    let grant = take(&limiter, 4).await;
    clock.advance(HOUR / 2);
    assert_eq!(free(&limiter).await, 6);
    limiter.give_back(&grant.receipts()[0]);
    assert_eq!(free(&limiter).await, 10);
    // And nothing of it where another's was given back before, and so came through earlier.
    let limiter = hourly(&store, 10).await;
    let first = take(&limiter, 5).await;
    let second = take(&limiter, 5).await;
    limiter.give_back(&first.receipts()[0]);
    clock.advance(HOUR / 2);
    take(&limiter, 10).await;
    limiter.give_back(&second.receipts()[0]);
    assert_eq!(free(&limiter).await, 0);
}

/// Of five an hour, one is through every twelve minutes. What was given back before a receipt's permits has brought them
/// forward: who forgets that gives back others' in their place.
#[tokio::test]
async fn memory_does_not_forget_what_a_receipt_must_know() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone()).max_limiters(1);
    let layer = of_five(&store, Limit::new(5, HOUR));
    let minutes = |minutes: u64| clock.advance(Duration::from_secs(60 * minutes));
    let limiter = named(&store, "memory:{a}:five");
    let answers = [send(&layer, "a").await, send(&layer, "a").await];
    let grants = answers.each_ref().map(granted);
    limiter.give_back(&grants[0].receipts()[0]);
    minutes(12);
    assert_eq!(free(&limiter).await, 5);
    // A newcomer would take its place, and leave it again.
    let newcomer = send(&layer, "b").await;
    if newcomer.status().is_success() {
        named(&store, "memory:{b}:five").give_back(&granted(&newcomer).receipts()[0]);
    }
    assert!(send(&layer, "a").await.status().is_success());
    limiter.give_back(&grants[1].receipts()[0]);
    assert_eq!(free(&limiter).await, 4);
    // No receipt matters any more, and nothing is in use.
    minutes(12);
    assert!(send(&layer, "b").await.status().is_success());
}

fn granted(answer: &Answer) -> Grant {
    match decision_of(answer) {
        Decision::Allow(grant) => grant.clone(),
        Decision::Deny(refusal) => panic!("{refusal:?}"),
    }
}

async fn what_was_used_is_settled(store: impl Store, flush: impl AsyncFn()) {
    let limiter = hourly(&store, 10).await;
    let part = take(&limiter, 5).await;
    limiter.settle(&part.receipts()[0], 2);
    flush().await;
    assert_eq!(free(&limiter).await, 8);
    // Debt: up to the whole limit, so that it is over an interval later.
    let more = take(&limiter, 1).await;
    limiter.settle(&more.receipts()[0], 20);
    flush().await;
    assert_eq!(free(&limiter).await, 0);
    assert!(!limiter.try_acquire().await.unwrap().is_allowed());
    assert_eq!(limiter.release(13).await.unwrap(), 10);
    assert_eq!(free(&limiter).await, 10);
    // One that was reset owes what is settled afterwards, and is owed nothing.
    let last = take(&limiter, 1).await;
    limiter.set_rate(Limit::new(10, HOUR)).await.unwrap();
    limiter.give_back(&last.receipts()[0]);
    flush().await;
    assert_eq!(free(&limiter).await, 10);
}

#[tokio::test]
async fn what_was_used_is_settled_in_memory() {
    what_was_used_is_settled(MemoryStore::new(), async || ()).await;
}

#[tokio::test]
async fn what_was_used_is_settled_in_redis() {
    let store = redis_store().build().unwrap();
    what_was_used_is_settled(store.clone(), async || store.close().await).await;
}

/// The server that is asked has lost its scripts: what did not run is sent again, with its text, and only that.
#[tokio::test]
async fn a_server_without_the_script_credits_once() {
    let server = RedisServer::start();
    let store = store_on(&server).build().unwrap();
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

/// Without a runtime nothing is sent, and the receipt is spent: the permits come back in their time.
#[test]
fn a_receipt_without_a_runtime_is_lost() {
    let store = redis_store().build().unwrap();
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
