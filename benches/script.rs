//! What one decision costs Redis, beside Redisson's own script on the same server. See README.md beside this file.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark fails by panicking, and prints"
)]

#[path = "shared/redisson.rs"]
mod redisson;
#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use redisson::HASH as REDISSONS;
use support::RedisServer;
use tower_ratelimit::redis::{self, Cmd, Connection};

const OURS: &str = concat!(
    include_str!("../lua/acquire.lua"),
    include_str!("../lua/lib/state.lua"),
    include_str!("../lua/acquire_list.lua")
);

const ROUNDS: usize = 41;
const KEYS: usize = 50;
const CALLS: usize = 10 * KEYS;
const CLIENT: &str = "7d9a1b2c-1111-4222-8333-444455556666";

/// A row of the table.
struct Row {
    name: &'static str,
    rate: u64,
    interval: u64,
    /// What the caller's clock moves by from call to call on a key; none for the server's, or for Java's own
    step: Option<u64>,
    exact: bool,
}

const fn row(
    name: &'static str,
    (rate, interval): (u64, u64),
    step: Option<u64>,
    exact: bool,
) -> Row {
    Row {
        name,
        rate,
        interval,
        step,
        exact,
    }
}

const SPENT: (u64, u64) = (10, 86_400_000);
const AMPLE: (u64, u64) = (1 << 40, 60_000);
/// At one call in 100 ms, each takes what one gives back.
const STEADY: (u64, u64) = (10, 1000);

const ROWS: [Row; 10] = [
    row("refused, client clock", SPENT, Some(1), false),
    row("refused, server clock", SPENT, None, false),
    row("refused, server clock, exact", SPENT, None, true),
    row("admitted, client clock", AMPLE, Some(1), false),
    row("admitted, server clock", AMPLE, None, false),
    row("admitted, server clock, exact", AMPLE, None, true),
    row("one in, one out, client clock", STEADY, Some(100), false),
    row("one in, one out, exact", STEADY, Some(100), true),
    row("idle before, client clock", STEADY, Some(5000), false),
    row("idle before, exact", STEADY, Some(5000), true),
];

fn main() {
    // `cargo test` runs this binary too, without `--bench`.
    if !env::args().any(|argument| argument == "--bench") {
        return;
    }
    let redissons = redisson::script().unwrap_or_else(|missing| panic!("{missing}"));
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let ours = redis::Script::new(OURS);
    for text in [OURS, &redissons] {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(text).exec(&mut connection).unwrap();
    }
    println!(
        "Microseconds of Redis per EVALSHA: of {ROUNDS} rounds of {CALLS} calls the median, and the fifth part\n"
    );
    println!("| call | Redisson 4.7.0 | this crate | ratio | fifth part |");
    println!("|---|---:|---:|---:|---:|");
    for row in &ROWS {
        let mut costs = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS + 2 {
            // Each goes first every other time.
            for turn in [round % 2, 1 - round % 2] {
                let script = [REDISSONS, ours.get_hash()][turn];
                let cost = measure(&mut connection, row, round, script);
                if round >= 2 {
                    costs[turn].push(cost);
                }
            }
        }
        costs
            .iter_mut()
            .for_each(|costs| costs.sort_by(f64::total_cmp));
        let at = |part: usize| costs.each_ref().map(|costs| costs[costs.len() / part]);
        let ([java, rust], [low_java, low_rust]) = (at(2), at(5));
        println!(
            "| {} | {java:.2} | {rust:.2} | {:.2} | {:.2} |",
            row.name,
            rust / java,
            low_rust / low_java
        );
    }
}

/// One round of one script over all keys, which are its own.
fn measure(connection: &mut Connection, row: &Row, round: usize, script: &str) -> f64 {
    let java = script == REDISSONS;
    let keep_alive = (2 * row.interval).max(60_000);
    let mut pipeline = redis::pipe();
    for call in 0..CALLS {
        let name = format!("ratelimit:{{user-{}}}:{java}:{}", call % KEYS, row.name);
        if round == 0 && call < KEYS {
            let fields = [
                ("rate", row.rate),
                ("interval", row.interval),
                ("keepAliveTime", keep_alive),
                ("type", 0),
            ];
            pipeline.hset_multiple(&name, &fields).ignore();
        }
        let place = round * CALLS / KEYS + call / KEYS;
        let now = row.step.map(|step| 1_704_153_600_000 + step * place as u64);
        let mut id = [0; 16];
        id[..8].copy_from_slice(
            &((place * KEYS + call) as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes(),
        );
        id[8..].copy_from_slice(&((place * CALLS + call) as u64).to_le_bytes());
        pipeline
            .add_command(evalsha(script, &name, java, row, now, keep_alive, id))
            .ignore();
    }
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .exec(connection)
        .unwrap();
    pipeline.exec(connection).unwrap();
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query(connection).unwrap();
    let (_, line) = stats
        .split_once("cmdstat_evalsha:")
        .expect("EVALSHA was called");
    let (_, cost) = line.split_once("usec_per_call=").expect("a figure");
    cost.split(',').next().expect("a figure").parse().unwrap()
}

fn evalsha(
    script: &str,
    name: &str,
    java: bool,
    row: &Row,
    now: Option<u64>,
    keep_alive: u64,
    id: [u8; 16],
) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(5).arg(name);
    for suffix in ["value", "permits"] {
        command.arg(format!("{name}:{suffix}"));
        command.arg(format!("{name}:{suffix}:{CLIENT}"));
    }
    if java {
        let own = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_millis() as u64
        };
        command.arg(1).arg(now.unwrap_or_else(own)).arg(&id);
    } else {
        let member = [&[16], &id[..], &[1, 0, 0, 0]].concat();
        command.arg(now.map_or_else(String::new, |now| now.to_string()));
        command
            .arg(u8::from(row.exact))
            .arg("code")
            .arg(row.rate)
            .arg(row.interval)
            .arg(0)
            .arg(keep_alive);
        // It does not wait, takes one permit, and is no trial.
        command.arg(0).arg(1).arg(member).arg(0);
    }
    command
}
