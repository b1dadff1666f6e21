//! Readable cases: the files of `tests/store/cases/`, in memory and on every kind of Redis, and
//! `tests/store/defects/cases.toml`, which looks into Redis, all with a clock that is moved.
//!
//! A file is a list of `[[case]]`: a `name`, optionally the `limit` that is set before the first
//! step, and `steps`. Limits are permits and milliseconds; a third number is a keep-alive time.
//! Every step has a time (`at`, ms since the case began), one verb, and its result:
//!
//! ```toml
//! { at = 0, take = 3, allow = { remaining = 7, reset = 1000 } }    # permits, by RateLimiter
//! { at = 0, take = 8, deny = { wait = 1000, remaining = 7, reset = 1000 } }    # in ms
//! { at = 0, take = 3 }                                 # granted
//! { at = 0, take = 8, wait = 1000 }                    # refused
//! { at = 0, take = 11, never = true }                  # more than the rate
//! { at = 0, take = 0, error = "Permits" }              # as of any verb
//! { at = 0, available = 7 }
//! { at = 0, release = 5, released = 3 }
//! { at = 0, try_set = [5, 1000], done = false, stored = [9, 1000] }    # `stored` is read then
//! { at = 0, take = 1, by = [5, 1000], allow = ... }    # by a layer whose rule has this limit
//! { at = 0, take = 1, tier = "paid", allow = ... }     # by a layer with the case's `tiers`
//! { at = 0, take = 1, shared = true, status = 503 }    # by a layer with Rule::shared
//! ```
//!
//! A case with an `algorithm` is counted by it; fixed windows run only in memory, because in Redis
//! they end by the server's clock. All others run once more with the maximum number of slots: if no
//! slot is longer than a millisecond, the results are the same.
//!
//! `client = "b"` is another store with its own client id, `user = "b"` another key of the layer's
//! rule.

mod world;

use crate::defects::world::{Books, Keys, redis, unused};
use crate::scene::*;
use crate::{guards, topologies};
use std::{collections::HashMap, collections::hash_map::Entry, fmt::Debug, fs, path::Path};

use serde::Deserialize;
use tower_ratelimit::Error;

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
    /// The rate and the interval, as a Redisson since 3.38.0 writes them.
    java: Option<(String, String)>,
    #[serde(default)]
    per_client: bool,
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

/// Permits, an interval and, where there is one, a keep-alive time.
type Numbers = Vec<u64>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: Option<u64>,
    #[serde(default = "first")]
    client: String,
    #[serde(default = "first")]
    user: String,

    take: Option<u32>,
    by: Option<Numbers>,
    tier: Option<String>,
    #[serde(default)]
    shared: bool,
    acquire: Option<u32>,
    available: Option<u64>,
    release: Option<u32>,
    try_set: Option<Numbers>,
    set: Option<Numbers>,
    set_or_update: Option<Numbers>,
    update: Option<Numbers>,
    reset: Option<Numbers>,
    expire: Option<u64>,
    #[serde(default)]
    delete: bool,
    redis: Option<Vec<String>>,
    #[serde(default)]
    plant: Vec<(i64, u32)>,

    allow: Option<Allow>,
    deny: Option<Deny>,
    wait: Option<u64>,
    #[serde(default)]
    never: bool,
    error: Option<String>,
    status: Option<u16>,
    released: Option<u64>,
    done: Option<bool>,
    stored: Option<Numbers>,
    #[serde(default)]
    not_stored: bool,
    fields: Option<String>,
    value: Option<i64>,
    log: Option<Vec<(i64, u32)>>,
    #[serde(default)]
    unused: bool,
    lives: Option<[i64; 3]>,
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
        let limits = |step: &Step| {
            let set = [&step.try_set, &step.set, &step.set_or_update];
            let changed = [&step.by, &step.update, &step.reset];
            [set, changed]
                .concat()
                .into_iter()
                .flatten()
                .map(|limit| limit[1])
                .max()
        };
        let steps = self.steps.iter().filter_map(limits);
        let limits = steps.chain(self.limit.iter().map(|limit| limit[1]));
        let tiers = self.tiers.iter().map(|tier| tier.interval);
        limits.chain(tiers).max().unwrap_or(0)
    }
}

fn first() -> String {
    String::from("a")
}

