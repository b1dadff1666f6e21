//! The calls to the store in the last seconds: [`RecentCalls`].

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    sinks::durations::Durations,
    values::{error::ErrorKind, observe::StoreCall},
};

/// The seconds that are looked back.
const SECONDS: u64 = 10;

/// Counts calls by the second in which they ended.
#[derive(Debug, Default)]
pub(super) struct RecentCalls {
    /// The oldest first. Empty until there was a call: without a server there is none.
    seconds: VecDeque<CallSums>,
    /// The time since which no call was answered, in milliseconds since 1970.
    unanswered_since: Option<u64>,
}

#[derive(Debug, Default)]
struct CallSums {
    second: u64,
    durations: Durations,
    calls: u64,
    failed: BTreeMap<&'static str, u64>,
    /// The calls that take permits, and the requests that share them.
    shared: u64,
    callers: u64,
}

impl CallSums {
    fn add(&mut self, other: &Self) {
        self.durations.add_all(&other.durations);
        self.calls += other.calls;
        self.shared += other.shared;
        self.callers += other.callers;
        for (kind, count) in &other.failed {
            *self.failed.entry(kind).or_default() += count;
        }
    }
}

impl RecentCalls {
    /// Adds a call that ended in this second.
    pub(super) fn add(&mut self, call: &StoreCall<'_>, second: u64, now: impl FnOnce() -> u64) {
        match call.result {
            Err(ErrorKind::Timeout | ErrorKind::Tls | ErrorKind::Unavailable) => {
                self.unanswered_since.get_or_insert_with(now);
            }
            _ => self.unanswered_since = None,
        }
        if self.seconds.back().is_none_or(|last| last.second < second) {
            self.seconds.push_back(CallSums {
                second,
                ..CallSums::default()
            });
            self.seconds.retain(|it| it.second + SECONDS > second);
        }
        let Some(last) = self.seconds.back_mut() else {
            return;
        };
        last.durations.add(call.duration);
        last.calls += 1;
        last.shared += u64::from(call.callers > 0);
        last.callers += call.callers as u64;
        if let Err(kind) = call.result {
            *last.failed.entry(kind.as_str()).or_default() += 1;
        }
    }

    /// Returns the sums of the last ten seconds; null if there was never a call.
    pub(super) fn shown(&self, second: u64) -> Value {
        if self.seconds.is_empty() {
            return Value::Null;
        }
        let mut sum = CallSums::default();
        let is_recent = |it: &&CallSums| it.second + SECONDS > second;
        let recent = self.seconds.iter().filter(is_recent);
        recent.for_each(|calls| sum.add(calls));
        let millis = |time: Option<Duration>| time.map(|it| it.as_secs_f64() * 1e3);
        json!({
            "seconds": SECONDS,
            "unanswered_since": self.unanswered_since,
            "calls": sum.calls,
            "failed": sum.failed,
            "p50_ms": millis(sum.durations.percentile(50)),
            "p99_ms": millis(sum.durations.percentile(99)),
            "callers": (sum.shared > 0).then(|| sum.callers as f64 / sum.shared as f64),
        })
    }
}
