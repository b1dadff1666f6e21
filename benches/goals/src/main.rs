//! The goals of tower-ratelimit: each row's two sides in turns, in one run. See `../../HOW.md`.

#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
#[path = "../../../src/bin/ratelimit/access_log/mod.rs"]
mod access_log;
mod arguments;
mod commands;
mod contenders;
mod database;
#[path = "../../shared/figures.rs"]
mod figures;
mod floors;
mod http;
#[allow(
    dead_code,
    reason = "shared with what counts instructions, which uses all of it"
)]
mod in_process;
#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
#[path = "../../../src/bin/ratelimit/replay/limits/mod.rs"]
mod limits;
#[path = "../../shared/machine.rs"]
mod machine;
mod peers;
#[allow(dead_code, reason = "a test reads what is written here")]
#[path = "../../shared/plot.rs"]
mod plot;
mod plots;
mod requests;
mod row;
mod rows;
mod table;

use std::process::ExitCode;

use self::{
    arguments::{Arguments, Order},
    machine::locked,
    peers::{governor, redisson},
};

/// Peers whose versions stand above the table.
const CRATES: [&str; 5] = ["axum", "governor", "redis", "tokio", "tower_governor"];

const LOCK: &str = include_str!("../Cargo.lock");

fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(Order::Measure(arguments)) => arguments,
        Ok(Order::Serve { scene, redis }) => {
            http::server::serve(&scene, &redis);
            return ExitCode::SUCCESS;
        }
        Ok(Order::Read { log, replayed }) => {
            rows::replay::read(&log, replayed);
            return ExitCode::SUCCESS;
        }
        Ok(Order::Plot(names)) => {
            names.iter().for_each(|name| plots::measure(name));
            return ExitCode::SUCCESS;
        }
        Ok(Order::Help) => {
            print!("{}", arguments::HELP);
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("goals: {mistake}\n\n{}", arguments::HELP);
            return ExitCode::from(2);
        }
    };
    let rows: Vec<_> = rows::all(arguments.quick)
        .into_iter()
        .filter(|row| arguments.wants(&row.name))
        .collect();
    if arguments.list {
        rows.iter()
            .for_each(|row| println!("{}", row.description()));
        return ExitCode::SUCCESS;
    }
    if rows.is_empty() {
        eprintln!("goals: no row is named so; --list names them");
        return ExitCode::from(2);
    }
    let needs = rows.iter().flat_map(|row| row.needs).copied();
    let missing = contenders::missing(&needs.collect::<Vec<_>>());
    if !missing.is_empty() {
        eprintln!("goals: no row is measured without its contender. What is missing:");
        missing.iter().for_each(|what| eprintln!("  - {what}"));
        return ExitCode::FAILURE;
    }

    let about = about(&arguments);
    let count = rows.len();
    let measured: Vec<_> = rows
        .into_iter()
        .enumerate()
        .map(|(place, row)| {
            eprintln!("{:2}/{count} {}", place + 1, row.name);
            row.measure()
        })
        .collect();
    print!("{}", table::markdown(&about, &measured, !arguments.quick));
    ExitCode::SUCCESS
}

/// Two lines that stand above the table.
fn about(arguments: &Arguments) -> String {
    let kind = if arguments.quick {
        "A quick run: it shows that each row runs, says little about speed, and judges nothing"
    } else {
        "A whole run"
    };
    let rows = match &*arguments.patterns {
        [] => String::new(),
        words => format!(", rows {words:?}"),
    };
    let crates: Vec<_> = CRATES
        .iter()
        .map(|name| {
            format!(
                "{name} {}",
                locked(LOCK, name).unwrap_or("of an unknown version")
            )
        })
        .collect();
    format!(
        "{kind}{rows}. {}, Redisson {}, {}.\n\
         Medians; in parentheses from the least to the most, of ratios by rounds.",
        machine::place(),
        redisson::VERSION,
        crates.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known() {
        for name in CRATES {
            assert!(locked(LOCK, name).is_some(), "{name}");
        }
    }
}
