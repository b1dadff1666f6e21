//! Repeats a refusal without asking the store, while no event known to this process can have freed
//! permits.
//!
//! A refusal carries the first instant at which its permits can be free. Only a release, a change
//! of the limit or a loss of data frees them earlier. If this process does one of these, the
//! refusal is dropped at once. If others do, this process learns of it when it asks the store
//! again, after the cap at the latest.

pub(crate) mod bans;
mod generations;

use std::{
    hash::{BuildHasher, Hash, Hasher},
    mem,
    sync::Arc,
    time::Duration,
};

use self::{
    bans::{BanLookup, Bans},
    generations::{Generations, Seen},
};
use super::{
    Cache, cache,
    clock::{StoreClock, StoreInstant},
};
use crate::{
    store::Listener,
    sync::atomic::{AtomicBool, Ordering},
    values::{
        charge::{Charge, Standing},
        clock::{Clock, moment},
        decision::{Charges, Decision, Refusal, RefusalKind, Source},
        demand::{Demand, MaxWait},
        limit::Limit,
        name::{BuildSpread, Name},
    },
};

/// The largest number of refusals that are kept. Some 500 bytes each for one limiter, its name
/// included: 65 MB where all are.
const MOST_REFUSALS: usize = if cfg!(interleavings) { 16 } else { 1 << 17 };

/// The refusals that a store returned.
pub(crate) struct Refusals {
    /// False until the first refusal, so that until then a request skips the look-up on its way to
    /// leased permits.
    has_any: AtomicBool,
    /// By the hash of the demand; `None` where nothing is repeated.
    kept: Option<Cache<u64, Arc<KnownRefusal>>>,
    /// Counts the refusals: each of them holds it.
    counter: Arc<()>,
    cap: Duration,
    generations: Generations,
    /// The clock of the logs.
    clock: StoreClock,
    /// Set if windows end by that clock, too: there is no server that ends them.
    ends_windows: bool,
    /// The bans, by which callers are refused whatever they ask.
    pub(crate) bans: Arc<Bans>,
}

/// When something was asked.
pub(crate) struct AskedAt {
    seen: Seen,
    at: StoreInstant,
}

impl Refusals {
    /// Repeats a refusal for `cap` at most; never, if that is zero.
    pub(crate) fn new(
        cap: Duration,
        own_clock: Option<Arc<dyn Clock>>,
        ends_windows: bool,
    ) -> Self {
        Self::keeping(MOST_REFUSALS, cap, own_clock, ends_windows)
    }

    fn keeping(
        most: usize,
        cap: Duration,
        own_clock: Option<Arc<dyn Clock>>,
        ends_windows: bool,
    ) -> Self {
        let kept = (!cap.is_zero()).then(|| cache(most, most));
        Self {
            has_any: AtomicBool::new(false),
            kept,
            counter: Arc::default(),
            cap,
            generations: Generations::default(),
            bans: Arc::new(Bans::new(most, cap, own_clock.clone(), ends_windows)),
            clock: StoreClock { own: own_clock },
            ends_windows,
        }
    }

    /// Drops what is known of this name.
    pub(crate) fn changed(&self, name: &Name) {
        if self.kept.is_some() {
            self.generations.changed(name);
        }
    }

    /// Records that a caller asks; `None` where the answer will not be repeated.
    pub(crate) fn ask(&self, demand: &Demand) -> Option<AskedAt> {
        self.kept.as_ref()?;
        let names = demand.charges().map(|charge| charge.name());
        Some(AskedAt {
            seen: self.generations.see(names),
            at: self
                .clock_of(demand)?
                .now_or_since(demand.asked_at.unwrap_or_else(moment)),
        })
    }

    #[cfg(test)]
    pub(crate) fn learns(&self, demand: &Demand, refusal: &Refusal) {
        if let Some(asked) = self.ask(demand) {
            self.learn(demand, asked, refusal);
        }
    }

