//! A fleet, simulated: the real guards of many processes, on a clock, a network and servers that
//! are simulated. `benches/fleet/main.rs` runs it.
//!
//! [`client`] is a process, [`server`] a Redis with the pure algorithms in it, [`network`] the way
//! between them, [`book`] what callers have received. The traffic moves by a tenth of a
//! millisecond at a time; what is under way and what the servers do have their own instants.

mod book;
mod client;
pub mod clock;
mod cost;
mod network;
mod scenario;
mod server;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1, Zipf};

pub use self::scenario::{Broken, Scenario, Trouble};
use self::{book::Book, network::Network};
pub use crate::values::limit::Algorithm;
use crate::{
    store::AnyStore,
    sync::lock,
    values::{
        charge::Charge,
        compiled_limit::{CompiledLimit, Limiter},
        decision::Charges,
        demand::Demand,
        failure_policy::FailurePolicy,
        limit::{Counting, Limit, LimitSource, Slots},
        name::Name,
    },
};

/// Nanoseconds in a millisecond.
const MILLI: u64 = 1_000_000;
const STEP: u64 = MILLI / 10;
/// How long a crashed process is away.
const AWAY: u64 = 500 * MILLI;
/// How often all tasks are polled before nothing more is sent: one that sends for several callers
/// is spawned, and lets those of the same turn come first.
const TURNS: usize = 4;

/// What a simulation found. Parts are of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Commands to Redis a decision, settlements included.
    pub commands: f64,
    /// The decisions that were refusals of the limit.
    pub refused: f64,
    /// Of these, the part that was repeated from memory.
    pub refused_here: f64,
    /// The decisions that the failure policy made.
    pub by_policy: f64,
    /// Granted, of what the limits of the keys with more requests allow. None where there are none.
    pub used: Option<f64>,
    /// Jain's index of the grants on these keys, by process.
    pub fairness: Option<f64>,
    /// Grants beyond what an interval may have.
    pub over: u64,
    /// The most that one key had in an interval with those of the policy, of the limit.
    pub most: f64,
    /// The part of the time for which the busiest node worked.
    pub busy: f64,
    /// Milliseconds of decisions that waited for Redis.
    pub p50: f64,
    pub p99: f64,
    /// Limiters in Redis, and entries that count at the end.
    pub limiters: u64,
    pub entries: u64,
}

/// Runs a simulation. Equal seeds find the same. `progress` is called with the part that is done.
pub fn run(scenario: &Scenario, seed: u64, progress: impl FnMut(f64)) -> Outcome {
    clock::set(Some(0));
    client::NODES.set(scenario.nodes);
    client::IDS.set(0);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // All tasks that can run do, before the simulation goes on.
    let runtime = runtime.enable_time().event_interval(u32::MAX).build();
    let outcome = runtime
        .expect("a runtime")
        .block_on(Fleet::new(scenario, seed).run(progress));
    clock::set(None);
    outcome
}

struct Process {
    /// None while it is away.
    store: Option<Arc<dyn AnyStore>>,
    link: usize,
}

struct Fleet {
    scenario: Scenario,
    shared: Arc<Shared>,
    processes: Vec<Process>,
    random: SmallRng,
    compiled: Arc<CompiledLimit>,
    zipf: Zipf<f64>,
    next_request: f64,
}

/// Returns the limit of all keys.
fn compiled(scenario: &Scenario) -> Arc<CompiledLimit> {
    let Scenario {
        limit, interval, ..
    } = *scenario;
    let slots = (scenario.slots > 0).then(|| {
        let slots = Slots::try_new(scenario.slots, "fleet", true, [interval].into_iter());
        slots.expect("slots")
    });
    Arc::new(CompiledLimit {
        limit: LimitSource::Code(Limit::new(limit, interval)),
        counting: Counting {
            algorithm: scenario.algorithm,
            slots,
            prefers_redisson: slots.is_some(),
            ..Counting::default()
        },
        lease: scenario.lease,
        ..CompiledLimit::with_defaults("fleet", true, false)
    })
}

struct Shared {
    network: Arc<Mutex<Network>>,
    book: Mutex<Book>,
}

impl Fleet {
    fn new(scenario: &Scenario, seed: u64) -> Self {
        let network = Arc::new(Mutex::new(Network::new(scenario, seed ^ 1)));
        let book = Mutex::new(Book::new(scenario));
        Self {
            scenario: *scenario,
            shared: Arc::new(Shared { network, book }),
            processes: Vec::new(),
            random: SmallRng::seed_from_u64(seed),
            compiled: compiled(scenario),
            zipf: Zipf::new(scenario.keys as f64, scenario.zipf).expect("an exponent"),
            next_request: 0.0,
        }
    }

