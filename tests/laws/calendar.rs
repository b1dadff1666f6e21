//! The law of the calendar: under a label never more than the limit, whatever the clocks are and
//! however they move, and no refusal while a label has room.

use std::collections::HashMap;

use kit::scene::*;

use super::world::take;

const PERMITS: u64 = 5;
const DAY: u64 = 86_400;

/// How a clock moves, in hours; and what a process asks for then.
type Step = (i64, usize, u32);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((-72i64..72, 0usize..3, 1u32..4), 1..60)
}

fn quota(store: &impl Store, name: &str) -> RateLimiter {
    Limit::daily(PERMITS).named(name).single(store).unwrap()
}

fn moved(begun: Duration, hours: i64) -> Duration {
    let by = HOUR * u32::try_from(hours.unsigned_abs()).unwrap();
    if hours < 0 { begun - by } else { begun + by }
}

/// What was granted under each label, and what a refusal may find.
#[derive(Default)]
struct Used(HashMap<u64, u64>);

impl Used {
    fn record(&mut self, label: u64, permits: u32, is_granted: bool) {
        let used = self.0.entry(label).or_default();
        let sum = *used + u64::from(permits);
        assert_eq!(
            is_granted,
            sum <= PERMITS,
            "{permits} beside {used} of {label}"
        );
        if is_granted {
            *used = sum;
        }
    }
}

/// Its clock chooses, and labels never fall.
#[test]
fn in_memory_by_a_clock_that_moves_to_and_fro() {
    let runtime = runtime();
    check(200, &steps(), |steps| {
        let begun = ManualClock::new().now() + secs(DAY) / 2;
        let clock = ManualClock::new();
        clock.set(begun);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let (limiter, mut ledger, mut newest) = (quota(&store, "quota"), Used::default(), 0);
        for (hours, _, permits) in steps {
            clock.set(moved(begun, hours));
            newest = newest.max(clock.now().as_secs() / DAY);
            let granted = runtime.block_on(take(&limiter, permits));
            ledger.record(newest, permits, granted.is_ok());
            let free = runtime.block_on(free(&limiter));
            assert_eq!(free, PERMITS - ledger.0[&newest]);
        }
    });
}

/// The server's clock chooses, whatever the processes believe.
#[test]
fn in_redis_by_three_processes_whose_clocks_move() {
    let runtime = runtime();
    let begun = SystemClock.now();
    let clocks = [0; 3].map(|_| ManualClock::new());
    clocks.iter().for_each(|clock| clock.set(begun));
    let stores = runtime.block_on(async {
        let prefix = unique("laws");
        let store = |clock: &ManualClock| {
            let store = shared_redis().prefix(&prefix).client_clock(clock.clone());
            store.deny_cache(Duration::ZERO).build().unwrap()
        };
        clocks.each_ref().map(store)
    });
    check(60, &steps(), |steps| {
        let name = unique("quota");
        let limiters = stores.each_ref().map(|store| quota(store, &name));
        let mut ledger = Used::default();
        for (hours, process, permits) in steps {
            clocks[process].set(moved(begun, hours));
            let label = SystemClock.now().as_secs() / DAY;
            let granted = runtime.block_on(take(&limiters[process], permits));
            if SystemClock.now().as_secs() / DAY != label {
                // It is midnight.
                return;
            }
            ledger.record(label, permits, granted.is_ok());
        }
    });
}
