//! L4 on real concurrency: whatever several handles of one server answer to many callers at once,
//! the bare store could have answered, one caller after the other.
//!
//! Everything that the handles are asked is recorded, with when it began and when it was answered,
//! and so is what the server shows of the calls that they make. A history is legal if there is an
//! order of its steps that respects these times and in which the model answers the same.

mod check;
mod hints;
mod record;
mod recorded;
mod spec;
mod steps;
mod ways;
mod wrong;

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use self::{
    check::{Verdict, check},
    hints::{Shown, client_id},
    record::{Came, Event, Moment, Outcome, Recorder, Tape, What},
    recorded::{Counted, History},
    steps::{Answer, Asked, Of, Step, is_repeated_at_once},
};
use super::{RedisStore, RedisStoreBuilder};
use crate::{
    limiter::RateLimiter,
    store::{Op, OpResult, sealed::Sealed},
    values::{
        charge::{Charge, PermitId},
        clock::{Clock, ManualClock},
        decision::{Charges, Decision, Grant, Source},
        demand::{Demand, MaxWait},
        error::Error,
        failure_policy::FailurePolicy,
        limit::Limit,
        name::Name,
    },
};
use kit::{
    RedisServer,
    monitor::Feed,
    random::{Random, seed, setting},
    unique,
};

const HANDLES: usize = 3;
const TASKS: usize = 3;
const STEPS: usize = 30;

/// Which guards a handle has, and how they are set: a new guard is one more field here, and one
/// more loop in `all`.
#[derive(Clone, Copy, Debug)]
struct Guards {
    deny_cache: Duration,
    deadline: Duration,
}

impl Guards {
    /// Every combination.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for deny_cache in [0, 15, 1000] {
            // The one is met now and then, the other never.
            for deadline in [2, 20_000] {
                all.push(Self {
                    deny_cache: Duration::from_millis(deny_cache),
                    deadline: Duration::from_millis(deadline),
                });
            }
        }
        all
    }

    fn callers(self) -> &'static [Callers] {
        if self.deadline < Duration::from_secs(1) {
            &[Callers::Hasty]
        } else {
            &[Callers::Calm, Callers::Hasty]
        }
    }

    fn put_on(self, store: RedisStoreBuilder) -> RedisStoreBuilder {
        // A busy machine is no fault of the server's.
        store
            .response_timeout(Duration::from_secs(20))
            .connect_timeout(Duration::from_secs(20))
            .deadline(self.deadline)
            .deny_cache(self.deny_cache)
    }
}

/// Whether some callers do not wait for their answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Callers {
    /// None: then it is soon known what has arrived of all that was given back
    Calm,
    /// Some drop their calls, or have deadlines that are met: what may have been taken for them is
    /// given back twice, the second time a second later
    Hasty,
}

/// What the tasks of one history share.
struct Play {
    callers: Callers,
    tape: Arc<Tape>,
    clock: Option<ManualClock>,
    handles: Vec<Handle>,
    /// Receipts that are not settled yet.
    receipts: Mutex<Vec<Charge>>,
    limits: [Limit; 3],
    /// How often one was set.
    changes: AtomicU64,
}

struct Handle {
    store: Recorder,
    limiters: [RateLimiter; 2],
}

impl Play {
    fn new(
        server: &RedisServer,
        guards: Guards,
        callers: Callers,
        by_hand: bool,
        random: &mut Random,
    ) -> Self {
        let clock = by_hand.then(ManualClock::new);
        let tape = Tape::new(clock.clone());
        let names = [unique("history"), unique("history")];
        let handles = (0..HANDLES).map(|handle| {
            let store = guards.put_on(RedisStore::builder(server.url()));
            let store = store.client_id(&client_id(handle));
            let store = match &clock {
                Some(clock) => store.client_clock(clock.clone()),
                None => store,
            };
            let store = store.build().unwrap();
            let store = Recorder::new(handle, store, Arc::clone(&tape));
            let limiters = [0, 1].map(|limiter| RateLimiter::new(&store, &names[limiter]).unwrap());
            Handle { store, limiters }
        });
        Self {
            callers,
            handles: handles.collect(),
            tape,
            clock,
            receipts: Mutex::default(),
            changes: AtomicU64::new(0),
            limits: [(); 3].map(|()| {
                // What is lost for good is seen at the end only if it has not expired by then.
                let interval = match callers {
                    Callers::Calm => [20, 60, 60, 300][random.place(4)],
                    Callers::Hasty => [20, 300, 60_000][random.place(3)],
                };
                Limit::new(3 + random.below(4), Duration::from_millis(interval))
            }),
        }
    }