    /// Learns from the decision of a call that was [asked](Self::ask) for.
    pub(crate) fn decided(&self, demand: &Demand, asked: Option<AskedAt>, decision: &Decision) {
        let mut asked = asked;
        // A lease's limit is that of when it was taken.
        if self.kept.is_some() && decision.source() != Source::Lease {
            for charge in demand.charges() {
                if let Some(Charge { standing, .. }) = decision.answer_to(charge) {
                    let limit = (standing.permits, standing.interval);
                    let answered = asked.as_mut().map(|asked| &mut asked.seen);
                    self.generations.saw_limit(charge.name(), limit, answered);
                }
            }
        }
        match decision {
            // The permits were taken with the lease: nothing has changed.
            Decision::Allow(grant) if grant.source() == Source::Lease => {}
            // Kept refusals of these limiters are outdated, even if a new call would also be
            // refused.
            Decision::Allow(grant) => grant.taken().for_each(|charge| self.changed(charge.name())),
            Decision::Deny(refusal) => {
                if let Some(asked) = asked {
                    self.learn(demand, asked, refusal);
                }
            }
        }
    }

    /// Drops what is known of this name if its limit is not the one that was seen before.
    pub(crate) fn saw_limit(&self, name: &Name, permits: u64, interval: u64) {
        if self.kept.is_some() {
            self.generations.saw_limit(name, (permits, interval), None);
        }
    }

