//! The command `ratelimit`: chooses limits from access logs, checks files of rules, and shows and
//! changes limiters in Redis.
//!
//! Results go to the standard output, everything else to the standard error. The exit status is 0
//! if all is well, 1 if the answer is no, 2 for a usage error, also if a file cannot be read, 3 if
//! Redis cannot be asked, and 4 if there is no such limiter.

mod access_log;
mod assumptions;
mod check;
mod diff;
mod explain;
mod limiter;
mod log;
mod needs;
mod out;
mod parsers;
mod redis;
mod replay;
mod stage;
mod stop;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::Builder;

use self::{
    out::{print, say},
    stop::Stop,
};

/// Choose limits by logs, check files of rules, and look after limiters in Redis.
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
    #[command(flatten)]
    Limiter(limiter::Command),
    /// Print a script that completes this command in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Stop(status, reason)) => {
            say(reason);
            ExitCode::from(status)
        }
    }
}

/// Runs a command. Returns whether its answer is yes.
fn run(command: Command) -> Result<bool, Stop> {
    match command {
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Limiter(command) => {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Stop::usage(error.to_string()))?;
            runtime.block_on(command.run())
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ratelimit", &mut script);
            print(&String::from_utf8_lossy(&script))?;
            Ok(true)
        }
    }
}
