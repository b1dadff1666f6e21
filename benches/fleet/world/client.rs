//! A process: the guards of the crate, and behind them a connection of the simulated network.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    network::{Call, Network},
    server::key_of,
};
use crate::{
    charge::{Charge, PermitId},
    clock::{SteadyClock, moment},
    compiled_limit::Limiter,
    decision::Decision,
    demand::Demand,
    error::{Error, ErrorKind},
    list::List,
    name::Name,
    store::{
        About, AnyStore, Calls, Decide, Listeners, Op, OpResult,
        guard::breaker::{Breakers, Signal},
        stack::{self, Guards},
    },
    sync::lock,
};

/// The defaults of a `RedisStore`.
pub(super) const DEADLINE: Duration = Duration::from_millis(50);
const DENY_CACHE: Duration = Duration::from_secs(1);
const FAILURES: u32 = 5;

thread_local! {
    /// How many nodes there are, and how many ids were drawn.
    pub(super) static NODES: Cell<usize> = const { Cell::new(1) };
    pub(super) static IDS: Cell<u64> = const { Cell::new(0) };
}

/// The server as one process knows it.
pub(super) struct Client {
    network: Arc<Mutex<Network>>,
    link: usize,
    breakers: Breakers,
    listeners: Listeners,
}

/// Starts a process. Returns its store and the number of its connections.
pub(super) fn start(network: &Arc<Mutex<Network>>) -> (Arc<dyn AnyStore>, usize) {
    let nodes = NODES.get();
    let steady = Arc::new(SteadyClock::new());
    let breakers = Breakers::new(FAILURES, DEADLINE, nodes, node_of, steady);
    let traffic = Arc::clone(&breakers.traffic);
    let guards = Guards {
        deadline: DEADLINE,
        deny_cache: DENY_CACHE,
        traffic: Arc::clone(&traffic),
        own_clock: None,
    };
    let mut link = 0;
    let store = stack::remote(guards, About::default(), |listeners, _| {
        link = lock(network).connect(traffic, listeners.clone());
        Client {
            network: Arc::clone(network),
            link,
            breakers,
            listeners,
        }
    });
    (store, link)
}

fn node_of(name: &Name) -> usize {
    // As hash slots do, it spreads keys that follow each other.
    let spread = u64::from(key_of(name)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> 32) as usize % NODES.get()
}

/// Ids are unique in a simulation.
fn next_id() -> PermitId {
    let number = IDS.get() + 1;
    IDS.set(number);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    PermitId(id)
}

impl Decide for Client {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        if let Some(error) = self.breakers.refuses(demand) {
            return Some(Err(error));
        }
        demand.identify(next_id());
        demand.asked_at = Some(moment());
        None
    }

    async fn manage(&self, _: &Limiter, _: &Op) -> Result<OpResult, Error> {
        Err(ErrorKind::Rejected.into())
    }
}

impl Calls for Client {
    async fn acquire_run(&self, run: &[Demand]) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let waited = first
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let name = first.first().name();
        let pass = self.breakers.enter(name, waited.unwrap_or_default())?;
        let (reply, decided) = oneshot::channel();
        let (node, run) = (node_of(name), run.to_vec());
        let receipts: Vec<_> = run.iter().map(|demand| demand.first().to_send()).collect();
        lock(&self.network).call(self.link, Call { node, run, reply });
        match decided.await {
            Ok(decided) => {
                pass.ends(Signal::Answered);
                Ok(List::from_vec(decided))
            }
            // The connection is lost, and the call may have been carried out.
            Err(_) => {
                pass.ends(Signal::Nothing);
                receipts
                    .into_iter()
                    .for_each(|receipt| self.settle(receipt, 0));
                Err(ErrorKind::Unavailable.into())
            }
        }
    }

    fn decides_together(&self, demand: &Demand) -> bool {
        !demand.is_list()
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        if keep != receipt.permits {
            let node = node_of(receipt.name());
            lock(&self.network).settle(self.link, node, receipt, keep);
        }
    }
}
