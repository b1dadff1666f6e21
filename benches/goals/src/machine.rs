//! Where and with what a table was measured.

use std::{
    env, fs,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{arguments::Arguments, peers::redisson};

/// Peers whose versions stand above the table.
const CRATES: [&str; 5] = ["axum", "governor", "redis", "tokio", "tower_governor"];

/// Two lines that stand above the table.
pub(crate) fn about(arguments: &Arguments) -> String {
    let kind = if arguments.quick {
        "A quick run: it shows that each row runs, says little about speed, and judges nothing"
    } else {
        "A whole run"
    };
    let rows = if arguments.patterns().is_empty() {
        String::new()
    } else {
        format!(", rows {:?}", arguments.patterns())
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
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let server = env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| String::from("redis-server"));
    let redis = said_by(&server, "--version");
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v="));
    format!(
        "{}, {} of {}, load {load} before it; {}, Redis {}",
        today(),
        cores(),
        processor(),
        said_by("rustc", "--version"),
        redis.unwrap_or("of an unknown version"),
    )
}

fn cores() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores")
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

fn said_by(program: &str, argument: &str) -> String {
    let said = Command::new(program).arg(argument).output();
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

/// The date in UTC.
fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let (year, month, day) = date(now.map_or(0, |now| now.as_secs() / 86_400));
    format!("{year}-{month:02}-{day:02}")
}

/// Of a day after 1970-01-01, which is 0: Howard Hinnant's `civil_from_days`, for days that have
/// come.
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_778), (2026, 11, 21));
    }

    #[test]
    fn versions_are_known() {
        for name in CRATES {
            assert!(locked(name).is_some(), "{name}");
        }
    }
}