    /// Many tasks at once, until each has taken its steps.
    async fn play(self: &Arc<Self>, seed: u64) {
        for limiter in &self.handles[0].limiters {
            assert!(limiter.try_set_rate(self.limits[0]).await.unwrap());
        }
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..HANDLES * TASKS {
            let world = Arc::clone(self);
            let mut random = Random(seed ^ (task as u64 + 1) << 32);
            tasks.spawn(async move {
                for _ in 0..STEPS {
                    world.step(task % HANDLES, &mut random).await;
                    let pause = [0, 0, 0, 1, 3][random.place(5)];
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(60), tasks.join_all());
        if all.await.is_err() {
            panic!("still waiting: {}", self.tape.unanswered());
        }
    }

    /// Waits until all that is on its way has arrived, and counts what is left.
    async fn finish(&self) {
        for handle in &self.handles {
            handle.store.close().await;
        }
        for handle in &self.handles {
            for limiter in &handle.limiters {
                limiter.available_permits().await.unwrap();
            }
        }
    }

    /// Moves the clock now and then, if it is moved by hand. Which milliseconds it showed.
    async fn move_clock(&self, mut random: Random, done: &AtomicBool) -> Vec<i64> {
        let Some(clock) = &self.clock else {
            return Vec::new();
        };
        let mut shown = vec![millis(clock.now())];
        while !done.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            clock.advance(Duration::from_millis([0, 1, 2, 7, 25][random.place(5)]));
            shown.push(millis(clock.now()));
        }
        shown.dedup();
        shown
    }

    async fn step(&self, handle: usize, random: &mut Random) {
        let Handle { store, limiters } = &self.handles[handle];
        let limiter = &limiters[usize::from(random.below(4) == 0)];
        let permits = 1 + [0, 0, 0, 1, 1, 2, 6][random.place(7)];
        let answer = match random.below(100) {
            0..45 => limiter.try_acquire_many(permits).await.ok(),
            45..53 => {
                let all = RateLimiter::all(limiters).unwrap();
                all.try_acquire_many(permits).await.ok()
            }
            53..62 => {
                let max_wait = Duration::from_millis(5 + random.below(60));
                limiter.try_acquire_for(permits, max_wait).await.ok()
            }
            // As a layer asks.
            62..70 => {
                let store = store.handle().0;
                let mut demand = Demand::new(Charges::one(limiter.charge(permits).unwrap()), None);
                demand.on_failure = Some(FailurePolicy::Allow);
                let decided = match store.decide_at_once(&mut demand) {
                    Some(decision) => decision,
                    None => store.acquire(demand).await,
                };
                decided.ok()
            }
            70..74 if self.callers == Callers::Hasty => {
                dropped(limiter.try_acquire_many(permits), random).await
            }
            74..78 if self.callers == Callers::Hasty => {
                let waits = limiter.try_acquire_for(permits, Duration::from_secs(60));
                dropped(waits, random).await
            }
            70..92 => {
                let settled = self.settle(limiters, random);
                if let (Some(limiter), Callers::Calm, 0) = (settled, self.callers, random.below(2))
                {
                    // What is refused while it is on its way must not be repeated when it has
                    // arrived.
                    let _ = limiter.try_acquire_many(permits).await;
                    store.close().await;
                    limiter.try_acquire_many(permits).await.ok()
                } else {
                    None
                }
            }
            92..95 => {
                let limit = self.limit(random);
                match random.below(6) {
                    0 => limiter.set_rate(limit).await.unwrap(),
                    1..5 => assert!(limiter.update_rate(limit).await.unwrap()),
                    _ => assert!(limiter.reset_rate(limit).await.unwrap()),
                }
                None
            }
            _ => {
                limiter.available_permits().await.unwrap();
                None
            }
        };
        if let Some(Decision::Allow(grant)) = answer {
            let receipts = grant.taken().cloned();
            self.receipts.lock().unwrap().extend(receipts);
        }
    }

    /// A limit that no other call sets, by its keep-alive time: so it is known which call set it.
    fn limit(&self, random: &mut Random) -> Limit {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        let keep_alive = Duration::from_secs(3600) + Duration::from_millis(number);
        let limit = self.limits[random.place(self.limits.len())];
        limit.keep_alive(keep_alive).unwrap()
    }

    /// Settles a receipt of any handle, usually at less than it took. Returns its limiter.
    fn settle<'a>(
        &self,
        limiters: &'a [RateLimiter; 2],
        random: &mut Random,
    ) -> Option<&'a RateLimiter> {
        let receipt = {
            let mut receipts = self.receipts.lock().unwrap();
            // One of the latest, which may still be in use.
            let back = random.place(receipts.len().clamp(1, 4));
            let place = receipts.len().checked_sub(1 + back)?;
            receipts.remove(place)
        };
        let mut limiters = limiters.iter();
        let limiter = limiters.find(|limiter| limiter.name() == receipt.name().as_str())?;
        let grant = Grant::new(Charges::one(receipt), Source::Store);
        limiter.settle(&grant, [0, 0, 0, 1, 5][random.place(5)]);
        Some(limiter)
    }

