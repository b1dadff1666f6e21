//! A real Cluster of three masters beside one server: whether its nodes cost what
//! `src/docs/capacity.md` says.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderValue;
use kit::{Cluster, cluster::MASTERS};
use tokio::runtime::Runtime;
use tower_ratelimit::{Limit, RedisStore};

use super::{
    Pace,
    capacity::{ALONE, Asking, Crowd, MANY_KEYS, runtime},
};
use crate::{
    contenders::Contender,
    database::{Database, patiently},
    requests::{by_user, users},
    row::{Contest, Goal::Reported, Rounds, Row, figure},
};

/// A name, who asks, and of how many masters the keys are.
const KINDS: [(&str, Crowd, usize); 3] = [
    ("cluster of three masters", ALONE, MASTERS),
    ("cluster of three masters", MANY_KEYS, MASTERS),
    ("cluster, keys of one master", ALONE, 1),
];

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let turn = Duration::from_millis(pace.pick(1000, 100));
    KINDS.into_iter().map(move |(name, crowd, masters)| Row {
        name: format!("{name}, {}", crowd.name),
        parameters: format!(
            "sliding log, {}, {} ms a turn",
            crowd.about(),
            turn.as_millis()
        ),
        beside: "one server, and as `calls/s × µs / nodes` has it of that",
        needs: &[Contender::Redis],
        rounds: Rounds::of(2, pace.pick(9, 1)),
        figures: vec![
            figure("µs of processor of Redis a decision", Reported),
            figure("these of the busiest node", Reported),
            figure("part of the calls that it has", Reported),
            figure("decisions a command", Reported),
            figure("decisions/s, of all on these cores", Reported),
        ],
        begin: Box::new(move || Box::new(Sides::begin(turn, crowd, masters))),
    })
}

struct Sides {
    turn: Duration,
    /// Of the keys
    masters: usize,
    runtime: Runtime,
    /// The Cluster, and the one server.
    sides: [(Vec<Database>, Asking); 2],
}

impl Sides {
    fn begin(turn: Duration, crowd: Crowd, masters: usize) -> Self {
        let runtime = runtime();
        let _inside = runtime.enter();
        let cluster = Cluster::start();
        let urls = cluster.urls();
        let is_there = |user: &&HeaderValue| {
            masters == MASTERS || cluster.master_of(user.to_str().unwrap()) < masters
        };
        let all = users(crowd.keys);
        let users: Arc<[_]> = all.iter().filter(is_there).cloned().collect();
        let rules = || vec![Limit::per_second(1_000_000).by(by_user())];
        let many = Asking::begin(crowd, rules, Arc::clone(&users), || {
            patiently(RedisStore::cluster(&urls)).deny_cache(Duration::ZERO)
        });
        let nodes = cluster.nodes.into_iter().map(Database::of);
        let server = Database::start();
        let alone = Asking::begin(crowd, rules, users, || server.builder());
        Self {
            turn,
            masters,
            sides: [(nodes.collect(), many), (vec![server], alone)],
            runtime,
        }
    }

    /// Returns the sum and the most of the processor time, in microseconds a decision, the most of
    /// the calls, the decisions of each and those of a second.
    fn turn(&self, side: usize) -> [f64; 5] {
        let (nodes, asking) = &self.sides[side];
        let account = || nodes.iter().map(|node| (node.busy(), node.scripts()));
        let before: Vec<_> = account().collect();
        let began = Instant::now();
        let decisions = asking.turn(&self.runtime, self.turn) as f64;
        let took = began.elapsed().as_secs_f64();
        let each = account().zip(before).map(|((busy, scripts), before)| {
            let busy = (busy - before.0).as_secs_f64() * 1e6 / decisions;
            (busy, (scripts - before.1).calls as f64)
        });
        let (busy, calls): (Vec<f64>, Vec<f64>) = each.unzip();
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        let all: f64 = calls.iter().sum();
        [
            busy.iter().sum(),
            most(&busy),
            most(&calls) / all,
            decisions / all,
            decisions / took,
        ]
    }
}

impl Contest for Sides {
    fn ours(&mut self) -> Vec<f64> {
        self.turn(0).into()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let [busy, _, _, together, decisions] = self.turn(1);
        let part = 1.0 / self.masters as f64;
        [busy, busy * part, part, together, decisions]
            .map(Some)
            .into()
    }
}
