//! Rust notes its grants in slots, and Java beside it takes and counts permits as ever.

use std::{collections::HashMap, time::Duration};

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::{Decision, Limit, ManualClock, RateLimiter, Receipt, RedisStore};

use super::{
    fresh_seed,
    oracle::{self, JavaClock, Oracle, Request},
    setting,
    support::{RedisServer, unique},
};

/// The second of January 2024, UTC.
const BEGINNING: i64 = 1_704_153_600_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Pause(i64),
    Java(i64),
    /// By so many slots; none: each grant by itself
    Rust(Option<u32>, u32),
    GiveBack(Index),
}

#[derive(Clone, Debug)]
struct History {
    rate: i64,
    interval: i64,
    steps: Vec<Step>,
}

fn histories() -> impl Strategy<Value = History> {
    let limits = (
        1i64..12,
        prop_oneof![Just(100i64), Just(1000), Just(1005), Just(60_000)],
    );
    limits.prop_flat_map(|(rate, interval)| {
        let slots = prop_oneof![
            3 => Just(Some(10)),
            3 => Just(Some(100)),
            1 => Just(Some(10_000)),
            2 => Just(None),
        ];
        let pause = prop_oneof![
            2 => Just(1),
            6 => 0..=interval / 4,
            1 => Just(interval - 1),
            1 => Just(interval),
            1 => Just(interval + interval / 10),
        ];
        let step = prop_oneof![
            6 => pause.prop_map(Step::Pause),
            4 => (1..=rate).prop_map(Step::Java),
            6 => (slots, 1u32..5).prop_map(|(slots, permits)| Step::Rust(slots, permits)),
            1 => any::<Index>().prop_map(Step::GiveBack),
        ];
        proptest::collection::vec(step, 1..80).prop_map(move |steps| History {
            rate,
            interval,
            steps,
        })
    })
}

/// What is in use: permits, and until when.
#[derive(Clone, Copy, Debug)]
struct Grant {
    until: i64,
    permits: i64,
}

struct Play<'a> {
    oracle: &'a mut Oracle,
    runtime: &'a Runtime,
    store: &'a RedisStore,
    clock: &'a ManualClock,
    name: String,
    now: i64,
    limit: Limit,
    grants: Vec<Grant>,
    /// Receipts with the place of their grant.
    receipts: HashMap<usize, Receipt>,
    tally: &'a mut Tally,
}

/// That the histories have shown what they are for.
#[derive(Debug, Default)]
struct Tally {
    granted_by_java: u64,
    refused_by_java: u64,
    granted_in_slots: u64,
    given_back: u64,
}

impl Play<'_> {
    fn rate(&self) -> i64 {
        self.limit.permits() as i64
    }

    fn interval(&self) -> i64 {
        self.limit.interval().as_millis() as i64
    }

    fn free(&self) -> i64 {
        let in_use = self.grants.iter().filter(|grant| grant.until > self.now);
        self.rate() - in_use.map(|grant| grant.permits).sum::<i64>()
    }

    fn java(&mut self, op: &str, permits: i64) -> String {
        let request = Request::new(op)
            .text("name", &self.name)
            .number("c", 0)
            .number("now", self.now)
            .number("n", permits);
        self.oracle
            .ask(&request)
            .unwrap_or_else(|thrown| panic!("Redisson threw: {thrown}"))
    }

    fn pause(&mut self, millis: i64) {
        self.now += millis;
        self.clock.set(Duration::from_millis(self.now as u64));
    }

    fn note(&mut self, permits: i64, until: i64) {
        self.grants.push(Grant { until, permits });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pause(millis) => self.pause(millis),
            Step::Java(permits) => {
                let fits = permits <= self.free();
                assert_eq!(self.java("tryAcquire", permits), fits.to_string());
                if fits {
                    self.tally.granted_by_java += 1;
                    self.note(permits, self.now + self.interval());
                } else {
                    self.tally.refused_by_java += 1;
                }
            }
            Step::Rust(slots, permits) => {
                let limiter = RateLimiter::new(self.store, &self.name).unwrap();
                let limiter = match slots {
                    Some(slots) => limiter.slots(slots).unwrap(),
                    None => limiter,
                };
                let decision = self.runtime.block_on(limiter.try_acquire_many(permits));
                let decision = decision.unwrap();
                assert_eq!(decision.is_allowed(), i64::from(permits) <= self.free());
                let Decision::Allow(grant) = decision else {
                    return;
                };
                let width = slots.map_or(1, |slots| {
                    (self.interval() as u64).div_ceil(slots.into()) as i64
                });
                let end = (self.now + width - 1) / width * width;
                self.tally.granted_in_slots += u64::from(width > 1);
                self.receipts
                    .insert(self.grants.len(), grant.receipts()[0].clone());
                self.note(permits.into(), end + self.interval());
            }
            Step::GiveBack(which) if !self.receipts.is_empty() => {
                let mut places: Vec<_> = self.receipts.keys().copied().collect();
                places.sort_unstable();
                let place = *which.get(&places);
                let receipt = self.receipts.remove(&place).unwrap();
                let limiter = RateLimiter::new(self.store, &self.name).unwrap();
                self.runtime.block_on(async {
                    limiter.give_back(&receipt);
                    self.store.close().await;
                });
                self.grants[place].permits = 0;
                self.tally.given_back += 1;
            }
            Step::GiveBack(_) => {}
        }
    }

    /// Java counts what is free as the history has it; and that adds up with what the keys hold.
    fn java_counts(&mut self) {
        assert_eq!(self.java("available", 0), self.free().to_string());
    }
}

