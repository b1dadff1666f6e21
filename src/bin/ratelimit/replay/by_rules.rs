//! Replays a log through a rules file, and finds their smallest limits by replaying it again, so
//! that costs and the other rules of a request count.

use std::{ops::Range, path::Path};

use serde_json::{Value, json};
use toml::de::DeTable;
use tower_ratelimit::{Limit, RulesFile};

use super::{limits::Search, report::ASSUMED};
use crate::{
    Stop,
    assumptions::{Assumptions, FileText},
    dry_run::{DryRun, RuleEffect},
    needs::needs,
    out::{Format, counted, say, table},
    requests::{LogOptions, columns_line},
};

/// The columns of what a rule did, and of its smallest limit.
const ROW: &str = "rule limit requests refused shadow_refused without_key callers approximate";
const SMALLEST: &str = "rule limit callers touched touched_by_one_less";
/// The largest limit that is tried.
const MOST: u64 = 1 << 31;

/// Sends a log through a rules file, and prints what they do. Returns whether the answer is yes.
pub(super) fn replay(
    columns: &LogOptions,
    [rules, log]: [&Path; 2],
    assumptions: &Assumptions,
    share: Option<f64>,
    format: &Format,
) -> Result<bool, Stop> {
    if share.is_some() && log.as_os_str() == "-" {
        let reason = "`--share` reads the log several times: name a file";
        return Err(Stop::usage(reason));
    }
    let file = FileText::read(rules)?;
    let ([loaded], code) = assumptions.load([&file])?;
    let mut dry_run = DryRun::new(loaded?)?;
    let read = columns.read((log, u64::MAX), None, |time, request, _| {
        dry_run.send(time, request);
    })?;
    let effect = dry_run.end();
    let rows = effect.rules.iter().map(|row| {
        json!({
            "rule": row.name, "limit": row.limit(), "requests": row.met, "refused": row.refused,
            "shadow_refused": row.shadow_refused, "without_key": row.without_key,
            "callers": row.touched(), "approximate": read.is_too_coarse(row),
        })
    });
    let rows: Vec<_> = rows.collect();
    let (refused, waiting) = (effect.refused, effect.waiting);
    let requests = counted(read.rows.requests, "request");
    let mut words = format!("{}\n\n{}\n", columns_line(&read.rows), table(ROW, &rows));
    words += &format!("{refused} of {requests} refused.\n");
    if waiting > 0 {
        words += &format!("{waiting} would wait for permits, not counted further.\n");
    }
    words += ASSUMED;
    let mut object = json!(read.rows);
    object["rules"] = rows.into();
    (object["refused"], object["waiting"]) = (refused.into(), waiting.into());
    if let Some(share) = share {
        let reader = assumptions.reader(&code);
        // The log may have grown.
        let log = (log, read.rows.physical);
        let found = smallest(columns, log, file.unmarked(), &reader, &effect.rules, share)?;
        if !found.is_empty() {
            words += "\n\nThe smallest limit of each rule, by runs of it and of one permit less:\n";
            words += &table(SMALLEST, &found);
        }
        object["smallest"] = found.into();
    }
    format.print(&words, object)?;
    Ok(read.report(&effect.rules, &needs(&file.toml)))
}

/// Finds the smallest limit of each rule or tier that is one rate and for whose permits no request
/// waits, and returns what is shown of it.
///
/// `reader` reads the rules of `text`, and `rows` are their effect on the log.
fn smallest(
    columns: &LogOptions,
    log: (&Path, u64),
    text: &str,
    reader: &RulesFile,
    rows: &[RuleEffect],
    share: f64,
) -> Result<Vec<Value>, Stop> {
    let mut limits = Vec::new();
    for row in rows {
        match OneLimit::of(row, text, share) {
            Some(limit) => limits.push(limit),
            None => say(format!(
                "no smallest limit of {:?} is searched for, as its limit is not one rate, or its \
                 requests wait",
                row.name
            )),
        }
    }
    loop {
        let mut dry_runs = Vec::new();
        for (index, limit) in limits.iter_mut().enumerate() {
            let top = limit.search.permits;
            for permits in limit.search.tried() {
                let rules = reader.parse(&limit.change(text, permits));
                match rules.and_then(DryRun::new) {
                    Ok(dry_run) => dry_runs.push((index, permits, dry_run)),
                    Err(error) => {
                        // As fewer than a request costs are.
                        limit.search.found(permits, None);
                        if permits == top {
                            say(format!("no smallest limit of {:?}: {error}", limit.name));
                        }
                    }
                }
            }
        }
        if dry_runs.is_empty() {
            return Ok(limits.iter().map(OneLimit::found).collect());
        }
        columns.read(log, None, |time, request, _| {
            for (.., dry_run) in &mut dry_runs {
                dry_run.send(time, request.clone());
            }
        })?;
        for (index, permits, dry_run) in dry_runs {
            let (limit, effect) = (&mut limits[index], dry_run.end());
            let row = effect.rules.iter().find(|row| row.name == limit.name);
            let touched = row.map_or(0, RuleEffect::touched);
            limit.search.found(permits, Some(touched));
        }
    }
}

/// The limit of a rule, the smallest of which is looked for while the others keep theirs.
struct OneLimit {
    name: String,
    /// Where its rate stands in the file.
    rate: Range<usize>,
    interval: String,
    search: Search,
}

impl OneLimit {
    fn of(row: &RuleEffect, text: &str, share: f64) -> Option<Self> {
        let file = DeTable::parse(text).ok()?.into_inner();
        let rules = file.get("rules")?.get_ref();
        let of_rule = || {
            let rule = rules.get(&*row.name)?;
            Some((rule, rule.get_ref().get("rate")?))
        };
        let of_tier = || {
            let (rule, tier) = row.name.rsplit_once('.')?;
            let rule = rules.get(rule)?;
            Some((rule, rule.get_ref().get("tiers")?.get_ref().get(tier)?))
        };
        let (rule, rate) = of_rule().or_else(of_tier)?;
        let limit: Limit = rate.get_ref().as_str()?.parse().ok()?;
        // What is in flight, no run finds, and whom a full queue refuses; several limits have no
        // one number.
        let waits = rule.get_ref().get("wait").is_some();
        if waits || limit.is_in_flight() || limit.each().count() > 1 {
            return None;
        }
        let words = limit.to_string();
        let (_, interval) = words.split_once('/')?;
        // GCRA counts no more than one in a microsecond.
        let micros = u64::try_from(limit.interval().as_micros()).unwrap_or(MOST);
        Some(Self {
            name: row.name.clone(),
            rate: rate.span(),
            interval: interval.to_owned(),
            search: Search::new(row.callers.len() as u64, share, micros.min(MOST)),
        })
    }

    /// Returns the file with another limit for this rule.
    fn change(&self, text: &str, permits: u64) -> String {
        let rate = format!("\"{permits}/{}\"", self.interval);
        let mut text = text.to_owned();
        text.replace_range(self.rate.clone(), &rate);
        text
    }

    /// Returns what is shown of it.
    fn found(&self) -> Value {
        let search = &self.search;
        let found = search.is_found().then_some(search.permits);
        json!({
            "rule": self.name, "limit": found.map(|it| format!("{it}/{}", self.interval)),
            "callers": search.callers, "touched": found.and_then(|it| search.touched(it)),
            "touched_by_one_less": search.touched(search.below),
        })
    }
}
