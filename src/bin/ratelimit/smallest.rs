//! The smallest limits of rules, found by replays of the log: costs and the other rules that a
//! request meets count.

use std::{collections::BTreeSet, fs, ops::Range, path::Path};

use serde_json::json;
use toml::de::DeTable;
use tower_ratelimit::Limit;

use crate::{
    Stop,
    out::Field,
    rules::{Assumptions, Name},
    traffic::{Columns, Row, Stage},
};

/// The most layers that one reading of the log goes through.
const LAYERS: usize = 64;
/// The most limits that one reading tries for a rule.
const TRIED: usize = 8;
/// The largest limit that is tried.
const MOST: u64 = 1 << 31;

/// The search for the smallest limit of a rule, while the others keep theirs.
pub(crate) struct Search {
    name: String,
    /// The place of its rate in the file.
    rate: Range<usize>,
    interval: String,
    callers: u64,
    /// Touches too many; 0 is no limit, and touches all.
    below: (u64, u64),
    /// Touches few enough, and how many; not known to if that is missing.
    permits: (u64, Option<u64>),
}

/// The subject of a search: the log, the rules, and how they are read.
pub(crate) struct Searched<'a> {
    pub(crate) settings: &'a Columns,
    pub(crate) assumptions: &'a Assumptions,
    pub(crate) code: &'a BTreeSet<Name>,
    pub(crate) rules: &'a Path,
    pub(crate) log: &'a Path,
    pub(crate) share: f64,
}

impl Searched<'_> {
    /// Finds the smallest limit of each rule of a file that has one of its own.
    pub(crate) fn find(&self, rows: &[Row]) -> Result<Vec<Search>, Stop> {
        if self.log.as_os_str() == "-" {
            return Err(Stop::usage(
                "`--share` reads the log several times: name a file",
            ));
        }
        let text = fs::read_to_string(self.rules).map_err(|error| error.to_string())?;
        let text = text.trim_start_matches('\u{feff}');
        let mut all: Vec<_> = rows
            .iter()
            .filter_map(|row| Search::of(row, text))
            .collect();
        loop {
            let searching = all.iter().filter(|it| !it.tried(1).is_empty()).count();
            let each = (LAYERS / searching.max(1)).clamp(1, TRIED);
            let tried = all.iter().enumerate().flat_map(|(place, search)| {
                let tried = search.tried(each).into_iter();
                tried.map(move |permits| (place, permits, search.change(text, permits)))
            });
            let stages = tried.take(LAYERS).map(|(place, permits, text)| {
                let rules = self.assumptions.parse(self.code, &text)?;
                Ok((place, permits, Stage::new(rules)?))
            });
            let mut stages = stages.collect::<Result<Vec<_>, Stop>>()?;
            if stages.is_empty() {
                return Ok(all);
            }
            self.settings.read(self.log, None, |time, request, _| {
                for (.., stage) in &mut stages {
                    stage.send(time, request.clone());
                }
            })?;
            for (place, permits, stage) in stages {
                all[place].found(permits, &stage.end().rules, self.share);
            }
        }
    }
}

impl Search {
    fn of(row: &Row, text: &str) -> Option<Self> {
        let file = DeTable::parse(text).ok()?.into_inner();
        let rule = file.get("rules")?.get_ref().get(&*row.name)?;
        let rate = rule.get_ref().get("rate")?.span();
        let limit = row.limit();
        let (_, interval) = limit.split_once('/')?;
        let micros = limit.parse::<Limit>().ok()?.interval().as_micros();
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
        let mut text = text.to_owned();
        text.replace_range(
            self.rate.clone(),
            &format!("\"{permits}/{}\"", self.interval),
        );
        text
    }

    /// Returns limits to try: by powers while little is known.
    fn tried(&self, count: usize) -> Vec<u64> {
        let (low, high) = (self.below.0, self.permits.0);
        let (least, parts) = (low.max(1) as f64, count as f64 + 1.0);
        let ratio = high as f64 / least;
        let between = (1..=count).map(|part| match ratio > 16.0 {
            true => (least * ratio.powf(part as f64 / parts)) as u64,
            false => low + ((high - low) as f64 * part as f64 / parts).ceil() as u64,
        });
        let all: BTreeSet<_> = between.filter(|it| low < *it && *it < high).collect();
        all.into_iter().collect()
    }

    fn found(&mut self, permits: u64, rows: &[Row], share: f64) {
        let row = rows.iter().find(|row| row.name == self.name);
        let touched = row.map_or(0, |row| row.touched.len() as u64);
        let is_few = touched == 0 || (touched as f64) < share * self.callers as f64;
        if is_few && permits < self.permits.0 {
            self.permits = (permits, Some(touched));
        } else if !is_few && permits > self.below.0 && permits < self.permits.0 {
            self.below = (permits, touched);
        }
    }

    /// Returns what is shown of it.
    pub(crate) fn fields(&self) -> Vec<Field> {
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
