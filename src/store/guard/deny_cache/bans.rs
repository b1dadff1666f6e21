//! Refuses banned callers without asking the store, and counts refusals that never reach the store.
//!
//! A ban is found by the name of its limiter, for a request of any cost and any list. It is in
//! force until its end, unless another process ends it. To notice that, one request is sent to the
//! store before the cap is over; all others are refused meanwhile, also while the store fails.
//!
//! Refusals that the deny cache repeats count towards a ban. The next call of the limiter reports
//! them to the store. A request whose refusal would cause a ban, as far as this process knows, is
//! sent instead of being refused here.

use std::{
    mem,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use super::generations::{Generations, Seen};
use crate::{
    store::guard::{
        Cache, cache,
        clock::{StoreClock, StoreInstant},
    },
    sync::lock,
    values::{
        List,
        charge::{Charge, Standing},
        clock::Clock,
        compiled_limit::CompiledLimit,
        decision::{Charges, Refusal, Source},
        demand::Demand,
        limit::Ban,
        name::Name,
    },
};

/// The bans and the refusals that this process knows.
pub(crate) struct Bans {
    /// Created with the first call of a limit with a ban.
    known: OnceLock<Cache<Name, Arc<Mutex<KnownCaller>>>>,
    most: usize,
    /// The time after which the store is asked again. If it is zero, no ban is remembered, and only
    /// the refusals of callers that waited are counted here.
    cap: Duration,
    generations: Generations,
    /// The clock of the logs.
    clock: StoreClock,
    /// Set if windows end by that clock, too.
    ends_windows: bool,
}

/// The ban and the refusals of the caller of one limiter.
struct KnownCaller {
    ban: Option<KnownBan>,
    /// The refusals that counted in the store, as it said last.
    counted: RefusalCount,
    /// The refusals answered from memory since then, from the first on.
    carried: RefusalCount,
}

/// A number of refusals, and the time from which they count.
struct RefusalCount {
    number: u32,
    since: StoreInstant,
}

/// A ban in force. Durations count from `asked`, when the call that found it was made.
struct KnownBan {
    asked: StoreInstant,
    /// When the reply came.
    received: Duration,
    /// When the ban ends at the earliest.
    left: Duration,
    standing: Standing,
    /// When a caller last asked whether it is still in force.
    asked_again: StoreInstant,
}

/// The bans of a demand's limits, as this process knows them.
pub(crate) enum BanLookup {
    Unknown,
    /// The demand must be sent to the store, to see whether a ban is still in force.
    AskStore,
    Banned(Refusal),
}

/// Refusals that a call reports to the store, and the age of the first in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    pub(crate) number: u32,
    pub(crate) age: u64,
    pub(crate) since: Option<StoreInstant>,
}

/// The state of the ban of one limiter, as a call found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BanState {
    /// Milliseconds until the ban ends; 0 for none.
    pub(crate) left: i64,
    /// Milliseconds until a banned caller may come back.
    pub(crate) back: i64,
    /// How many refusals count.
    pub(crate) strikes: u32,
}

/// A call of limits with a ban: when it was made, and the refusals that it reports.
pub(crate) struct BanCall {
    seen: Option<Seen>,
    at: List<StoreInstant>,
    pub(crate) carried: List<Carried>,
}

impl Bans {
    /// Remembers at most this many callers.
    pub(super) fn new(
        most: usize,
        cap: Duration,
        own_clock: Option<Arc<dyn Clock>>,
        ends_windows: bool,
    ) -> Self {
        Self {
            most,
            known: OnceLock::new(),
            cap,
            generations: Generations::default(),
            clock: StoreClock { own: own_clock },
            ends_windows,
        }
    }

    /// Forgets what is known of this name: a verb may have changed it.
    pub(super) fn changed(&self, name: &Name) {
        if let Some(known) = self.known.get() {
            self.generations.changed(name);
            known.remove(name);
        }
    }

