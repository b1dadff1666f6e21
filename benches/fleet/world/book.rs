//! What the callers of a fleet have received, and whether it was theirs to have.

use std::collections::BTreeMap;

use super::{MILLI, Outcome, Scenario, network::Network};
use crate::values::decision::{Decision, Source};

/// Permits that a caller has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Granted {
    pub(super) key: u32,
    /// When, by the server's clock
    pub(super) at: u32,
    pub(super) process: u16,
    /// Set if the store knows nothing of it.
    pub(super) by_policy: bool,
}

#[derive(Default)]
pub(super) struct Book {
    pub(super) granted: Vec<Granted>,
    /// By key: the requests so far.
    pub(super) asked: Vec<u32>,
    decisions: u64,
    refused: u64,
    refused_here: u64,
    by_policy: u64,
    /// Grants of the store that it did not make, or made for another caller.
    invented: u64,
    /// Decisions that called the store, by their tenths of a millisecond.
    took: BTreeMap<u64, u64>,
}

impl Book {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            asked: vec![0; scenario.keys as usize],
            ..Self::default()
        }
    }

    /// Records what a caller has received. `asked` is when it called the store, if it did.
    pub(super) fn record(
        &mut self,
        network: &mut Network,
        (key, process): (u32, u16),
        asked: Option<u64>,
        decision: Option<&Decision>,
    ) {
        self.decisions += 1;
        if let Some(asked) = asked {
            let took = (network.now - asked) / (MILLI / 10);
            *self.took.entry(took).or_default() += 1;
        }
        let source = decision.map(Decision::source);
        let by_policy = !matches!(source, Some(Source::Store | Source::Cache | Source::Lease));
        self.by_policy += u64::from(by_policy);
        let grant = match decision {
            Some(Decision::Allow(grant)) => grant,
            _ => {
                self.refused += u64::from(!by_policy);
                self.refused_here += u64::from(source == Some(Source::Cache));
                return;
            }
        };
        let mut at = network.now / MILLI;
        if source == Some(Source::Store) {
            let id = grant.taken().next().map(|charge| charge.id);
            let made = network
                .nodes
                .iter_mut()
                .find_map(|node| node.granted.remove(&id?));
            self.invented += u64::from(made.is_none());
            at = made.unwrap_or(at);
        }
        self.granted.push(Granted {
            key,
            at: at as u32,
            process,
            by_policy,
        });
    }

    /// Adds all up.
    pub(super) fn close(mut self, scenario: &Scenario, network: &Network) -> Outcome {
        self.granted.sort_unstable();
        let by_store = |granted: &&Granted| !granted.by_policy;
        let of_store: Vec<_> = self.granted.iter().filter(by_store).copied().collect();
        let (over, _) = windows(&of_store, scenario);
        let (_, most) = windows(&self.granted, scenario);
        let end = scenario.seconds * 1000 * MILLI;
        let is_contested = |key: u32| u64::from(self.asked[key as usize]) > scenario.allowed();
        let contested = (0..scenario.keys as u32)
            .filter(|key| is_contested(*key))
            .count();
        let mut shares = vec![0_u64; scenario.processes];
        for granted in of_store.iter().filter(|granted| is_contested(granted.key)) {
            shares[usize::from(granted.process)] += 1;
        }
        let sum = |number: fn(&super::server::Node) -> u64| -> u64 {
            network.nodes.iter().map(number).sum()
        };
        let entries: usize = network
            .nodes
            .iter()
            .map(|node| node.entries(end, scenario))
            .sum();
        let limiters: usize = network.nodes.iter().map(|node| node.limiters()).sum();
        let part = |of: u64, all: u64| of as f64 / all.max(1) as f64;
        let busiest = network
            .nodes
            .iter()
            .map(|node| node.busy)
            .max()
            .unwrap_or(0);
        Outcome {
            commands: part(sum(|node| node.commands), self.decisions),
            refused: part(self.refused, self.decisions),
            refused_here: part(self.refused_here, self.refused),
            by_policy: part(self.by_policy, self.decisions),
            used: (contested > 0)
                .then(|| part(shares.iter().sum(), contested as u64 * scenario.allowed())),
            fairness: (contested > 0).then(|| jain(&shares)),
            over: over + self.invented,
            most: most as f64 / scenario.limit as f64,
            busy: part(busiest, end),
            p50: quantile(&self.took, 0.5),
            p99: quantile(&self.took, 0.99),
            limiters: limiters as u64,
            entries: entries as u64,
        }
    }
}

/// Returns how many grants exceed what an interval may have, and the most that one has. The grants
/// are in the order of their keys and times.
fn windows(granted: &[Granted], scenario: &Scenario) -> (u64, usize) {
    let interval = scenario.interval.as_millis() as u32;
    let (mut first, mut over, mut most) = (0, 0, 0);
    for (place, last) in granted.iter().enumerate() {
        // An interval that begins with a grant does not include its end.
        while granted[first].key != last.key || granted[first].at + interval <= last.at {
            first += 1;
        }
        let within = place - first + 1;
        over += u64::from(within > scenario.bound());
        most = most.max(within);
    }
    (over, most)
}

/// Returns Jain's index: 1 if all have the same, and `1 / n` if one has all.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum.powi(2) / (shares.len() as f64 * squares).max(1.0)
}

fn quantile(took: &BTreeMap<u64, u64>, part: f64) -> f64 {
    let all: u64 = took.values().sum();
    let mut left = (all as f64 * part) as u64;
    for (tenths, count) in took {
        if left < *count {
            return *tenths as f64 / 10.0;
        }
        left -= count;
    }
    0.0
}
