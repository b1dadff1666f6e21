//! What one decision costs Redis, beside Redisson's own script on the same server. See HOW.md
//! beside this file.

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

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use kit::RedisServer;
use redisson::HASH as REDISSONS;
use tower_ratelimit::redis::{self, Connection, Pipeline};

const OURS: &str = concat!(
    include_str!("../lua/sliding_log/acquire.lua"),
    include_str!("../lua/lib/state.lua"),
    include_str!("../lua/sliding_log/state.lua"),
    include_str!("../lua/sliding_log/entries.lua"),
    include_str!("../lua/sliding_log/acquire_list.lua")
);

/// Many short turns: on a busy machine most are then left alone.
const ROUNDS: usize = 101;
const WARM_UP: usize = 3;
const KEYS: usize = 50;
const CALLS: usize = 6 * KEYS;
const START: u64 = 1_704_153_600_000;
const CLIENT: &str = "7d9a1b2c-1111-4222-8333-444455556666";

/// A row of the table: its name, permits and milliseconds of its limit, what the caller's clock
/// moves by from call to call on a key (none for the server's, or for Java's own), and whether
/// remaining is read.
type Row = (&'static str, (u64, u64), Option<u64>, bool);

const SPENT: (u64, u64) = (10, 86_400_000);
const AMPLE: (u64, u64) = (1 << 40, 60_000);
/// At one call in 100 ms, each takes what one gives back.
const STEADY: (u64, u64) = (10, 1000);

const ROWS: [Row; 10] = [
    ("refused, client clock", SPENT, Some(1), false),
    ("refused, server clock", SPENT, None, false),
    ("refused, server clock, exact", SPENT, None, true),
    ("admitted, client clock", AMPLE, Some(1), false),
    ("admitted, server clock", AMPLE, None, false),
    ("admitted, server clock, exact", AMPLE, None, true),
    ("one in, one out, client clock", STEADY, Some(100), false),
    ("one in, one out, exact", STEADY, Some(100), true),
    ("idle before, client clock", STEADY, Some(5000), false),
    ("idle before, exact", STEADY, Some(5000), true),
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
        "Microseconds of Redis per EVALSHA, medians of {ROUNDS} rounds of {CALLS} calls each;"
    );
    println!(
        "the ratio's median over the rounds with its quartiles, and that of the fastest tenths\n"
    );
    println!("| call | Redisson 4.7.0 | this crate | ratio | of the fastest |");
    println!("|---|---:|---:|---:|---:|");
    for row in ROWS {
        let rounds: Vec<_> = (0..ROUNDS + WARM_UP)
            .map(|round| {
                // Each goes first every other time.
                let mut costs = [0.0; 2];
                for turn in [round % 2, 1 - round % 2] {
                    let script = [REDISSONS, ours.get_hash()][turn];
                    costs[turn] = measure(&mut connection, row, round, script);
                }
                costs
            })
            .skip(WARM_UP)
            .collect();
        let [java, rust] = [0, 1].map(|which| sorted(&rounds, |costs| costs[which]));
        // What slows the machine meets both turns of a round.
        let ratios = sorted(&rounds, |[java, rust]| rust / java);
        println!(
            "| {} | {:.2} | {:.2} | {:.2} ({:.2} to {:.2}) | {:.2} |",
            row.0,
            part(&java, 0.5),
            part(&rust, 0.5),
            part(&ratios, 0.5),
            part(&ratios, 0.25),
            part(&ratios, 0.75),
            part(&rust, 0.1) / part(&java, 0.1)
        );
    }
}

fn sorted<T>(of: &[T], cost: impl FnMut(&T) -> f64) -> Vec<f64> {
    let mut costs: Vec<_> = of.iter().map(cost).collect();
    costs.sort_by(f64::total_cmp);
    costs
}

fn part(sorted: &[f64], part: f64) -> f64 {
    sorted[(part * (sorted.len() - 1) as f64) as usize]
}

/// One round of one script over all keys, which are its own.
fn measure(connection: &mut Connection, row: Row, round: usize, script: &str) -> f64 {
    let (name, (rate, interval), step, exact) = row;
    let java = script == REDISSONS;
    let keep_alive = (2 * interval).max(60_000);
    let mut pipeline = redis::pipe();
    for call in 0..CALLS {
        let key = format!("ratelimit:{{user-{}}}:{java}:{name}", call % KEYS);
        if round == 0 && call < KEYS {
            let fields = [
                ("rate", rate),
                ("interval", interval),
                ("keepAliveTime", keep_alive),
                ("type", 0),
            ];
            pipeline.hset_multiple(&key, &fields).ignore();
        }
        let place = round * CALLS / KEYS + call / KEYS;
        let now = step.map(|step| START + step * place as u64);
        let id = id_of((place * CALLS + call) as u64);
        let mut command = redis::cmd("EVALSHA");
        command.arg(script).arg(if java { 5 } else { 3 }).arg(&key);
        for suffix in ["value", "permits"] {
            command.arg(format!("{key}:{suffix}"));
            if java {
                command.arg(format!("{key}:{suffix}:{CLIENT}"));
            }
        }
        if java {
            let own = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let now = now.unwrap_or_else(|| own().as_millis() as u64);
            command.arg(1).arg(now).arg(&id);
        } else {
            command.arg(format!("code {rate} {interval} 0 {keep_alive}"));
            command.arg([&[16], &id[..], &[1, 0, 0, 0]].concat());
            command.arg(now.map_or_else(String::new, |now| now.to_string()));
            command.arg(u8::from(exact));
        }
        pipeline.add_command(command).ignore();
    }
    cost_of(connection, &pipeline)
}

/// Different ones, in no order.
fn id_of(number: u64) -> [u8; 16] {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&mixed.to_le_bytes());
    id[8..].copy_from_slice(&number.to_le_bytes());
    id
}

/// Microseconds per EVALSHA, as Redis reckons them.
fn cost_of(connection: &mut Connection, calls: &Pipeline) -> f64 {
    let mut reset = redis::cmd("CONFIG");
    reset.arg("RESETSTAT").exec(connection).unwrap();
    calls.exec(connection).unwrap();
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query(connection).unwrap();
    let (_, line) = stats
        .split_once("cmdstat_evalsha:")
        .expect("EVALSHA was called");
    let (_, cost) = line.split_once("usec_per_call=").expect("a figure");
    cost.split(',').next().expect("a figure").parse().unwrap()
}
