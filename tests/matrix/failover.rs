//! Row 11: a master under Redis Sentinel, and its replica that takes over.

use super::{
    guards::{BUDGET, guarded},
    stage::{FORGOTTEN, Stage, aside, kept_by},
    watch::{Watch, time_of},
};
use crate::scene::*;
use crate::support::{
    Sentinel, cluster::wait_until, redis_server::command, redis_server::free_port, sentinel,
    sentinel::MASTER_NAME,
};

struct Watched {
    master: RedisServer,
    replica: RedisServer,
    sentinel: Sentinel,
    stage: Stage,
}

impl Watched {
    async fn begin(row: &'static str) -> Self {
        let sentinel::Watched {
            master,
            replica,
            sentinel,
        } = aside(|| sentinel::Watched::start(&sentinel::Watch::default()));
        // The place of the one that answers does not matter.
        let sentinels = [
            format!("redis://127.0.0.1:{}/", free_port()),
            sentinel.url(),
        ];
        let open = || RedisStore::sentinel(sentinels.clone(), MASTER_NAME);
        let handles = vec![guarded(open(), BUDGET), guarded(open(), BUDGET)];
        let stage = Stage::begin(row, &[&master, &replica], handles, open(), BUDGET);
        Self {
            master,
            replica,
            sentinel,
            stage: stage.steady().await,
        }
    }

    /// The master is silent: its replica takes over. Only then is silence a fault: at any other
    /// time a busy machine causes it.
    async fn replaced(&mut self) {
        self.stage.load.met_policy(5).await;
        aside(|| self.sentinel.replaces_the_silent(true));
        self.wait_promoted();
        aside(|| self.sentinel.replaces_the_silent(false));
    }

    /// Sentinel cuts all connections of the master that it promotes, including that of the
    /// recorder: until that is back, the log has the grants.
    fn wait_promoted(&mut self) {
        aside(|| {
            let replica = &self.replica;
            wait_until("the replica is the master", || role(replica, "master"));
            let watch = Watch::open(replica, &self.stage.ledger);
            let mut ledger = self.stage.ledger.lock().unwrap();
            for kept in kept_by(replica, &self.stage.load.limiters) {
                ledger.read(&kept);
            }
            drop(ledger);
            self.stage.watches.push(watch);
        });
    }

    async fn judge(self) {
        let replica = &self.replica;
        self.stage.used_few_connections(4);
        let (now, value) = (
            || time_of(replica),
            |key: &str| replica.command(&["GET", key]),
        );
        self.stage.judge(FORGOTTEN, now, value).await;
        // Until here: it watches.
        drop(self.sentinel);
    }
}

/// Sentinel cuts all connections of a master that it demotes, the one that asks included.
fn role(server: &RedisServer, role: &str) -> bool {
    let asked = ["INFO", "replication"];
    let reply = command(server.port(), &asked, LONG);
    reply.is_ok_and(|reply| reply.to_string().contains(&format!("role:{role}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_a_master_that_hands_over() {
    let mut watched = Watched::begin("row 11, handed over").await;
    watched.sentinel.fail_over();
    watched.wait_promoted();
    watched.stage.healed().await;
    aside(|| wait_until("the master follows", || role(&watched.master, "slave")));
    watched.stage.healed().await;
    watched.judge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_a_master_that_is_killed() {
    let mut watched = Watched::begin("row 11, killed").await;
    aside(|| watched.master.kill());
    watched.replaced().await;
    watched.stage.healed().await;
    watched.judge().await;
}

/// It does not know that it was replaced, and takes up where it stood.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_a_master_that_comes_back() {
    let mut watched = Watched::begin("row 11, come back").await;
    aside(|| watched.master.stop_process());
    watched.replaced().await;
    watched.stage.healed().await;
    aside(|| watched.master.resume());
    watched.stage.load.decided(10).await;
    aside(|| wait_until("the old master follows", || role(&watched.master, "slave")));
    watched.stage.healed().await;
    watched.judge().await;
}
