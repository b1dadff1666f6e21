//! Rows 13 to 15: a Redis Cluster with a part that is missing, or moves.

use super::{
    guards::{BUDGET, PATIENT},
    lanes::LANES,
    stage::{EXACT, Expected, FORGOTTEN, FREE, Stage, aside},
};
use kit::{Cluster, cluster::MASTERS, scene::*, wait_until};

struct Played {
    cluster: Cluster,
    stage: Stage,
}

impl Played {
    async fn begin(row: &'static str, cluster: Cluster, budget: Duration) -> Self {
        let open = || RedisStore::cluster(cluster.urls());
        let nodes: Vec<&RedisServer> = cluster.nodes.iter().collect();
        let stage = Stage::begin(row, &nodes, |_| open(), open(), budget);
        let stage = stage.steady().await;
        Self { cluster, stage }
    }

    /// Returns the lanes without a limiter on this master.
    fn beside(&self, node: usize) -> Vec<usize> {
        let on = |lane: usize| {
            let mut limiters = self.stage.load.limiters.iter();
            limiters.any(|it| it.lane == lane && self.cluster.master_of(&it.name) == node)
        };
        (0..LANES.len()).filter(|lane| !on(*lane)).collect()
    }

    async fn judge(self, expected: Expected, nodes: &[usize]) {
        self.stage.used_few_connections(40);
        let nodes: Vec<_> = nodes.iter().map(|it| &self.cluster.nodes[*it]).collect();
        self.stage.judge(expected, &nodes).await;
    }
}

fn is_master(server: &RedisServer) -> bool {
    server.cli(&["INFO", "replication"]).contains("role:master")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_master_that_hands_its_slots_over() {
    let cluster = aside(Cluster::start_with_replicas);
    let played = Played::begin("row 13, handed over", cluster, BUDGET).await;
    for replica in MASTERS..2 * MASTERS {
        aside(|| {
            // By which it also counts when votes may be given again.
            played.cluster.fails_the_silent(true);
            let replica = &played.cluster.nodes[replica];
            let mut asked = None::<Instant>;
            wait_until("the replica has taken over", || {
                // Redis gives an attempt up after five seconds.
                if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                    // Refused where it is a master since the look before.
                    let reply = replica.cli(&["CLUSTER", "FAILOVER"]);
                    println!("row 13, handed over: CLUSTER FAILOVER: {reply}");
                    asked = Some(Instant::now());
                }
                is_master(replica)
            });
            played.cluster.fails_the_silent(false);
        });
        played.stage.healed().await;
    }
    // A replica is asked to take over when it has all: nothing is forgotten.
    let nodes: Vec<_> = (0..2 * MASTERS).rev().collect();
    played.judge(EXACT, &nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_master_that_is_killed() {
    let cluster = aside(Cluster::start_with_replicas);
    let mut played = Played::begin("row 13, killed", cluster, BUDGET).await;
    // That of the lanes on one key for all.
    let dead = played.cluster.master_of("all");
    let beside = played.beside(dead);
    // Only here is silence a fault.
    aside(|| {
        played.cluster.fails_the_silent(true);
        played.cluster.nodes[dead].kill();
    });
    played.stage.load.lanes_met_policy(&[0], 5).await;
    // Others go on meanwhile, if there are any.
    played.stage.load.lanes_decided(&beside, 5).await;
    let replica = &played.cluster.nodes[MASTERS + dead];
    aside(|| wait_until("its replica has taken over", || is_master(replica)));
    aside(|| played.cluster.fails_the_silent(false));
    played.stage.healed().await;
    let alive = (0..2 * MASTERS).filter(|node| *node != dead);
    let nodes: Vec<_> = alive.rev().collect();
    played.judge(FORGOTTEN, &nodes).await;
}

/// A script that a master does not know is sent to that master, and to no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_replica_that_is_down_while_scripts_are_flushed() {
    let cluster = aside(Cluster::start_with_replicas);
    let mut played = Played::begin("row 13, replica", cluster, PATIENT).await;
    aside(|| played.cluster.nodes[MASTERS].kill());
    for _ in 0..5 {
        for node in &played.cluster.nodes[..MASTERS] {
            node.obeys("SCRIPT FLUSH");
        }
        played.stage.load.decided(2).await;
    }
    played.stage.healed().await;
    played.judge(FREE, &[0, 1, 2]).await;
}

/// Half of a hash slot's keys have moved: TRYAGAIN. Then all have: ASK. Then all nodes know: MOVED.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_14_a_slot_that_moves() {
    let cluster = aside(Cluster::start);
    let played = Played::begin("row 14", cluster, BUDGET).await;
    let slot = played.cluster.slot("all");
    let mut from = played.cluster.master_of("all");
    for _ in 0..3 {
        let to = (from + 1) % MASTERS;
        aside(|| {
            played.cluster.begin_move(slot, from, to);
            played.cluster.move_keys(slot, from, to);
            played.cluster.end_move(slot, from, to);
        });
        played.stage.healed().await;
        from = to;
    }
    // No permit is lost on the way, and none is there twice.
    played.judge(EXACT, &[0, 1, 2]).await;
}

/// The whole Cluster refuses while a part of it is missing, because it is configured to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_a_cluster_that_is_down() {
    let cluster = aside(Cluster::start);
    let mut played = Played::begin("row 15", cluster, BUDGET).await;
    aside(|| {
        for node in &played.cluster.nodes {
            node.configure("cluster-require-full-coverage", "yes");
        }
        played.cluster.fails_the_silent(true);
        played.cluster.nodes[1].kill();
        wait_until("the Cluster is down", || {
            let info = played.cluster.nodes[0].cli(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:fail")
        });
    });
    played.stage.load.met_policy(10).await;
    aside(|| {
        played.cluster.nodes[1].restart();
        played.stage.watch(&played.cluster.nodes[1]);
        // By that time it also counts for how long one that was dead is left out.
        played.cluster.wait_complete();
        played.cluster.fails_the_silent(false);
    });
    played.stage.healed().await;
    played.judge(FORGOTTEN, &[0, 1, 2]).await;
}
