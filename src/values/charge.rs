//! One charge of a request: what it asks a limiter for, how that limit stands, and what it took:
//! [`Charge`], with its [`Standing`].

mod permit_id;
mod taken;

use std::{
    cmp, fmt, slice,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use self::{
    permit_id::PermitId,
    taken::{OfLease, Settled, Taken, TakenAhead, TakenFrom, Tat},
};
use crate::values::{
    clock::{self, Millis},
    compiled_limit::{CompiledLimit, ForRules, Limiter},
    error::Error,
    limit::{LimitSource, StoredLimit},
    name::Name,
    observe::StateChange,
};

/// The permits that a request takes from one limiter.
///
/// A store answers it in place: so it also says how the limit stands, and settles what it took. Its
/// id exists before it is sent, so a caller that leaves can give back what was taken, if grants
/// have [entries](crate::Algorithm), while its own is not merged with others. Without entries the
/// mark of the answer is needed: with an
/// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) it counts while the window is open,
/// by the calendar while its window is, with [slots](crate::RateLimiter::slots) while the slot
/// counts, and with [`Algorithm::Gcra`](crate::Algorithm::Gcra) while its permits lie ahead. Of all
/// copies of such a charge, only the first settlement counts.
#[derive(Clone)]
pub(crate) struct Charge {
    pub(crate) limiter: Limiter,
    pub(crate) permits: u32,
    /// Meaningless until the store has drawn one.
    pub(crate) id: PermitId,
    /// Set if it is taken when there is room, and refuses nothing when there is none.
    pub(crate) shadow: bool,
    /// Set if it passes uncounted while the store fails.
    pub(crate) allow_on_failure: bool,
    /// The score offset in milliseconds of permits that are fetched ahead: see `guard/lease.rs`.
    pub(crate) lead: i64,
    /// Its rules, if there are several.
    pub(crate) rules: Option<ForRules>,
    /// How its limit stands after the answer, and empty before: several limits as one, with the
    /// longest interval and the fewest permits left.
    pub(crate) standing: Standing,
    /// How each of several limits stands, the closest to exhaustion first.
    pub(crate) each: Option<Box<[Standing]>>,
    /// Since when its call may be under way, if it is settled without an answer.
    pub(crate) made: Option<Instant>,
    /// The mark by which the algorithm finds a grant that has no entry of its own, used by the
    /// first of all copies that settles.
    pub(crate) taken: Option<(Taken, Settled)>,
    /// The origin of its permits, which settles them.
    pub(crate) taken_from: TakenFrom,
}

impl Charge {
    /// Returns a charge without an id.
    pub(crate) fn new(limiter: Limiter, permits: u32) -> Self {
        Self {
            limiter,
            permits,
            id: PermitId::NONE,
            shadow: false,
            allow_on_failure: false,
            lead: 0,
            rules: None,
            standing: Standing::default(),
            each: None,
            made: None,
            taken: None,
            taken_from: TakenFrom::Store,
        }
    }

    /// Joins the charge of another rule on the same limiter, in which a request is charged once.
    /// `of_both` gives the permits of both.
    pub(crate) fn join(&mut self, other: Self, of_both: fn(u32, u32) -> u32) {
        let mut rules = self.rules.take().unwrap_or_else(|| {
            let this = (Arc::clone(self.compiled()), self.permits);
            Arc::new(vec![this])
        });
        match &other.rules {
            Some(others) => Arc::make_mut(&mut rules).extend_from_slice(others),
            None => Arc::make_mut(&mut rules).push((Arc::clone(other.compiled()), other.permits)),
        }
        if self.shadow == other.shadow {
            // Only one of them may bring a limit.
            let limit = match self.limit() {
                LimitSource::Store => *other.limit(),
                limit => *limit,
            };
            self.permits = of_both(self.permits, other.permits);
            // The stricter rule counts: by its policy while the store fails, by charging whatever
            // the response is, or by its ban.
            let is_stricter = self.allow_on_failure && !other.allow_on_failure;
            if is_stricter || other.compiled().is_stricter_than(self.compiled()) {
                self.allow_on_failure &= other.allow_on_failure;
                self.limiter.compiled = other.limiter.compiled;
            }
            if *self.limit() != limit {
                self.limiter.compiled = self.compiled().with_limit(limit);
            }
        } else if self.shadow {
            // A shadow rule must not refuse through an enforced rule on the same limiter.
            *self = other;
        }
        self.rules = Some(rules);
    }

    /// Returns the same permits of this limiter, by another limit.
    pub(crate) fn by(mut self, limit: LimitSource) -> Self {
        self.limiter.compiled = self.compiled().with_limit(limit);
        self
    }

    /// Returns the limit that it is counted by, as its rule or its limiter has it.
    pub(crate) fn compiled(&self) -> &Arc<CompiledLimit> {
        &self.limiter.compiled
    }

    /// Returns the name of the limiter.
    pub(crate) fn name(&self) -> &Name {
        &self.limiter.name
    }

    pub(crate) fn limit(&self) -> &LimitSource {
        &self.limiter.compiled.limit
    }

    /// Checks that the limit that comes from the caller can be counted.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.limit().given() {
            Some(limit) => self.compiled().check(limit),
            None => Ok(()),
        }
    }

    /// Returns whether it is counted by this stored limit as it is.
    pub(crate) fn is_counted_by(&self, stored: &StoredLimit) -> bool {
        let LimitSource::Code(given) = self.limit() else {
            return true;
        };
        let given = given.stored();
        (given.rate, given.interval, given.rate_type)
            == (stored.rate, stored.interval, stored.rate_type)
    }

    /// Returns it as that of a call which is still to be sent.
    pub(crate) fn to_send(&self) -> Self {
        self.made(Some(clock::moment()))
    }

    /// Returns it as that of a call which was made then, and may still be under way.
    pub(crate) fn made(&self, made: Option<Instant>) -> Self {
        Self {
            made,
            ..self.clone()
        }
    }

    /// Returns whether its call may have come before, so that its entry is looked for. In a store
    /// of this process none has: nothing is sent to it twice.
    pub(crate) fn may_have_come(&self) -> bool {
        self.made.is_some()
    }

    /// Returns whether it took permits, or may have, as it has no answer.
    pub(crate) fn took(&self) -> bool {
        self.standing.granted || !self.was_answered()
    }

    /// Returns whether `is` is true of one of its rules, with what that rule takes.
    pub(crate) fn is_of(&self, is: impl Fn(&CompiledLimit, u32) -> bool) -> bool {
        match &self.rules {
            Some(rules) => rules.iter().any(|(of, permits)| is(of, *permits)),
            None => is(self.compiled(), self.permits),
        }
    }

    /// Returns whether responses leave its limit out. A shadow limit is shown to its owner alone.
    pub(crate) fn is_hidden(&self) -> bool {
        self.compiled().hidden || self.shadow
    }

    /// Reports to the observers that it is settled at this many permits.
    pub(crate) fn report(&self, charged: u32) {
        self.compiled().observers.changed(&StateChange::Settled {
            rule: self.compiled().rule(),
            taken: self.permits,
            charged,
        });
    }

    /// Returns whether the answer was received.
    pub(crate) fn was_answered(&self) -> bool {
        self.standing.interval > 0
    }

    /// Returns it with each of its limits as this one.
    pub(crate) fn standing_so(self, standing: Standing) -> Self {
        let limit = self.limit().given().filter(|limit| limit.is_several());
        let each = limit.map(|limit| {
            let parts = limit.parts().rev();
            let each = parts.map(|part| Standing {
                permits: part.permits,
                interval: part.interval,
                ..standing
            });
            each.collect()
        });
        Self {
            standing,
            each,
            ..self
        }
    }

    /// Keeps that it is banned for so long.
    pub(crate) fn ban(&mut self, wait: Duration) {
        let each = self.each.iter_mut().flat_map(|each| each.iter_mut());
        for standing in each.chain([&mut self.standing]) {
            (standing.refused, standing.banned) = (true, true);
            standing.wait = Some(wait);
        }
    }

    /// Returns how each of its limits stands, the closest to exhaustion first.
    pub(crate) fn standings(&self) -> &[Standing] {
        match &self.each {
            Some(each) => each,
            None => slice::from_ref(&self.standing),
        }
    }

    /// Returns how that of its limits stands which is closest to exhaustion.
    pub(crate) fn tightest(&self) -> &Standing {
        self.standings().first().unwrap_or(&self.standing)
    }

    /// Returns the interval of its limit; zero until the grant is received. An extra charge counts
    /// for at least as long, so it may be sent again within that time.
    pub(crate) fn interval(&self) -> Duration {
        self.standing.interval()
    }

    /// Returns whether a part of it is settled in this process.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self.taken_from,
            TakenFrom::Local | TakenFrom::LocalAndStore(_)
        )
    }

    /// Returns the part that must be settled with the store, if any.
    pub(crate) fn of_store(self) -> Option<Self> {
        match self.taken_from {
            TakenFrom::Store | TakenFrom::Lease(_) => Some(self),
            TakenFrom::Local => None,
            TakenFrom::LocalAndStore(sent) => Some(Arc::unwrap_or_clone(sent)),
        }
    }

    /// Returns it as granted with this mark.
    #[cfg(all(test, inside))]
    pub(crate) fn marked(self, taken: Taken) -> Self {
        Self {
            taken: Some((taken, Settled::default())),
            ..self
        }
    }

    /// Returns the mark of the grant, to the first caller of all with a copy of the charge.
    pub(crate) fn claim_mark(&self) -> Option<Taken> {
        let (taken, settled) = self.taken.as_ref()?;
        settled.claim().then_some(*taken)
    }

    /// Orders limits: first those that refuse, the longest wait first, then the others, the
    /// smallest remaining part first. Shadow limits come last.
    pub(crate) fn by_tightness(&self, other: &Self) -> cmp::Ordering {
        let by_limit = || self.tightest().by_tightness(other.tightest());
        self.shadow.cmp(&other.shadow).then_with(by_limit)
    }
}

