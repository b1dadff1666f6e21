//! Where and with what a table was measured.

use std::{env, fs, process::Command};

use crate::peers::redisson;

/// Peers whose versions stand above the table.
const CRATES: [&str; 5] = ["axum", "governor", "redis", "tokio", "tower_governor"];

/// Two lines that stand above the table of a run of the rows with these words.
pub(crate) fn about(quick: bool, patterns: &[String]) -> String {
    let kind = match quick {
        true => {
            "A quick run: it shows that each row runs, says little about speed, and judges nothing"
        }
        false => "A whole run",
    };
    let rows = match patterns {
        [] => String::new(),
        _ => format!(", rows {patterns:?}"),
    };
    let crates: Vec<_> = CRATES
        .iter()
        .map(|name| format!("{name} {}", locked(name).unwrap_or("of an unknown version")))
        .collect();
    format!(
        "{kind}{rows}. {}, Redisson {}, {}.\n\
         Medians (from the least to the most); ratios are of the medians (of each round, from the least to the most).",
        place(),
        redisson::VERSION,
        crates.join(", ")
    )
}

/// The day, the machine and what is not of a lockfile.
pub(crate) fn place() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let server = env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| String::from("redis-server"));
    let redis = said_by(&server, &["--version"]);
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v="));
    format!(
        "{}, {cores} cores of {}, load {load} before it; {}, Redis {}",
        said_by("date", &["-u", "+%F"]),
        processor(),
        said_by("rustc", &["--version"]),
        redis.unwrap_or("of an unknown version"),
    )
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let said = Command::new(program).args(arguments).output();
    said.map_or_else(
        |_| format!("{program} of an unknown version"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// The version of a crate that this program is built with.
fn locked(name: &str) -> Option<&'static str> {
    let lock = include_str!("../Cargo.lock");
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(rest.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known() {
        for name in CRATES {
            assert!(locked(name).is_some(), "{name}");
        }
    }
}
