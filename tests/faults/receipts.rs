//! What `Health::lost_receipts` counts: permits that may stay taken, and nothing else.

use kit::scene::*;

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
