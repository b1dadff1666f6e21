//! `ratelimit check`: reports the first error of a rules file, as a service would.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{
    Stop,
    assumptions::{Assumptions, FileText},
    out::{Format, in_file},
};

/// Check a rules file, and print its first error.
///
/// It prints the line, the field, and what to write instead. It accepts what only Redisson's format
/// has, which a service with another store refuses. Names that only code defines, such as keys,
/// tiers and secrets, are assumed and listed.
///
/// Example: `ratelimit check limits.toml`.
///
/// Exits with 0 if the file has no error, with 1 if it has, and with 2 if it cannot be read.
#[derive(clap::Args)]
pub(crate) struct CheckArguments {
    /// The rules file, in TOML
    file: PathBuf,
    #[command(flatten)]
    assumptions: Assumptions,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &CheckArguments) -> Result<bool, Stop> {
    let path = &arguments.file;
    let file = FileText::read(path)?;
    let ([rules], code) = arguments.assumptions.load([&file])?;
    let found = rules.as_ref().err();
    let words = found.map_or("no errors".to_owned(), ToString::to_string);
    let code = code.iter();
    let code = code.map(|(kind, name)| json!({ "kind": kind, "name": name }));
    let object = json!({
        "error": found.map(|it| json!({ "place": it.place(), "reason": it.reason() })),
        "code": code.collect::<Value>(),
    });
    arguments.format.print(&in_file(path)(words), object)?;
    Ok(rules.is_ok())
}
