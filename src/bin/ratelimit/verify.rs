//! `ratelimit verify`: what is wrong with a server.

use serde_json::{Value, json};
use tower_ratelimit::Finding;

use crate::{Answer, Stop, out::print, redis::Connection, replay::SCHEMA};

/// Check that a server can keep limits.
///
/// It looks at the version, permissions, memory policy and clock, and writes and deletes keys of
/// its own. Exits with 1 if it finds something.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let verified = self.connection.open()?.verify().await?;
        let findings = verified.findings();
        print(&match self.json {
            true => {
                let findings = listed(findings.iter().copied());
                format!("{}\n", json!({ "schema": SCHEMA, "findings": findings }))
            }
            false => format!("{verified}\n"),
        })?;
        Ok(Answer::is(findings.is_empty()))
    }
}

/// Returns findings as JSON.
pub(crate) fn listed<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Value {
    let findings = findings.into_iter().map(|finding| {
        json!({
            "kind": format!("{:?}", finding.kind()),
            "severity": finding.severity().to_string(),
            "text": finding.to_string(),
        })
    });
    findings.collect()
}