    async fn run(mut self, mut progress: impl FnMut(f64)) -> Outcome {
        for _ in 0..self.scenario.processes {
            let process = self.start();
            self.processes.push(process);
        }
        let steps = self.scenario.seconds * 1000 * MILLI / STEP;
        for step in 1..=steps {
            let now = step * STEP;
            clock::set(Some(now));
            self.trouble(now);
            {
                let mut network = lock(&self.shared.network);
                network.now = now;
                network.deliver();
            }
            self.settle().await;
            self.traffic(now);
            self.settle().await;
            if step % (steps / 20).max(1) == 0 {
                progress(step as f64 / steps as f64);
            }
        }
        self.close()
    }

    fn start(&self) -> Process {
        let (store, link) = client::start(&self.shared.network);
        let store = Some(store);
        Process { store, link }
    }

    /// Lets everything run that can, until nothing more is sent in this step.
    async fn settle(&mut self) {
        loop {
            let (before, settled) = {
                let mut network = lock(&self.shared.network);
                (network.activity, std::mem::take(&mut network.settled))
            };
            for (listeners, receipt) in settled {
                listeners.room(receipt.name(), false);
            }
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let network = lock(&self.shared.network);
            if network.activity == before {
                return;
            }
        }
    }

    /// Makes the requests of a step.
    fn traffic(&mut self, now: u64) {
        while self.next_request <= now as f64 {
            let pause: f64 = Exp1.sample(&mut self.random);
            self.next_request += pause * 1e9 / self.scenario.rate;
            self.request();
        }
    }

    fn request(&mut self) {
        let key = self.zipf.sample(&mut self.random) as u32 - 1;
        let process = loop {
            // A process that is away gets no traffic.
            let any = self.random.random_range(0..self.processes.len());
            if self.processes[any].store.is_some() {
                break any;
            }
        };
        let Some(store) = &self.processes[process].store else {
            return;
        };
        let mut demand = self.acquire(key);
        let (shared, who) = (Arc::clone(&self.shared), (key, process as u16));
        lock(&shared.book).asked[key as usize] += 1;
        if let Some(decision) = store.decide_at_once(&mut demand) {
            return shared.record(who, None, decision.ok().as_ref());
        }
        let (deciding, link) = (
            Arc::clone(store).acquire(demand),
            self.processes[process].link,
        );
        let asked = lock(&shared.network).now;
        tokio::spawn(async move {
            let decision = deciding.await;
            if !lock(&shared.network).is_dead(link) {
                shared.record(who, Some(asked), decision.ok().as_ref());
            }
        });
    }

    /// Asks as a rule does: `remaining` is shown, and the policy is the default, for so many
    /// processes.
    fn acquire(&self, key: u32) -> Demand {
        let name = Name::exact(&format!("fleet:{{{key}}}:limit")).expect("a name");
        let compiled = Arc::clone(&self.compiled);
        let charge = Charge::new(Limiter { name, compiled }, 1);
        let policy = FailurePolicy::Local(1.0 / self.scenario.processes as f64);
        Demand {
            on_failure: Some(policy),
            ..Demand::new(Charges::one(charge), None)
        }
    }

    /// Does to the fleet what happens to it.
    fn trouble(&mut self, now: u64) {
        let end = self.scenario.seconds * 1000 * MILLI;
        let (count, part) = (self.processes.len() as u64, end / 4);
        for number in 0..self.processes.len() {
            let is_fifth = number % 5 == 0;
            // Each at its own moment, in the middle half of the time.
            let moment = (part + 2 * part * number as u64 / count) / STEP * STEP;
            let link = self.processes[number].link;
            match self.scenario.trouble {
                Trouble::Crashes if is_fifth && now == moment => {
                    lock(&self.shared.network).kill(link);
                    self.processes[number].store = None;
                }
                Trouble::Crashes if is_fifth && now == moment + AWAY => {
                    self.processes[number] = self.start();
                }
                // What is under way is answered, and what is in hand is given back.
                Trouble::Deploy if now == moment => self.processes[number] = self.start(),
                Trouble::Partition if is_fifth && now == part => {
                    lock(&self.shared.network).cut(link);
                }
                Trouble::Partition if is_fifth && now == 2 * part => {
                    lock(&self.shared.network).heal(link);
                }
                _ => {}
            }
        }
    }

    fn close(self) -> Outcome {
        let book = std::mem::take(&mut *lock(&self.shared.book));
        book.close(&self.scenario, &lock(&self.shared.network))
    }
}

impl Shared {
    fn record(
        &self,
        who: (u32, u16),
        asked: Option<u64>,
        decision: Option<&crate::values::decision::Decision>,
    ) {
        let mut network = lock(&self.network);
        lock(&self.book).record(&mut network, who, asked, decision);
    }
}
