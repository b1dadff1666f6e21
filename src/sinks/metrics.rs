//! Counters, gauges and histograms by the `metrics` facade: [`Metrics`].

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::{
    sinks::MOST_NODES,
    sync::lock,
    values::{
        clock::{Clock, SystemClock},
        decision::source::Source,
        error::ErrorKind,
        limit::name_of_part,
        observe::{
            Decided, DecidedRule, Observer, RequestResult, RuleResult, StateChange, StoreCall,
        },
    },
};

/// Counts decisions, calls and changes by the [`metrics`] facade, for whatever recorder the process
/// has installed.
///
/// [Operations](crate::docs::operations) lists the metrics, with their labels and what they mean.
/// No label comes from a request: there are as many series as the rules in code or file make.
///
/// # Recorder
///
/// A counter is looked up when it is first needed, and then kept, so that counting costs a few
/// nanoseconds and no allocation. **Install the recorder before the first request:** what was
/// looked up without one counts nothing for as long as the process runs. For histograms,
/// `metrics-exporter-prometheus` needs buckets, or it renders summaries.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp, observe::Metrics};
///
/// let store = MemoryStore::builder().observe(Arc::new(Metrics::new())).build();
/// let layer = RateLimitLayer::new(&store, Limit::per_second(5).by(PeerIp));
/// ```
#[derive(Default)]
pub struct Metrics {
    requests: [[OnceLock<Counter>; Source::ALL.len()]; RequestResult::ALL.len()],
    /// By operation and error.
    calls: Mutex<HashMap<(&'static str, Option<ErrorKind>), Histogram>>,
    callers: OnceLock<Histogram>,
    /// The servers with labels of their own.
    nodes: Mutex<HashSet<String>>,
    described: OnceLock<()>,
}

impl Metrics {
    /// Creates the observer. Nothing is registered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn rule(&self, name: &str, rule: &DecidedRule<'_>) {
        let counters = rule.observed.counters.get_or_init(|| {
            self.describe();
            let parts = rule
                .observed
                .limit
                .iter()
                .flat_map(|limit| limit.parts().rev());
            for (number, part) in parts.enumerate() {
                let rule = name_of_part(name, number == 0, part.interval).into_owned();
                let interval = Duration::from_millis(part.interval).as_secs_f64();
                gauge!("ratelimit_limit_permits", "rule" => rule.clone()).set(part.permits as f64);
                gauge!("ratelimit_limit_interval_seconds", "rule" => rule).set(interval);
            }
            Box::default()
        });
        let count = |result: RuleResult, by: u64| {
            if let Some(count) = counters.results.get(result as usize) {
                let look_up = || {
                    counter!("ratelimit_rule_requests_total", "rule" => name.to_owned(),
                        "result" => result.as_str())
                };
                count.get_or_init(look_up).increment(by);
            }
        };
        count(rule.result, 1);
        if rule.shadow {
            // Zero is what an operator waits for.
            count(RuleResult::ShadowDeny, 0);
        }
        if rule.result == RuleResult::Taken {
            let taken = counters.taken.get_or_init(|| permits(name, "taken"));
            taken.increment(rule.permits.into());
        }
    }

    /// Sets the gauge of a server, which is 1 or 0.
    fn set(&self, name: &'static str, node: &str, is: bool) {
        gauge!(name, "node" => self.node(node)).set(f64::from(u8::from(is)));
    }

    /// Returns the label of a server.
    fn node(&self, node: &str) -> String {
        let mut nodes = lock(&self.nodes);
        if nodes.len() == MOST_NODES && !nodes.contains(node) {
            return "others".to_owned();
        }
        nodes.insert(node.to_owned());
        node.to_owned()
    }

    /// Registers what metrics mean, once there is something to count.
    fn describe(&self) {
        self.described.get_or_init(|| {
            for (name, meaning) in COUNTERS {
                describe_counter!(name, unit_of(name), meaning);
            }
            for (name, meaning) in GAUGES {
                describe_gauge!(name, unit_of(name), meaning);
            }
            for (name, meaning) in HISTOGRAMS {
                describe_histogram!(name, unit_of(name), meaning);
            }
        });
    }
}

fn permits(rule: &str, kind: &'static str) -> Counter {
    counter!("ratelimit_permits_total", "rule" => rule.to_owned(), "kind" => kind)
}

/// Moves a gauge by what one of several stores adds to it.
fn moves(name: &'static str, before: usize, now: usize) {
    gauge!(name).increment(now as f64 - before as f64);
}