/// How a limit stands after a decision; all zero before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The permits of one interval, as stored.
    pub(crate) permits: u64,
    pub(crate) interval: Millis,
    /// The permits left, if they were counted.
    pub(crate) remaining: Option<u64>,
    /// If it refused, the time until it has room; else until at least one more permit is free.
    pub(crate) wait: Option<Duration>,
    pub(crate) reset_after: Duration,
    pub(crate) refused: bool,
    /// Set if its rule bans the caller.
    pub(crate) banned: bool,
    /// Set if it was granted: a shadow limit may have granted what its ban would refuse.
    pub(crate) granted: bool,
}

impl Standing {
    /// Orders limits: first those that refuse, the longest wait first, then the others, the
    /// smallest remaining part first.
    pub(crate) fn by_tightness(&self, other: &Self) -> cmp::Ordering {
        let refusal = |limit: &Self| {
            let wait = limit.wait.unwrap_or(Duration::MAX);
            limit.refused.then_some(wait)
        };
        let part = |limit: &Self, of: &Self| {
            let remaining = limit.remaining.unwrap_or(limit.permits);
            u128::from(remaining) * u128::from(of.permits)
        };
        let refusals = refusal(other).cmp(&refusal(self));
        refusals.then_with(|| part(self, other).cmp(&part(other, self)))
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }

