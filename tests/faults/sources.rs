//! Connections that the user brings.

use crate::scene::*;
use tower_ratelimit::{deadpool_redis, redis};

use super::traffic::Traffic;

/// A busy machine is no failure.
const LONG: Duration = Duration::from_secs(5);

async fn survives_killed_connections(server: &RedisServer, store: RedisStoreBuilder) {
    let store = store
        .deadline(LONG)
        .connect_timeout(LONG)
        .response_timeout(LONG)
        .deny_cache(Duration::ZERO)
        .build()
        .unwrap();
    let traffic = Traffic::start(&store);
    traffic.answered(100).await;
    traffic.all_by_store("before");
    for _ in 0..5 {
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(matches!(killed, Reply::Int(1..)), "{killed}");
        traffic.answered(100).await;
        // A call is sent once more, not twice: none is to meet two kills.
        traffic.under_way_over().await;
        traffic.all_by_store("during and after");
    }
    traffic.end().await;
}

/// The connection itself would wait for ever, and its caller for permits.
#[tokio::test]
async fn a_connection_without_a_timeout_keeps_no_caller() {
    let mut server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let store = RedisStore::connection(connection.await.unwrap())
        .build()
        .unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    assert!(limiter.try_set_rate(Limit::per_hour(1)).await.unwrap());
    server.stop_process();
    let acquired = tokio::time::timeout(3 * LONG, limiter.acquire()).await;
    let error = acquired.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_survives_killed_connections() {
    let server = RedisServer::start();
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = deadpool_redis::Manager::new_with_config(server.url(), config).unwrap();
    let pool = deadpool_redis::Pool::builder(manager).build().unwrap();
    // Others use the pool as well: what it has in stock is dead after the kill.
    drop(pool.get().await.unwrap());
    survives_killed_connections(&server, RedisStore::pool(pool)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_manager_survives_killed_connections() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let config = redis::aio::ConnectionManagerConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = client
        .get_connection_manager_with_config(config)
        .await
        .unwrap();
    survives_killed_connections(&server, RedisStore::connection(manager)).await;
}
