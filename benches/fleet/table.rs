//! What was found, as Markdown.

use std::fmt::Write;

use tower_ratelimit_fleet::fleet::{Outcome, Scenario};

const HEAD: &str = "\
| row | requests/s | commands a decision | waited for Redis | p50, p99 | refused | from memory | \
leased | by policy | limit used | fairness | most | Redis busy | MB | over |
|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// Bytes in Redis: of a limiter, and of an entry in its log.
const LIMITER: u64 = 300;
const ENTRY: u64 = 100;

pub(crate) fn markdown(rows: &[Scenario], outcomes: &[Outcome], seed: u64) -> String {
    let mut table = format!("Seed {seed}.\n\n{HEAD}");
    for (row, found) in rows.iter().zip(outcomes) {
        let part = |of: Option<f64>| of.map_or("–".into(), |of| format!("{of:.3}"));
        let percent = |of: f64| format!("{:.1} %", 100.0 * of);
        let bytes = found.limiters * LIMITER + found.entries * ENTRY;
        let columns = [
            row.name.into(),
            format!("{}", row.rate),
            format!("{:.4}", found.commands),
            percent(found.calls),
            format!("{:.1}, {:.1} ms", found.p50, found.p99),
            percent(found.refused),
            percent(found.refused_here),
            percent(found.leased),
            percent(found.by_policy),
            part(found.used),
            part(found.fairness),
            format!("{:.2}", found.most),
            percent(found.busy),
            format!("{:.1}", bytes as f64 / 1e6),
            found.over.to_string(),
        ];
        let _ = writeln!(table, "| {} |", columns.join(" | "));
    }
    table
}
