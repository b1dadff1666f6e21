//! Limits of what is in flight, by any history of starts, ends and crashes: never more than there
//! are places, a refusal only where all are taken, and all of them are back after the last end, or
//! after the longest time where a process has died.
//!
//! A place that is given back twice, or late, is nobody else's.

use kit::scene::*;
use proptest::sample::Index;
use tower_ratelimit::Grant;

use super::world::{World, law};

const LONGEST: Duration = Duration::from_millis(3000);

#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    End(Index),
    /// What has ended ends once more.
    Again(Index),
    /// The process of one dies.
    Crash(Index),
    Pass(u64),
}

/// The places, and what happens.
type Input = (u64, Vec<Step>);

fn input() -> impl Strategy<Value = Input> {
    let step = prop_oneof![
        8 => Just(Step::Start),
        4 => any::<Index>().prop_map(Step::End),
        2 => any::<Index>().prop_map(Step::Again),
        1 => any::<Index>().prop_map(Step::Crash),
        3 => prop_oneof![0..300u64, 900..3100u64].prop_map(Step::Pass),
    ];
    (1..6u64, proptest::collection::vec(step, 1..60))
}

fn law<S: Store>(world: &World<S>, (places, steps): Input) {
    let limit = Limit::in_flight(places, LONGEST).named(&unique("flight"));
    world.run(async {
        let limiter = limit.single(&world.store).unwrap();
        let (mut alive, mut over): (Vec<(Duration, Grant)>, Vec<Grant>) = Default::default();
        let mut dead: Vec<Duration> = Vec::new();
        for step in steps {
            let counted = |alive: &[(Duration, Grant)], dead: &[Duration]| {
                let all = alive.iter().map(|(at, _)| at).chain(dead);
                all.filter(|at| **at + LONGEST > world.now()).count() as u64
            };
            match step {
                Step::Start => match limiter.try_acquire().await.unwrap() {
                    Decision::Allow(grant) => {
                        assert!(counted(&alive, &dead) < places, "over");
                        alive.push((world.now(), grant));
                    }
                    Decision::Deny(refusal) => {
                        assert_eq!(counted(&alive, &dead), places, "refused for nothing");
                        assert!(refusal.retry_after() <= Some(secs(1)), "{refusal:?}");
                        assert_eq!(refusal.kind(), RefusalKind::OverLimit);
                    }
                },
                Step::End(which) if !alive.is_empty() => {
                    let (_, grant) = alive.swap_remove(which.index(alive.len()));
                    limiter.give_back(&grant);
                    over.push(grant);
                }
                Step::Again(which) if !over.is_empty() => {
                    limiter.give_back(&over[which.index(over.len())]);
                }
                Step::Crash(which) if !alive.is_empty() => {
                    dead.push(alive.swap_remove(which.index(alive.len())).0);
                }
                Step::Pass(time) => world.advance(millis(time)),
                Step::End(_) | Step::Again(_) | Step::Crash(_) => {}
            }
            let left = places - counted(&alive, &dead);
            until("it is settled", async || free(&limiter).await == left).await;
        }
        alive.iter().for_each(|(_, grant)| limiter.give_back(grant));
        let held = dead.iter().filter(|at| **at + LONGEST > world.now());
        let left = places - held.count() as u64;
        until("all are back", async || free(&limiter).await == left).await;
        world.advance(LONGEST);
        assert_eq!(free(&limiter).await, places, "nothing of the dead");
    });
}

law! {
    input(), |world, _, input| law(world, input);
    in_memory: 400 by [()],
    in_a_store_of_ones_own: 100 by [()],
    in_redis: 60 by [()],
    in_redissons_format: 60 by [()],
}

/// Waiters are served when a place is back, within a second by the clock of the limit, which stands
/// still otherwise; and they give up at their time, not before.
#[tokio::test]
async fn waiters_are_tried_again_when_a_place_is_back() {
    let limit = |name| Limit::in_flight(1, secs(3600)).named(name);
    let clock = ManualClock::new();
    // Also by one that caches nothing, and where another process gives back.
    let store = || shared_redis().prefix("flight").client_clock(clock.clone());
    let (here, there) = (store().build().unwrap(), store().build().unwrap());
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let name = unique("flight");
    let here = limit(&name).single(&here).unwrap();
    let there = limit(&name).single(&there).unwrap();
    let memory = limit(&name).single(&memory).unwrap();
    for (one, other) in [(&here, &here), (&here, &there), (&memory, &memory)] {
        in_time(places_come_back(&clock, one, other)).await;
    }
}

async fn places_come_back(clock: &ManualClock, one: &RateLimiter, other: &RateLimiter) {
    let held = one.acquire().await.unwrap();
    let mut gives_up = Box::pin(other.try_acquire_for(1, millis(300)));
    let sleeps = async || clock.sleepers() > 0;
    until("it waits", async || {
        poll(&mut gives_up).is_pending() && sleeps().await
    })
    .await;
    clock.advance(millis(299));
    assert!(
        poll(&mut gives_up).is_pending(),
        "it gives up before its time"
    );
    clock.advance(millis(1));
    refused(gives_up.await.unwrap());
    // By rates, the last of them would wait for three hours.
    let passed = AtomicUsize::new(0);
    let pass = async || {
        let decision = other.try_acquire_for(1, secs(20)).await.unwrap();
        other.give_back(&granted(decision));
        passed.fetch_add(1, Ordering::Relaxed);
    };
    let passes = async |number| passed.load(Ordering::Relaxed) >= number;
    let gives_back = async {
        until("one waits", sleeps).await;
        one.give_back(&held);
        for number in 1..=2 {
            until("the place is back, or taken", async || {
                passes(number).await || free(one).await == 1
            })
            .await;
            if !passes(number).await {
                clock.advance(SECOND);
                until("it is served", async || passes(number).await).await;
            }
        }
    };
    tokio::join!(pass(), pass(), gives_back);
    until("all are back", async || free(one).await == 1).await;
}

/// As where a process drains: more than the queue of settlements has places.
#[tokio::test]
async fn all_places_come_back_when_all_requests_end_at_once() {
    let store = shared_redis().prefix("flight").build().unwrap();
    let flight = Limit::in_flight(1, secs(3600)).named(&unique("flight"));
    let flight = flight.keyed(&store).unwrap();
    let mut held = Vec::new();
    for number in 0..3000_u32 {
        held.push((
            number,
            granted(flight.of(number).try_acquire().await.unwrap()),
        ));
    }
    for (number, grant) in &held {
        flight.of(*number).give_back(grant);
    }
    store.close().await;
    assert_eq!(store.health().lost_receipts, 0);
    for (number, _) in held {
        assert_eq!(free(&flight.of(number)).await, 1, "{number}");
    }
}
