//! Tests a server that does not run yet, or refuses writes.

use kit::{
    scene::*,
    scripted::ScriptedServer,
    traffic::{ALLOWED, BY_REDIS, DENIED, HOURLY, ask, by_redis, deny_and_allow, service},
};

/// Too long for two callers to wait it out while a test looks.
const DEADLINE: Duration = secs(30);

/// Asks for two seconds and twice, whatever the answers: the server is left alone most of the time.
/// One connection at once, one more, then after 20, 40, 80, 160 and 320 ms, and two in each second
/// from then on.
async fn no_storm(what: &str, connections: impl Fn() -> u64, mut asks: impl AsyncFnMut()) {
    let (before, began) = (connections(), Instant::now());
    let mut rounds = 0;
    while began.elapsed() < secs(2) || rounds < 2 {
        asks().await;
        rounds += 1;
    }
    let (made, took) = (connections() - before, began.elapsed());
    // Who waits out the deadline is the only one.
    assert!(took < 2 * DEADLINE, "{what}: {took:?}");
    println!("{what}: {made} connections in {took:?}");
    let most = 10 + took.as_millis() as u64 / 500;
    assert!((2..=most).contains(&made), "{what}: {made} in {took:?}");
}

/// One accepts and disconnects; the other does so on a command, as a handshake proves nothing.
#[tokio::test]
async fn a_server_that_hangs_up_is_not_stormed() {
    for (what, server) in [
        ("on clients", ScriptedServer::stranger(Some(b""))),
        ("on commands", ScriptedServer::start(|_| Vec::new())),
    ] {
        let store = hasty(server.url(), DEADLINE);
        let [_, allow] = deny_and_allow(&store.build().unwrap());
        let connections = || server.connections() as u64;
        no_storm(what, connections, async || {
            assert_eq!(ask(&allow).await, ALLOWED, "{what}");
        })
        .await;
    }
}

fn connections_received(server: &RedisServer) -> u64 {
    let received = server.figure("stats", "total_connections_received:");
    received.unwrap()
}

/// Makes a replica, of nothing: the port is not one to connect to.
const DEMOTE: &str = "REPLICAOF 127.0.0.1 1";

/// It answers those whose refusal writes nothing, which does not make it a master.
#[tokio::test]
async fn a_replica_that_answers_some_is_not_stormed() {
    let server = RedisServer::start();
    let store = hasty(server.url(), DEADLINE);
    let store = store.deny_cache(Duration::ZERO).build().unwrap();
    let spent = service(&store, Limit::per_hour(1), FailurePolicy::Allow);
    let room = service(&store, HOURLY, FailurePolicy::Allow);
    for service in [&spent, &room] {
        assert_eq!(ask(service).await, BY_REDIS);
    }
    server.obeys(DEMOTE);
    let mut refused = 0;
    no_storm(
        "some",
        || connections_received(&server),
        async || {
            // Over one connection: one of them loses it, and the other is answered.
            let (room, spent) = tokio::join!(ask(&room), ask(&spent));
            assert_eq!(room, ALLOWED);
            refused += usize::from(spent.1 == Source::Store);
            // The pace of callers in real time, by which connections are counted.
            tokio::time::sleep(millis(1)).await;
        },
    )
    .await;
    assert!(refused > 0, "it answers no call");
}

#[tokio::test]
async fn a_replica_meets_the_policy_until_it_is_a_master_again() {
    let server = RedisServer::start();
    let services = deny_and_allow(&patient(server.url()).build().unwrap());
    by_redis(&services).await;

    server.obeys(DEMOTE);
    // The address may lead elsewhere by now, so it connects again; not with every request.
    no_storm(
        "all",
        || connections_received(&server),
        async || {
            assert_eq!(ask(&services[0]).await, DENIED);
            assert_eq!(ask(&services[1]).await, ALLOWED);
        },
    )
    .await;

    server.obeys("REPLICAOF NO ONE");
    by_redis(&services).await;
    assert_eq!(ask(&services[0]).await, BY_REDIS);
}
