//! Plays `cases.toml`.

use serde::Deserialize;

use super::world::{Answer, Books, World, answer, redis, unused};
use crate::scene::*;

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    limit: Option<Terms>,
    java: Option<(String, String)>,
    #[serde(default)]
    per_client: bool,
    steps: Vec<Step>,
}

/// Permits, an interval and, where there is one, a keep-alive time.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Terms {
    Lasting(u64, u64),
    KeptAlive(u64, u64, u64),
}

impl Terms {
    fn limit(self, per_client: bool) -> Limit {
        let limit = match self {
            Self::Lasting(permits, interval) => Limit::new(permits, millis(interval)),
            Self::KeptAlive(permits, interval, life) => {
                let limit = Limit::new(permits, millis(interval));
                limit.keep_alive(millis(life)).unwrap()
            }
        };
        if per_client {
            limit.per_client()
        } else {
            limit
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: Option<u64>,
    #[serde(default)]
    client: Client,

    take: Option<u32>,
    wait: Option<u64>,
    #[serde(default)]
    above_rate: bool,
    acquire: Option<u32>,
    available: Option<u64>,
    release: Option<u32>,
    released: Option<u64>,
    update: Option<Terms>,
    set: Option<Terms>,
    try_set: Option<Terms>,
    done: Option<bool>,
    expire: Option<u64>,
    #[serde(default)]
    delete: bool,
    error: Option<String>,
    redis: Option<Vec<String>>,
    #[serde(default)]
    plant: Vec<(i64, u32)>,

    stored: Option<(u64, u64)>,
    #[serde(default)]
    not_stored: bool,
    fields: Option<String>,
    value: Option<i64>,
    log: Option<Vec<(i64, u32)>>,
    #[serde(default)]
    unused: bool,
    lives: Option<[i64; 3]>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Client {
    #[default]
    Ours,
    Theirs,
    Shared,
}

const OURS: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
const THEIRS: &str = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

#[tokio::test]
async fn no_case_shows_a_defect() {
    let file: File = toml::from_str(include_str!("cases.toml")).unwrap();
    for case in file.case {
        let shared = match &case.java {
            Some((rate, interval)) => World::written_by_java(rate, interval.parse().unwrap()),
            None => World::empty(),
        };
        let [ours, theirs] = [OURS, THEIRS].map(|client| shared.of_client(client));
        let ours = if case.per_client { &ours } else { &shared };
        if let Some(terms) = case.limit {
            let limit = terms.limit(case.per_client);
            assert!(ours.limiter.try_set_rate(limit).await.unwrap());
        }
        for (number, step) in case.steps.into_iter().enumerate() {
            let what = format!("{}: step {}", case.name, number + 1);
            let world = match step.client {
                Client::Ours => ours,
                Client::Theirs => &theirs,
                Client::Shared => &shared,
            };
            if let Some(at) = step.at {
                world.at(at);
            }
            decide(&what, world, &step).await;
            change(&what, &world.limiter, &step, case.per_client).await;
            write(world, &step);
            look(&what, world, &step).await;
        }
    }
}

/// Compares a result with that of the step, or its error.
fn check<T: PartialEq + std::fmt::Debug>(
    what: &str,
    step: &Step,
    result: Result<T, tower_ratelimit::Error>,
    expected: T,
) {
    let result = result.map_err(|error| format!("{:?}", error.kind()));
    let expected = step.error.clone().map_or(Ok(expected), Err);
    assert_eq!(result, expected, "{what}");
}

async fn decide(what: &str, world: &World, step: &Step) {
    let limiter = &world.limiter;
    if let Some(permits) = step.take {
        let expected = match step.wait {
            Some(wait) => Answer::Wait(wait),
            None if step.above_rate => Answer::AboveRate,
            None => Answer::Granted,
        };
        let taken = limiter.try_acquire_many(permits).await;
        check(
            what,
            step,
            taken.map(|decision| answer(&decision)),
            expected,
        );
    }
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
    let done = step.done.unwrap_or(true);
    if let Some(terms) = step.update {
        let updated = limiter.update_rate(terms.limit(per_client)).await;
        check(what, step, updated, done);
    }
    if let Some(terms) = step.set {
        limiter.set_rate(terms.limit(per_client)).await.unwrap();
    }
    if let Some(terms) = step.try_set {
        let set = limiter.try_set_rate(terms.limit(per_client)).await;
        check(what, step, set, done);
    }
    if let Some(life) = step.expire {
        check(what, step, limiter.expire(millis(life)).await, done);
    }
    if step.delete {
        check(what, step, limiter.delete().await, done);
    }
}

fn write(world: &World, step: &Step) {
    let keys = &world.keys;
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

async fn look(what: &str, world: &World, step: &Step) {
    let keys = &world.keys;
    if step.not_stored {
        check(what, step, world.limiter.limit().await, None);
    }
    if let Some((permits, interval)) = step.stored {
        let limit = Limit::new(permits, millis(interval));
        check(what, step, world.limiter.limit().await, Some(limit));
    }
    if let Some(fields) = &step.fields {
        assert_eq!(keys.fields().replace('\n', " "), *fields, "{what}");
    }
    if let Some(log) = &step.log {
        let (value, log) = (step.value.map(|value| value.to_string()), log.clone());
        assert_eq!(world.books(), Books { value, log }, "{what}");
    }
    if step.unused {
        assert_eq!(world.books(), unused(), "{what}");
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
