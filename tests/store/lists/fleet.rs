//! Random lists over the same limiters, many at once, while connections are cut, calls are dropped
//! and one limit is reset.

use crate::record::{Place, Record};
use kit::{monitor::Feed, random::Random, scene::*};
use std::{collections::BTreeMap, collections::BTreeSet};

use tower_ratelimit::AllOf;

/// Permits, and the interval in ms: longer than the traffic takes on a busy machine.
const LIMITS: [(i64, i64); 6] = [
    (220, 100_000),
    (260, 100_000),
    (300, 110_000),
    (150, 100_000),
    (280, 104_000),
    (180, 100_000),
];
const SHORTEST: i64 = 100_000;
const LONGEST: i64 = 110_000;
/// The least calls of a traffic, and the least time
const CALLS: usize = 300;
const TIME: Duration = millis(1500);
const CALLERS: u64 = 8;
/// The limiter that is reset.
const RESET: usize = 3;

/// The permits that callers keep of each limiter.
type Kept = [i64; LIMITS.len()];

pub struct Fleet<'a> {
    pub masters: Vec<&'a RedisServer>,
    /// Two connections: neither waits for the other.
    pub stores: [RedisStore; 2],
    pub names: [String; LIMITS.len()],
}

impl Fleet<'_> {
    /// Runs the traffic and checks it. Returns how often a call was a repetition.
    ///
    /// Only the pauses of the traffic sleep; at its end an interval passes, from the view of the
    /// logs.
    pub async fn run(&self, seed: u64, fault: impl AsyncFn(&mut Random)) -> usize {
        let mut random = Random(seed);
        let limiters: Vec<Vec<_>> = (self.stores.iter())
            .map(|store| {
                let limiter = |name| RateLimiter::new(store, name).unwrap();
                self.names.iter().map(|name| limiter(name)).collect()
            })
            .collect();
        for (limiter, limit) in limiters[0].iter().zip(LIMITS) {
            assert!(limiter.try_set_rate(limit_of(limit)).await.unwrap());
        }
        let mut feeds: Vec<_> = self
            .masters
            .iter()
            .map(|master| Feed::open(master))
            .collect();
        let mut record = Record::default();
        let (mut kept, mut reset) = ([0; LIMITS.len()], BTreeSet::new());
        let mut whole = 0;
        for phase in 0..2 {
            if phase == 1 {
                let limiter = &limiters[0][RESET];
                assert!(limiter.reset_rate(limit_of(LIMITS[RESET])).await.unwrap());
                reset.insert(log_of(&self.names[RESET]));
            }
            let received = traffic(&limiters, &mut random, &fault).await;
            for (kept, received) in kept.iter_mut().zip(received) {
                *kept += received;
            }
            let [one, other] = &self.stores;
            tokio::join!(one.close(), other.close());
            assert_eq!(
                (one.health().lost_receipts, other.health().lost_receipts),
                (0, 0)
            );
            for (feed, master) in feeds.iter_mut().zip(&self.masters) {
                for seen in feed.until_now(master) {
                    record.read(&seen);
                }
            }
            // In this order: what is younger at the end was in its logs when they were read.
            let logs = self.logs();
            whole += record.check_whole(self.now() - SHORTEST, &reset, &logs);
        }
        assert!(whole > 10, "{whole} lists were there to be looked at");

        for ((name, (rate, interval)), kept) in self.names.iter().zip(LIMITS).zip(kept) {
            let log = log_of(name);
            record.check_never_over(&log, rate, interval);
            // Grants without a holder were given back, and those with one were not.
            assert_eq!(record.grants.kept(&log), kept, "{log}");
        }
        let given_back = record.grants.given_back();
        println!(
            "{} permits kept, {given_back} entries given back, {} calls came again",
            record.grants.granted_permits(),
            record.resent,
        );
        assert!(given_back > 10, "{given_back}");
        self.pass(LONGEST + LONGEST / 10);
        for (limiter, (rate, _)) in limiters[1].iter().zip(LIMITS) {
            let left = free(limiter).await;
            assert_eq!(i64::try_from(left), Ok(rate), "{limiter:?}");
        }
        record.resent
    }

    /// The servers' time in ms; they run on one machine.
    fn now(&self) -> i64 {
        self.masters[0].micros() / 1000
    }

    /// Lets so many ms pass, from the view of the logs.
    fn pass(&self, time: i64) {
        const MOVE: &str = include_str!("../../laws/move.lua");
        let time = time.to_string();
        for log in self.names.iter().map(|name| log_of(name)) {
            let moved = (self.masters.iter())
                .filter(|it| it.command(&["EVAL", MOVE, "1", &log, &time]) == Reply::Nil);
            // Of the others it is: MOVED.
            assert_eq!(moved.count(), 1, "{log}");
        }
    }

    /// All that the logs hold.
    fn logs(&self) -> BTreeMap<Place, i64> {
        let mut has = BTreeMap::new();
        for log in self.names.iter().map(|name| log_of(name)) {
            for master in &self.masters {
                // Of the others it is: MOVED.
                if let Reply::Array(entries) =
                    master.command(&["ZRANGE", &log, "0", "-1", "WITHSCORES"])
                {
                    for entry in entries.chunks(2) {
                        let [Reply::Bulk(member), score] = entry else {
                            panic!("{entry:?}")
                        };
                        has.insert(
                            (log.clone(), member.clone()),
                            score.to_string().parse().unwrap(),
                        );
                    }
                }
            }
        }
        has
    }
}

