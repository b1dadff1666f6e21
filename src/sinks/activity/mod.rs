//! The state of this process as the page shows it: [`Activity`].

mod callers;
mod calls;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    env, fmt, fs, process,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};

use serde_json::{Value, json};
use tokio::sync::watch;

use self::{callers::TopCallers, calls::RecentCalls};
use crate::{
    sinks::MOST_NODES,
    sync::lock,
    values::{
        clock::{SystemClock, millis, moment},
        decision::source::Source,
        observe::{
            Decided, DecidedRule, Observer, RequestResult, RuleResult, StateChange, StoreCall,
            counts::{Counts, RuleCounts},
        },
    },
};

/// The rules with counts of their own. All others share one row.
const MOST_RULES: usize = 256;
const MOST_RELOADS: usize = 8;
/// The longest text of an error that is shown, in characters.
const LONGEST_ERROR: usize = 2_000;
const TOP_CALLERS: usize = 10;
/// The first refusals for each reason are all recorded, so that a handful shows its callers.
const ALL_UP_TO: u64 = 256;
/// One in this many later refusals is recorded.
const ONE_IN: u64 = 16;

/// Keeps what [`page`](crate::page) shows of this process: what each rule allowed and refused, the
/// callers that were refused most, the state of Redis, and the newest reloads.
///
/// Give it to each store or layer that the page is to show. It counts from its creation until the
/// process ends.
///
/// # Cost and bounds
///
/// A decision adds to one counter, and to one more for each of its rules. A refusal that is looked
/// at for its caller, and a call to Redis, also take a short lock. The memory is bounded: 256
/// rules, 64 callers, 66 servers and 8 reloads. Rules beyond that share one row.
///
/// # Callers
///
/// The first 256 refusals of a rule for each reason are all looked at, and of later ones one in 16.
/// A caller with more than a 64th of all refusals is always found, and its number is too high by at
/// most the error that is shown. A caller is a digest that means nothing outside of this process,
/// unless the rule shows its keys by [`observe_keys`](crate::Rule::observe_keys).
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp, observe::Activity};
///
/// let activity = Arc::new(Activity::new());
/// let store = MemoryStore::builder().observe(activity.clone()).build();
/// let layer = RateLimitLayer::new(&store, Limit::per_second(5).by(PeerIp));
/// // For the listener of the operators, not for that of the callers.
/// let admin: axum::Router = tower_ratelimit::page(&activity);
/// ```
pub struct Activity {
    /// Distinguishes the rules' counts from those of another observer.
    identity: Arc<()>,
    began: Instant,
    /// In milliseconds since 1970.
    since: u64,
    requests: Counts<{ RequestResult::ALL.len() }>,
    rules: Mutex<Vec<Arc<RuleCounts>>>,
    /// For a `RateLimiter`, which has no rule.
    limiters: RuleCounts,
    /// For rules beyond those with rows of their own.
    others: Arc<RuleCounts>,
    callers: Mutex<TopCallers>,
    calls: Mutex<RecentCalls>,
    /// The state of each server, and since when it is so.
    nodes: Mutex<BTreeMap<String, Value>>,
    /// The newest first.
    reloads: Mutex<VecDeque<Value>>,
    closed: watch::Sender<bool>,
}

impl Activity {
    /// Creates the observer, which counts from now on.
    #[must_use]
    pub fn new() -> Self {
        let identity = Arc::new(());
        let others = Arc::new(RuleCounts::new(&identity, Some("(other rules)")));
        Self {
            began: moment(),
            since: now(),
            requests: Counts::default(),
            rules: Mutex::default(),
            limiters: RuleCounts::new(&identity, None),
            others,
            callers: Mutex::default(),
            calls: Mutex::default(),
            nodes: Mutex::default(),
            reloads: Mutex::default(),
            closed: watch::Sender::new(false),
            identity,
        }
    }

    /// Ends the streams of open pages, and refuses new ones.
    ///
    /// Call it when the service begins to shut down: a graceful shutdown waits for every response,
    /// and that of an open page lasts for up to 5 minutes. Counting continues.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use tower_ratelimit::observe::Activity;
    /// # async fn serve(listener: tokio::net::TcpListener) -> std::io::Result<()> {
    /// let activity = Arc::new(Activity::new());
    /// let app = axum::Router::new().nest("/_limits", tower_ratelimit::page(&activity));
    /// let stop = async move {
    ///     let _ = tokio::signal::ctrl_c().await;
    ///     activity.close();
    /// };
    /// axum::serve(listener, app).with_graceful_shutdown(stop).await
    /// # }
    /// ```
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Returns what becomes true when it is closed.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Returns the counts of a rule by its name, which rules share before and after a reload.
    fn counts_of(&self, name: &str) -> Arc<RuleCounts> {
        let mut rules = lock(&self.rules);
        let is_it = |it: &&Arc<RuleCounts>| it.name.as_deref() == Some(name);
        if let Some(known) = rules.iter().find(is_it) {
            return Arc::clone(known);
        }
        if rules.len() == MOST_RULES {
            // A reload has replaced those that no rule holds.
            rules.retain(|it| Arc::strong_count(it) > 1);
        }
        if rules.len() == MOST_RULES {
            return Arc::clone(&self.others);
        }
        let counts = Arc::new(RuleCounts::new(&self.identity, Some(name)));
        rules.push(Arc::clone(&counts));
        counts
    }

