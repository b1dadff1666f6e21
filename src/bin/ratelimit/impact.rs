//! `ratelimit replay --rules`: what a file of rules would have refused of an access log.

use std::{collections::HashSet, path::Path};

use serde_json::json;
use tower_ratelimit::observe::RuleResult;

use crate::{
    Answer, Stop, print,
    rules::Assumptions,
    traffic::{Columns, Event, Read, Rule, Stage, columns},
};

/// What one rule did.
#[derive(Default)]
struct Tally {
    met: u64,
    refused: u64,
    in_shadow: u64,
    without_key: u64,
    /// The hashes of callers that it refused, or would have.
    touched: HashSet<u64>,
}

/// What the rules did.
pub(crate) struct Impact {
    read: Read,
    refused: u64,
    waited: u64,
    rules: Vec<(Rule, Tally)>,
}

/// Sends a log through rules.
pub(crate) fn run(
    settings: &Columns,
    assumptions: &Assumptions,
    rules: &Path,
    log: &Path,
) -> Result<Impact, Stop> {
    let [loaded] = assumptions.load([rules])?;
    let mut stage = Stage::new(loaded.rules?)?;
    let (mut tallies, mut refused, mut waited) = (Vec::<Tally>::new(), 0, 0);
    let mut count = |(), event: Event| {
        refused += u64::from(event.is_refused());
        waited += u64::from(event.has_waited && !event.is_refused());
        for met in event.rules {
            if met.rule >= tallies.len() {
                tallies.resize_with(met.rule + 1, Tally::default);
            }
            if let Some(tally) = tallies.get_mut(met.rule) {
                tally.add(&met);
            }
        }
    };
    let each = |line: crate::traffic::Line| stage.send(line.time, line.request, (), &mut count);
    let read = settings.read(log, None, each)?;
    waited += stage.waiting() as u64;
    let rules = stage.rules().into_iter().zip(tallies).collect();
    Ok(Impact {
        read,
        refused,
        waited,
        rules,
    })
}

impl Tally {
    fn add(&mut self, met: &crate::traffic::Met) {
        use RuleResult::{AboveRate, Deny, MissingKey, QueueFull, ShadowDeny};
        self.met += 1;
        match met.result {
            Deny | AboveRate | QueueFull => self.refused += 1,
            ShadowDeny => self.in_shadow += 1,
            MissingKey => self.without_key += 1,
            _ => {}
        }
        if matches!(met.result, Deny | AboveRate | QueueFull | ShadowDeny) {
            self.touched.insert(met.key_hash);
        }
    }
}

impl Impact {
    pub(crate) fn print(&self, as_json: bool) -> Result<Answer, Stop> {
        print(&if as_json { self.object() } else { self.table() })?;
        Ok(self.read.report(self.rules.iter().map(|(rule, _)| rule)))
    }

    fn table(&self) -> String {
        let head = [
            "rule",
            "limit",
            "requests",
            "refused",
            "in shadow",
            "without key",
            "callers",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(self.rules.iter().map(|(rule, tally)| {
            let figures = [tally.met, tally.refused, tally.in_shadow, tally.without_key];
            let mut row = vec![rule.name.clone(), rule.limit()];
            row.extend(figures.map(|figure| figure.to_string()));
            row.push(tally.touched.len().to_string());
            row
        }));
        let requests = self.read.rows.requests - self.read.invalid;
        format!(
            "{}\n{} of {requests} requests refused; {} waited for permits.\nCallers would have \
             sent the same requests had they been refused: that is assumed.\n",
            columns(&rows),
            self.refused,
            self.waited,
        )
    }

    fn object(&self) -> String {
        let rules = self.rules.iter().map(|(rule, tally)| {
            json!({
                "rule": rule.name,
                "limit": rule.limit(),
                "requests": tally.met,
                "refused": tally.refused,
                "shadow_refused": tally.in_shadow,
                "without_key": tally.without_key,
                "callers": tally.touched.len(),
                "approximate": rule.is_coarse(&self.read),
            })
        });
        let mut object = self.read.object();
        object["refused"] = self.refused.into();
        object["waited"] = self.waited.into();
        object["rules"] = rules.collect();
        format!("{object:#}\n")
    }
}
