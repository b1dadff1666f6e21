//! The laws of a store on a real PostgreSQL, and what happens when it is gone.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod server;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use server::Server;
use tokio::task::JoinSet;
use tower_ratelimit::{
    Clock, Decision, ErrorKind, Limit, RateLimiter, Source,
    backend::{BackendStore, Settings, laws},
    testing::ManualClock,
};
use tower_ratelimit_postgres::Postgres;

/// Far longer than a call takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Returns a store by the system's clock, or by the test's.
fn store(server: &Server, clock: Option<&ManualClock>) -> BackendStore {
    let settings = Settings {
        deadline: LONG,
        clock: clock.map(|clock| Arc::new(clock.clone()) as Arc<dyn Clock>),
        ..Settings::default()
    };
    BackendStore::new(Postgres::new(server.config()), settings).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_keeps_the_laws() {
    let (server, clock) = (Server::start().await, ManualClock::new());
    laws::swaps(&Postgres::new(server.config()), 7).await;
    laws::check(&store(&server, Some(&clock)), &clock, 7, 60).await;
}

/// The oldest permits are given back first, part of a grant as well, and what is left is exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_gives_back_the_oldest_permits() {
    let (server, clock) = (Server::start().await, ManualClock::new());
    let store = store(&server, Some(&clock));
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    limiter.try_set_rate(Limit::per_minute(10)).await.unwrap();
    for permits in [3, 4] {
        limiter
            .try_acquire_many(permits)
            .await
            .unwrap()
            .assert_allowed();
        clock.advance(Duration::from_secs(10));
    }
    assert_eq!(limiter.release(5).await.unwrap(), 5);
    assert_eq!(limiter.available_permits().await.unwrap(), 8);
    // Two of the second grant are left, which began ten seconds ago.
    let decision = limiter.try_acquire_many(9).await.unwrap();
    decision.assert_retry_after(Duration::from_secs(50));
    assert_eq!(limiter.release(9).await.unwrap(), 2);
    assert_eq!(limiter.available_permits().await.unwrap(), 10);
}

/// From several processes: each has a connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_connections_share_one_limit() {
    let server = Server::start().await;
    let stores: Vec<_> = (0..4).map(|_| store(&server, None)).collect();
    let limiters: Vec<_> = stores
        .iter()
        .map(|store| RateLimiter::new(store, "shared").unwrap())
        .collect();
    limiters[0].try_set_rate(Limit::per_hour(50)).await.unwrap();
    let mut callers = JoinSet::new();
    for number in 0..200 {
        let limiter = limiters[number % 4].clone();
        callers.spawn(async move { limiter.try_acquire().await.unwrap().is_allowed() });
    }
    let granted = callers
        .join_all()
        .await
        .into_iter()
        .filter(|granted| *granted)
        .count();
    assert_eq!(granted, 50);
    for limiter in &limiters {
        let decision = limiter.try_acquire().await.unwrap();
        let Decision::Deny(refusal) = decision else {
            panic!("51 of 50 permits");
        };
        let wait = refusal.retry_after().unwrap();
        assert!(
            wait <= Duration::from_secs(3600) && wait > Duration::from_secs(3000),
            "{wait:?}"
        );
    }
    // In real time: the wait is not too short.
    let brief = RateLimiter::new(&stores[0], "brief").unwrap();
    brief
        .try_set_rate(Limit::new(1, Duration::from_millis(300)))
        .await
        .unwrap();
    for _ in 0..5 {
        let refusal = loop {
            // On a busy machine the interval may be over: then another permit is taken.
            if let Decision::Deny(refusal) = brief.try_acquire().await.unwrap() {
                break refusal;
            }
        };
        tokio::time::sleep(refusal.retry_after().unwrap()).await;
        brief.try_acquire().await.unwrap().assert_allowed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_is_an_error_and_a_new_connection_finds_the_limits() {
    let mut server = Server::start().await;
    let store = store(&server, None);
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    let missing = limiter.try_acquire().await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotInitialized);
    limiter.try_set_rate(Limit::per_hour(2)).await.unwrap();
    let decision = limiter.try_acquire().await.unwrap();
    assert_eq!(decision.source(), Source::Store);
    // The connection is closed from outside: the call after it makes another one.
    let (other, connection) = server
        .config()
        .connect(tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let all =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
    other.query(all, &[]).await.unwrap();
    let mut failures = 0;
    let decision = loop {
        match limiter.try_acquire().await {
            Ok(decision) => break decision,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        }
        failures += 1;
        assert!(failures < 3, "no new connection");
    };
    decision.assert_allowed().assert_remaining(0);
    server.stop();
    let error = limiter.available_permits().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// What says nothing any more is removed, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_is_forgotten() {
    let (server, clock) = (Server::start().await, ManualClock::new());
    let store = store(&server, Some(&clock));
    let keyed = Limit::per_minute(5).named("minute").keyed(&store).unwrap();
    for caller in 0..3 {
        let decision = keyed.of(caller).try_acquire().await.unwrap();
        decision.assert_allowed();
    }
    let kept = RateLimiter::new(&store, "kept").unwrap();
    kept.try_set_rate(Limit::per_minute(5)).await.unwrap();
    let admin = Postgres::new(server.config());
    for (pause, forgotten) in [(60, 0), (61, 3), (1_000_000, 0)] {
        clock.advance(Duration::from_secs(pause));
        let now = SystemTime::UNIX_EPOCH + clock.now();
        assert_eq!(admin.forget(now).await.unwrap(), forgotten, "{pause}");
    }
    assert_eq!(kept.limit().await.unwrap(), Some(Limit::per_minute(5)));
}
