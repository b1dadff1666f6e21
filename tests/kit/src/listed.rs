//! The metrics that the page of operations lists: what is scraped and what is asked for are
//! compared with them.

use std::collections::{BTreeMap, BTreeSet};

pub const PAGE: &str = include_str!("../../../src/docs/operations.md");

/// The kind of each metric, and its labels.
pub type Listed = BTreeMap<String, (String, BTreeSet<String>)>;

pub fn listed() -> Listed {
    let rows = PAGE
        .lines()
        .filter(|line| line.starts_with("| `ratelimit_"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").filter(|label| !label.is_empty());
        let labels = labels
            .map(|label| label.trim_matches('`').to_owned())
            .collect();
        (
            cells[1].trim_matches('`').to_owned(),
            (cells[2].to_owned(), labels),
        )
    })
    .collect()
}

/// The metric of a series: a histogram has three.
pub fn metric_of<'a>(series: &'a str, listed: &Listed) -> Option<&'a str> {
    let parts = ["_bucket", "_sum", "_count"];
    let of_histogram = parts.iter().find_map(|part| series.strip_suffix(part));
    let name = of_histogram.unwrap_or(series);
    let (kind, _) = listed.get(name)?;
    (of_histogram.is_some() == (kind == "histogram")).then_some(name)
}
