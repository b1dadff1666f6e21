//! Rows 11 and 34: a replica that takes over, under Redis Sentinel, or where it lags behind.

use super::{
    guards::BUDGET,
    stage::{FORGOTTEN, Scene, Stage, aside, patient},
};
use kit::{
    OwnLog, Sentinel, calendar_key,
    scene::*,
    sentinel::{self, MASTER_NAME, wait_for_replica},
    server::{command, free_port},
    state_key, wait_until,
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
        let stage = Stage::begin(row, &[&master, &replica], |_| open(), open(), BUDGET);
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
            self.stage.watch(replica);
            let limiters = &self.stage.load.limiters;
            self.stage.record.find_again(replica, limiters);
        });
    }

    async fn judge(self) {
        self.stage.used_few_connections(4);
        self.stage.judge(FORGOTTEN, &[&self.replica]).await;
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

const PERMITS: u32 = 1000;
/// What both servers know, and what the master alone knows when it is lost.
const REPLICATED: u32 = 600;
const LOST: u32 = 300;

/// A limiter of each kind that counts in our own format. Nothing comes free while a row is played.
fn of_each_kind(server: &RedisServer, prefix: &str) -> [RateLimiter; 4] {
    let store = patient(RedisStore::builder(server.url()).prefix(prefix));
    let limit = Limit::new(PERMITS.into(), 30 * 24 * HOUR);
    let [log, window, gcra] = Way::OWN.map(|way| {
        let limit = limit.named(&format!("{way:?}")).algorithm(way.algorithm());
        limit.single(&store).unwrap()
    });
    let monthly = Limit::monthly(PERMITS.into()).in_zone(zone_by_day());
    let monthly = monthly.unwrap().named("month").single(&store);
    [log, window, gcra, monthly.unwrap()]
}

/// The states of those, as a server has them.
fn states(server: &RedisServer, limiters: &[RateLimiter; 4]) -> [Reply; 4] {
    let [log, window, gcra, month] = limiters.each_ref().map(RateLimiter::name);
    let [log, window, gcra] = [log, window, gcra].map(state_key);
    [log, window, gcra, calendar_key(month)].map(|key| server.command(&["GET", &key]))
}

async fn take_of_each(limiters: &[RateLimiter], permits: u32) {
    for limiter in limiters {
        assert_eq!(take(limiter, permits).await.source(), Source::Store);
    }
}

/// It has lost its master for a while when that is lost to all: what was granted meanwhile is
/// granted once more, that and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_34_a_replica_that_lags_behind() {
    let mut scene = Scene::begin("row 34").await;
    let replica = aside(|| {
        let port = scene.server.port().to_string();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        wait_for_replica(&replica);
        replica
    });
    scene.watch(&replica);
    let prefix = unique("lag");
    let limiters = of_each_kind(&scene.server, &prefix);
    take_of_each(&limiters, REPLICATED).await;
    let known = aside(|| states(&scene.server, &limiters));
    aside(|| wait_until("it has them", || states(&replica, &limiters) == known));
    // To where no master is: it keeps what it has.
    let nobody = format!("REPLICAOF 127.0.0.1 {}", free_port());
    aside(|| replica.obeys(&nobody));
    take_of_each(&limiters, LOST).await;
    scene.load.decided(3).await;
    drop(limiters);
    aside(|| {
        scene.server.kill();
        assert_eq!(
            states(&replica, &of_each_kind(&replica, &prefix)),
            known,
            "no lag"
        );
        replica.obeys("REPLICAOF NO ONE");
        scene.proxy.switch(replica.address());
        scene.proxy.reset();
    });
    scene.healed().await;
    let limiters = of_each_kind(&replica, &prefix);
    let again = PERMITS - REPLICATED;
    println!("row 34: {LOST} permits lost, {again} granted by the new master");
    for limiter in &limiters {
        assert_eq!(free(limiter).await, u64::from(again), "{}", limiter.name());
        take(limiter, again).await;
        assert!(
            wait(limiter, 1).await.is_some(),
            "more than the limit and what was lost"
        );
    }
    let [log, ..] = aside(|| states(&replica, &limiters));
    assert_eq!(
        OwnLog::of(&log.into_bytes()).expect("a log").mistake(),
        None
    );
    drop(limiters);
    scene.judge_elsewhere(&replica, FORGOTTEN).await;
}
