//! The real Redisson, with its own defaults: `../../processes/AskRedisson.java`. Its `tryAcquire`
//! tells no time to wait. Several limits are several limiters, one after the other.

#[path = "../../../shared/redisson.rs"]
mod shared;

use std::{env, process::Command};

use self::shared::VERSION;
use super::{
    Entry, Form, Promise, contestant,
    process::{Process, missing},
};

/// The folder of the compiled class
const CLASSES: &str = "PEERS_REDISSON";

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "Redisson",
    package: "Redisson",
    version: Some(VERSION),
    form: Form::Call,
    promise: Promise::Interval,
    weighs: true,
    sends: &["evalsha", "eval"],
    missing: || {
        shared::script()
            .err()
            .or_else(|| missing("java", "-version", CLASSES))
    },
    build: |limits, place| {
        Box::pin(async move {
            let mut paths = vec![shared::jars().join("*")];
            paths.extend(env::var_os(CLASSES).map(Into::into));
            let mut java = Command::new("java");
            java.arg("-cp").arg(env::join_paths(paths).unwrap());
            java.arg("AskRedisson");
            contestant(Process::start(java, VERSION, limits, place).await)
        })
    },
    ..Entry::NONE
}];
