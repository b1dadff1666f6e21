//! A store that was saved and loaded decides as one that was not, and a file that is not whole is
//! refused whole.

use std::io;

use kit::scene::*;
use proptest::prelude::*;
use tower_ratelimit::{Ban, Keyed};

use super::{
    kinds::{Lawful, WAYS},
    world::{MILLISECOND, Request, histories},
};

/// What is asked of both stores.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(Request),
    /// The grant of this number, at so many permits
    Settle(prop::sample::Index, u32),
    Restart,
}

fn steps() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    histories(MILLISECOND).prop_flat_map(|(limit, traffic)| {
        let each = traffic.into_iter().map(|request| {
            prop_oneof![
                6 => Just(Step::Take(request)),
                1 => (any::<prop::sample::Index>(), 0u32..8).prop_map(|(grant, keep)| Step::Settle(grant, keep)),
                2 => Just(Step::Restart),
            ]
        });
        (Just(limit), each.collect::<Vec<_>>())
    })
}

/// A store, and its limiter by a way to count.
struct Side {
    store: MemoryStore,
    limiter: RateLimiter,
    grants: Vec<Grant>,
}

impl Side {
    async fn new(clock: &ManualClock, way: Way, limit: Limit) -> Self {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = way.of(&store, "law", limit).await;
        Self {
            store,
            limiter,
            grants: Vec::new(),
        }
    }

    /// Saves the store, and goes on with another that has loaded it.
    async fn restart(&mut self, clock: &ManualClock, way: Way, limit: Limit) {
        let mut file = Vec::new();
        self.store.save(&mut file).unwrap();
        self.store = MemoryStore::builder().clock(clock.clone()).build();
        self.store.load(&file[..]).unwrap();
        self.limiter = match way {
            _ if Way::OWN.contains(&way) => way.of(&self.store, "law", limit).await,
            Way::Slots(slots) if limit.interval() < millis(slots.into()) => {
                RateLimiter::new(&self.store, "law").unwrap()
            }
            // Its limit is in the file.
            way => way.limiter(RateLimiter::new(&self.store, "law").unwrap()),
        };
    }

    async fn step(&mut self, step: Step) -> String {
        match step {
            Step::Take(Request { permits, .. }) => {
                let decision = self.limiter.try_acquire_many(permits).await.unwrap();
                let said = match &decision {
                    Decision::Allow(grant) => format!("{:?}", grant.limits().collect::<Vec<_>>()),
                    Decision::Deny(refusal) => format!("{:?}", refusal.retry_after()),
                };
                if let Decision::Allow(grant) = decision {
                    self.grants.push(grant);
                }
                said
            }
            Step::Settle(at, keep) if !self.grants.is_empty() => {
                let grant = self.grants.swap_remove(at.index(self.grants.len()));
                self.limiter.settle(&grant, keep);
                String::new()
            }
            Step::Settle(..) | Step::Restart => String::new(),
        }
    }
}

#[test]
fn a_store_that_was_loaded_decides_as_the_one_that_was_saved() {
    let of_several = [(Way::OwnLog, true)];
    for (way, is_several) in WAYS.map(|way| (way, false)).into_iter().chain(of_several) {
        check(300, &steps(), |(limit, steps)| {
            let longer = Limit::new(2 * limit.permits(), 3 * limit.interval());
            let limit = if is_several { limit.and(longer) } else { limit };
            runtime().block_on(async {
                let clock = ManualClock::new();
                let mut saved = Side::new(&clock, way, limit).await;
                let mut lasting = Side::new(&clock, way, limit).await;
                for step in steps {
                    if let Step::Take(request) = step {
                        clock.advance(request.pause);
                    }
                    if let Step::Restart = step {
                        saved.restart(&clock, way, limit).await;
                        // What is in no file.
                        lasting.store.forget_idle();
                    }
                    let said = [saved.step(step).await, lasting.step(step).await];
                    assert_eq!(said[0], said[1], "{way:?}: {step:?}");
                    let left = [free(&saved.limiter).await, free(&lasting.limiter).await];
                    assert_eq!(left[0], left[1], "{way:?}: {step:?}");
                }
            });
        });
    }
}

/// Those who hold places end with the process, whoever still has the limit that they were taken by.
#[tokio::test]
async fn places_in_flight_are_in_no_file() {
    let clock = ManualClock::new();
    let limit = |places| Limit::in_flight(places, secs(3600)).named("flight");
    let restarted = |store: &MemoryStore| {
        let mut file = Vec::new();
        store.save(&mut file).unwrap();
        let next = MemoryStore::builder().clock(clock.clone()).build();
        next.load(&file[..]).unwrap();
        next
    };
    for case in ["held", "dropped", "another", "by name", "by hand"] {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let flight = limit(3).single(&store).unwrap();
        take(&flight, 2).await;
        let by_name = RateLimiter::new(&store, flight.name()).unwrap();
        let held = (case == "held").then_some(flight);
        match case {
            "another" => drop(take(&limit(4).single(&store).unwrap(), 1).await),
            "by name" => assert_eq!(free(&by_name).await, 1),
            "by hand" => by_name.set_rate(Limit::per_hour(7)).await.unwrap(),
            _ => {}
        }
        let next = restarted(&store);
        let kept = RateLimiter::new(&next, by_name.name()).unwrap();
        let by_hand = (case == "by hand").then(|| Limit::per_hour(7));
        assert_eq!(kept.limit().await.unwrap(), by_hand, "{case}");
        if by_hand.is_none() {
            take(&limit(3).single(&next).unwrap(), 3).await;
        }
        drop(held);
    }
}

