//! Runs the Java and the Rust half of `examples/redisson` side by side, unchanged.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::oracle::{self, HOME};
use kit::RedisServer;

/// Of each half.
const ORDERS: u32 = 8;

#[test]
fn the_example_shares_one_limit() {
    let server = RedisServer::start();
    let url = server.url();
    // The newest: older versions have another `trySetRate`.
    let version = oracle::versions().remove(0);
    let jars = PathBuf::from(env::var(HOME).unwrap())
        .join(version)
        .join("lib/*");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));

    let began = Instant::now();
    let mut java = Command::new("java");
    java.arg("-cp")
        .arg(jars)
        .arg(folder.join("examples/redisson/Orders.java"));
    let mut rust = Command::new(env!("CARGO"));
    rust.args(["run", "--quiet", "--locked", "--all-features"])
        .args(["--example", "redisson", "--"])
        .current_dir(folder);
    let halves = [java, rust].map(|mut half| {
        half.arg(ORDERS.to_string())
            .env("REDIS_URL", &url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for half in halves {
        let output = half.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let orders = text.lines().filter(|line| line.starts_with("order "));
        assert_eq!(orders.count(), ORDERS as usize, "{text}");
        assert!(text.ends_with("of 5 permits left\n"), "{text}");
    }
    // Sixteen at five a second: three intervals lie between the first and the last.
    assert!(began.elapsed() >= Duration::from_secs(3));
    // One limiter, and not one for each.
    let mut keys: Vec<_> = server
        .cli(&["KEYS", "*"])
        .lines()
        .map(str::to_owned)
        .collect();
    keys.sort();
    assert_eq!(keys, ["orders", "{orders}:permits", "{orders}:value"]);
    let stored = server.cli(&["HMGET", "orders", "rate", "interval", "type"]);
    assert_eq!(stored, "5\n1000\n0");
}
