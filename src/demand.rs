//! The request to a store: an [`Acquire`] of [`LimiterCharge`]s, each of a [`Limiter`].

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use crate::{
    clock,
    compiled_limit::{CompiledLimit, ForRules, Limiter},
    error::Error,
    failure_policy::FailurePolicy,
    limit::LimitSource,
    list::List,
    name::Name,
    receipt::{PermitId, Receipt, TakenFrom},
};

/// A list of charges, never empty, granted together or not at all.
#[derive(Clone, Debug)]
pub struct Acquire {
    pub(crate) first: LimiterCharge,
    /// The others, each of another limiter.
    pub(crate) rest: Vec<LimiterCharge>,
    /// The answer if the store cannot decide; `None` hands the error to the caller.
    pub(crate) on_failure: Option<FailurePolicy>,
    /// Set if the caller wants the number of permits left.
    pub(crate) wants_remaining: bool,
    /// The longest wait in a queue for permits; `None` waits for none.
    pub(crate) max_wait: Option<MaxWait>,
    /// The time since which its caller waits for the store; `None` until the store is called.
    pub(crate) asked_at: Option<Instant>,
    /// Set when its caller leaves before any call was sent for it, so that it took nothing.
    pub(crate) unsent: OnceLock<()>,
}

/// The longest time that a caller waits for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxWait {
    /// `None` waits without end.
    pub(crate) longest: Option<Duration>,
    /// The number of callers that may wait already; more turn it away.
    pub(crate) queue: Option<usize>,
    /// Set if every other time slice is left to other processes: see `own_turn`.
    pub(crate) yields: bool,
}

impl MaxWait {
    pub(crate) const ENDLESS: Self = Self {
        longest: None,
        queue: None,
        yields: false,
    };

    pub(crate) const fn of(longest: Duration) -> Self {
        Self {
            longest: Some(longest),
            ..Self::ENDLESS
        }
    }
}

impl Acquire {
    /// Returns what a limiter without HTTP asks for.
    pub(crate) fn new(
        first: LimiterCharge,
        rest: Vec<LimiterCharge>,
        max_wait: Option<MaxWait>,
    ) -> Self {
        Self {
            first,
            rest,
            on_failure: None,
            wants_remaining: true,
            max_wait,
            asked_at: None,
            unsent: OnceLock::new(),
        }
    }

    /// Returns its charges, each of another limiter.
    pub fn charges(&self) -> impl Iterator<Item = &LimiterCharge> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Checks that the limits that come from the caller can be counted.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.charges().try_for_each(LimiterCharge::check)
    }

    /// Returns the receipts of its calls, which are still to be sent or may be under way.
    pub(crate) fn receipts(&self) -> List<Receipt> {
        let made = Some(self.asked_at.unwrap_or_else(clock::moment));
        self.charges()
            .map(|charge| charge.receipt_made(made))
            .collect()
    }

    /// Returns the random bytes that no other acquire has, and that its grants are found by.
    pub fn id(&self) -> [u8; 16] {
        self.first.id.0
    }

    /// Gives it an id that no other acquire has: one for all limiters, as each has its own log.
    pub(crate) fn identify(&mut self, id: PermitId) {
        self.first.id = id;
        self.rest.iter_mut().for_each(|charge| charge.id = id);
    }

    /// Returns whether all of it is shadow, so that nothing can refuse.
    pub(crate) fn is_all_shadow(&self) -> bool {
        self.charges().all(|charge| charge.shadow)
    }

    /// Returns the same without shadow charges, if that makes a difference and leaves something.
    pub(crate) fn without_shadows(&self) -> Option<Self> {
        if self.is_all_shadow() || self.charges().all(|charge| !charge.shadow) {
            return None;
        }
        let mut enforced = self.charges().filter(|charge| !charge.shadow).cloned();
        Some(Self {
            first: enforced.next()?,
            rest: enforced.collect(),
            ..self.clone()
        })
    }
}

/// The permits that an [`Acquire`] takes from one limiter. A handler corrects them by the
/// [`Grant`](crate::Grant).
#[derive(Clone, Debug)]
pub struct LimiterCharge {
    pub(crate) limiter: Limiter,
    pub(crate) permits: u32,
    /// Meaningless until the store has drawn one.
    pub(crate) id: PermitId,
    /// Set if it is taken when there is room, and refuses nothing when there is none.
    pub(crate) shadow: bool,
    /// The score offset in milliseconds of permits that are fetched ahead: see `guard/lease.rs`.
    pub(crate) lead: i64,
    /// Set if it passes uncounted while the store fails.
    pub(crate) allow_on_failure: bool,
    /// Its rules, if there are several.
    pub(crate) rules: Option<ForRules>,
}

