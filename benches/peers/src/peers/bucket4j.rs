//! Bucket4j on its Lettuce, as its documentation shows it: `../../processes/AskBucket4j.java`. An
//! asynchronous proxy that compares and swaps, over one connection, whose keys live for as long as
//! a bucket needs to be full and a minute: after the ten seconds of the documentation's example
//! the first of 100,000 keys would be gone before the last is weighed. It refills greedily, and is
//! asked by `tryConsumeAndReturnRemaining`, which tells the wait. Several limits are those of one
//! bucket. A user's proxy is kept, without which calls could not be put together.
//!
//! *batching* is the one that its documentation advises for a bucket that many ask for. Its other
//! optimizations are left out: they decide by what a process remembers, and exceed the limit.

use std::{env, process::Command};

use super::{
    Built, Entry, Form, Place, Promise, contestant,
    process::{Process, missing},
};
use crate::contest::Limit;

const VERSION: &str = "8.19.0 with Lettuce 7.7.0";
/// The folder of its jars, and of the compiled class
const FILES: &str = "PEERS_BUCKET4J";

const ENTRY: Entry = Entry {
    package: "Bucket4j",
    version: Some(VERSION),
    form: Form::Call,
    promise: Promise::Bucket,
    weighs: true,
    sends: &["get", "eval"],
    // A call of its script is either a SET, of a new bucket, or begins with a GET of its own: GETs
    // and SETs together are the GETs and calls that it sends.
    counted: &["get", "set"],
    missing: || missing("java", "-version", FILES),
    ..Entry::NONE
};

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "Bucket4j",
        build: |limits, place| start(limits, place, false),
        ..ENTRY
    },
    Entry {
        name: "Bucket4j, batching",
        build: |limits, place| start(limits, place, true),
        ..ENTRY
    },
];

fn start(limits: Vec<Limit>, place: Place, batching: bool) -> Built {
    Box::pin(async move {
        let files = env::var_os(FILES).unwrap_or_default();
        let paths = [files.clone().into(), std::path::Path::new(&files).join("*")];
        let mut java = Command::new("java");
        java.arg("-cp").arg(env::join_paths(paths).unwrap());
        java.arg(format!("-Dbatching={batching}"));
        java.arg("AskBucket4j");
        contestant(Process::start(java, VERSION, limits, place).await)
    })
}
