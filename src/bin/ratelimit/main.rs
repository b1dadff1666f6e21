//! The command `ratelimit`: chooses limits from access logs, checks rules files, and shows and
//! changes limiters in Redis.
//!
//! Results go to the standard output, everything else to the standard error. The exit status is 0
//! if all is well, 1 if the answer is no, 2 for a usage error, also if a file cannot be read, 3 if
//! Redis cannot be asked, and 4 if there is no such limiter.

mod access_log;
mod assumptions;
mod check;
mod diff;
mod dry_run;
mod explain;
mod limiter;
mod needs;
mod out;
mod parsers;
mod redis;
mod replay;
mod requests;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::Builder;

use self::out::{Stop, print, say};

/// Choose limits by access logs, check rules files, and manage limiters in Redis.
///
/// Results go to the standard output, everything else to the standard error. `ratelimit replay
/// --demo` shows what a replay says.
///
/// Exits with 0 if all is well, with 1 if the answer is no (findings, an error in a rules file, a
/// refused request, a log that lacks what is asked of it), with 2 for a usage error or a file that
/// cannot be read, with 3 if Redis cannot be asked or takes more than ten seconds to answer, and
/// with 4 if there is no such limiter.
#[derive(Parser)]
#[command(name = "ratelimit", version)]
struct Arguments {
    #[command(subcommand)]
    command: ToolCommand,
}

#[derive(Subcommand)]
enum ToolCommand {
    Replay(replay::ReplayArguments),
    Check(check::CheckArguments),
    Explain(explain::ExplainArguments),
    Diff(diff::DiffArguments),
    #[command(flatten)]
    Limiter(limiter::LimiterCommand),
    /// Print a script that completes this command in a shell
    ///
    /// Example, for this user and bash: `ratelimit completions bash >
    /// ~/.local/share/bash-completion/completions/ratelimit`.
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
fn run(command: ToolCommand) -> Result<bool, Stop> {
    match command {
        ToolCommand::Replay(arguments) => replay::run(&arguments),
        ToolCommand::Check(arguments) => check::run(&arguments),
        ToolCommand::Explain(arguments) => explain::run(&arguments),
        ToolCommand::Diff(arguments) => diff::run(&arguments),
        ToolCommand::Limiter(command) => {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Stop::usage(error.to_string()))?;
            runtime.block_on(command.run())
        }
        ToolCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ratelimit", &mut script);
            print(&String::from_utf8_lossy(&script))?;
            Ok(true)
        }
    }
}