impl LimiterCharge {
    /// Returns a charge without an id.
    pub(crate) fn new(limiter: Limiter, permits: u32) -> Self {
        Self {
            limiter,
            permits,
            id: PermitId::NONE,
            shadow: false,
            lead: 0,
            allow_on_failure: false,
            rules: None,
        }
    }

    /// Joins the charge of another rule on the same limiter, in which a request is charged once:
    /// for what `of_both` makes of their permits.
    pub(crate) fn join(&mut self, other: Self, of_both: fn(u32, u32) -> u32) {
        let mut rules = self.rules.take().unwrap_or_else(|| {
            let this = (Arc::clone(self.of()), self.permits);
            Arc::new(vec![this])
        });
        match &other.rules {
            Some(others) => Arc::make_mut(&mut rules).extend_from_slice(others),
            None => Arc::make_mut(&mut rules).push((Arc::clone(other.of()), other.permits)),
        }
        if self.shadow == other.shadow {
            // Only one of them may bring a limit.
            let limit = match self.limit() {
                LimitSource::Store => other.limit(),
                limit => limit,
            };
            self.permits = of_both(self.permits, other.permits);
            // A rule with a stricter policy counts the limiter while the store fails, one that is
            // charged whatever the response is, and one that bans.
            let is_stricter = self.allow_on_failure && !other.allow_on_failure;
            if is_stricter || other.of().is_stricter_than(self.of()) {
                self.allow_on_failure &= other.allow_on_failure;
                self.limiter.of = other.limiter.of;
            }
            if self.limit() != limit {
                self.limiter.of = self.of().by(limit);
            }
        } else if self.shadow {
            // A shadow rule must not refuse through an enforced rule on the same limiter.
            *self = other;
        }
        self.rules = Some(rules);
    }

    /// Returns the same permits of this limiter, by another limit.
    pub(crate) fn by(mut self, limit: LimitSource) -> Self {
        self.limiter.of = self.of().by(limit);
        self
    }

    /// Returns the limit that it is counted by, as its rule or its limiter has it.
    pub(crate) fn of(&self) -> &Arc<CompiledLimit> {
        &self.limiter.of
    }

    /// Returns the name of the limiter.
    pub fn name(&self) -> &Name {
        &self.limiter.name
    }

    /// Returns the source of the limit.
    pub fn limit(&self) -> LimitSource {
        self.limiter.of.limit
    }

    /// Returns how many permits it takes, at least one.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns whether it is taken when there is room, and refuses nothing when there is none.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns the receipt of a call that is still to be sent.
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(Some(clock::moment()))
    }

    /// Checks that the limit that comes from the caller can be counted.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.limit().given() {
            Some(limit) => self.of().check(&limit.stored()),
            None => Ok(()),
        }
    }

    /// Returns the receipt of a call that was made then.
    pub(crate) fn receipt_made(&self, made: Option<Instant>) -> Receipt {
        Receipt {
            limiter: self.limiter.clone(),
            id: self.id,
            permits: self.permits,
            rules: self.rules.clone(),
            interval: Duration::ZERO,
            made,
            taken: None,
            taken_from: TakenFrom::Store,
        }
    }
}

#[cfg(test)]
impl Acquire {
    /// Returns one caller of a call, which waits in a queue or not.
    pub(crate) fn of(charges: impl IntoIterator<Item = LimiterCharge>, waits: bool) -> Self {
        let mut charges = charges.into_iter();
        Self {
            first: charges.next().unwrap(),
            rest: charges.collect(),
            on_failure: None,
            wants_remaining: false,
            max_wait: waits.then_some(MaxWait::ENDLESS),
            asked_at: None,
            unsent: OnceLock::new(),
        }
    }
}

#[cfg(test)]
impl LimiterCharge {
    /// Returns the charge of a limiter of this name, by this limit.
    pub(crate) fn named(name: Name, limit: LimitSource, of: &CompiledLimit, permits: u32) -> Self {
        let of = of.by(limit);
        Self::new(Limiter { name, of }, permits)
    }

    /// Returns the same permits of another limiter.
    pub(crate) fn renamed(mut self, name: Name) -> Self {
        self.limiter.name = name;
        self
    }

    /// Returns the same permits, counted in another way.
    pub(crate) fn counted(mut self, change: impl FnOnce(&mut CompiledLimit)) -> Self {
        change(Arc::make_mut(&mut self.limiter.of));
        self
    }

    /// Returns the same permits, counted by another algorithm.
    pub(crate) fn counted_by(self, algorithm: crate::limit::Algorithm) -> Self {
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
