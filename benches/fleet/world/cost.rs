//! What commands cost a node: the rows *capacity* of `benches/goals.sh --rows capacity`, by which
//! `src/docs/capacity.md` reckons, too.

use crate::values::{demand::Demand, limit::Algorithm};

/// Microseconds of a decision where each is a call, and where many go together: by different keys,
/// and by one. Beside these two, how many a command had.
struct Measured {
    alone: f64,
    many_keys: Option<[f64; 2]>,
    one_key: [f64; 2],
}

const LOG: Measured = Measured {
    alone: 12.2,
    many_keys: Some([5.0, 27.0]),
    one_key: [2.1, 33.0],
};
const WINDOW: Measured = Measured {
    alone: 14.8,
    many_keys: Some([4.7, 27.0]),
    one_key: [0.9, 33.0],
};
const GCRA: Measured = Measured {
    alone: 12.9,
    many_keys: Some([4.0, 28.0]),
    one_key: [0.8, 32.0],
};
/// In Redisson's format, whose calls do not go together by different keys.
const SLOTS: Measured = Measured {
    alone: 40.4,
    many_keys: None,
    one_key: [3.6, 32.0],
};
/// A grant of the log with its correction
const CORRECTED: f64 = 21.6;

/// Nanoseconds of a settlement.
pub(super) const SETTLE: u64 = nanos(CORRECTED - LOG.alone);

impl Measured {
    /// Returns the nanoseconds of a command for so many limiters and callers.
    fn of(&self, limiters: u64, callers: u64) -> u64 {
        // A command of `n` that cost `each` on average: the first as one alone, and these.
        let further = |[each, n]: [f64; 2]| (each * n - self.alone) / (n - 1.0);
        let key = self.many_keys.map_or(self.alone, further);
        let cost = self.alone
            + (limiters - 1) as f64 * key
            + (callers - limiters) as f64 * further(self.one_key);
        nanos(cost)
    }
}

const fn nanos(micros: f64) -> u64 {
    (micros * 1e3) as u64
}

/// Returns the nanoseconds of a command: for each of its limiters there is a run of callers.
pub(super) fn of(runs: &[Vec<Demand>]) -> u64 {
    let counting = runs[0][0].first().compiled().counting;
    let measured = match counting.algorithm {
        Algorithm::Gcra => GCRA,
        Algorithm::SlidingLog if counting.slots().is_some() => SLOTS,
        Algorithm::SlidingLog => LOG,
        _ => WINDOW,
    };
    let callers = runs.iter().map(Vec::len).sum::<usize>();
    measured.of(runs.len() as u64, callers as u64)
}