/// Returns the limit that is written as numbers.
fn limit(numbers: &Numbers, per_client: bool) -> Limit {
    let limit = Limit::new(numbers[0], millis(numbers[1]));
    let limit = match numbers.get(2) {
        Some(life) => limit.keep_alive(millis(*life)).expect("a keep-alive time"),
        None => limit,
    };
    if per_client {
        limit.per_client()
    } else {
        limit
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

/// Redisson's defects: the steps write what a Redisson client leaves behind, and see the keys.
#[tokio::test]
async fn no_case_shows_a_defect() {
    let file: File = toml::from_str(include_str!("defects/cases.toml")).unwrap();
    for case in file.case {
        let stores = Stores::new(Topology::Tcp, Guards::all()[0]).await;
        play(&case.name, &mut stores.world(), &case).await;
    }
}

fn cases() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/cases");
    let mut cases = Vec::new();
    for entry in fs::read_dir(folder).expect("the cases") {
        let entry = entry.expect("an entry");
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            let file = entry.file_name().to_string_lossy().into_owned();
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
    if let Some((rate, interval)) = &case.java {
        Keys::of(&world.name).plant_limit(rate, interval.parse().unwrap(), "0");
    }
    if let Some(numbers) = &case.limit {
        for client in ["a", "b"] {
            let limit = limit(numbers, case.per_client);
            let set = world.limiter(client).try_set_rate(limit).await;
            // Where clients share a limiter, the first has set it.
            assert!(set.expect("a limit") || client == "b", "{what}");
        }
    }
    let tiers: Vec<_> = (case.tiers.iter())
        .map(|tier| {
            let limit = Limit::new(tier.permits, millis(tier.interval));
            (tier.name.as_str(), limit)
        })
        .collect();
    world.build_layers(&tiers);
    for (number, step) in case.steps.iter().enumerate() {
        let what = format!("{what}: step {}, at {:?}", number + 1, step.at);
        if let Some(at) = step.at {
            world.set_clock(at);
        }
        let keys = match (&*step.client, case.per_client) {
            ("shared", _) | (_, false) => Keys::of(&world.name),
            (client, true) => Keys::of_client(&world.name, client),
        };
        let limiter = world.limiter(&step.client);
        let of_take = [
            step.allow.is_some(),
            step.deny.is_some(),
            step.wait.is_some(),
        ];
        let of_take = of_take.contains(&true) || step.never || step.status.is_some();
        assert!(
            step.take.is_some() || !of_take,
            "{what}: a result of no take"
        );
        match step.take {
            Some(permits) => take(&what, world, step, permits).await,
            None => count(&what, limiter, step).await,
        }
        change(&what, limiter, step, case.per_client).await;
        write(&keys, step);
        look(&what, limiter, &keys, step, case.per_client).await;
    }
}

/// Compares a result with that of the step, or its error.
fn check<T: PartialEq + Debug>(what: &str, step: &Step, result: Result<T, Error>, expected: T) {
    let result = result.map_err(|error| format!("{:?}", error.kind()));
    let expected = step.error.clone().map_or(Ok(expected), Err);
    assert_eq!(result, expected, "{what}");
}

async fn take(what: &str, world: &World, step: &Step, permits: u32) {
    let decision = if step.by.is_none() && step.tier.is_none() && !step.shared {
        match world.limiter(&step.client).try_acquire_many(permits).await {
            Ok(decision) if step.error.is_none() => decision,
            other => return check(what, step, other.map(drop), ()),
        }
    } else {
        let by = step.by.as_ref().map(|numbers| limit(numbers, false));
        let (tier, user) = (step.tier.as_deref(), &step.user);
        let answer = world.send(by, tier, step.shared, user, permits).await;
        let expected = match (step.status, &step.allow) {
            (Some(status), _) => status,
            (None, Some(_)) => 200,
            (None, None) => 429,
        };
        assert_eq!(answer.status().as_u16(), expected, "{what}");
        if expected == 503 {
            return;
        }
        decision_of(&answer).clone()
    };
    let by_store = matches!(decision.source(), Source::Store | Source::Cache);
    assert!(by_store, "{what}: {decision:?}");
    assert_decision(what, &decision, step);
}

async fn count(what: &str, limiter: &RateLimiter, step: &Step) {
    if let Some(permits) = step.acquire {
        let acquired = limiter.acquire_many(permits).await;
        check(what, step, acquired.map(drop), ());
    }
    if let Some(available) = step.available {
        check(what, step, limiter.available_permits().await, available);
    }
    if let Some(permits) = step.release {
        let released = limiter.release(permits).await;
        check(what, step, released, step.released.unwrap_or_default());
    }
}

async fn change(what: &str, limiter: &RateLimiter, step: &Step, per_client: bool) {
    let of = |numbers: &Numbers| limit(numbers, per_client);
    let done = step.done.unwrap_or(true);
    if let Some(numbers) = &step.try_set {
        check(what, step, limiter.try_set_rate(of(numbers)).await, done);
    }
    if let Some(numbers) = &step.set {
        check(what, step, limiter.set_rate(of(numbers)).await, ());
    }
    if let Some(numbers) = &step.set_or_update {
        let set = limiter.set_or_update_rate(of(numbers)).await;
        check(what, step, set.map(drop), ());
    }
    if let Some(numbers) = &step.update {
        check(what, step, limiter.update_rate(of(numbers)).await, done);
    }
    if let Some(numbers) = &step.reset {
        check(what, step, limiter.reset_rate(of(numbers)).await, done);
    }
    if let Some(life) = step.expire {
        check(what, step, limiter.expire(millis(life)).await, done);
    }
    if step.delete {
        check(what, step, limiter.delete().await, done);
    }
}

fn write(keys: &Keys, step: &Step) {
    if let Some(command) = &step.redis {
        let command = command.iter().map(|word| match &**word {
            "{hash}" => &keys.hash,
            "{value}" => &keys.value,
            "{log}" => &keys.log,
            word => word,
        });
        redis(&command.collect::<Vec<_>>());
    }
    for (time, permits) in &step.plant {
        keys.plant(*time, *permits);
    }
}

async fn look(what: &str, limiter: &RateLimiter, keys: &Keys, step: &Step, per_client: bool) {
    if step.not_stored {
        check(what, step, limiter.limit().await, None);
    }
    if let Some(numbers) = &step.stored {
        let stored = Some(limit(numbers, per_client));
        check(what, step, limiter.limit().await, stored);
    }
    if let Some(fields) = &step.fields {
        assert_eq!(keys.fields().replace('\n', " "), *fields, "{what}");
    }
    if let Some(log) = &step.log {
        let (value, log) = (step.value.map(|value| value.to_string()), log.clone());
        assert_eq!(keys.books(), Books { value, log }, "{what}");
    }
    if step.unused {
        assert_eq!(keys.books(), unused(), "{what}");
    }
    if let Some(lives) = step.lives {
        let found = keys.lives();
        let is_expected = found.iter().zip(lives).all(|(left, life)| match life {
            ..=0 => *left == life,
            // Set less than a minute ago.
            _ => (life - 60_000..=life).contains(left),
        });
        assert!(is_expected, "{what}: {found:?} instead of {lives:?}");
    }
}

fn assert_decision(what: &str, decision: &Decision, step: &Step) {
    assert_eq!(decision.limits().len(), 1, "{what}: {decision:?}");
    let state = decision.limits().next().unwrap();
    let reset = whole_millis(state.reset_after());
    let over = step.deny.is_some() || step.wait.is_some();
    let said = (
        step.allow.is_some() || !over && !step.never,
        over,
        step.never,
    );
    match decision {
        Decision::Allow(_) => {
            assert_eq!(said, (true, false, false), "{what}: {decision:?}");
            let remaining = state.remaining().expect("permits are counted");
            if let Some(allow) = &step.allow {
                assert_eq!(Allow { remaining, reset }, *allow, "{what}");
            }
        }
        Decision::Deny(refusal) if refusal.kind() == RefusalKind::OverLimit => {
            assert_eq!(said, (false, true, false), "{what}: {decision:?}");
            let wait = whole_millis(refusal.retry_after().expect("a wait"));
            assert!(
                step.wait.is_none_or(|expected| expected == wait),
                "{what}: {wait}"
            );
            let Some(deny) = &step.deny else { return };
            let mut remaining = state.remaining().expect("permits are counted");
            if decision.source() == Source::Cache {
                // The number left when it was first refused: some may be free since, but not enough
                // for the cost.
                assert!(remaining <= deny.remaining, "{what}: {remaining}");
                remaining = deny.remaining;
            }
            let answer = Deny {
                wait,
                remaining,
                reset,
            };
            assert_eq!(answer, *deny, "{what}");
        }
        Decision::Deny(refusal) => {
            assert_eq!(refusal.kind(), RefusalKind::AboveRate, "{what}");
            assert_eq!(refusal.retry_after(), None, "{what}");
            assert_eq!(said, (false, false, true), "{what}: refused for ever");
        }
    }
}

/// Rounded up: a store in memory tells times to the nanosecond.
fn whole_millis(time: Duration) -> u64 {
    let millis = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).expect("a time within a century")
}
