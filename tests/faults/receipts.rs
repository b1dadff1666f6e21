//! What `Health::lost_receipts` counts: permits that may stay taken, and nothing else.

use kit::{scene::*, traffic::take_by_redis};

/// One call is in flight, and the others stand behind it. None of them is sent when they leave.
#[tokio::test]
async fn callers_that_leave_before_their_call_is_sent_lose_no_receipt() {
    /// More than the receipts that find a place.
    const CALLERS: usize = 5_000;
    const ROOM: u64 = 1_000_000;
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let limiter = limited(&store, Limit::per_hour(ROOM)).await;
    take(&limiter, 1).await;
    server.stop_process();
    let mut calls: Vec<_> = (0..CALLERS)
        .map(|_| Box::pin(limiter.try_acquire()))
        .collect();
    for call in &mut calls {
        assert!(poll(call).is_pending());
    }
    settle().await;
    drop(calls);
    server.resume();
    store.close().await;
    assert_eq!(store.health().lost_receipts, 0);
    until("what was in flight is given back", async || {
        free(&limiter).await == ROOM - 1
    })
    .await;
}

/// A server that refuses writes for a while has not settled: a receipt that may be sent more than
/// once is sent until it has. Any other is lost, and counted.
#[tokio::test]
async fn a_receipt_that_the_server_refused_is_sent_again() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let mut taken = Vec::new();
    for way in Way::ALL {
        let limiter = way.limited(&store, Limit::per_hour(10)).await;
        let (back, less) = (
            take_by_redis(&limiter, 4).await,
            take_by_redis(&limiter, 3).await,
        );
        taken.push((way, limiter, back, less));
    }
    server.configure("maxmemory", "1");
    for (_, limiter, back, less) in &taken {
        limiter.give_back(back);
        limiter.settle(less, 1);
    }
    let lost = || store.health().lost_receipts;
    until("those that are sent once are lost", async || lost() == 8).await;
    server.configure("maxmemory", "0");
    store.close().await;
    for (way, limiter, ..) in &taken {
        let is_log = matches!(way, Way::Log | Way::OwnLog);
        assert_eq!(free(limiter).await, if is_log { 9 } else { 3 }, "{way:?}");
    }
    assert_eq!((lost(), store.health().lost_charges), (8, 0));
}