    /// Returns how many refusals are kept, also those that are over.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.counter) - 1
    }

    /// Drops what a settlement makes untrue.
    pub(crate) fn settles(&self, receipt: &Charge) {
        // The store calls its listeners once more when this has arrived: then there is room. That
        // is enough where it is not known whether anything was taken: others may be refused until
        // then, also while the store is silent.
        if receipt.was_answered() {
            self.changed(receipt.name());
        }
    }

    /// Returns the refusal that asking would give, if it is known. It may use up the charges.
    #[inline]
    pub(crate) fn refusal(&self, demand: &mut Demand) -> Option<Refusal> {
        // A caller that misses the first refusal asks the store, as before it.
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        if demand.has_ban() {
            return self.refusal_or_ban(demand);
        }
        let (known, elapsed) = self.known(demand)?;
        Some(known.answer(demand, elapsed))
    }

    /// Returns the same for a caller that limits may ban, and counts it.
    fn refusal_or_ban(&self, demand: &Demand) -> Option<Refusal> {
        match self.bans.find(demand, true) {
            BanLookup::Banned(refusal) => return Some(refusal),
            BanLookup::AskStore => return None,
            BanLookup::Unknown => {}
        }
        let (known, elapsed) = self.known(demand)?;
        let mut refusal = known.refusal(elapsed);
        let is_repeated = self.bans.repeats(demand, &mut refusal);
        is_repeated.then_some(refusal)
    }

    /// Keeps a refusal.
    fn learn(&self, demand: &Demand, asked: AskedAt, refusal: &Refusal) {
        let (Some(kept), Some(clock)) = (&self.kept, self.clock_of(demand)) else {
            return;
        };
        // Those before it may leave, and then it has room earlier.
        if refusal.behind {
            return;
        }
        let received = clock.elapsed(&asked.at);
        let until = match (refusal.kind, refusal.retry_after) {
            (RefusalKind::OverLimit, Some(wait)) => {
                let standings = refusal.charges.iter().flat_map(Charge::standings);
                let waits = standings.filter_map(Standing::retry_after);
                let first = waits.min().unwrap_or(wait).min(wait);
                first.saturating_sub(clock.slack())
            }
            // Until the limit is changed.
            (RefusalKind::AboveRate, _) => self.cap,
            // The call has reported it to `bans`.
            (RefusalKind::Banned, _) => return self.has_any.store(true, Ordering::Relaxed),
            // Not of the store, or not of the limits alone.
            _ => return,
        };
        // A refusal that is over already must not replace a newer one: the wait of a caller that
        // has waited counts from now, and not from when it asked.
        if until <= received || !self.generations.is_current(&asked.seen) {
            return;
        }
        let known = KnownRefusal {
            wants_remaining: demand.wants_remaining,
            asked_for: demand.charges.clone(),
            charges: refusal.charges.clone(),
            retry_after: refusal.retry_after,
            seen: asked.seen,
            // By the clock that its age is read by, or a repeated wait would be too long by what
            // the time of day was set meanwhile.
            received: clock.steady_elapsed(&asked.at),
            asked: asked.at,
            until,
            may_end_sooner: refusal.may_end_sooner(),
            asked_again: AtomicBool::new(false),
            _counter: Arc::clone(&self.counter),
        };
        kept.insert(key(demand), Arc::new(known));
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Returns the refusal that asking would give, and how long ago it was asked for. A waiter gets
    /// it only if there can be no room before its timeout: waiters ahead of it can only delay it.
    /// For more than the limit it always asks: the limit may have been raised, and it would fail
    /// for good.
    #[inline]
    fn known(&self, demand: &Demand) -> Option<(Arc<KnownRefusal>, Duration)> {
        let found = self.find(demand)?;
        let (known, elapsed) = (found.known, found.elapsed);
        let wait = known.retry_after;
        let wait = wait.map(|_| found.certain_for.saturating_sub(elapsed));
        // A waiter is not told to give up by a wait that may end sooner.
        let wait = wait.filter(|_| demand.max_wait.is_none() || !known.may_end_sooner);
        // A clock that is set may show the same time once more.
        let fresh = elapsed.max(found.steady) < self.cap;
        if elapsed >= known.until || !fresh || !gives_up_within(demand.max_wait, wait) {
            return None;
        }
        // One caller refreshes the refusal before it expires. Otherwise all would ask at once, in
        // calls of 64 each.
        let asks = elapsed >= self.cap / 4 * 3 && known.until > self.cap;
        if asks && !known.asked_again.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some((known, elapsed))
    }

    /// Returns the last refusal, if no event known to this process could have freed permits since:
    /// for when the store cannot be asked.
    pub(crate) fn last_known(&self, demand: &Demand) -> Option<Refusal> {
        if let BanLookup::Banned(banned) = self.bans.find(demand, false) {
            return Some(banned);
        }
        if demand.max_wait.is_some() {
            return None;
        }
        let found = self.find(demand).filter(|it| it.elapsed < it.certain_for)?;
        let mut refusal = found.known.refusal(found.elapsed);
        self.bans.count(demand, &mut refusal);
        Some(refusal)
    }

    /// Returns the refusal of this demand, if nothing has changed since it was asked for.
    #[inline]
    fn find(&self, demand: &Demand) -> Option<AgedRefusal> {
        let known = self.kept.as_ref()?.get(&key(demand))?;
        if !known.answers(demand) || !self.generations.is_current(&known.seen) {
            return None;
        }
        let clock = self.clock_of(demand)?;
        let steady = moment().duration_since(known.asked.moment);
        let elapsed = clock.own_elapsed(&known.asked).unwrap_or(steady);
        let wait = known.retry_after;
        Some(AgedRefusal {
            certain_for: wait.map_or(self.cap, |wait| wait.saturating_sub(clock.slack())),
            known,
            elapsed,
            steady,
        })
    }

    /// Returns the clock by which waits are counted; `None` where there are several.
    fn clock_of(&self, demand: &Demand) -> Option<&StoreClock> {
        let by_server = |charge: &Charge| {
            !self.ends_windows && charge.compiled().counting.algorithm.facts().waits_by_server
        };
        if self.clock.own.is_none() || !demand.charges().any(by_server) {
            Some(&self.clock)
        } else if demand.charges().all(by_server) {
            Some(&StoreClock::SERVER)
        } else {
            None
        }
    }
}

impl Listener for Arc<Refusals> {
    fn changed(&self, name: &Name) {
        self.bans.changed(name);
        Refusals::changed(self, name);
    }

    fn room(&self, name: &Name, _undone: bool) {
        Refusals::changed(self, name);
    }
}

/// A refusal that is known, at one moment.
struct AgedRefusal {
    known: Arc<KnownRefusal>,
    /// The time since it was asked for, by the clock of its waits.
    elapsed: Duration,
    /// The same by a clock that never jumps.
    steady: Duration,
    /// The time since then for which another request is certainly refused.
    certain_for: Duration,
}

/// A refusal, and what was asked. Times count from when it was asked.
struct KnownRefusal {
    asked_for: Charges,
    wants_remaining: bool,
    /// Those that it answered: of several calls for one list, the later ones were not made.
    charges: Charges,
    retry_after: Option<Duration>,
    /// The generations in which it was asked.
    seen: Seen,
    asked: StoreInstant,
    received: Duration,
    /// Until when it is certain, except for what others do: of several limits, the first that has
    /// room changes the refusal.
    until: Duration,
    /// Set if places in flight may come back before its wait is over.
    may_end_sooner: bool,
    /// Set if a caller asks already, to know it for longer.
    asked_again: AtomicBool,
    _counter: Arc<()>,
}

