//! The calls to the store in the last seconds: [`RecentCalls`].

use serde_json::{Map, Value, json};

use crate::{
    error::ErrorKind,
    observe::{StoreCall, durations::Durations},
};

/// The seconds that are looked back.
const SECONDS: usize = 10;

/// Counts calls, each second in a place of its own.
#[derive(Debug, Default)]
pub(super) struct RecentCalls {
    places: [Calls; SECONDS],
    /// Set once there was a call: without a server there is none.
    has_any: bool,
    /// Since when each call was without an answer, in milliseconds since 1970.
    unanswered_since: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Calls {
    second: u64,
    durations: Durations,
    calls: u64,
    failed: Vec<(ErrorKind, u64)>,
    /// Those that take permits, and the requests that share them.
    shared: (u64, u64),
}

impl RecentCalls {
    /// Adds a call that ended in this second.
    pub(super) fn add(&mut self, call: &StoreCall<'_>, second: u64, now: impl FnOnce() -> u64) {
        self.has_any = true;
        match call.result {
            Err(ErrorKind::Timeout | ErrorKind::Tls | ErrorKind::Unavailable) => {
                self.unanswered_since.get_or_insert_with(now);
            }
            _ => self.unanswered_since = None,
        }
        let Some(place) = self.places.get_mut(second as usize % SECONDS) else {
            return;
        };
        if place.second != second {
            *place = Calls {
                second,
                ..Calls::default()
            };
        }
        place.durations.add(call.duration);
        place.calls += 1;
        if call.callers > 0 {
            place.shared.0 += 1;
            place.shared.1 += call.callers as u64;
        }
        if let Err(kind) = call.result {
            match place.failed.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => place.failed.push((kind, 1)),
            }
        }
    }

    /// Returns what the last ten seconds came to; null if there was never a call.
    pub(super) fn shown(&self, second: u64) -> Value {
        if !self.has_any {
            return Value::Null;
        }
        let recent = |it: &&Calls| it.second + SECONDS as u64 > second;
        let mut sum = Calls::default();
        let mut failed = Map::new();
        for calls in self.places.iter().filter(recent) {
            sum.durations.add_all(&calls.durations);
            sum.calls += calls.calls;
            sum.shared.0 += calls.shared.0;
            sum.shared.1 += calls.shared.1;
            for (kind, count) in &calls.failed {
                let before = failed.get(kind.as_str()).and_then(Value::as_u64);
                failed.insert(
                    kind.as_str().to_owned(),
                    (before.unwrap_or_default() + count).into(),
                );
            }
        }
        let millis = |of_hundred| {
            let time = sum.durations.percentile(of_hundred);
            time.map(|time| time.as_secs_f64() * 1e3)
        };
        let callers = (sum.shared.0 > 0).then(|| sum.shared.1 as f64 / sum.shared.0 as f64);
        json!({
            "seconds": SECONDS,
            "unanswered_since": self.unanswered_since,
            "calls": sum.calls,
            "failed": failed,
            "p50_ms": millis(50),
            "p99_ms": millis(99),
            "callers": callers,
        })
    }
}
