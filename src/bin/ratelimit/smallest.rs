//! Finds the smallest limits of rules by replaying the log, so that costs and the other rules of a
//! request count.

use std::{collections::BTreeSet, fs, ops::Range, path::Path};

use serde_json::json;
use toml::de::DeTable;
use tower_ratelimit::RulesFile;

use crate::{
    Stop,
    log::Columns,
    out::Field,
    stage::{Row, Stage},
};

/// The number of limits that one reading tries for a rule, at most.
const TRIED: u32 = 8;
/// The largest limit that is tried.
const MOST: u64 = 1 << 31;

/// Finds the smallest limit of each rule that has one of its own, and returns what is shown of it.
///
/// `file` reads the rules, and `rows` are their effect on the log.
pub(crate) fn find(
    columns: &Columns,
    [rules, log]: [&Path; 2],
    file: &RulesFile,
    rows: &[Row],
    share: f64,
) -> Result<Vec<Vec<Field>>, Stop> {
    let text = fs::read_to_string(rules).map_err(|error| error.to_string())?;
    let text = text.trim_start_matches('\u{feff}');
    let searches = rows.iter().filter_map(|row| Search::of(row, text));
    let mut searches: Vec<_> = searches.collect();
    loop {
        let mut stages = Vec::new();
        for (place, search) in searches.iter().enumerate() {
            for permits in search.tried() {
                let rules = file.parse(&search.change(text, permits))?;
                stages.push((place, permits, Stage::new(rules)?));
            }
        }
        if stages.is_empty() {
            return Ok(searches.iter().map(Search::fields).collect());
        }
        columns.read(log, None, |time, request, _| {
            for (.., stage) in &mut stages {
                stage.send(time, request.clone());
            }
        })?;
        for (place, permits, stage) in stages {
            searches[place].found(permits, &stage.end().rules, share);
        }
    }
}

/// The search for the smallest limit of a rule, while the others keep theirs.
struct Search {
    name: String,
    /// The place of its rate in the file.
    rate: Range<usize>,
    interval: String,
    callers: u64,
    /// The largest permits that touch too many callers, and how many. 0 is no limit, and touches
    /// all.
    below: (u64, u64),
    /// The smallest permits that touch few enough, and how many; `None` until a run has shown it.
    permits: (u64, Option<u64>),
}

impl Search {
    fn of(row: &Row, text: &str) -> Option<Self> {
        let file = DeTable::parse(text).ok()?.into_inner();
        let rule = file.get("rules")?.get_ref().get(&*row.name)?;
        let rate = rule.get_ref().get("rate")?.span();
        let limit = row.limit();
        let (_, interval) = limit.split_once('/')?;
        let micros = row.limit?.interval().as_micros();
        let callers = row.callers.len() as u64;
        Some(Self {
            name: row.name.clone(),
            rate,
            interval: interval.to_owned(),
            callers,
            below: (0, callers),
            // GCRA counts no more than one in a microsecond.
            permits: (u64::try_from(micros).unwrap_or(MOST).min(MOST), None),
        })
    }

    /// Returns the file with another limit for this rule.
    fn change(&self, text: &str, permits: u64) -> String {
        let rate = format!("\"{permits}/{}\"", self.interval);
        let mut text = text.to_owned();
        text.replace_range(self.rate.clone(), &rate);
        text
    }

    /// Returns the limits to try next, at equal ratios; none once the limit is found.
    fn tried(&self) -> BTreeSet<u64> {
        let (low, high) = (self.below.0, self.permits.0);
        let (least, ratio) = (low.max(1) as f64, high as f64 / low.max(1) as f64);
        let share = |part: u32| f64::from(part) / f64::from(TRIED + 1);
        let between = (1..=TRIED).map(|part| (least * ratio.powf(share(part))) as u64);
        between.filter(|it| low < *it && *it < high).collect()
    }

    fn found(&mut self, permits: u64, rows: &[Row], share: f64) {
        let row = rows.iter().find(|row| row.name == self.name);
        let touched = row.map_or(0, Row::touched);
        // Rounded, because seven percent of 100 are a little more than 7 in binary.
        let share = (share * self.callers as f64 * 1e6).round() / 1e6;
        let is_few = touched == 0 || (touched as f64) < share;
        if is_few && permits < self.permits.0 {
            self.permits = (permits, Some(touched));
        } else if !is_few && permits > self.below.0 && permits < self.permits.0 {
            self.below = (permits, touched);
        }
    }

    /// Returns what is shown of it.
    fn fields(&self) -> Vec<Field> {
        let (permits, touched) = self.permits;
        let limit = format!("{permits}/{}", self.interval);
        vec![
            ("rule", json!(self.name)),
            ("limit", json!(touched.map(|_| limit))),
            ("callers", json!(self.callers)),
            ("touched", json!(touched)),
            ("touched_by_one_less", json!(self.below.1)),
        ]
    }
}