fn play(mut play: Play<'_>, history: &History) {
    let limit = Request::new("trySetRate")
        .text("name", &play.name)
        .number("c", 0)
        .number("now", play.now)
        .number("rate", history.rate)
        .number("interval", history.interval)
        .number("type", 0)
        .number("keepAlive", 0);
    assert_eq!(play.oracle.ask(&limit), Ok("true".to_owned()));
    play.pause(0);
    for step in &history.steps {
        play.step(*step);
        play.java_counts();
    }
    // Nothing is lost: an interval and its tenth after the last grant Java takes all there is.
    play.pause(history.interval + history.interval / 10);
    play.java_counts();
    assert_eq!(play.java("tryAcquire", history.rate), "true");
}

#[test]
fn java_shares_a_limit_that_is_noted_in_slots() {
    let seed = setting("TOWER_RATELIMIT_SEED", fresh_seed());
    let cases = setting("TOWER_RATELIMIT_STEPS", super::ENOUGH).div_ceil(50);
    println!("{cases} histories, TOWER_RATELIMIT_SEED={seed}");
    for version in oracle::versions() {
        let server = RedisServer::start();
        let oracle = Oracle::start(&version, server.port(), JavaClock::Fake);
        let clock = ManualClock::new();
        let store = RedisStore::builder(server.url())
            .client_clock(clock.clone())
            // A step that took long on a busy machine is no failure.
            .deadline(Duration::from_secs(20))
            .response_timeout(Duration::from_secs(20))
            // Every refusal is to be the script's: Java gives nothing back, but grants beside us.
            .deny_cache(Duration::ZERO)
            .build()
            .unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let shared = std::cell::RefCell::new((oracle, Tally::default()));

        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: cases as u32,
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let outcome = runner.run(&histories(), |history| {
            let (oracle, tally) = &mut *shared.borrow_mut();
            let interval = Duration::from_millis(history.interval as u64);
            let beginning = Play {
                oracle,
                tally,
                runtime: &runtime,
                store: &store,
                clock: &clock,
                name: unique("slots"),
                now: BEGINNING,
                limit: Limit::new(history.rate as u64, interval),
                grants: Vec::new(),
                receipts: HashMap::new(),
            };
            play(beginning, &history);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("Redisson {version}: {error}");
        }
        let (_, tally) = &*shared.borrow();
        println!("Redisson {version}: {tally:?}");
        let shown = [
            tally.granted_by_java,
            tally.refused_by_java,
            tally.granted_in_slots,
            tally.given_back,
        ];
        assert!(shown.iter().all(|times| *times > 0), "{tally:?}");
    }
}