/// A rule with a ban, of a version of the service.
fn keyed(store: &MemoryStore, per_hour: u64) -> Keyed {
    let ban = Ban::after(1).lasting(secs(600));
    let limit = Limit::per_hour(per_hour).named("k").ban(ban);
    limit.keyed(store).unwrap()
}

fn monthly(store: &MemoryStore) -> RateLimiter {
    let limit = Limit::monthly(3).named("monthly");
    limit.keyed(store).unwrap().of("m")
}

/// Returns a store with limiters by rules and by hand, and a caller that is banned.
async fn a_store(clock: &ManualClock) -> MemoryStore {
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let keyed = keyed(&store, 1);
    take(&keyed.of("banned"), 1).await;
    refused(keyed.of("banned").try_acquire().await.unwrap());
    keyed.of("by hand").ban_for(secs(60)).await.unwrap();
    for caller in 0..50 {
        take(&keyed.of(caller), 1).await;
    }
    let orders = RateLimiter::new(&store, "orders").unwrap();
    orders.try_set_rate(Limit::per_day(10)).await.unwrap();
    take(&monthly(&store), 3).await;
    store
}

#[tokio::test]
async fn bans_and_limits_that_were_set_are_in_it_and_what_is_over_is_not() {
    let clock = ManualClock::new();
    let (mut file, store) = (Vec::new(), a_store(&clock).await);
    store.save(&mut file).unwrap();
    let load = |file: &[u8]| {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let loaded = store.load(file).unwrap();
        (store, loaded)
    };
    let (after, loaded) = load(&file);
    assert_eq!(loaded, 54);
    // By another version of the service, which has another limit.
    let other = keyed(&after, 2);
    for banned in ["banned", "by hand"] {
        let refusal = refused(other.of(banned).try_acquire().await.unwrap());
        assert_eq!(refusal.kind(), RefusalKind::Banned, "{banned}");
    }
    take(&other.of(7), 1).await;
    assert_eq!(free(&other.of(7)).await, 0);
    let orders = RateLimiter::new(&after, "orders").unwrap();
    assert_eq!(orders.limit().await.unwrap(), Some(Limit::per_day(10)));
    assert_eq!(free(&monthly(&after)).await, 0);
    // What the store has counted itself by now stays.
    let busy = MemoryStore::builder().clock(clock.clone()).build();
    let again = keyed(&busy, 1);
    take(&again.of("new"), 1).await;
    take(&again.of(3), 1).await;
    assert_eq!(busy.load(&file[..]).unwrap(), 53);
    assert_eq!(free(&again.of(3)).await, 0);
    // Hours later, of all that the limits that were set and the month are left.
    clock.advance(secs(7200));
    assert_eq!(load(&file).1, 2);
    let mut rest = Vec::new();
    store.save(&mut rest).unwrap();
    assert_eq!(load(&rest).1, 2);
    // A smaller store takes what it has room for.
    let small = MemoryStore::builder().max_limiters(1);
    let small = small.clock(clock.clone()).build();
    assert_eq!(small.load(&file[..]).unwrap(), 1);
}

#[tokio::test]
async fn a_file_that_is_not_whole_is_refused_whole_and_named() {
    let clock = ManualClock::new();
    let (mut file, store) = (Vec::new(), a_store(&clock).await);
    store.save(&mut file).unwrap();
    let refuse = |file: &[u8], said: &str| {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let error = store.load(file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(said), "{error}");
        assert!(store.is_empty());
    };
    for length in 0..file.len() {
        let said = if length < 55 {
            "no saved store"
        } else {
            "damaged, or was not written"
        };
        refuse(&file[..length], said);
    }
    for at in 0..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 1;
        let said = if at < 23 {
            "no saved store, or one of a later version"
        } else {
            "damaged"
        };
        refuse(&changed, said);
    }
    refuse(b"[limits]", "no saved store");
    refuse(&[&file[..], b"\n"].concat(), "damaged");
    // A writer that is full, and a reader that fails.
    let full = store.save(&mut [0; 100][..]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::WriteZero);
    struct Fails;
    impl io::Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
    assert_eq!(
        store.load(Fails).unwrap_err().kind(),
        io::ErrorKind::TimedOut
    );
}
