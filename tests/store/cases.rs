//! Readable cases: the files of `tests/store/cases/`, in memory and on every kind of Redis, and
//! two files whose cases look into Redis, `tests/store/defects/cases.toml` and
//! `tests/store/kinds/keys.toml`, all with a clock that is moved.
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
//! { at = 0, take = 8, refused = true }                 # for a time that is not compared
//! { at = 0, take = 11, never = true }                  # more than the rate
//! { at = 0, take = 8, within = 9, wait = 1000 }        # by a caller that waits so long
//! { at = 0, take = 0, error = "Permits" }              # as of any verb
//! { at = 0, available = 7 }
//! { at = 0, release = 5, released = 3 }
//! { at = 0, settle = [0, 2] }                          # the first grant of the case, at 2 permits
//! { at = 0, try_set = [5, 1000], done = false, stored = [9, 1000] }    # `stored` is read then
//! { at = 0, take = 1, slots = 10 }                     # by a caller with slots
//! { at = 0, available = 5, algorithm = "FixedWindow" } # by one that counts in another way
//! { at = 0, take = 1, by = [5, 1000], allow = ... }    # by a layer whose rule has this limit
//! { at = 0, take = 1, tier = "paid", allow = ... }     # by a layer with the case's `tiers`
//! { at = 0, take = 1, shared = true, status = 503 }    # by a layer with Rule::shared
//! ```
//!
//! A case with an `algorithm` is counted by it; by GCRA the `limit` is in the code. Fixed windows
//! run only in memory if a step has a time, because in Redis they end by the server's clock. Cases
//! of logs run once more with the maximum number of slots: if no slot is longer than a millisecond,
//! the results are the same.
//!
//! `client = "b"` is another store with its own client id, `user = "b"` another key of the layer's
//! rule.

mod file;
mod world;

use crate::defects::{Books, Keys, unused};
use kit::{guards::Guards, scene::*, topologies::Topology};
use std::{collections::HashMap, collections::hash_map::Entry, fmt::Debug, fs};

use tower_ratelimit::Error;

use file::{Allow, Case, Deny, File, MOST_SLOTS, Numbers, Step, algorithm, limit_of};
use world::{Stores, World, memory};

#[tokio::test]
async fn in_memory() {
    for (file, case) in cases() {
        // A window in our own format ends a millisecond earlier.
        let mut world = memory(case.algorithm.as_deref() == Some("FixedWindow"));
        play(&format!("{file}: {}", case.name), &mut world, &case).await;
    }
}

