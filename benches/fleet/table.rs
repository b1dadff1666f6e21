//! What was found, as Markdown.

use std::fmt::Write;

use tower_ratelimit_fleet::fleet::{Algorithm, Outcome, Scenario};

const HEAD: &str = "\
| fleet | requests/s | commands | p50, p99 ms | refused | from memory | by policy | used | fair | \
most | busy | MB | over |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

pub(crate) fn markdown(rows: &[Scenario], outcomes: &[Outcome]) -> String {
    let mut table = HEAD.to_owned();
    for (row, found) in rows.iter().zip(outcomes) {
        let part = |of: Option<f64>| of.map_or("–".into(), |of| format!("{of:.3}"));
        let percent = |of: f64| format!("{:.0} %", 100.0 * of);
        let columns = [
            row.name.into(),
            match row.rate {
                many if many >= 1e6 => format!("{} M", many / 1e6),
                some => format!("{} k", some / 1e3),
            },
            format!("{:.3}", found.commands),
            format!("{:.1}, {:.1}", found.p50, found.p99),
            percent(found.refused),
            percent(found.refused_here),
            percent(found.by_policy),
            part(found.used),
            part(found.fairness),
            format!("{:.2}", found.most),
            percent(found.busy),
            format!("{:.1}", bytes(row, found) as f64 / 1e6),
            found.over.to_string(),
        ];
        let _ = writeln!(table, "| {} |", columns.join(" | "));
    }
    table
}

/// Returns the bytes in Redis, by the table of `src/docs/capacity.md`.
fn bytes(row: &Scenario, found: &Outcome) -> u64 {
    let [limiter, entry] = match row.algorithm {
        Algorithm::SlidingLog if row.slots > 0 => [510, 40],
        Algorithm::SlidingLog => [210, 25],
        _ => [260, 0],
    };
    found.limiters * limiter + found.entries * entry
}