    /// Returns how long it takes until at least one more permit is free, of a limit with room.
    pub(crate) fn next_after(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.refused)
    }

    /// Returns how long it takes until there is room, of a limit that had none.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.wait.filter(|_| self.refused)
    }
}

// Names hold identities.
impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("compiled", self.compiled())
            .field("permits", &self.permits)
            .field("shadow", &self.shadow)
            .field("standing", &self.standing)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Charge {
    /// Returns the charge of a limiter of this name, by this limit.
    pub(crate) fn named(
        name: Name,
        limit: LimitSource,
        compiled: &CompiledLimit,
        permits: u32,
    ) -> Self {
        let compiled = compiled.with_limit(limit);
        Self::new(Limiter { name, compiled }, permits)
    }

    /// Returns the same permits of another limiter.
    pub(crate) fn renamed(mut self, name: Name) -> Self {
        self.limiter.name = name;
        self
    }

    /// Returns the same permits, counted in another way.
    pub(crate) fn counted(mut self, change: impl FnOnce(&mut CompiledLimit)) -> Self {
        change(Arc::make_mut(&mut self.limiter.compiled));
        self
    }

    /// Returns the same permits, counted by another algorithm.
    pub(crate) fn counted_by(self, algorithm: crate::values::limit::Algorithm) -> Self {
        self.counted(|of| of.counting.algorithm = algorithm)
    }

    /// Returns a charge as an algorithm sees it, whatever limiter it is of.
    pub(crate) fn plain(limit: LimitSource, permits: u32, id: PermitId) -> Self {
        let name = Name::exact("plain").unwrap();
        Self {
            id,
            ..Self::named(name, limit, &CompiledLimit::unnamed("plain"), permits)
        }
    }
}
