//! rate-limiter-flexible on ioredis, as its wiki shows it: `../../processes/ask.cjs`. A
//! `RateLimiterRedis` with `points` and `duration` and its other options as they are, over one
//! connection, without a queue while there is none (`enableOfflineQueue: false`). Several limits
//! are a `RateLimiterUnion`, which asks all at once.
//!
//! *blocks in memory* is its `inMemoryBlockOnConsumed`, which its documentation advises against a
//! flood: a process refuses by itself until the window ends. Left out: `RateLimiterRedisNonAtomic`,
//! which loses counts by design, ioredis' `autoPipelining`, which the documentation does not name,
//! and several processes of Node's: one does all the work of a turn, with the load, on one thread.

use std::{path::Path, process::Command};

use super::{
    Built, Entry, Form, Place, Promise, contestant,
    process::{Process, missing},
};
use crate::contest::Limit;

const VERSION: &str = "11.4.0 with ioredis 6.0.0";

const ENTRY: Entry = Entry {
    package: "rate-limiter-flexible",
    version: Some(VERSION),
    form: Form::Call,
    promise: Promise::Window,
    weighs: true,
    sends: &["evalsha", "eval"],
    // The program reads the variable, too.
    missing: || missing("node", "--version", "PEERS_RATE_LIMITER_FLEXIBLE"),
    ..Entry::NONE
};

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "rate-limiter-flexible",
        build: |limits, place| start(limits, place, "plain"),
        ..ENTRY
    },
    Entry {
        name: "rate-limiter-flexible, blocks in memory",
        build: |limits, place| start(limits, place, "blocks"),
        ..ENTRY
    },
];

fn start(limits: Vec<Limit>, place: Place, mode: &'static str) -> Built {
    Box::pin(async move {
        let mut node = Command::new("node");
        node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("processes/ask.cjs"));
        node.arg(mode);
        contestant(Process::start(node, VERSION, limits, place).await)
    })
}
