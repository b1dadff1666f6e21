//! `ratelimit check`: what a service would say of a file of rules.

use std::path::PathBuf;

use serde_json::json;
use tower_ratelimit::ConfigErrorKind;

use crate::{Answer, Stop, out::print, replay::SCHEMA, rules::Assumptions};

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
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Stop> {
    let path = &arguments.file;
    let loaded = arguments.assumptions.load([path])?;
    let [rules] = loaded.rules;
    let error = match rules {
        Err(error) if error.kind() == ConfigErrorKind::Unreadable => return Err(error.into()),
        rules => rules.err(),
    };
    let words = error
        .as_ref()
        .map_or("no errors".to_owned(), ToString::to_string);
    let code = loaded
        .code
        .iter()
        .map(|(kind, name)| json!({ "kind": kind, "name": name }));
    print(&match arguments.json {
        true => {
            let error = error
                .as_ref()
                .map(|it| json!({ "place": it.place(), "reason": it.reason() }));
            let code: Vec<_> = code.collect();
            format!(
                "{:#}\n",
                json!({ "schema": SCHEMA, "error": error, "code": code })
            )
        }
        false => format!("{}: {words}\n", path.display()),
    })?;
    Ok(Answer::is(error.is_none()))
}