    /// Begins a call of limits with a ban: returns the refusals that it reports, which no other
    /// call does then.
    pub(crate) fn ask(&self, first: &Demand) -> BanCall {
        let carried = first.charges().map(|charge| {
            let Some((known, ban)) = self.get(charge).zip(charge.compiled().ban) else {
                return Carried::default();
            };
            let (mut known, clock) = (lock(&known), self.clock_of(charge.compiled()));
            known.forget_old(clock, ban);
            let number = mem::take(&mut known.carried.number);
            let age = clock.steady_elapsed(&known.carried.since).as_millis();
            let age = u64::try_from(age).unwrap_or(u64::MAX);
            Carried {
                number,
                age,
                since: Some(known.carried.since),
            }
        });
        BanCall {
            carried: carried.collect(),
            seen: (!self.cap.is_zero())
                .then(|| self.generations.see(first.charges().map(Charge::name))),
            at: first
                .charges()
                .map(|charge| self.clock_of(charge.compiled()).now())
                .collect(),
        }
    }

    /// Takes back the refusals of a call that was not carried out: the next one reports them.
    pub(crate) fn put_back(&self, first: &Demand, asked: &BanCall) {
        let is_current = |seen: &Seen| self.generations.is_current(seen);
        if !asked.seen.as_ref().is_none_or(is_current) {
            // A verb has cleared them meanwhile.
            return;
        }
        for (charge, carried) in first.charges().zip(&asked.carried) {
            let Some(since) = carried.since.filter(|_| carried.number > 0) else {
                continue;
            };
            let known = self.get_or_make(charge);
            let mut known = lock(&known);
            known.carried = RefusalCount {
                number: known.carried.number.saturating_add(carried.number),
                since,
            };
        }
    }

    /// Remembers the bans that a call has found. `charges` are those of its first caller.
    pub(crate) fn learn(
        &self,
        first: &Demand,
        asked: &BanCall,
        found: &[BanState],
        charges: &[Charge],
    ) {
        let is_current = |seen: &Seen| self.generations.is_current(seen);
        if !asked.seen.as_ref().is_some_and(is_current) {
            return;
        }
        let each = first.charges().zip(asked.at.iter().zip(found));
        for (charge, (at, found)) in each.filter(|(charge, _)| charge.compiled().ban.is_some()) {
            let (known, clock) = (self.get_or_make(charge), self.clock_of(charge.compiled()));
            let mut known = lock(&known);
            let mut charges = charges.iter();
            let answered = charges.find(|answered| answered.limiter.is_same(&charge.limiter));
            let left = Duration::from_millis(u64::try_from(found.left).unwrap_or(0));
            let back = Duration::from_millis(u64::try_from(found.back).unwrap_or(0));
            known.counted = RefusalCount {
                number: found.strikes,
                since: *at,
            };
            known.ban = answered
                .filter(|_| !left.is_zero())
                .map(|answered| KnownBan {
                    asked: *at,
                    received: clock.steady_elapsed(at),
                    left: left.saturating_sub(clock.slack()),
                    standing: Standing {
                        remaining: None,
                        refused: true,
                        banned: true,
                        wait: Some(back),
                        ..answered.standing
                    },
                    asked_again: *at,
                });
            if known.ban.is_some() {
                known.carried.number = 0;
            }
        }
    }

