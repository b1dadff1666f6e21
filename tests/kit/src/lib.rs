//! What the suites are written with: `tests/README.md` says which suite owns which law.

pub mod cluster;
pub mod keys;
pub mod ledger;
pub mod listed;
pub mod monitor;
pub mod own_log;
pub mod ports;
pub mod random;
pub mod resp;
pub mod running;
pub mod scripted;
pub mod sentinel;
pub mod server;
pub mod worker;

#[cfg(feature = "tls")]
pub mod certificates;
#[cfg(feature = "redis")]
pub mod guards;
#[cfg(feature = "scene")]
pub mod observed;
#[cfg(feature = "redis")]
pub mod proxy;
#[cfg(feature = "scene")]
pub mod scene;
#[cfg(all(feature = "cluster", feature = "sentinel", feature = "tls"))]
pub mod topologies;
#[cfg(feature = "redis")]
pub mod traffic;

pub use cluster::Cluster;
pub use keys::{
    MOVE, calendar_key, companion, is_state_key, label_and_used, number_of, permits_of, state_key,
    windows,
};
pub use own_log::OwnLog;
pub use resp::Reply;
pub use sentinel::Sentinel;
pub use server::RedisServer;
pub use worker::Worker;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

/// Far longer than anything takes on a busy machine: a Sentinel that was kept from its work does
/// nothing for 30 seconds after it.
pub const LONG: Duration = Duration::from_secs(120);

/// A name that no other call returns, in this process or in one that runs beside it
///
/// Keeps tests on one server apart: name every limiter by it.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{n}", process::id())
}

/// The folder of the library's manifest.
pub fn root() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.nth(2).expect("the kit is below it").to_owned()
}

/// The files of a folder and those below it, without what is built there, or the file itself
///
/// # Panics
///
/// If there is no such place.
pub fn files(place: impl AsRef<Path>, extension: &str) -> Vec<PathBuf> {
    let place = place.as_ref();
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(place).expect("a folder of the project") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|ending| ending == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Polls for a state of servers, which nothing announces
///
/// # Panics
///
/// If it is not reached in two minutes.
pub fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !reached() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The permissions that the guide calls sufficient, as words for `ACL SETUSER limiter`
pub fn permissions() -> Vec<&'static str> {
    let guide = include_str!("../../../src/docs/guide.md");
    let rules = guide.split_once("ACL SETUSER limiter ");
    let (_, rules) = rules.expect("the guide has the permissions");
    let (rules, _) = rules.split_once("```").expect("a whole block");
    rules.split_whitespace().collect()
}
