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

/// Receipts that come while a command is under way go together: behind it, or as soon as they fill
/// a command.
#[tokio::test]
async fn receipts_share_commands() {
    const EACH: usize = 50;
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let (mut limiters, mut taken) = (Vec::new(), Vec::new());
    for way in Way::OWN {
        let limiter = way.limited(&store, Limit::per_hour(1000)).await;
        for _ in 0..EACH {
            taken.push((limiter.clone(), take_by_redis(&limiter, 2).await));
        }
        limiters.push((way, limiter));
    }
    let before = server.scripts_called();
    server.stop_process();
    taken
        .iter()
        .for_each(|(limiter, grant)| limiter.settle(grant, 1));
    settle().await;
    server.resume();
    store.close().await;
    // Those of a log may be sent again, and go apart from others.
    let commands = [EACH, 2 * EACH].map(|receipts| 1 + (receipts - 1).div_ceil(64));
    assert_eq!(
        server.scripts_called() - before,
        commands.iter().sum::<usize>() as u64
    );
    for (way, limiter) in &limiters {
        assert_eq!(free(limiter).await, 1000 - EACH as u64, "{way:?}");
    }
}

/// A server refuses a whole command for one key that its user may not reach.
#[tokio::test]
async fn a_receipt_that_is_refused_takes_no_other_along() {
    let mut server = RedisServer::start();
    server.obeys("ACL SETUSER api on >secret ~* +@all");
    let url = server.url().replace("redis://", "redis://api:secret@");
    let store = patient(url).build().unwrap();
    let mut taken = Vec::new();
    for way in Way::OWN {
        for name in ["first", "forbidden", "other", "last"] {
            let name = format!("{name}-{way:?}");
            let limiter = way.named(&store, &name, Limit::per_hour(10)).await;
            let grant = take_by_redis(&limiter, 4).await;
            taken.push((limiter, grant));
        }
    }
    server.obeys("ACL SETUSER api resetkeys ~*first* ~*other* ~*last*");
    server.stop_process();
    taken
        .iter()
        .for_each(|(limiter, grant)| limiter.give_back(grant));
    settle().await;
    server.resume();
    store.close().await;
    assert_eq!(store.health().lost_receipts, Way::OWN.len() as u64);
    server.obeys("ACL SETUSER api allkeys");
    let mut left = Vec::new();
    for (limiter, _) in &taken {
        left.push(free(limiter).await);
    }
    assert_eq!(left, [10, 6, 10, 10].repeat(Way::OWN.len()));
}

/// All requests in flight may end at once.
#[tokio::test]
async fn places_in_flight_crowd_out_no_correction() {
    const PLACES: usize = 1100;
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let places = Limit::in_flight(1000, LONG)
        .named("places")
        .keyed(&store)
        .unwrap();
    let mut taken = Vec::new();
    for place in 0..PLACES {
        let limiter = places.of(format!("{}", place % 2));
        let grant = take_by_redis(&limiter, 1).await;
        taken.push((limiter, grant));
    }
    let corrected = Way::OwnLog.limited(&store, Limit::per_hour(100)).await;
    let grant = take_by_redis(&corrected, 1).await;
    server.stop_process();
    taken
        .iter()
        .for_each(|(limiter, grant)| limiter.give_back(grant));
    corrected.settle(&grant, 50);
    settle().await;
    server.resume();
    store.close().await;
    let health = store.health();
    assert_eq!((health.lost_receipts, health.lost_charges), (0, 0));
    assert_eq!(free(&corrected).await, 50);
}
