//! The command `ratelimit`: chooses limits from access logs, and checks files of rules.
//!
//! Results go to the standard output, everything else to the standard error. The exit status is 0
//! if all is well, 1 if the answer is no, and 2 for a usage error, also if a file cannot be read.

mod check;
mod demo;
mod replay;

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Choose request limits from access logs, and check files of rules.
#[derive(Parser)]
#[command(name = "ratelimit", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Replay(replay::Arguments),
    Check(check::Arguments),
}

/// The answer of a command, where it could be found.
enum Answer {
    Yes,
    No,
}

fn main() -> ExitCode {
    let answer = match Arguments::parse().command {
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
    };
    match answer {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) => {
            say(&error);
            ExitCode::from(2)
        }
    }
}

/// Prints a result. A reader that has seen enough may leave early.
fn print(result: &str) -> Result<(), String> {
    let mut output = io::stdout().lock();
    let printed = output
        .write_all(result.as_bytes())
        .and_then(|()| output.flush());
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("the result cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

/// Says something that is no result.
fn say(what: impl Display) {
    // There is no place left to say that this place is closed.
    let _ = writeln!(io::stderr().lock(), "ratelimit: {what}");
}
