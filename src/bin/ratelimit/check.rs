//! `ratelimit check`: what a service would say of a file of rules.

use std::path::PathBuf;

use tower_ratelimit::ConfigErrorKind;

use crate::{Answer, Stop, print, rules::Assumptions};

/// Check a file of rules as a service does that reads it.
///
/// Names that only code defines, such as keys, tiers and secrets, are assumed and listed. Exits
/// with 1 if the file has an error.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file, in TOML
    file: PathBuf,
    #[command(flatten)]
    assumptions: Assumptions,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Stop> {
    let path = &arguments.file;
    let [loaded] = arguments.assumptions.load([path])?;
    match loaded.rules {
        Ok(_) => {
            print(&format!("{}: no errors\n", path.display()))?;
            Ok(Answer::Yes)
        }
        Err(error) if error.kind() == ConfigErrorKind::Unreadable => Err(error.into()),
        Err(error) => {
            print(&format!("{}: {error}\n", path.display()))?;
            Ok(Answer::No)
        }
    }
}
