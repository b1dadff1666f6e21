//! The way between a process and the nodes: a connection each, in order, with latency and loss.

use std::{collections::BTreeMap, sync::Arc};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, StandardNormal};
use tokio::sync::oneshot;

use super::{Scenario, server::Node};
use crate::{
    store::{Listeners, guard::outbox::Nodes},
    values::{charge::Charge, decision::Decision, demand::Demand},
};

/// Half of the way takes so long in the mean of its logarithm.
const MEDIAN: f64 = 150_000.0;
const SIGMA: f64 = 0.5;
/// One message of so many takes as many times longer.
const TAIL: (u32, u64) = (1000, 20);

/// Of each run of a command.
pub(super) type Reply = oneshot::Sender<Vec<Vec<Decision>>>;

/// What is under way, and what it arrives at.
pub(super) struct Network {
    pub(super) now: u64,
    /// By when they happen, and else in the order in which they were caused.
    events: BTreeMap<(u64, u64), Event>,
    last: u64,
    pub(super) links: Vec<Link>,
    pub(super) nodes: Vec<Node>,
    random: SmallRng,
    scenario: Scenario,
    /// Grows with all that happens.
    pub(super) activity: u64,
    /// What processes learn with replies, to be said when nothing is locked.
    pub(super) settled: Vec<(Listeners, Charge)>,
}

/// The connections of one process.
pub(super) struct Link {
    /// What its process knows of the nodes
    pub(super) process: Arc<Nodes>,
    pub(super) listeners: Listeners,
    /// Whether what is sent gets lost.
    cut: bool,
    /// Whether its process is.
    dead: bool,
    /// By node: when the last message arrives, there and here.
    there: Vec<u64>,
    here: Vec<u64>,
    /// Their callers wait until the connection is known to be lost.
    lost: Vec<Reply>,
}

/// A command for runs of different limiters.
pub(super) struct Call {
    pub(super) node: usize,
    pub(super) runs: Vec<Vec<Demand>>,
    pub(super) reply: Reply,
}

struct Event {
    link: usize,
    node: usize,
    what: What,
}

enum What {
    Arrives(Call),
    Returns(Reply, Vec<Vec<Decision>>),
    Settles(Charge, u32),
    Settled(Charge),
}

impl Network {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Self {
        Self {
            now: 0,
            events: BTreeMap::new(),
            last: 0,
            links: Vec::new(),
            nodes: (0..scenario.nodes).map(|_| Node::default()).collect(),
            random: SmallRng::seed_from_u64(seed),
            scenario: *scenario,
            activity: 0,
            settled: Vec::new(),
        }
    }

    /// Adds the connections of a process, and returns their number.
    pub(super) fn connect(&mut self, process: Arc<Nodes>, listeners: Listeners) -> usize {
        self.links.push(Link {
            process,
            listeners,
            cut: false,
            dead: false,
            there: vec![0; self.nodes.len()],
            here: vec![0; self.nodes.len()],
            lost: Vec::new(),
        });
        self.links.len() - 1
    }

    /// Has all that is sent from now on get lost, and what is under way.
    pub(super) fn cut(&mut self, link: usize) {
        self.links[link].cut = true;
    }

    /// Has a process die: no caller of it learns anything any more.
    pub(super) fn kill(&mut self, number: usize) {
        let link = &mut self.links[number];
        (link.cut, link.dead) = (true, true);
        // It knows the guards.
        link.listeners = Listeners::none();
    }

    pub(super) fn is_dead(&self, link: usize) -> bool {
        self.links[link].dead
    }

    /// Connects again: from then on callers know what was lost.
    pub(super) fn heal(&mut self, number: usize) {
        let link = &mut self.links[number];
        link.cut = false;
        link.lost.clear();
    }

    /// Sends a command.
    pub(super) fn call(&mut self, number: usize, call: Call) {
        self.activity += 1;
        self.send(number, call.node, What::Arrives(call));
    }

    pub(super) fn settle(&mut self, link: usize, node: usize, receipt: Charge, keep: u32) {
        self.send(link, node, What::Settles(receipt, keep));
    }

    /// Sends a message to a node.
    fn send(&mut self, number: usize, node: usize, what: What) {
        let (now, travels) = (self.now, self.travels());
        let link = &mut self.links[number];
        if link.cut {
            return link.lose(what);
        }
        let at = (now + travels).max(link.there[node]);
        link.there[node] = at;
        self.push(at, number, node, what);
    }

    /// Sends an answer, as soon as its node has made it.
    fn answer(&mut self, number: usize, node: usize, what: What) {
        let (done, travels) = (self.nodes[node].free_at(), self.travels());
        let here = &mut self.links[number].here[node];
        let at = (done + travels).max(*here);
        *here = at;
        self.push(at, number, node, what);
    }

    /// Draws how long half of the way takes.
    fn travels(&mut self) -> u64 {
        let normal: f64 = StandardNormal.sample(&mut self.random);
        let usual = (MEDIAN * (SIGMA * normal).exp()) as u64;
        if self.random.random_ratio(1, TAIL.0) {
            usual * TAIL.1
        } else {
            usual
        }
    }

    fn push(&mut self, at: u64, link: usize, node: usize, what: What) {
        self.last += 1;
        self.events
            .insert((at, self.last), Event { link, node, what });
    }

    /// Delivers all that has arrived by now.
    pub(super) fn deliver(&mut self) {
        while let Some(next) = self.events.first_entry()
            && let (at, _) = *next.key()
            && at <= self.now
        {
            let event = next.remove();
            let link = &mut self.links[event.link];
            if link.cut {
                link.lose(event.what)
            } else {
                self.arrive(at, event)
            }
        }
    }

    fn arrive(&mut self, at: u64, Event { link, node, what }: Event) {
        match what {
            What::Arrives(call) => {
                let decided = self.nodes[node].decide(&self.scenario, at, &call.runs);
                self.answer(link, node, What::Returns(call.reply, decided));
            }
            What::Settles(receipt, keep) => {
                self.nodes[node].settle(at, &receipt, keep);
                self.answer(link, node, What::Settled(receipt));
            }
            What::Returns(reply, decided) => {
                self.links[link].process.replied(node);
                // Its callers may have left.
                let _ = reply.send(decided);
            }
            What::Settled(receipt) => {
                let listeners = self.links[link].listeners.clone();
                self.settled.push((listeners, receipt));
            }
        }
    }
}

impl Link {
    /// Loses a message: no caller learns of it before there is a new connection.
    fn lose(&mut self, what: What) {
        match what {
            What::Arrives(Call { reply, .. }) | What::Returns(reply, _) => self.lost.push(reply),
            What::Settles(..) | What::Settled(_) => {}
        }
    }
}