impl KnownRefusal {
    /// Returns whether it is the answer to this demand. Ids differ with each caller.
    fn answers(&self, demand: &Demand) -> bool {
        self.wants_remaining == demand.wants_remaining
            && self.asked_for.len() == demand.charges.len()
            && (self.asked_for.iter().zip(demand.charges()))
                .all(|(held, asked)| is_same(held, asked))
    }

    /// Answers a demand with the refusal as it is at another time: one charge in place.
    #[inline]
    fn answer(&self, demand: &mut Demand, elapsed: Duration) -> Refusal {
        let ([known], [asked]) = (&*self.charges, &mut *demand.charges) else {
            return self.refusal(elapsed);
        };
        asked.standing = self.standing(&known.standing, elapsed);
        asked.each = self.each(known, elapsed);
        self.by(mem::take(&mut demand.charges), elapsed)
    }

    /// Returns the refusal as it is at another time.
    fn refusal(&self, elapsed: Duration) -> Refusal {
        let each = self.charges.iter().map(|known| Charge {
            standing: self.standing(&known.standing, elapsed),
            each: self.each(known, elapsed),
            ..known.clone()
        });
        self.by(each.collect(), elapsed)
    }

    #[inline]
    fn by(&self, charges: Charges, elapsed: Duration) -> Refusal {
        let wait = self.retry_after.map(|wait| self.left(wait, elapsed));
        Refusal::by_limits(charges, wait, Source::Cache)
    }

    /// Returns how each of several limits of one of its charges stands then.
    #[inline]
    fn each(&self, known: &Charge, elapsed: Duration) -> Option<Box<[Standing]>> {
        let each = known.each.as_deref()?.iter();
        Some(each.map(|before| self.standing(before, elapsed)).collect())
    }

    /// Returns how a limit of one of its charges stands then.
    #[inline]
    fn standing(&self, before: &Standing, elapsed: Duration) -> Standing {
        let wait = before.wait.map(|wait| self.left(wait, elapsed));
        let wait = wait.filter(|wait| !wait.is_zero());
        Standing {
            wait,
            reset_after: self.left(before.reset_after, elapsed),
            // One of several has room before the others.
            refused: before.refused && (wait.is_some() || before.wait.is_none()),
            ..*before
        }
    }

    /// Returns what is left of a time of the refusal. It counts from when the reply arrived: the
    /// server counted from some time before, so no caller is sent back too early.
    #[inline]
    fn left(&self, time: Duration, elapsed: Duration) -> Duration {
        self.received.saturating_add(time).saturating_sub(elapsed)
    }
}

/// Returns whether a caller gives up before there is room. Where there is never any, none does.
fn gives_up_within(max_wait: Option<MaxWait>, wait: Option<Duration>) -> bool {
    let Some(MaxWait { longest, .. }) = max_wait else {
        return true;
    };
    wait.zip(longest)
        .is_some_and(|(wait, longest)| wait > longest)
}

/// Returns a hash of what the answer depends on, without the parts of a limit that seldom differ
/// alone. Two demands that share one take turns in the cache.
fn key(demand: &Demand) -> u64 {
    let mut state = BuildSpread::new().build_hasher();
    for charge in demand.charges() {
        charge.name().hash(&mut state);
        state.write_u64(charge.limit().given().map_or(0, Limit::permits));
        state.write_u64(charge.compiled().answer_hash);
        state.write_u64(u64::from(charge.permits) << 1 | u64::from(charge.shadow));
    }
    state.write_u64(demand.wants_remaining.into());
    state.finish()
}

/// Returns whether the answer to one of these charges is that to the other. Ids differ.
fn is_same(held: &Charge, asked: &Charge) -> bool {
    (held.permits, held.shadow) == (asked.permits, asked.shadow)
        && held.limiter == asked.limiter
        && (Arc::ptr_eq(held.compiled(), asked.compiled())
            || held.compiled().answers_like(asked.compiled()))
}

#[cfg(test)]
mod tests;
