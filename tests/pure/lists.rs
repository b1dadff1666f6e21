//! Lists of limiters in memory: one that is refused leaves all of its limiters as they were.

#![cfg(feature = "test-util")]

use crate::memory::now;
use kit::scene::*;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, TimeToLive};

/// Limiters that count in each way, and one whose only permit is taken for a day.
struct Limiters {
    clock: ManualClock,
    counted: Vec<RateLimiter>,
    spent: RateLimiter,
}

impl Limiters {
    fn new(limit: Limit) -> Self {
        let (store, clock) = MemoryStore::builder().build_manual();
        let of = |name: &str| RateLimiter::new(&store, name).unwrap();
        let counted = vec![
            of("log"),
            of("slots").slots(10).unwrap(),
            now(Way::Gcra.named(&store, "gcra", limit)),
            of("window").algorithm(Algorithm::FixedWindow),
        ];
        for limiter in [&counted[0], &counted[1], &counted[3]] {
            assert!(now(limiter.try_set_rate(limit)).unwrap());
        }
        let spent = of("spent");
        assert!(now(spent.try_set_rate(Limit::per_day(1))).unwrap());
        assert!(now(spent.try_acquire()).unwrap().is_allowed());
        Self {
            clock,
            counted,
            spent,
        }
    }

    /// All that a caller of one limiter sees.
    fn ask(&self, which: usize, permits: u32) -> String {
        let decision = now(self.counted[which].try_acquire_many(permits)).unwrap();
        let limit = decision.limits().next().unwrap();
        let times = (limit.next_after(), limit.retry_after(), limit.reset_after());
        format!(
            "{} {:?} {times:?}",
            decision.is_allowed(),
            limit.remaining()
        )
    }

    /// Asks a list that is refused, as one of its limiters has no room. Those before it have.
    fn ask_refused(&self, which: &[usize], permits: u32) {
        let limiters = which.iter().map(|which| &self.counted[*which]);
        let list = RateLimiter::all(limiters.chain([&self.spent])).unwrap();
        let each: Vec<_> = which.iter().map(|_| permits).chain([1]).collect();
        assert!(!now(list.try_acquire_each(&each)).unwrap().is_allowed());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, u32),
    Refused(Vec<usize>, u32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let some = proptest::sample::subsequence(vec![0, 1, 2, 3], 1..=4);
    prop_oneof![
        (0..4_usize, 1..4_u32).prop_map(|(which, permits)| Step::Ask(which, permits)),
        (some, 1..4_u32).prop_map(|(which, permits)| Step::Refused(which, permits)),
        prop_oneof![Just(0), 1..300_u64, Just(1000)].prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn a_list_that_is_refused_leaves_its_limiters_as_they_were(
        permits in 1..8_u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let limit = Limit::new(permits, Duration::from_secs(1));
        let [with, without] = [Limiters::new(limit), Limiters::new(limit)];
        for step in steps {
            match step {
                Step::Ask(which, permits) => {
                    prop_assert_eq!(with.ask(which, permits), without.ask(which, permits));
                }
                Step::Refused(which, permits) => with.ask_refused(&which, permits),
                Step::Pass(millis) => {
                    let time = Duration::from_millis(millis);
                    with.clock.advance(time);
                    without.clock.advance(time);
                }
            }
        }
    }
}

/// Not even when they expire.
#[test]
fn a_list_that_is_an_error_changes_nothing() {
    let store = MemoryStore::builder().clock(ManualClock::new()).build();
    let of = |name| RateLimiter::new(&store, name).unwrap();
    let (kept, unset) = (of("kept"), of("unset"));
    let limit = Limit::per_second(5).keep_alive(Duration::from_secs(60));
    assert!(now(kept.try_set_rate(limit.unwrap())).unwrap());
    let later = Duration::from_secs(600);
    assert!(now(kept.expire(later)).unwrap());
    let both = RateLimiter::all([&kept, &unset]).unwrap();
    let error = now(both.try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialized);
    assert_eq!(now(kept.time_to_live()).unwrap(), TimeToLive::Left(later));
    assert_eq!(now(kept.available_permits()).unwrap(), 5);
}