    fn rule(&self, rule: &DecidedRule<'_>, source: Source) {
        let Some(name) = rule.rule else {
            return self.count(&self.limiters, rule, source);
        };
        let counts = rule.observed.counts.get_or_init(|| self.counts_of(name));
        if Arc::ptr_eq(&counts.observer, &self.identity) {
            self.count(counts, rule, source);
        } else {
            // Another one came first, and keeps its counts with the rule.
            self.count(&self.counts_of(name), rule, source);
        }
    }

    fn count(&self, counts: &RuleCounts, rule: &DecidedRule<'_>, source: Source) {
        let before = counts.add(rule, source);
        if let Some(refusals) = sampled(before).filter(|_| rule.result.is_refusal()) {
            let caller = (rule.key_hash, rule.key());
            lock(&self.callers).add(counts.name.as_ref(), caller, refusals, now());
        }
    }

    fn node(&self, node: &str, what: &str, is: bool) {
        let mut nodes = lock(&self.nodes);
        if nodes.contains_key(node) || nodes.len() < MOST_NODES {
            let state = &mut nodes.entry(node.to_owned()).or_default()[what];
            // A server that stays away is tried again and again: the first time counts.
            if state["is"] != is {
                *state = json!({ "is": is, "at": now() });
            }
        }
    }

    /// Returns everything that the page shows.
    pub(crate) fn snapshot(&self) -> Value {
        let rules = lock(&self.rules).clone();
        // This list is one holder, the observer's the other, and a rule in force the third.
        let rows = rules.iter().map(|it| row(it, Arc::strong_count(it) > 2));
        let rest = [row(&self.others, true), row(&self.limiters, true)].into_iter();
        let rows = rows.chain(rest.filter(|row| row["results"] != json!({})));
        json!({
            "at": now(),
            "since": self.since,
            "host": host(),
            "process": format!("{} ({})", program(), process::id()),
            "version": env!("CARGO_PKG_VERSION"),
            "requests": self.requests.shown(RequestResult::ALL),
            "rules": rows.collect::<Vec<_>>(),
            "callers": lock(&self.callers).top(TOP_CALLERS),
            "calls": lock(&self.calls).shown(self.began.elapsed().as_secs()),
            "nodes": *lock(&self.nodes),
            "reloads": *lock(&self.reloads),
        })
    }
}

impl Observer for Activity {
    fn decided(&self, event: &Decided<'_>) {
        self.requests.add(event.result as usize, event.source);
        for rule in event.rules {
            self.rule(rule, event.source);
        }
    }

    fn called(&self, event: &StoreCall<'_>) {
        let second = self.began.elapsed().as_secs();
        lock(&self.calls).add(event, second, now);
    }

    fn changed(&self, event: &StateChange<'_>) {
        match *event {
            StateChange::Breaker { node, open } => self.node(node, "open", open),
            StateChange::Connection { node, connected } => self.node(node, "connected", connected),
            StateChange::Rules { refused, .. } => {
                let error = refused.map(ToString::to_string);
                let error = error.map(|it| it.chars().take(LONGEST_ERROR).collect::<String>());
                let mut reloads = lock(&self.reloads);
                reloads.truncate(MOST_RELOADS - 1);
                reloads.push_front(json!({ "at": now(), "refused": error }));
            }
            _ => {}
        }
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Activity")
    }
}

/// Returns the milliseconds since 1970.
fn now() -> u64 {
    millis(&SystemClock)
}

/// Returns the name of this machine; empty if it is not known.
fn host() -> String {
    let kernel = || fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel().or_else(|| env::var("COMPUTERNAME").ok());
    name.unwrap_or_default().trim().to_owned()
}

fn program() -> String {
    let path = env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_stem());
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Returns the number of refusals that this one stands for, after `before` others of its kind;
/// `None` if it is not recorded.
fn sampled(before: u64) -> Option<u64> {
    if before < ALL_UP_TO {
        return Some(1);
    }
    // Multiples of the golden ratio: callers that take turns are met as often as all others, which
    // each sixteenth one would not be.
    let mixed = before.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed < u64::MAX / ONE_IN).then_some(ONE_IN)
}

/// Returns the row of a rule; `is_met` is false if no rule in force has met a request.
fn row(rule: &RuleCounts, is_met: bool) -> Value {
    let limits = rule
        .limits
        .iter()
        .map(|it| it.each_ref().map(|it| it.load(Relaxed)));
    let limits = limits.filter(|[permits, _]| *permits > 0);
    let limits = limits.map(|[permits, ms]| json!({ "permits": permits, "interval_ms": ms }));
    json!({
        "name": rule.name.as_deref(),
        "limits": limits.collect::<Vec<_>>(),
        "shadow": rule.shadow.load(Relaxed),
        "met": is_met,
        "results": rule.counts.shown(RuleResult::ALL),
    })
}
