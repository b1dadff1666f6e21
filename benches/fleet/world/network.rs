//! The way between a process and the nodes: a connection each, in order, with latency and loss.
//!
//! Calls go together as in `store/redis/batch.rs`, which only redis-rs can send: a call that finds
//! none in flight goes alone, those that come meanwhile go as one command. To a Cluster each goes
//! alone.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, StandardNormal};
use tokio::sync::oneshot;

use super::{Scenario, server::Node};
use crate::{
    charge::Charge,
    decision::Decision,
    demand::Demand,
    limit::Algorithm,
    store::{Listeners, guard::breaker::NodeTraffic},
};

/// The most calls in a command, and the most such commands in flight: as in `batch.rs`.
const LONGEST: usize = 64;
const MOST: usize = 8;

/// Half of the way takes so long in the mean of its logarithm.
const MEDIAN: f64 = 150_000.0;
const SIGMA: f64 = 0.5;
/// One message of so many takes as many times longer.
const TAIL: (u32, u64) = (1000, 20);

pub(super) type Reply = oneshot::Sender<Vec<Decision>>;

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
    /// Links whose calls may go.
    ready: Vec<usize>,
    /// Grows with all that happens.
    pub(super) activity: u64,
    /// What processes learn with replies, to be said when nothing is locked.
    pub(super) settled: Vec<(Listeners, Charge)>,
}

/// The connections of one process.
pub(super) struct Link {
    pub(super) traffic: Arc<NodeTraffic>,
    pub(super) listeners: Listeners,
    /// Whether what is sent gets lost.
    cut: bool,
    /// Whether its process is.
    dead: bool,
    /// By node: when the last message arrives, there and here.
    there: Vec<u64>,
    here: Vec<u64>,
    queue: VecDeque<Call>,
    in_flight: usize,
    /// Their callers wait until the connection is known to be lost.
    lost: Vec<Reply>,
}

pub(super) struct Call {
    pub(super) node: usize,
    pub(super) run: Vec<Demand>,
    pub(super) reply: Reply,
}

struct Event {
    link: usize,
    node: usize,
    what: What,
}

enum What {
    Arrives(Vec<Call>),
    Returns(Vec<(Reply, Vec<Decision>)>),
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
            ready: Vec::new(),
            activity: 0,
            settled: Vec::new(),
        }
    }

    /// Adds the connections of a process, and returns their number.
    pub(super) fn connect(&mut self, traffic: Arc<NodeTraffic>, listeners: Listeners) -> usize {
        self.links.push(Link {
            traffic,
            listeners,
            cut: false,
            dead: false,
            there: vec![0; self.nodes.len()],
            here: vec![0; self.nodes.len()],
            queue: VecDeque::new(),
            in_flight: 0,
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
        link.queue.clear();
        // It knows the guards.
        link.listeners = Listeners::none();
    }

    pub(super) fn is_dead(&self, link: usize) -> bool {
        self.links[link].dead
    }

    /// Connects again: from then on callers know what was lost.
    pub(super) fn heal(&mut self, number: usize) {
        let link = &mut self.links[number];
        (link.cut, link.in_flight) = (false, 0);
        link.lost.clear();
        self.ready.push(number);
    }

    /// Sends a call, or has it wait for those in flight.
    pub(super) fn call(&mut self, number: usize, call: Call) {
        self.activity += 1;
        let counting = call.run[0].first().of().counting;
        let together = counting.is_own() && self.nodes.len() == 1;
        let link = &mut self.links[number];
        if together && (link.in_flight > 0 || !link.queue.is_empty()) {
            link.queue.push_back(call);
            self.ready.push(number);
            return;
        }
        link.in_flight += usize::from(together);
        self.send(number, call.node, What::Arrives(vec![call]));
    }

    pub(super) fn settle(&mut self, link: usize, node: usize, receipt: Charge, keep: u32) {
        self.send(link, node, What::Settles(receipt, keep));
    }

    /// Sends what stands in the queues.
    pub(super) fn send_queued(&mut self) {
        for number in mem::take(&mut self.ready) {
            while let Some(calls) = self.links[number].next_batch() {
                self.send(number, 0, What::Arrives(calls));
            }
        }
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
        match self.random.random_ratio(1, TAIL.0) {
            true => usual * TAIL.1,
            false => usual,
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
            match link.cut {
                true => link.lose(event.what),
                false => self.arrive(at, event),
            }
        }
    }

    fn arrive(&mut self, at: u64, Event { link, node, what }: Event) {
        match what {
            What::Arrives(calls) => {
                let (runs, replies): (Vec<_>, Vec<_>) =
                    calls.into_iter().map(|call| (call.run, call.reply)).unzip();
                let decided = self.nodes[node].decide(&self.scenario, at, &runs);
                let replies = replies.into_iter().zip(decided).collect();
                self.answer(link, node, What::Returns(replies));
            }
            What::Settles(receipt, keep) => {
                self.nodes[node].settle(at, &receipt, keep);
                self.answer(link, node, What::Settled(receipt));
            }
            What::Returns(replies) => {
                let to = &mut self.links[link];
                to.traffic.replied(node);
                to.in_flight = to.in_flight.saturating_sub(1);
                self.ready.push(link);
                for (reply, decided) in replies {
                    // Its callers may have left.
                    let _ = reply.send(decided);
                }
            }
            What::Settled(receipt) => {
                let listeners = self.links[link].listeners.clone();
                self.settled.push((listeners, receipt));
            }
        }
    }
}

impl Link {
    /// Takes the calls that go next, if some may.
    fn next_batch(&mut self) -> Option<Vec<Call>> {
        // One that all its callers have left takes nothing.
        self.queue.retain(|call| !call.reply.is_closed());
        if self.in_flight >= MOST || self.queue.is_empty() {
            return None;
        }
        self.in_flight += 1;
        let count = self.queue.len().min(LONGEST);
        Some(self.queue.drain(..count).collect())
    }

    /// Loses a message: no caller learns of it before there is a new connection.
    fn lose(&mut self, what: What) {
        match what {
            What::Arrives(calls) => self.lost.extend(calls.into_iter().map(|call| call.reply)),
            What::Returns(replies) => {
                self.lost
                    .extend(replies.into_iter().map(|(reply, _)| reply));
            }
            What::Settles(..) | What::Settled(_) => {}
        }
    }
}
