//! Rust counts its grants in slots, and Java beside it takes and counts permits as it always does.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tokio::runtime::Runtime;
use tower_ratelimit::{Decision, RateLimiter, RedisStore, testing::ManualClock};

use super::oracle::{self, JavaClock, Oracle, Request};
use kit::{
    RedisServer,
    random::{seed, setting},
    scene::{patient, runtime},
    unique,
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
    rate: i64,
    interval: i64,
    grants: Vec<Grant>,
    /// Receipts with the place of their grant.
    taken: HashMap<usize, tower_ratelimit::Grant>,
    tally: &'a mut Tally,
}

/// How often the histories have shown what they are for.
type Tally = BTreeMap<&'static str, u64>;

impl Play<'_> {
    fn free(&self) -> i64 {
        let in_use = self.grants.iter().filter(|grant| grant.until > self.now);
        self.rate - in_use.map(|grant| grant.permits).sum::<i64>()
    }

    /// Asks for permits, or sets the limit.
    fn java(&mut self, op: &str, permits: i64) -> String {
        let request = Request::new(op).text("name", &self.name);
        let request = request.number("now", self.now).number("n", permits);
        let request = request.number("rate", self.rate);
        let answer = self.oracle.ask(&request.number("interval", self.interval));
        answer.unwrap_or_else(|thrown| panic!("Redisson threw: {thrown}"))
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
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
                    self.count("granted by Java");
                    self.note(permits, self.now + self.interval);
                } else {
                    self.count("refused by Java");
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
                    (self.interval as u64).div_ceil(slots.into()) as i64
                });
                let end = (self.now + width - 1) / width * width;
                if width > 1 {
                    self.count("granted in slots");
                }
                self.taken.insert(self.grants.len(), grant);
                self.note(permits.into(), end + self.interval);
            }
            Step::GiveBack(which) if !self.taken.is_empty() => {
                let mut places: Vec<_> = self.taken.keys().copied().collect();
                places.sort_unstable();
                let place = *which.get(&places);
                let taken = self.taken.remove(&place).unwrap();
                let limiter = RateLimiter::new(self.store, &self.name).unwrap();
                self.runtime.block_on(async {
                    limiter.give_back(&taken);
                    self.store.close().await;
                });
                self.grants[place].permits = 0;
                self.count("given back");
            }
            Step::GiveBack(_) => {}
        }
    }

    /// Java counts what is free as the history has it; and that adds up with what the keys hold.
    fn java_counts(&mut self) {
        assert_eq!(self.java("available", 0), self.free().to_string());
    }
}

fn play(mut play: Play<'_>, steps: &[Step]) {
    assert_eq!(play.java("trySetRate", 0), "true");
    play.pause(0);
    for step in steps {
        play.step(*step);
        play.java_counts();
    }
    // Nothing is lost: an interval and its tenth after the last grant Java takes all there is.
    play.pause(play.interval + play.interval / 10);
    play.java_counts();
    assert_eq!(play.java("tryAcquire", play.rate), "true");
}

#[test]
fn java_shares_a_limit_that_is_noted_in_slots() {
    let seed = seed();
    let cases = setting("TOWER_RATELIMIT_STEPS", super::ENOUGH).div_ceil(50);
    for version in oracle::versions() {
        let server = RedisServer::start();
        let oracle = Oracle::start(&version, server.port(), JavaClock::Fake);
        let clock = ManualClock::new();
        let store = patient(server.url()).client_clock(clock.clone());
        // Every refusal is to be the script's: Java gives nothing back, but grants beside us.
        let store = store.deny_cache(Duration::ZERO).build().unwrap();
        let runtime = runtime();
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
            let beginning = Play {
                oracle,
                tally,
                runtime: &runtime,
                store: &store,
                clock: &clock,
                name: unique("slots"),
                now: BEGINNING,
                rate: history.rate,
                interval: history.interval,
                grants: Vec::new(),
                taken: HashMap::new(),
            };
            play(beginning, &history.steps);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("Redisson {version}: {error}");
        }
        let (_, tally) = &*shared.borrow();
        println!("Redisson {version}: {tally:?}");
        // Each of the four.
        assert_eq!(tally.len(), 4, "{tally:?}");
    }
}