    /// Returns what is known of the bans of a demand's limits. `asks_again` is false while the
    /// store cannot be asked.
    pub(super) fn find(&self, demand: &Demand, asks_again: bool) -> BanLookup {
        let (mut charges, mut longest) = (Charges::default(), Duration::ZERO);
        for charge in demand.charges().filter(|charge| !charge.shadow) {
            let Some(known) = self.get(charge) else {
                continue;
            };
            let (mut known, clock) = (lock(&known), self.clock_of(charge.compiled()));
            let Some(ban) = &mut known.ban else {
                continue;
            };
            let elapsed = clock.steady_elapsed(&ban.asked);
            if clock.elapsed(&ban.asked) >= ban.left {
                known.ban = None;
                continue;
            }
            if asks_again && clock.elapsed(&ban.asked_again) >= self.cap / 4 * 3 {
                ban.asked_again = clock.now();
                return BanLookup::AskStore;
            }
            let wait = ban.standing.wait.unwrap_or_default() + ban.received;
            let wait = wait.saturating_sub(elapsed);
            longest = longest.max(wait);
            charges.push(charge.clone().standing_so(Standing {
                wait: Some(wait),
                ..ban.standing
            }));
        }
        if charges.is_empty() {
            BanLookup::Unknown
        } else {
            BanLookup::Banned(Refusal::banned(charges, longest, Source::Cache))
        }
    }

    /// Counts a refusal that will be answered from memory. Returns false, and counts nothing, if
    /// it would ban its caller: the store must decide then.
    pub(super) fn repeats(&self, demand: &Demand, refusal: &mut Refusal) -> bool {
        let is_last = |known: &mut KnownCaller, charge: &Charge, ban: Ban| {
            known.forget_old(self.clock_of(charge.compiled()), ban);
            let before = known.counted.number.saturating_add(known.carried.number);
            before.saturating_add(1) >= ban.after
        };
        let mut each = self.each_without_room(demand, refusal).into_iter();
        if each.any(|(charge, ban)| is_last(&mut lock(&self.get_or_make(charge)), charge, ban)) {
            return false;
        }
        self.count(demand, refusal);
        true
    }

    /// Counts a refusal by each limit without room, for the next call to report.
    pub(crate) fn count(&self, demand: &Demand, refusal: &mut Refusal) {
        for (charge, ban) in self.each_without_room(demand, refusal) {
            let known = self.get_or_make(charge);
            let mut known = lock(&known);
            let clock = self.clock_of(charge.compiled());
            known.forget_old(clock, ban);
            let carried = &mut known.carried;
            if carried.number == 0 {
                carried.since = clock.now();
            }
            carried.number = carried.number.saturating_add(1);
        }
    }

    fn each_without_room<'a>(
        &self,
        demand: &'a Demand,
        refusal: &mut Refusal,
    ) -> List<(&'a Charge, Ban)> {
        let each = demand.charges().filter_map(|charge| {
            let ban = charge.compiled().ban?;
            refusal.without_room(&charge.limiter)?;
            Some((charge, ban))
        });
        each.collect()
    }

    fn get(&self, charge: &Charge) -> Option<Arc<Mutex<KnownCaller>>> {
        let known = self
            .known
            .get()
            .filter(|_| charge.compiled().ban.is_some())?;
        known.get(charge.name())
    }

    fn get_or_make(&self, charge: &Charge) -> Arc<Mutex<KnownCaller>> {
        let known = self.known.get_or_init(|| cache(0, self.most));
        known.get(charge.name()).unwrap_or_else(|| {
            let since = self.clock_of(charge.compiled()).now();
            let none = || RefusalCount { number: 0, since };
            let new = Arc::new(Mutex::new(KnownCaller {
                ban: None,
                counted: none(),
                carried: none(),
            }));
            known.insert(charge.name().clone(), Arc::clone(&new));
            new
        })
    }

    fn clock_of(&self, of: &CompiledLimit) -> &StoreClock {
        if !self.ends_windows && of.counting.algorithm.facts().waits_by_server {
            &StoreClock::SERVER
        } else {
            &self.clock
        }
    }
}

impl KnownCaller {
    /// Forgets refusals that no longer count.
    fn forget_old(&mut self, clock: &StoreClock, ban: Ban) {
        let within = Duration::from_millis(ban.millis()[0].unsigned_abs());
        for count in [&mut self.counted, &mut self.carried] {
            if clock.elapsed(&count.since) >= within {
                count.number = 0;
            }
        }
    }
}
