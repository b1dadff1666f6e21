//! Where and with what a table was measured.

use std::{env, fs, process::Command, thread};

/// The day, the machine and what is not of a lockfile.
pub(crate) fn place() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut names = info
        .lines()
        .filter_map(|line| line.strip_prefix("model name"));
    let name = names.find_map(|name| name.split_once(": "));
    let processor = name.map_or(env::consts::ARCH, |(_, name)| name);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let server = env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| String::from("redis-server"));
    let redis = said_by(&server, &["--version"]);
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v="));
    format!(
        "{}, {cores} cores of {processor}, load {load} before it; {}, Redis {}",
        said_by("date", &["-u", "+%F"]),
        said_by("rustc", &["--version"]),
        redis.unwrap_or("of an unknown version"),
    )
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let said = Command::new(program).args(arguments).output();
    said.map_or_else(
        |_| format!("{program} of an unknown version"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// The version of a crate in a lockfile.
pub(crate) fn locked<'l>(lock: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(rest.split_once('"')?.0)
}
