//! Plays `cases.toml`.

use serde::Deserialize;

use super::world::{Answer, Books, World, redis, unused};
use crate::scene::*;

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    limit: Option<(u64, u64)>,
    java: Option<(String, String)>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: Option<u64>,

    take: Option<u32>,
    wait: Option<u64>,
    #[serde(default)]
    above_rate: bool,
    available: Option<u64>,
    release: Option<u32>,
    released: Option<u64>,
    update: Option<(u64, u64)>,
    set: Option<(u64, u64)>,
    try_set: Option<(u64, u64)>,
    done: Option<bool>,
    redis: Option<Vec<String>>,
    #[serde(default)]
    plant: Vec<(i64, u32)>,

    value: Option<i64>,
    log: Option<Vec<(i64, u32)>>,
    #[serde(default)]
    unused: bool,
    lives: Option<[i64; 3]>,
}

fn limit((permits, interval): (u64, u64)) -> Limit {
    Limit::new(permits, Duration::from_millis(interval))
}

#[tokio::test]
async fn no_case_shows_a_defect() {
    let file: File = toml::from_str(include_str!("cases.toml")).unwrap();
    for case in file.case {
        let world = match (case.limit, &case.java) {
            (Some((rate, interval)), None) => World::limited(rate, interval).await,
            (None, Some((rate, interval))) => {
                World::written_by_java(rate, interval.parse().unwrap())
            }
            _ => World::empty(),
        };
        for (number, step) in case.steps.into_iter().enumerate() {
            let what = format!("{}: step {}", case.name, number + 1);
            play(&what, &world, step).await;
        }
    }
}

async fn play(what: &str, world: &World, step: Step) {
    if let Some(at) = step.at {
        world.at(at);
    }
    let (limiter, keys) = (&world.limiter, &world.keys);
    if let Some(permits) = step.take {
        let expected = match step.wait {
            Some(wait) => Answer::Wait(wait),
            None if step.above_rate => Answer::AboveRate,
            None => Answer::Granted,
        };
        assert_eq!(world.take(permits).await, expected, "{what}");
    }
    if let Some(available) = step.available {
        assert_eq!(world.available().await, available, "{what}");
    }
    if let Some(permits) = step.release {
        let released = limiter.release(permits).await.unwrap();
        assert_eq!(Some(released), step.released.map(|it| it as _), "{what}");
    }
    let done = step.done.unwrap_or(true);
    if let Some(update) = step.update {
        let updated = limiter.update_rate(limit(update)).await.unwrap();
        assert_eq!(updated, done, "{what}");
    }
    if let Some(set) = step.set {
        limiter.set_rate(limit(set)).await.unwrap();
    }
    if let Some(set) = step.try_set {
        let set = limiter.try_set_rate(limit(set)).await.unwrap();
        assert_eq!(set, done, "{what}");
    }
    if let Some(command) = step.redis {
        let command = command.iter().map(|word| match &**word {
            "{hash}" => &keys.hash,
            "{value}" => &keys.value,
            "{log}" => &keys.log,
            word => word,
        });
        redis(&command.collect::<Vec<_>>());
    }
    for (time, permits) in step.plant {
        keys.plant(time, permits);
    }
    if let Some(log) = step.log {
        let value = step.value.map(|value| value.to_string());
        assert_eq!(world.books(), Books { value, log }, "{what}");
    }
    if step.unused {
        assert_eq!(world.books(), unused(), "{what}");
    }
    if let Some(lives) = step.lives {
        assert_eq!(keys.lives(), lives, "{what}");
    }
}
