//! Ways to Redis: pools of each kind, a unix socket, users and their passwords; and what is lost
//! and found on them.
//!
//! Decisions are the same on all of them: `cases` and `laws` run on each.

use super::patient;
use kit::{
    Cluster,
    scene::*,
    sentinel::{Watch, Watched, wait_for_replica},
    topologies::{Topology, connected},
    wait_until,
};
use tower_ratelimit::redis;

const LIMIT: Limit = Limit::per_hour(10);

/// What neither has: a limit by the calendar, and which server has the keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calendar_counts_everywhere_and_keys_are_where_they_are_looked_for() {
    for topology in Topology::all() {
        let store = connected(topology.store().build().unwrap()).await;
        let quota = Limit::monthly(10).named(&unique("quota"));
        let quota = quota.single(&store).unwrap();
        take(&quota, 7).await;
        assert_eq!(free(&quota).await, 3, "{topology:?}");
        let limiter = limited(&store, LIMIT).await;
        let exists = || {
            let server = topology.server_of(limiter.name());
            server.cli(&["EXISTS", limiter.name()])
        };
        assert_eq!(exists(), "1", "{topology:?}");
        assert!(limiter.delete().await.unwrap(), "{topology:?}");
        assert_eq!(exists(), "0", "{topology:?}");
    }
}

/// The connection itself has no timeout, and its caller waits for permits.
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
    fails(acquired.expect("it ends"), ErrorKind::Timeout);
}

/// The pool's stock leads to the old master, which lives on as a replica and answers PING.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_pool_in_stock_of_a_demoted_master_is_left() {
    let watched = Watched::start(&Watch::default());
    let pool = kit::topologies::sentinel_pool(&watched.sentinel);
    let store = patient(RedisStore::sentinel_pool(pool.clone()));
    let store = connected(store).await;
    let limiter = limited(&store, LIMIT).await;
    take(&limiter, 4).await;
    let key = format!("{{{}}}:value", limiter.name());
    // WAIT would speak of the writes of its own connection alone.
    wait_until("the replica has it", || {
        watched.replica.cli(&["GET", &key]) == "6"
    });

    // By hand: a sentinel that demotes a master cuts its connections, and these stay good.
    let (old, new) = (&watched.master, &watched.replica);
    let stock = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    drop(stock);
    new.obeys("REPLICAOF NO ONE");
    old.obeys(&format!("REPLICAOF 127.0.0.1 {}", new.port()));
    block_in_place(|| {
        watched.sentinel.watch_instead(new);
        // Until it has loaded what the new master sent, it answers everything with LOADING.
        wait_for_replica(old);
    });
    assert_eq!(pool.status().available, 2);

    // The connection in use refuses the first call, which is sent again over one to the new master.
    assert!(limiter.try_acquire().await.unwrap().is_allowed());
    assert_eq!(pool.status().available, 0);
    assert_eq!(new.cli(&["GET", &key]), "5");
}

async fn rejected(store: RedisStoreBuilder) {
    let error = patient(store).ping().await.unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    println!("{error}: {source:?}");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}: {source:?}");
    let shown = format!("{error:?} {error}");
    assert!(!shown.contains("wrong"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_rejected_everywhere_and_a_user_who_may_not_ask_for_slots() {
    let server = RedisServer::start_with(&["--unixsocket", "socket"]);
    kit::topologies::admit(&server, "");
    let path = server.dir().join("socket");
    let socket = |password: &str| {
        let url = format!(
            "redis+unix://{}?user=limiter&pass={password}",
            path.display()
        );
        RedisStore::builder(url)
    };
    let tcp = format!("redis://limiter:wrong@127.0.0.1:{}/", server.port());
    rejected(RedisStore::builder(tcp)).await;
    patient(socket("secret")).ping().await.unwrap();
    rejected(socket("wrong")).await;

    let cluster = Cluster::start();
    let admit = |more: &str| {
        for node in &cluster.nodes {
            kit::topologies::admit(node, more);
        }
    };
    let nodes = |password: &str| {
        let of =
            |node: &RedisServer| format!("redis://limiter:{password}@127.0.0.1:{}/", node.port());
        RedisStore::cluster(cluster.nodes.iter().map(of))
    };
    // A Cluster needs the permissions that the guide adds for it.
    admit("");
    rejected(nodes("secret")).await;
    admit("+cluster|slots");
    patient(nodes("secret")).ping().await.unwrap();
    rejected(nodes("wrong")).await;
}
