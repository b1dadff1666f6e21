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
    store::{
        About, Answered, AnyStore, Calls, Decide, Joins, Listeners, Op, OpResult,
        guard::outbox::{Nodes, breaker::Signal},
        stack::{self, Guards},
    },
    sync::lock,
    values::{
        List,
        charge::{Charge, PermitId},
        clock::{SteadyClock, moment},
        compiled_limit::Limiter,
        decision::Decision,
        demand::Demand,
        error::{Error, ErrorKind},
        name::Name,
    },
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
    nodes: Arc<Nodes>,
    listeners: Listeners,
}

/// Starts a process. Returns its store and the number of its connections.
pub(super) fn start(network: &Arc<Mutex<Network>>) -> (Arc<dyn AnyStore>, usize) {
    let steady = Arc::new(SteadyClock::new());
    let nodes = Nodes::new(NODES.get(), node_of, DEADLINE, steady);
    let nodes = Arc::new(nodes.with_breakers(FAILURES, None, |_, _| ()));
    let guards = Guards {
        deny_cache: DENY_CACHE,
        nodes: Arc::clone(&nodes),
        own_clock: None,
        ends_windows: false,
    };
    let mut link = 0;
    let store = stack::remote(guards, About::default(), |listeners, _| {
        link = lock(network).connect(Arc::clone(&nodes), listeners.clone());
        Client {
            network: Arc::clone(network),
            link,
            nodes,
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
        if let Some(error) = self.nodes.refuses(demand) {
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

impl Client {
    /// Sends a command for these runs. Returns the decisions of each.
    async fn send(&self, runs: Vec<Vec<Demand>>) -> Result<Vec<Vec<Decision>>, Error> {
        let Some(first) = runs.first().and_then(|run| run.first()) else {
            return Ok(Vec::new());
        };
        let waited = first
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let name = first.first().name();
        let pass = self.nodes.enter(name, waited.unwrap_or_default())?;
        let (reply, decided) = oneshot::channel();
        let node = node_of(name);
        let each = runs.iter().flatten();
        let receipts: Vec<_> = each.map(|demand| demand.first().to_send()).collect();
        lock(&self.network).call(self.link, Call { node, runs, reply });
        match decided.await {
            Ok(decided) => {
                pass.ends(Signal::Answered);
                Ok(decided)
            }
            // The connection is lost, and the command may have been carried out.
            Err(_) => {
                pass.ends(Signal::Nothing);
                receipts
                    .into_iter()
                    .for_each(|receipt| self.settle(receipt, 0));
                Err(ErrorKind::Unavailable.into())
            }
        }
    }
}

impl Calls for Client {
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        let decided = self.send(vec![run.to_vec()]).await?;
        Ok(decided.into_iter().flatten().collect())
    }

    async fn acquire_joint(&self, runs: &[&[Demand]]) -> List<Answered> {
        let decided = self
            .send(runs.iter().map(|run| run.to_vec()).collect())
            .await;
        match decided {
            Ok(decided) => {
                let each = decided.into_iter().map(List::from_vec);
                each.map(|run| Answered::Decided(Ok(run))).collect()
            }
            Err(error) => {
                let each = runs.iter().map(|_| Err(error.clone()));
                each.map(Answered::Decided).collect()
            }
        }
    }

    fn joins(&self, demand: &Demand) -> Option<Joins> {
        let in_own_format = demand.first().compiled().counting.in_own_format();
        let joins =
            in_own_format && NODES.get() == 1 && demand.max_wait.is_none() && !demand.is_list();
        joins.then_some(Joins {
            terms: 1,
            callers: usize::MAX,
        })
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
