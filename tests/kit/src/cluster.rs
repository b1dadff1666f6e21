//! A real Redis Cluster of three masters, with or without replicas, owned by a test.

use super::{
    LONG, RedisServer, Reply,
    sentinel::wait_for_replica,
    server::{Tls, command},
    unique, wait_until,
};

const SLOTS: usize = 16_384;

/// For how long a node may be silent, in ms: so long that no busy machine is taken for a dead one
const SILENCE: &str = "120000";

pub const MASTERS: usize = 3;

/// Three masters, each with a third of the slots, and the replicas behind them, if there are any
///
/// A master that is down takes only its own slots along.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts a Cluster and waits until each node finds it complete
    ///
    /// # Panics
    ///
    /// If there is no server binary, or the Cluster does not come up.
    pub fn start() -> Self {
        Self::start_nodes(MASTERS, None)
    }

    /// As [`start`](Self::start), with nodes that speak TLS among each other and to clients that
    /// show a certificate
    pub fn start_tls(tls: &Tls) -> Self {
        Self::start_nodes(MASTERS, Some(tls))
    }

    /// As [`start`](Self::start), with a replica of each master, in their order behind them
    pub fn start_with_replicas() -> Self {
        let cluster = Self::start_nodes(2 * MASTERS, None);
        for (replica, master) in cluster.nodes[MASTERS..].iter().zip(0..) {
            let id = cluster.id(master);
            // It may not know its master yet.
            wait_until("a replica knows its master", || {
                replica.cli(&["CLUSTER", "REPLICATE", &id]) == "OK"
            });
        }
        cluster.nodes[MASTERS..].iter().for_each(wait_for_replica);
        cluster
    }

    fn start_nodes(count: usize, tls: Option<&Tls>) -> Self {
        let mut args = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            SILENCE,
            "--cluster-require-full-coverage",
            "no",
        ];
        if tls.is_some() {
            args.extend(["--tls-cluster", "yes"]);
        }
        let nodes: Vec<_> = (0..count)
            .map(|_| match tls {
                Some(tls) => RedisServer::start_tls(tls, &args),
                None => RedisServer::start_with(&args),
            })
            .collect();
        for (index, node) in nodes.iter().enumerate() {
            // Epochs that differ from the start need not be settled by votes.
            node.obeys(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index >= MASTERS {
                continue;
            }
            let slots = (0..SLOTS).filter(|slot| master_of(*slot) == index);
            let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
            node.obeys(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        for node in &nodes[1..] {
            let port = match tls {
                Some(_) => nodes[0].tls_port(),
                None => nodes[0].port(),
            };
            node.obeys(&format!("CLUSTER MEET 127.0.0.1 {port}"));
        }
        let cluster = Self { nodes };
        cluster.wait_complete();
        cluster
    }

    /// Waits until each node finds the Cluster complete
    pub fn wait_complete(&self) {
        wait_until("the Cluster is complete", || {
            self.nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                ["state:ok", "slots_ok:16384", "size:3"]
                    .iter()
                    .all(|line| info.contains(&format!("cluster_{line}")))
            })
        });
    }

    /// Takes a node for dead after two seconds of silence; or after two minutes again
    pub fn fails_the_silent(&self, soon: bool) {
        let silence = if soon { "2000" } else { SILENCE };
        let set = ["CONFIG", "SET", "cluster-node-timeout", silence];
        for node in &self.nodes {
            // One that is down has its own when it comes back.
            let _ = command(node.port(), &set, LONG);
        }
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The node that was given the slot of a key
    pub fn node_of(&self, key: &str) -> &RedisServer {
        &self.nodes[self.master_of(key)]
    }

    /// The slot of a key, as Redis counts it; any node that runs will do
    pub fn slot(&self, key: &str) -> usize {
        match self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]) {
            Reply::Int(slot) => usize::try_from(slot).unwrap(),
            other => panic!("{other}"),
        }
    }

    /// Which of the nodes was given the slot of a key
    pub fn master_of(&self, key: &str) -> usize {
        master_of(self.slot(key))
    }

    /// A name that no other test has, of a limiter on that node
    pub fn name_on(&self, node: usize) -> String {
        loop {
            let name = unique("orders");
            if self.master_of(&name) == node {
                return name;
            }
        }
    }

    /// The id of a node
    fn id(&self, node: usize) -> String {
        self.nodes[node].cli(&["CLUSTER", "MYID"])
    }

    fn set_slot(&self, node: usize, slot: usize, what: &str, other: usize) {
        let set = format!("CLUSTER SETSLOT {slot} {what} {}", self.id(other));
        self.nodes[node].obeys(&set);
    }

    /// Begins to move a slot: from now on no node answers for all of it
    pub fn begin_move(&self, slot: usize, from: usize, to: usize) {
        self.set_slot(to, slot, "IMPORTING", from);
        self.set_slot(from, slot, "MIGRATING", to);
    }

    /// Moves the keys of a slot, a few at a time
    pub fn move_keys(&self, slot: usize, from: usize, to: usize) {
        let (source, slot) = (&self.nodes[from], slot.to_string());
        let port = self.nodes[to].port().to_string();
        loop {
            let keys = source.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "3"]);
            if keys.is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", SILENCE, "KEYS"];
            migrate.extend(keys.lines());
            let moved = source.cli(&migrate);
            // One that has expired on the way, or was removed by a script, is not there to be
            // moved.
            assert!(moved == "OK" || moved == "NOKEY", "{moved}");
        }
    }

    /// Tells all nodes that a slot has moved
    pub fn end_move(&self, slot: usize, from: usize, to: usize) {
        // The target first; otherwise the slot would have no owner for a moment.
        let others = (0..MASTERS).filter(|node| ![from, to].contains(node));
        for node in [to, from].into_iter().chain(others) {
            self.set_slot(node, slot, "NODE", to);
        }
    }
}

fn master_of(slot: usize) -> usize {
    slot * MASTERS / SLOTS
}
