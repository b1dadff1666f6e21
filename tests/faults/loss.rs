//! Connections, scripts, data or the whole server lost under traffic, and connections that the user
//! brings.

use crate::scene::*;
use tower_ratelimit::{deadpool_redis, redis};

use super::traffic::{Traffic, kill_connections};

/// By the store's own connection.
async fn undisturbed_by(fault: impl Fn(&RedisServer)) {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url());
    Traffic::undisturbed(store, 10, || fault(&server)).await;
}

async fn survives_killed_connections(server: &RedisServer, store: RedisStoreBuilder) {
    Traffic::undisturbed(store, 5, || assert!(kill_connections(server) > 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_cost_no_decision() {
    undisturbed_by(|server| assert!(kill_connections(server) > 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_cost_no_decision() {
    undisturbed_by(|server| assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_data_costs_no_decision() {
    undisturbed_by(|server| assert_eq!(server.cli(&["FLUSHALL"]), "OK")).await;
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
    let manager = client.get_connection_manager_with_config(config).await;
    let store = RedisStore::connection(manager.unwrap());
    survives_killed_connections(&server, store).await;
}

/// The connection itself would wait for ever, and its caller for permits.
#[tokio::test]
async fn a_connection_without_a_timeout_keeps_no_caller() {
    let mut server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let store = RedisStore::connection(connection.await.unwrap());
    let limiter = limited(&store.build().unwrap(), Limit::per_hour(1)).await;
    server.stop_process();
    let acquired = tokio::time::timeout(LONG, limiter.acquire()).await;
    let error = acquired.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_is_used_within_a_second() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).deny_cache(Duration::ZERO);
    let traffic = Traffic::start(&store.build().unwrap());
    traffic.answered(100).await;
    traffic.all_by_store("before");

    server.kill();
    // No caller waits out the deadline of five seconds: hundreds of replies come in less.
    let down = Instant::now();
    traffic.met_policy(100).await;
    assert!(down.elapsed() < secs(4), "{:?}", down.elapsed());
    // Long enough for the pauses between attempts to have grown.
    while down.elapsed() < Duration::from_secs(6) {
        traffic.met_policy(100).await;
    }

    // Returns when the server answers.
    block_in_place(|| server.restart());
    let up = Instant::now();
    traffic.answered(1).await;
    let healed = up.elapsed();
    println!("decisions come from Redis again {healed:?} after it answers");

    // What was begun before the connection was made has ended by now.
    traffic.answered(20).await;
    traffic.forget();
    traffic.answered(200).await;
    traffic.all_by_store("after");
    traffic.end().await;
}
