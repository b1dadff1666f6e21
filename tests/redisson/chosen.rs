//! Sequences of steps that random ones contain too seldom: `chosen.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    case::{Actor, Case, HOUR, Op, Step},
    model::{Condition, Generation, Limit},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chosen {
    name: String,
    steps: String,
}

impl Case {
    /// Returns those that are compared with Redisson.
    pub fn fixed(generations: &[Generation]) -> Vec<Self> {
        Self::chosen("fixed", generations)
    }

    /// Returns those beside a peer.
    pub fn idle(generations: &[Generation]) -> Vec<Self> {
        let mut cases = Self::chosen("idle", generations);
        cases.iter_mut().for_each(|case| case.is_peer = true);
        cases
    }

    fn chosen(table: &str, generations: &[Generation]) -> Vec<Self> {
        let text = include_str!("chosen.toml");
        let mut tables: BTreeMap<String, Vec<Chosen>> = toml::from_str(text).unwrap();
        let chosen = tables.remove(table).unwrap().into_iter();
        let cases = chosen.map(|Chosen { name, steps }| {
            println!("{name}");
            Self::of(steps.split(", ").map(step), generations)
        });
        cases.collect()
    }
}

/// `900 rust update 6`: when, who, and what, by its permits or the rate of its limit.
fn step(text: &str) -> Step {
    let words: Vec<_> = text.split(' ').collect();
    let number = |place: usize| words[place].parse::<i64>().unwrap();
    let limit = || Limit {
        rate: number(3),
        interval: 1000,
        per_client: words.ends_with(&["each"]),
        keep_alive: Some(if words.ends_with(&["lively"]) {
            HOUR
        } else {
            0
        }),
        ttl: None,
    };
    let actor = match words[1] {
        "java" => Actor::Java(0),
        "second" => Actor::Java(1),
        "rust" => Actor::Rust(0),
        "redis" => Actor::Redis,
        other => panic!("{other}"),
    };
    let op = match words[2] {
        "try" => Op::TrySetRate(limit()),
        "update" => Op::Update(limit(), true),
        "take" => Op::Demand(number(3)),
        "burst" => Op::Burst(number(3)),
        "left" => Op::Available,
        "release" => Op::Release(number(3)),
        "settle" => Op::Settle(number(3)),
        "expire" => Op::Expire(number(3) * HOUR, Condition::Always),
        "rename" => Op::Rename,
        "delete" => Op::Delete,
        "exists" => Op::Exists,
        "idle" => Op::Idle,
        "lose" if words[3] == "value" => Op::LoseValue(false),
        "lose" => Op::LoseLog(false),
        other => panic!("{other}"),
    };
    Step {
        actor,
        on: usize::from(words.ends_with(&["back"])),
        at: number(0),
        op,
    }
}
