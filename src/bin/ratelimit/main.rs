//! The command `ratelimit`: chooses limits from access logs, checks files of rules, and shows and
//! changes limiters in Redis.
//!
//! Results go to the standard output, everything else to the standard error. The exit status is 0
//! if all is well, 1 if the answer is no, 2 for a usage error, also if a file cannot be read, 3 if
//! Redis cannot be asked, and 4 if there is no such limiter.

mod check;
mod demo;
mod diff;
mod explain;
mod impact;
mod limiter;
mod redis;
mod replay;
mod rules;
mod traffic;
mod verify;

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::Builder;
use tower_ratelimit::{ConfigError, Error};

/// Choose request limits from access logs, check files of rules, and look after limiters in Redis.
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
    Explain(explain::Arguments),
    Diff(diff::Arguments),
    Get(limiter::Get),
    Watch(limiter::Watch),
    SetRate(limiter::SetRate),
    Delete(limiter::Delete),
    Ban(limiter::Ban),
    Unban(limiter::Unban),
    Diagnose(limiter::Diagnose),
    Repair(limiter::Repair),
    Verify(verify::Verify),
    /// Print a script that completes this command in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The answer of a command, where it could be found.
enum Answer {
    Yes,
    No,
}

/// Why a command could not find its answer.
enum Stop {
    /// The command cannot be meant so, or a file cannot be read
    Usage(String),
    /// Redis cannot be asked
    Redis(Error),
    NotFound(String),
}

impl Stop {
    fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Usage(what)
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Redis(error)
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(Stop::Usage(what)) => {
            say(&what);
            ExitCode::from(2)
        }
        Err(Stop::Redis(error)) => {
            say(&error);
            if let Some(source) = std::error::Error::source(&error) {
                say(source.to_string().escape_debug());
            }
            ExitCode::from(3)
        }
        Err(Stop::NotFound(what)) => {
            say(&what);
            ExitCode::from(4)
        }
    }
}

fn run(command: Command) -> Result<Answer, Stop> {
    let runtime = || {
        let built = Builder::new_current_thread().enable_all().build();
        built.map_err(|error| Stop::Usage(error.to_string()))
    };
    match command {
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Get(get) => runtime()?.block_on(get.run()),
        Command::Watch(watch) => runtime()?.block_on(watch.run()),
        Command::SetRate(set) => runtime()?.block_on(set.run()),
        Command::Delete(delete) => runtime()?.block_on(delete.run()),
        Command::Ban(ban) => runtime()?.block_on(ban.run()),
        Command::Unban(unban) => runtime()?.block_on(unban.run()),
        Command::Diagnose(diagnose) => runtime()?.block_on(diagnose.run()),
        Command::Repair(repair) => runtime()?.block_on(repair.run()),
        Command::Verify(verify) => runtime()?.block_on(verify.run()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ratelimit", &mut script);
            print(&String::from_utf8_lossy(&script))?;
            Ok(Answer::Yes)
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
