//! Readable cases: the files of `tests/store/cases/`, in memory and on every kind of Redis, with a
//! clock that is moved.
//!
//! A file is a list of `[[case]]`: a `name`, optionally the `limit` that is set before the first
//! step, and `steps`. Every step has a time (`at`, ms since the case began), one verb, and its full
//! result:
//!
//! ```toml
//! { at = 0, take = 3, allow = { remaining = 7, reset = 1000 } }              # permits, by RateLimiter
//! { at = 0, take = 8, deny = { wait = 1000, remaining = 7, reset = 1000 } }  # wait and reset in ms
//! { at = 0, take = 11, never = true }                                        # more than the rate
//! { at = 0, take = 0, error = "Permits" }
//! { at = 0, available = 7 }
//! { at = 0, set = { permits = 5, interval = 1000 }, done = false }           # try_set_rate
//! { at = 0, take = 1, by = { permits = 5, interval = 1000 }, allow = ... }   # by a layer whose rule has this limit
//! { at = 0, take = 1, tier = "paid", allow = ... }                           # by a layer with the case's `tiers`
//! { at = 0, take = 1, shared = true, status = 503 }                          # by a layer with Rule::shared
//! ```
//!
//! A case with an `algorithm` is counted by it; fixed windows run only in memory, because in Redis
//! they end by the server's clock. All others run once more with the maximum number of slots: if no
//! slot is longer than a millisecond, the results are the same.
//!
//! `client = "b"` is another store with its own client id, `user = "b"` another key of the layer's
//! rule.

mod world;

use crate::scene::*;
use crate::{guards, topologies};
use std::{collections::HashMap, collections::hash_map::Entry, fs, path::Path};

use serde::Deserialize;

use crate::guards::Guards;
use crate::topologies::Topology;
use world::{Stores, World, memory};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    algorithm: Option<String>,
    limit: Option<Numbers>,
    #[serde(default)]
    tiers: Vec<Tier>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tier {
    name: String,
    permits: u64,
    interval: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    permits: u64,
    interval: u64,
    #[serde(default)]
    per_client: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: u64,
    #[serde(default = "first")]
    client: String,
    #[serde(default = "first")]
    user: String,

    take: Option<u32>,
    by: Option<Numbers>,
    tier: Option<String>,
    #[serde(default)]
    shared: bool,
    available: Option<u64>,
    set: Option<Numbers>,

    allow: Option<Allow>,
    deny: Option<Deny>,
    #[serde(default)]
    never: bool,
    error: Option<String>,
    status: Option<u16>,
    done: Option<bool>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Allow {
    remaining: u64,
    reset: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Deny {
    wait: u64,
    remaining: u64,
    reset: u64,
}

/// The maximum of an interval: with this many milliseconds, no slot is longer than one.
const MOST_SLOTS: u32 = 10_000;

impl Case {
    /// The longest interval that is counted by, in milliseconds.
    fn longest(&self) -> u64 {
        let steps = self.steps.iter().flat_map(|step| [step.by, step.set]);
        let limits = steps
            .flatten()
            .chain(self.limit)
            .map(|limit| limit.interval);
        let tiers = self.tiers.iter().map(|tier| tier.interval);
        limits.chain(tiers).max().unwrap_or(0)
    }
}

fn first() -> String {
    String::from("a")
}

impl Numbers {
    fn limit(self) -> Limit {
        let limit = Limit::new(self.permits, Duration::from_millis(self.interval));
        if self.per_client {
            limit.per_client()
        } else {
            limit
        }
    }
}

#[tokio::test]
async fn in_memory() {
    for (file, case) in cases() {
        play(&format!("{file}: {}", case.name), &mut memory(), &case).await;
    }
}

#[tokio::test]
async fn in_slots() {
    let mut played = 0;
    let mut stores = Vec::new();
    for guards in Guards::all() {
        stores.push(Stores::new(Topology::Tcp, guards).await);
    }
    for (file, case) in cases() {
        if case.algorithm.is_none() && case.longest() <= MOST_SLOTS.into() {
            let what = format!("{file}: {} in slots", case.name);
            let in_redis = stores.iter().map(Stores::world);
            for mut world in std::iter::once(memory()).chain(in_redis) {
                world.note_in_slots(MOST_SLOTS);
                play(&what, &mut world, &case).await;
            }
            played += 1;
        }
    }
    assert!(played >= 30, "only {played} cases were played");
}

/// Plays on one server what `in_redis` plays on all: for `tests/run.sh --quick`.
#[tokio::test]
async fn on_one_server() {
    let stores = Stores::new(Topology::Tcp, Guards::all()[0]).await;
    for (file, case) in cases() {
        if case.algorithm.as_deref() != Some("FixedWindow") {
            let what = format!("{file}: {}", case.name);
            play(&what, &mut stores.world(), &case).await;
        }
    }
}

#[tokio::test]
async fn in_redis() {
    let (topologies, guards) = (Topology::all(), Guards::all());
    let mut stores = HashMap::new();
    for (number, (file, case)) in cases().into_iter().enumerate() {
        if case.algorithm.as_deref() == Some("FixedWindow") {
            continue;
        }
        // Neither guards nor the way to Redis change a decision. Over the cases, all guards run on
        // each way.
        for pair in 0..topologies.len().max(guards.len()) {
            let place = pair % topologies.len();
            let guard = (pair + number) % guards.len();
            let (topology, guards) = (topologies[place], guards[guard]);
            let what = format!("{file}: {}, {topology:?}, {guards:?}", case.name);
            let stores = match stores.entry((place, guard)) {
                Entry::Occupied(stores) => stores.into_mut(),
                Entry::Vacant(none) => none.insert(Stores::new(topology, guards).await),
            };
            play(&what, &mut stores.world(), &case).await;
        }
    }
    assert_eq!(stores.len(), topologies.len() * guards.len());
}

fn cases() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/cases");
    let mut cases = Vec::new();
    for entry in fs::read_dir(folder).expect("the cases") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            let file = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let text = fs::read_to_string(&path).expect("a readable file");
            let read: File =
                toml::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
            cases.extend(read.case.into_iter().map(|case| (file.clone(), case)));
        }
    }
    assert!(cases.len() >= 40, "only {} cases were found", cases.len());
    cases
}