#[tokio::test]
async fn in_slots() {
    let mut played = 0;
    let mut stores = Vec::new();
    for guards in Guards::all() {
        stores.push(Stores::new(Topology::Tcp, guards, true).await);
    }
    for (file, case) in cases() {
        if case.runs_in_slots() {
            let what = format!("{file}: {} in slots", case.name);
            let in_redis = stores.iter().map(Stores::world);
            for mut world in std::iter::once(memory(true)).chain(in_redis) {
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
    let stores = Stores::new(Topology::Tcp, Guards::all()[0], false).await;
    for (file, case) in cases() {
        if case.runs_in_redis() {
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
        if !case.runs_in_redis() {
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
                Entry::Vacant(none) => none.insert(Stores::new(topology, guards, false).await),
            };
            play(&what, &mut stores.world(), &case).await;
        }
    }
    assert_eq!(stores.len(), topologies.len() * guards.len());
}

/// Redisson's defects: the steps write what a Redisson client leaves behind, and see the keys.
#[tokio::test]
async fn no_case_shows_a_defect() {
    with_a_look_at_the_keys(include_str!("defects/cases.toml")).await;
}

/// The state in Redis of the kinds that have no log.
#[tokio::test]
async fn what_stands_in_redis_is_as_described() {
    with_a_look_at_the_keys(include_str!("kinds/keys.toml")).await;
}

async fn with_a_look_at_the_keys(text: &str) {
    let file: File = toml::from_str(text).unwrap();
    for case in file.case {
        let stores = Stores::new(Topology::Tcp, Guards::all()[0], false).await;
        play(&case.name, &mut stores.world(), &case).await;
    }
}

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for path in kit::files("tests/store/cases", "toml") {
        let file = path
            .file_name()
            .expect("a file")
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&path).expect("a readable file");
        let read: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        cases.extend(read.case.into_iter().map(|case| (file.clone(), case)));
    }
    assert!(cases.len() >= 40, "only {} cases were found", cases.len());
    cases
}

async fn play(what: &str, world: &mut World, case: &Case) {
    if let Some(name) = &case.algorithm {
        let limit = case.limit.as_ref();
        let limit = limit.map(|numbers| limit_of(numbers, case.per_client));
        world.count_by(algorithm(name), limit);
    }
    if let Some((rate, interval)) = &case.java {
        Keys::of(&world.name).plant_limit(rate, interval.parse().unwrap(), "0");
    }
    if let Some(numbers) = case.limit.as_ref().filter(|_| !world.limit_is_in_code()) {
        for client in ["a", "b"] {
            let limit = limit_of(numbers, case.per_client);
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
    let mut grants = Vec::new();
    for (number, step) in case.steps.iter().enumerate() {
        let what = format!("{what}: step {}, at {:?}", number + 1, step.at);
        if let Some(at) = step.at {
            world.set_clock(at);
        }
        let keys = match (&*step.client, case.per_client) {
            ("shared", _) | (_, false) => Keys::of(&world.name),
            (client, true) => Keys::of_client(&world.name, client),
        };
        let limiter = &of_step(world, step);
        let of_take = [
            step.allow.is_some(),
            step.deny.is_some(),
            step.wait.is_some(),
            step.refused,
            step.never,
            step.status.is_some(),
        ];
        let of_take = of_take.contains(&true);
        assert!(
            step.take.is_some() || !of_take,
            "{what}: a result of no take"
        );
        if let Some((which, keep)) = step.settle {
            limiter.settle(&grants[which], keep);
            world.settled().await;
        }
        match step.take {
            Some(permits) => grants.extend(take(&what, world, limiter, step, permits).await),
            None => count(&what, limiter, step).await,
        }
        change(&what, limiter, step, case.per_client).await;
        write(&keys, step);
        look(&what, limiter, &keys, step, case.per_client).await;
    }
}

/// The limiter as the caller of a step has it.
fn of_step(world: &World, step: &Step) -> RateLimiter {
    let limiter = match &step.algorithm {
        Some(name) => world.by_name(&step.client).algorithm(algorithm(name)),
        None => world.limiter(&step.client).clone(),
    };
    match step.slots {
        Some(slots) => limiter.slots(slots).expect("a number of slots"),
        None => limiter,
    }
}

/// Compares a result with that of the step, or its error.
fn check<T: PartialEq + Debug>(what: &str, step: &Step, result: Result<T, Error>, expected: T) {
    let result = result.map_err(|error| format!("{:?}", error.kind()));
    let expected = step.error.clone().map_or(Ok(expected), Err);
    assert_eq!(result, expected, "{what}");
}

/// Returns the receipts of what is granted.
async fn take(
    what: &str,
    world: &World,
    limiter: &RateLimiter,
    step: &Step,
    permits: u32,
) -> Vec<Grant> {
    let decision = if step.by.is_none() && step.tier.is_none() && !step.shared {
        let taken = match step.within {
            Some(time) => limiter.try_acquire_for(permits, millis(time)).await,
            None => limiter.try_acquire_many(permits).await,
        };
        match taken {
            Ok(decision) if step.error.is_none() => decision,
            other => {
                check(what, step, other.map(drop), ());
                return Vec::new();
            }
        }
    } else {
        let by = step.by.as_ref().map(|numbers| limit_of(numbers, false));
        let (tier, user) = (step.tier.as_deref(), &step.user);
        let answer = world.send(by, tier, step.shared, user, permits).await;
        let expected = match (step.status, &step.allow) {
            (Some(status), _) => status,
            (None, Some(_)) => 200,
            (None, None) => 429,
        };
        assert_eq!(answer.status().as_u16(), expected, "{what}");
        if expected == 503 {
            return Vec::new();
        }
        decision_of(&answer).clone()
    };
    let by_store = matches!(decision.source(), Source::Store | Source::Cache);
    assert!(by_store, "{what}: {decision:?}");
    assert_decision(what, &decision, step);
    match decision {
        Decision::Allow(grant) => vec![grant],
        Decision::Deny(_) => Vec::new(),
    }
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
    if let Some(lost) = step.repair {
        check(what, step, limiter.repair().await, lost);
    }
}

async fn change(what: &str, limiter: &RateLimiter, step: &Step, per_client: bool) {
    let of = |numbers: &Numbers| limit_of(numbers, per_client);
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
    if let Some(life) = step.expire_sooner {
        let set = limiter.expire_when(millis(life), ExpireWhen::Less).await;
        check(what, step, set, done);
    }
    if step.clear_expire {
        check(what, step, limiter.clear_expire().await, done);
    }
    if step.delete {
        check(what, step, limiter.delete().await, done);
    }
}

fn write(keys: &Keys, step: &Step) {
    if let Some(command) = &step.redis {
        keys.run(command);
    }
    for (time, permits) in &step.plant {
        keys.plant(*time, *permits);
    }
}

async fn look(what: &str, limiter: &RateLimiter, keys: &Keys, step: &Step, per_client: bool) {
    if step.not_stored {
        check(what, step, limiter.limit().await, None);
    }
    if let Some(exists) = step.exists {
        check(what, step, limiter.exists().await, exists);
    }
    if let Some(life) = &step.life {
        let left = limiter.time_to_live().await;
        check(
            what,
            step,
            left.map(|left| format!("{left:?}")),
            life.clone(),
        );
    }
    if let Some(numbers) = &step.stored {
        let stored = Some(limit_of(numbers, per_client));
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
    assert_eq!(decision.limits().count(), 1, "{what}: {decision:?}");
    let state = decision.limits().next().unwrap();
    let reset = whole_millis(state.reset_after());
    let over = step.deny.is_some() || step.wait.is_some() || step.refused;
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
            assert_eq!(
                said,
                (false, false, true),
                "{what}: refused whenever it comes"
            );
        }
    }
}

/// Rounded up: a store in memory tells times to the nanosecond.
fn whole_millis(time: Duration) -> u64 {
    let millis = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).expect("a time within a century")
}