impl Observer for Metrics {
    fn decided(&self, event: &Decided<'_>) {
        let (result, source) = (event.result, event.source);
        let of_result = self.requests.get(result as usize);
        if let Some(count) = of_result.and_then(|counts| counts.get(source as usize)) {
            let look_up = || {
                self.describe();
                counter!("ratelimit_requests_total", "result" => result.as_str(),
                    "source" => source.as_str())
            };
            count.get_or_init(look_up).increment(1);
        }
        for rule in event.rules {
            if let Some(name) = rule.rule {
                self.rule(name, rule);
            }
        }
    }

    fn called(&self, event: &StoreCall<'_>) {
        self.describe();
        let (operation, error) = (event.operation, event.result.err());
        let look_up = || {
            let result = error.map_or("ok", ErrorKind::as_str);
            histogram!("ratelimit_store_seconds", "operation" => operation, "result" => result)
        };
        let mut calls = lock(&self.calls);
        let seconds = calls.entry((operation, error)).or_insert_with(look_up);
        seconds.record(event.duration);
        drop(calls);
        if event.callers > 0 {
            let callers = self
                .callers
                .get_or_init(|| histogram!("ratelimit_store_callers"));
            callers.record(event.callers as f64);
        }
    }

    fn changed(&self, event: &StateChange<'_>) {
        self.describe();
        match *event {
            StateChange::Breaker { node, open } => {
                self.set("ratelimit_breaker_open", node, open);
            }
            StateChange::Connection { node, connected } => {
                self.set("ratelimit_connected", node, connected);
            }
            StateChange::Rules { refused, .. } => {
                let result = refused.map_or("applied", |_| "refused");
                counter!("ratelimit_rules_reloads_total", "result" => result).increment(1);
                if refused.is_none() {
                    let now = SystemClock.now();
                    gauge!("ratelimit_rules_applied_timestamp_seconds").set(now.as_secs_f64());
                }
            }
            StateChange::Settled {
                rule: Some(rule),
                taken,
                charged,
            } => {
                let kind = if charged < taken { "refunded" } else { "owed" };
                permits(rule, kind).increment(charged.abs_diff(taken).into());
            }
            StateChange::Lost { receipt } => {
                let what = if receipt { "receipt" } else { "charge" };
                counter!("ratelimit_lost_total", "what" => what).increment(1);
            }
            StateChange::Overload => counter!("ratelimit_overload_total").increment(1),
            StateChange::Waiting {
                rule: Some(rule),
                ended,
            } => {
                let queued = gauge!("ratelimit_queued", "rule" => rule.to_owned());
                match ended {
                    None => queued.increment(1),
                    Some(waited) => {
                        queued.decrement(1);
                        histogram!("ratelimit_queue_seconds", "rule" => rule.to_owned())
                            .record(waited);
                    }
                }
            }
            StateChange::Limiters { before, now } => moves("ratelimit_limiters", before, now),
            StateChange::Remembered { before, now } => moves("ratelimit_remembered", before, now),
            StateChange::Settled { rule: None, .. }
            | StateChange::Waiting { rule: None, .. }
            | StateChange::Managed { .. } => {}
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[rustfmt::skip]
const COUNTERS: [(&str, &str); 6] = [
    ("ratelimit_requests_total", "Requests that were decided"),
    ("ratelimit_rule_requests_total", "Rules that requests met"),
    ("ratelimit_permits_total", "Permits taken and corrected"),
    ("ratelimit_overload_total", "Requests by their failure policy, as the store had no time"),
    ("ratelimit_lost_total", "Corrections that could not be sent to the store"),
    ("ratelimit_rules_reloads_total", "Rules that were reloaded"),
];

#[rustfmt::skip]
const GAUGES: [(&str, &str); 8] = [
    ("ratelimit_limiters", "Limiters in the memory of this process"),
    ("ratelimit_remembered", "Refusals in the deny cache"),
    ("ratelimit_limit_permits", "Permits of a fixed limit"),
    ("ratelimit_limit_interval_seconds", "Interval of a fixed limit"),
    ("ratelimit_queued", "Requests that wait for permits"),
    ("ratelimit_breaker_open", "1 while the breaker of a server is open"),
    ("ratelimit_connected", "1 while there is a connection"),
    ("ratelimit_rules_applied_timestamp_seconds", "When rules were last applied"),
];

#[rustfmt::skip]
const HISTOGRAMS: [(&str, &str); 3] = [
    ("ratelimit_queue_seconds", "How long requests waited for permits"),
    ("ratelimit_store_seconds", "How long calls to Redis took"),
    ("ratelimit_store_callers", "Requests that share a call"),
];

fn unit_of(metric: &str) -> Unit {
    if metric.ends_with("_seconds") {
        Unit::Seconds
    } else {
        Unit::Count
    }
}