fn limit_of((rate, interval): (i64, i64)) -> Limit {
    Limit::new(rate as u64, millis(interval as u64))
}

fn log_of(name: &str) -> String {
    format!("{name}:permits")
}

/// Callers on both stores; returns what they keep.
async fn traffic(
    limiters: &[Vec<RateLimiter>],
    random: &mut Random,
    fault: &impl AsyncFn(&mut Random),
) -> Kept {
    let (began, calls) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let limiters = limiters[caller as usize % limiters.len()].clone();
            let random = Random(random.draw());
            let (calls, over) = (Arc::clone(&calls), Arc::clone(&over));
            tokio::spawn(call(Arc::from(limiters), random, calls, over))
        })
        .collect();
    while began.elapsed() < TIME || calls.load(Ordering::Relaxed) < CALLS {
        assert!(began.elapsed() < LONG, "{calls:?}");
        fault(random).await;
        // Between two faults there is time to go on, on a slow machine, too.
        let before = calls.load(Ordering::Relaxed);
        tokio::time::sleep(millis(40 + random.below(80))).await;
        until("calls go on", async || {
            calls.load(Ordering::Relaxed) >= before + 30
        })
        .await;
    }
    over.store(true, Ordering::Relaxed);
    let mut kept = [0; LIMITS.len()];
    for caller in callers {
        for (kept, received) in kept.iter_mut().zip(caller.await.unwrap()) {
            *kept += received;
        }
    }
    kept
}

async fn call(
    limiters: Arc<[RateLimiter]>,
    mut random: Random,
    calls: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
) -> Kept {
    let mut kept = [0; LIMITS.len()];
    while !over.load(Ordering::Relaxed) {
        calls.fetch_add(1, Ordering::Relaxed);
        let (which, all) = list(&limiters, &mut random);
        let permits = 1 + random.below(4) as u32;
        let mut costs: Vec<_> = which.iter().map(|_| permits).collect();
        let millis = Duration::from_millis;
        let decision = match random.below(8) {
            // Dropped somewhere on the way.
            0 => {
                let max_wait = Duration::from_micros(random.below(1500));
                let call = all.try_acquire_each(&costs);
                tokio::time::timeout(max_wait, call).await.ok()
            }
            1 => {
                let max_wait = millis(random.below(60));
                let call = all.try_acquire_for(permits, millis(500));
                tokio::time::timeout(max_wait, call).await.ok()
            }
            2 => Some(
                all.try_acquire_for(permits, millis(random.below(300)))
                    .await,
            ),
            _ => {
                costs = which.iter().map(|_| 1 + random.below(4) as u32).collect();
                Some(all.try_acquire_each(&costs).await)
            }
        };
        match decision {
            Some(Ok(Decision::Allow(grant))) if random.one_in(5) => all.give_back(&grant),
            Some(Ok(Decision::Allow(_))) => {
                for (limiter, cost) in which.iter().zip(costs) {
                    kept[*limiter] += i64::from(cost);
                }
            }
            // An error took nothing: what it may have taken is given back.
            Some(Ok(Decision::Deny(_)) | Err(_)) | None => {}
        }
        // The traffic's pace.
        tokio::time::sleep(millis(random.below(25))).await;
    }
    kept
}

/// Up to three limiters, in any order: their numbers, and all of them together.
pub fn list(limiters: &[RateLimiter], random: &mut Random) -> (Vec<usize>, AllOf) {
    let mut which: Vec<_> = (0..limiters.len()).collect();
    while which.len() > 1 && (which.len() > 3 || random.one_in(3)) {
        which.remove(random.below(which.len() as u64) as usize);
    }
    let by = random.below(which.len() as u64) as usize;
    which.rotate_left(by);
    let all = RateLimiter::all(which.iter().map(|limiter| &limiters[*limiter]));
    (which, all.unwrap())
}