async fn play(what: &str, world: &mut World, case: &Case) {
    match case.algorithm.as_deref() {
        None => {}
        Some("FixedWindow") => world.count_by(Algorithm::FixedWindow),
        Some("Gcra") => world.count_by(Algorithm::Gcra),
        Some(other) => panic!("{what}: no algorithm {other}"),
    }
    if let Some(limit) = case.limit {
        for client in ["a", "b"] {
            let limiter = world.limiter(client);
            limiter
                .try_set_rate(limit.limit())
                .await
                .expect("a limit is set");
        }
    }
    let tiers: Vec<_> = (case.tiers.iter())
        .map(|tier| {
            let limit = Limit::new(tier.permits, Duration::from_millis(tier.interval));
            (tier.name.as_str(), limit)
        })
        .collect();
    world.build_layers(&tiers);
    for (number, step) in case.steps.iter().enumerate() {
        let what = format!("{what}: step {}, at {}", number + 1, step.at);
        world.set_clock(step.at);
        take(&what, world, step).await;
    }
}

async fn take(what: &str, world: &World, step: &Step) {
    if let Some(expected) = step.available {
        let available = world.limiter(&step.client).available_permits().await;
        assert_eq!(available.expect(what), expected, "{what}");
        return;
    }
    if let Some(limit) = step.set {
        let done = world
            .limiter(&step.client)
            .try_set_rate(limit.limit())
            .await;
        assert_eq!(Some(done.expect(what)), step.done, "{what}");
        return;
    }
    let permits = step.take.unwrap_or_else(|| panic!("{what}: no verb"));
    let decision = match (step.by, &step.tier, step.shared) {
        (None, None, false) => {
            let decision = world.limiter(&step.client).try_acquire_many(permits).await;
            match (decision, &step.error) {
                (Err(error), Some(kind)) => {
                    assert_eq!(format!("{:?}", error.kind()), *kind, "{what}");
                    return;
                }
                (decision, None) => decision.unwrap_or_else(|error| panic!("{what}: {error}")),
                (Ok(decision), Some(_)) => panic!("{what}: no error, but {decision:?}"),
            }
        }
        (limit, tier, shared) => {
            let limit = limit.map(Numbers::limit);
            let answer = world
                .send(limit, tier.as_deref(), shared, &step.user, permits)
                .await;
            let expected = match (step.status, &step.allow) {
                (Some(status), _) => status,
                (None, Some(_)) => 200,
                (None, None) => 429,
            };
            assert_eq!(answer.status().as_u16(), expected, "{what}");
            if expected == 503 {
                return;
            }
            let decision = answer.extensions().get::<Decision>();
            decision
                .unwrap_or_else(|| panic!("{what}: no decision"))
                .clone()
        }
    };
    let by_store = matches!(decision.source(), Source::Store | Source::Cache);
    assert!(by_store, "{what}: {decision:?}");
    assert_decision(what, &decision, step);
}

fn assert_decision(what: &str, decision: &Decision, step: &Step) {
    assert_eq!(decision.limits().len(), 1, "{what}: {decision:?}");
    let state = decision.limits().next().unwrap();
    let reset = millis(state.reset_after());
    let said = (step.allow.is_some(), step.deny.is_some(), step.never);
    match decision {
        Decision::Allow(_) => {
            let remaining = state.remaining().expect("permits are counted");
            let answer = Allow { remaining, reset };
            assert_eq!(said, (true, false, false), "{what}: {answer:?}");
            assert_eq!(Some(&answer), step.allow.as_ref(), "{what}");
        }
        Decision::Deny(refusal) if refusal.kind() == RefusalKind::OverLimit => {
            let wait = refusal.retry_after().expect("a wait");
            let mut answer = Deny {
                wait: millis(wait),
                remaining: state.remaining().expect("permits are counted"),
                reset,
            };
            assert_eq!(said, (false, true, false), "{what}: {answer:?}");
            if let (Source::Cache, Some(deny)) = (decision.source(), &step.deny) {
                // The number left when it was first refused: some may be free since, but not enough
                // for the cost.
                assert!(answer.remaining <= deny.remaining, "{what}: {answer:?}");
                answer.remaining = deny.remaining;
            }
            assert_eq!(Some(&answer), step.deny.as_ref(), "{what}");
        }
        Decision::Deny(refusal) => {
            assert_eq!(refusal.kind(), RefusalKind::AboveRate, "{what}");
            assert_eq!(refusal.retry_after(), None, "{what}");
            assert_eq!(said, (false, false, true), "{what}: refused for ever");
        }
    }
}

/// Rounded up: a store in memory tells times to the nanosecond.
fn millis(time: Duration) -> u64 {
    let millis = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).expect("a time within a century")
}