    fn history(&self, guards: Guards, shown: Vec<i64>) -> History {
        let name = |limiter: &RateLimiter| limiter.charge(1).unwrap().name().clone();
        let clock = match self.clock {
            Some(_) => Counted::ByHand(shown),
            None => Counted::ByServer,
        };
        let names = self.handles[0].limiters.iter().map(name);
        History::new(self.tape.cut(), names.collect(), clock, guards.deny_cache)
    }
}

/// Polls a call a few times, and drops it.
async fn dropped(
    call: impl Future<Output = Result<Decision, Error>>,
    random: &mut Random,
) -> Option<Decision> {
    let mut call = pin!(call);
    for _ in 0..1 + random.below(4) {
        let polled = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        if let Poll::Ready(answer) = polled {
            return answer.ok();
        }
        tokio::time::sleep(Duration::from_millis(random.below(2))).await;
    }
    None
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// What there was in the histories, so that an empty one does not pass for a legal one.
#[derive(Debug, Default)]
struct Sums(BTreeMap<&'static str, usize>);

impl Sums {
    fn of(history: &History) -> Self {
        let mut sums = Self::default();
        for event in &history.events {
            let what = match &event.what {
                What::Demand(_, Outcome::Nothing) => "dropped",
                What::Demand(_, Outcome::Failed(_)) => "failed",
                What::Demand(demand, Outcome::Decision { decision, .. }) => {
                    let waited = demand.max_wait.is_some();
                    match (decision, decision.source()) {
                        (_, Source::FailurePolicy) => "by policy",
                        (_, Source::Cache) => "repeated",
                        (Decision::Allow(_), _) if waited => "granted in line",
                        (Decision::Deny(_), _) if waited => "refused in line",
                        (Decision::Allow(_), _) => "granted",
                        (Decision::Deny(_), _) => "refused",
                    }
                }
                What::Settle(..) => "settled",
                What::Manage(_, op, _) if op.only_reads() => "counted",
                What::Manage(..) => "changed",
            };
            *sums.0.entry(what).or_default() += 1;
        }
        sums
    }

    fn add(&mut self, other: &Self) {
        for (what, number) in &other.0 {
            *self.0.entry(what).or_default() += number;
        }
    }

    fn number(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// Every combination of guards, as often as `TOWER_RATELIMIT_HISTORIES` says.
fn histories(by_hand: bool) {
    let mut random = Random(seed());
    for _ in 0..setting("TOWER_RATELIMIT_HISTORIES", 1) {
        round(by_hand, &mut random);
    }
}

fn round(by_hand: bool, random: &mut Random) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let server = RedisServer::start();
    let mut feed = Feed::open(&server);
    let recorded = runtime.block_on(async {
        let mut recording = Vec::new();
        for guards in Guards::all() {
            for callers in guards.callers() {
                let world = Play::new(&server, guards, *callers, by_hand, random);
                let (world, done) = (Arc::new(world), Arc::new(AtomicBool::new(false)));
                let moving = {
                    let (world, done, random) = (world.clone(), done.clone(), Random(random.0));
                    tokio::spawn(async move { world.move_clock(random, &done).await })
                };
                world.play(random.0).await;
                // What is waited for then is no business of the next one.
                recording.push(tokio::spawn(async move {
                    world.finish().await;
                    done.store(true, Ordering::Relaxed);
                    (guards, world.history(guards, moving.await.unwrap()))
                }));
            }
        }
        let mut recorded = Vec::new();
        for history in recording {
            recorded.push(history.await.unwrap());
        }
        recorded
    });
    let seen = feed.until_now(&server);
    let shown = Shown::read(recorded.iter().map(|(_, history)| history), &seen);
    let mut all = Sums::default();
    for (guards, mut history) in recorded {
        let sums = Sums::of(&history);
        let hints = shown.show(&mut history);
        match check(&history, &hints) {
            Verdict::Legal(attempts) => println!(
                "{guards:?}: {} events, {attempts} attempts: {:?}",
                history.events.len(),
                sums.0
            ),
            Verdict::Illegal(story) => panic!("{guards:?}: no order is legal: {story}"),
            Verdict::Undecided(story) => panic!("{guards:?}: no legal order found: {story}"),
        }
        assert!(sums.number("repeated") == 0 || !guards.deny_cache.is_zero());
        all.add(&sums);
    }
    // Of those who have little time, all may be too late.
    for what in ["granted", "refused", "settled", "changed"] {
        assert!(all.number(what) > 0, "nothing was {what}");
    }
}

#[test]
fn by_the_servers_clock() {
    histories(false);
}

#[test]
fn by_a_clock_that_is_moved() {
    histories(true);
}
