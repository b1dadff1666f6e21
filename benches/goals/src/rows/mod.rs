//! The rows of the table, in its order.

mod allocations;
mod capacity;
mod cluster;
mod cost;
mod expiry;
mod floor;
mod http;
pub(crate) mod in_process;
mod latency;
pub(crate) mod replay;
mod throughput;
mod weight;

use crate::row::Row;

/// All of them; with `quick` in few and short rounds.
pub(crate) fn all(quick: bool) -> Vec<Row> {
    let pace = Pace { quick };
    let mut rows: Vec<_> = cost::rows(pace).collect();
    rows.extend(floor::rows(pace));
    rows.extend(floor::commands(pace));
    rows.extend(expiry::rows(pace));
    rows.extend(weight::rows(pace));
    rows.extend(capacity::rows(pace));
    rows.extend(cluster::rows(pace));
    rows.extend(http::rows(pace));
    rows.push(throughput::row(pace));
    rows.push(latency::row(pace));
    rows.extend(in_process::rows(pace));
    rows.extend(allocations::rows());
    rows.push(replay::row(pace));
    rows
}

/// How much time there is.
#[derive(Clone, Copy, Debug)]
struct Pace {
    quick: bool,
}

impl Pace {
    /// The one for a whole run, or the one for a quick one.
    fn pick<T>(self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }
}
