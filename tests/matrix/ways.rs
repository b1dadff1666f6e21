//! Rows 1 and 21 on other ways to Redis than one address: what they have in common with it.

use kit::{
    certificates::{Authority, HERE},
    scene::*,
    topologies::Topology,
};
use std::fs;
use tokio::net::UnixListener;
use tower_ratelimit::redis;

use super::{
    guards::{BUDGET, PATIENT},
    oracles::few_connections,
    stage::{EXACT, Expected, FREE, FROM_ZERO, Stage, aside},
};

/// Plays a fault that closes connections of a way, several times.
async fn closed(
    row: &'static str,
    servers: &[&RedisServer],
    open: impl Fn() -> RedisStoreBuilder,
    fault: impl Fn(),
    expected: Expected,
) {
    const TIMES: usize = 3;
    /// As many as a pool has, for each handle and the connection that checks.
    const EACH: usize = 3 * 4;
    let stage = Stage::begin(row, servers, |_| open(), open(), PATIENT);
    let stage = stage.steady().await;
    for _ in 0..TIMES {
        aside(&fault);
        stage.load.decided(3).await;
        // A call is sent once more, not twice: none is to meet the next kill, too.
        stage.load.idle(true).await;
        stage.load.idle(false).await;
    }
    stage.healed().await;
    stage.used_few_connections(TIMES * EACH * servers.len());
    stage.judge(expected, servers).await;
}

fn kill_clients(servers: &[&RedisServer]) {
    // One of a Cluster may be without a client for a moment.
    let killed: usize = servers.iter().map(|server| server.kill_clients()).sum();
    assert!(killed > 0, "no connection was open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_connections_that_are_closed_on_each_way() {
    // The first has a row of its own, and its server is shared.
    for topology in Topology::all().into_iter().skip(1) {
        let servers = aside(|| topology.servers());
        let expected = match topology {
            // These pools' connections have the timeouts of redis-rs, which a busy machine exceeds.
            // Under load it gives calls up before it is connected to a node of a Cluster again.
            Topology::SentinelPool
            | Topology::Cluster
            | Topology::ClusterPool
            | Topology::SecuredCluster => EXACT,
            _ => FREE,
        };
        let kill = || kill_clients(&servers);
        let open = || topology.store();
        closed("row 21, each way", &servers, open, kill, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_a_connection_manager_whose_connection_is_closed() {
    let server = aside(RedisServer::start);
    let client = redis::Client::open(server.url()).unwrap();
    // redis-rs may never answer a command that comes just as its connection ends. The store does
    // not see the end of a user's connection: the timeout of that ends the command, and a policy
    // decides.
    let config = redis::aio::ConnectionManagerConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(5 * SECOND));
    let manager = client.get_connection_manager_with_config(config).await;
    let manager = manager.unwrap();
    let open = || RedisStore::connection(manager.clone());
    let kill = || kill_clients(&[&server]);
    closed("row 21, manager", &[&server], open, kill, EXACT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_connections_that_are_closed_while_certificates_are_renewed() {
    let authority = Authority::new("ours");
    let lenient = ["--tls-auth-clients", "no"];
    let server = aside(|| RedisServer::start_tls(&authority.issue(HERE), &lenient));
    let url = format!("rediss://127.0.0.1:{}/", server.tls_port());
    let open = || authority.believed(RedisStore::builder(&url));
    let renew = || server.renew(&authority.issue(HERE));
    closed("row 21, renewed", &[&server], open, renew, FREE).await;
}

/// Where nothing listens, then where who listens hangs up, and so sees who comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_01_a_server_behind_a_socket_that_is_killed() {
    let mut server = aside(|| RedisServer::start_with(&["--unixsocket", "socket"]));
    let path = server.dir().join("socket");
    let url = format!("redis+unix://{}", path.display());
    let (open, direct) = (|| RedisStore::builder(&url), server.url());
    let direct = RedisStore::builder(direct);
    let stage = Stage::begin("row 1, socket", &[&server], |_| open(), direct, BUDGET);
    let mut stage = stage.steady().await;
    aside(|| server.kill());
    stage.load.met_policy(20).await;
    let came = Arc::<Mutex<Vec<Instant>>>::default();
    fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let hangs_up = tokio::spawn({
        let came = Arc::clone(&came);
        async move {
            while listener.accept().await.is_ok() {
                came.lock().unwrap().push(Instant::now());
            }
        }
    });
    stage.load.met_policy(50).await;
    hangs_up.abort();
    assert!(hangs_up.await.unwrap_err().is_cancelled());
    let most = few_connections(&came.lock().unwrap(), stage.load.handles.len(), 0);
    assert!(most > 0, "nobody came");
    aside(|| {
        server.restart();
        stage.came_back(&server, false);
    });
    stage.judge(FROM_ZERO, &[&server]).await;
}
