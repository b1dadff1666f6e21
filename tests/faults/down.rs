//! A server that is not there yet, or may not be written to.

use crate::scene::*;
use std::{net::Ipv4Addr, net::TcpListener};

use super::{
    traffic::{ask, service},
    wait::until,
};
use crate::support::scripted::ScriptedServer;

const LIMIT: Limit = Limit::per_hour(1_000_000);

#[tokio::test]
async fn a_service_starts_without_redis_and_finds_it_later() {
    let mut server = RedisServer::start();
    server.kill();
    let deadline = Duration::from_secs(5);
    let store = RedisStore::builder(server.url())
        .deadline(deadline)
        .build()
        .unwrap();
    let deny = service(&store, LIMIT, FailurePolicy::Deny);
    let allow = service(&store, LIMIT, FailurePolicy::Allow);
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();

    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // All of them together in less than one deadline.
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(
            ask(&deny).await,
            (StatusCode::SERVICE_UNAVAILABLE, Source::FailurePolicy)
        );
        assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
        let error = limiter.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    println!("300 answers without a server in {:?}", began.elapsed());
    assert!(began.elapsed() < deadline, "{:?}", began.elapsed());

    server.restart();
    for service in [&deny, &allow] {
        until("Redis decides", || async {
            ask(service).await == (StatusCode::OK, Source::Store)
        })
        .await;
    }
    store.ping().await.unwrap();
    assert!(limiter.try_set_rate(LIMIT).await.unwrap());
    assert!(limiter.try_acquire().await.unwrap().is_allowed());
    // What could not be sent has taken nothing, and there is nothing to give back.
    assert_eq!(store.lost_receipts(), 0);
}

/// A server accepts and disconnects: whatever the traffic, it is left alone most of the time.
#[tokio::test]
async fn a_server_that_hangs_up_is_not_stormed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let attempts = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&attempts);
    // Ends with the process.
    thread::spawn(move || {
        for connection in listener.incoming() {
            counting.fetch_add(1, Ordering::SeqCst);
            drop(connection);
        }
    });
    let store = RedisStore::builder(url).deadline(secs(5)).build().unwrap();
    let allow = service(&store, LIMIT, FailurePolicy::Allow);
    let began = Instant::now();
    let mut answers = 0;
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
        answers += 1;
    }
    // Who waits out the deadline is the only one.
    assert!(answers > 1, "{answers}");
    is_no_storm(attempts.load(Ordering::SeqCst), began);
}

/// A handshake proves nothing.
#[tokio::test]
async fn a_server_that_hangs_up_on_commands_is_not_stormed() {
    let server = ScriptedServer::start(|_| Vec::new());
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap();
    let allow = service(&store, LIMIT, FailurePolicy::Allow);
    let began = Instant::now();
    let mut answers = 0;
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
        answers += 1;
    }
    // Who waits out the deadline is the only one.
    assert!(answers > 1, "{answers}");
    is_no_storm(server.connections() as u64, began);
}

/// It answers those whose refusal writes nothing, which does not make it a master.
#[tokio::test]
async fn a_replica_that_answers_some_is_not_stormed() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_secs(5))
        .deny_cache(Duration::ZERO)
        .build()
        .unwrap();
    let spent = service(&store, Limit::per_hour(1), FailurePolicy::Allow);
    let room = service(&store, LIMIT, FailurePolicy::Allow);
    for service in [&spent, &room] {
        assert_eq!(ask(service).await, (StatusCode::OK, Source::Store));
    }
    // Of nothing: the port is not one to connect to.
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let before = connections_received(&server);
    let (began, mut refused) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(2) {
        // Over one connection: one of them loses it, and the other is answered.
        let (room, spent) = tokio::join!(ask(&room), ask(&spent));
        assert_eq!(room, (StatusCode::OK, Source::FailurePolicy));
        refused += usize::from(spent.1 == Source::Store);
        // The pace of callers.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let connected = connections_received(&server) - before;
    assert!(refused > 0, "it answers no call");
    is_no_storm(connected, began);
}

#[tokio::test]
async fn a_replica_meets_the_policy_until_it_is_a_master_again() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let deny = service(&store, LIMIT, FailurePolicy::Deny);
    let allow = service(&store, LIMIT, FailurePolicy::Allow);
    for service in [&deny, &allow] {
        assert_eq!(ask(service).await, (StatusCode::OK, Source::Store));
    }

    // Of nothing: the port is not one to connect to.
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let connections = connections_received(&server);
    let began = Instant::now();
    let mut answers = 0;
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!(
            ask(&deny).await,
            (StatusCode::SERVICE_UNAVAILABLE, Source::FailurePolicy)
        );
        assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
        answers += 2;
    }
    // The address may lead elsewhere by now, so it connects again; not with every request.
    let connected = connections_received(&server) - connections;
    // Who waits out the deadline is the only one.
    assert!(answers > 1, "{answers}");
    is_no_storm(connected, began);

    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    for service in [&deny, &allow] {
        until("Redis decides again", || async {
            ask(service).await == (StatusCode::OK, Source::Store)
        })
        .await;
    }
    assert_eq!(ask(&deny).await, (StatusCode::OK, Source::Store));
}

/// One at once, one more, then after 20, 40, 80, 160 and 320 ms, and two in each second from then
/// on.
fn is_no_storm(connections: u64, began: Instant) {
    let took = began.elapsed();
    println!("{connections} connections in {took:?}");
    let most = 10 + took.as_millis() as u64 / 500;
    assert!(
        (2..=most).contains(&connections),
        "{connections} in {took:?}"
    );
}

fn connections_received(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"))
        .unwrap();
    line.trim().parse().unwrap()
}
