//! Connections, scripts, data or the whole server lost under traffic.

use super::traffic::Traffic;
use crate::scene::*;

async fn undisturbed_by(fault: impl Fn(&RedisServer)) {
    let server = RedisServer::start();
    let traffic = Traffic::start(
        &patient(server.url())
            .deny_cache(Duration::ZERO)
            .build()
            .unwrap(),
    );
    traffic.answered(100).await;
    traffic.all_by_store("before");
    for _ in 0..10 {
        fault(&server);
        traffic.answered(100).await;
        // A call is sent again once: none may meet two faults.
        traffic.under_way_over().await;
        traffic.all_by_store("during and after");
    }
    traffic.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_cost_no_decision() {
    undisturbed_by(|server| {
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(matches!(killed, Reply::Int(1..)), "{killed}");
    })
    .await;
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
async fn a_server_that_comes_back_is_used_within_a_second() {
    let mut server = RedisServer::start();
    let traffic = Traffic::start(
        &patient(server.url())
            .deny_cache(Duration::ZERO)
            .build()
            .unwrap(),
    );
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
