//! What a store is asked for.

use std::{
    any::Any,
    fmt::{self, Debug},
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    error::Error,
    failure_policy::FailurePolicy,
    limit::LimitSource,
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
};

/// What is asked for: a list of charges, never empty, granted together or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) first: Charge,
    /// The others, each of another limiter.
    pub(crate) rest: Vec<Charge>,
    /// What to answer when the store cannot; `None` hands the error to the caller.
    pub(crate) on_failure: Option<FailurePolicy>,
    /// Whether somebody reads how much is left.
    pub(crate) remaining: bool,
    /// How long it waits for permits; `None` takes a refusal for an answer.
    pub(crate) patience: Option<MaxWait>,
    /// Since when its caller waits for the store; `None` until that is asked.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "a store in memory answers at once")
    )]
    pub(crate) asked: Option<Instant>,
}

/// How long a caller waits for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxWait {
    /// Without end if there is none.
    pub(crate) longest: Option<Duration>,
    /// Only if fewer than so many wait already.
    pub(crate) queue: Option<usize>,
}

impl MaxWait {
    pub(crate) const ENDLESS: Self = Self {
        longest: None,
        queue: None,
    };

    pub(crate) const fn of(longest: Duration) -> Self {
        Self {
            longest: Some(longest),
            queue: None,
        }
    }
}

impl Acquire {
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Checks that its limits, as far as the caller has them, can be counted by.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for charge in self.charges() {
            if let Some(limit) = charge.limit().given() {
                charge.name().check(&limit.stored())?;
            }
        }
        Ok(())
    }

    pub(crate) fn receipts(&self) -> List<Receipt> {
        self.charges().map(Charge::receipt).collect()
    }

    /// Gives it an id that no other acquire has: one for all, as each limiter has a log of its own.
    pub(crate) fn identify(&mut self, id: PermitId) {
        for charge in std::iter::once(&mut self.first).chain(&mut self.rest) {
            charge.id = id;
        }
    }

    /// Shares its limiters, as those do who hold it on its way: it is copied, and leaves receipts.
    #[cfg(feature = "redis")]
    pub(crate) fn share(&mut self) {
        for charge in std::iter::once(&mut self.first).chain(&mut self.rest) {
            charge.limiter = Target::Shared(charge.limiter.share());
        }
    }

    /// Whether nothing in it can refuse.
    pub(crate) fn is_trial(&self) -> bool {
        self.charges().all(|charge| charge.shadow)
    }

    /// The same without what is only tried out, where that makes a difference and leaves something.
    pub(crate) fn without_trials(&self) -> Option<Self> {
        if self.is_trial() || self.charges().all(|charge| !charge.shadow) {
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

/// One limiter as a demand names it: what is counted where, and by whose limit. Nothing that is
/// counted stands in it, and nothing of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limiter {
    pub(crate) name: Name,
    pub(crate) limit: LimitSource,
}

impl Limiter {
    /// Whether the other, of the same name in the store, is counted in the same way by the same
    /// limit.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.limit == other.limit
            && self.name.algorithm() == other.name.algorithm()
            && self.name.slots() == other.name.slots()
    }
}

/// The limiter that a charge is for.
///
/// A request names it in place, on the stack. Whoever keeps it shares it: a store in memory hands
/// out the one that it has, so that a hot key allocates none.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a name is not to cost an allocation"
)]
pub(crate) enum Target {
    Named(Limiter),
    Shared(Arc<Limiter>),
}

impl Target {
    /// Returns the limiter as others can hold it, too.
    pub(crate) fn share(&self) -> Arc<Limiter> {
        match self {
            Self::Named(limiter) => Arc::new(limiter.clone()),
            Self::Shared(limiter) => Arc::clone(limiter),
        }
    }
}

impl Deref for Target {
    type Target = Limiter;

    fn deref(&self) -> &Limiter {
        match self {
            Self::Named(limiter) => limiter,
            Self::Shared(limiter) => limiter,
        }
    }
}

/// Permits of one limiter.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) limiter: Target,
    pub(crate) labels: Arc<Labels>,
    pub(crate) permits: u32,
    /// Of no meaning until the store has given it one.
    pub(crate) id: PermitId,
    /// Whether it is taken if there is room, and no reason to refuse if there is none.
    pub(crate) shadow: bool,
    /// By how many milliseconds it is scored ahead: taken for callers that are still to come, see `guard/lease.rs`.
    pub(crate) lead: i64,
    /// For how long permits are taken ahead with these, for callers that are still to come.
    pub(crate) lease: Option<Duration>,
    /// Whether it passes uncounted while the store fails.
    pub(crate) passes: bool,
    /// Whether callers cannot make up keys of its rule.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "a store in memory asks all limiters at once")
    )]
    pub(crate) bounded: bool,
}

/// The policy of a rule as answers first gave it, in their own form: it seldom is another, and each
/// answer has it.
#[derive(Debug, Default)]
pub(crate) struct PolicyField(OnceLock<(u64, Duration, Box<dyn Any + Send + Sync>)>);

impl PolicyField {
    /// Returns the field for a limit, made by `render` where it is not known yet.
    pub(crate) fn of<T: Any + Clone + Send + Sync>(
        &self,
        permits: u64,
        interval: Duration,
        render: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let Some((known, at, field)) = self.0.get() else {
            let field = render()?;
            let _ = self.0.set((permits, interval, Box::new(field.clone())));
            return Some(field);
        };
        match field.downcast_ref::<T>() {
            Some(field) if *known == permits && *at == interval => Some(field.clone()),
            _ => render(),
        }
    }
}

/// How answers and logs call a limit: made once for each rule, and shared by all that is said of it.
pub(crate) struct Labels {
    /// What answers call it; of a `RateLimiter`, its own name.
    pub(crate) name: Arc<str>,
    /// Whether there is a rule: the name of a `RateLimiter` may be somebody's.
    is_rule: bool,
    /// Whether answers do not show its limit.
    pub(crate) hidden: bool,
    /// What each request costs, where it is the same for all: a layer within compares it.
    pub(crate) fixed_cost: Option<u32>,
    /// The policy that answers give for its limit.
    pub(crate) policy: PolicyField,
    /// The warnings that were given, each a bit.
    warned: AtomicU8,
}

/// What is said once of each rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warning {
    /// Its limit was never set
    Unset = 1,
    /// Another process has stored another limit
    #[cfg(feature = "redis")]
    Rewritten = 2,
    /// A wrong clock takes part
    #[cfg(feature = "redis")]
    Repaired = 4,
    /// Only the store knows its limit, and fails
    #[cfg(feature = "redis")]
    Unknown = 8,
}

impl Labels {
    pub(crate) fn new(name: &str, hidden: bool, fixed_cost: Option<u32>) -> Arc<Self> {
        Self::of(name, true, hidden, fixed_cost)
    }

    /// Returns those of a limiter without a rule.
    pub(crate) fn unnamed(name: &str) -> Arc<Self> {
        Self::of(name, false, false, None)
    }

    fn of(name: &str, is_rule: bool, hidden: bool, fixed_cost: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            is_rule,
            hidden,
            fixed_cost,
            policy: PolicyField::default(),
            warned: AtomicU8::new(0),
        })
    }

    /// Whether answers name and show the one as the other.
    #[cfg(feature = "redis")]
    pub(crate) fn answers_like(&self, other: &Self) -> bool {
        self.name == other.name && self.hidden == other.hidden
    }

    /// Whether this is still to be said; true once.
    pub(crate) fn is_to_warn(&self, of: Warning) -> bool {
        let bit = of as u8;
        // The plain load keeps the cache line shared where nothing changes.
        self.warned.load(Ordering::Relaxed) & bit == 0
            && self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Returns the name as logs may have it.
    pub(crate) fn for_logs(&self) -> &str {
        if self.is_rule {
            &self.name
        } else {
            "a RateLimiter"
        }
    }
}

// The name of a limiter without a rule may hold an identity.
impl Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Labels({})",
            if self.is_rule { &self.name } else { ".." }
        )
    }
}

impl Charge {
    /// Returns a charge without an id.
    pub(crate) fn new(limiter: Target, labels: Arc<Labels>, permits: u32) -> Self {
        Self {
            limiter,
            labels,
            permits,
            id: PermitId::NONE,
            shadow: false,
            lead: 0,
            lease: None,
            passes: false,
            bounded: false,
        }
    }

    /// Returns the charge of a limiter that is named in place.
    pub(crate) fn named(name: Name, limit: LimitSource, labels: Arc<Labels>, permits: u32) -> Self {
        Self::new(Target::Named(Limiter { name, limit }), labels, permits)
    }

    /// The same permits of this limiter, by another limit.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn by(self, limit: LimitSource) -> Self {
        let name = self.name().clone();
        Self {
            limiter: Target::Named(Limiter { name, limit }),
            ..self
        }
    }

    /// The same permits of another limiter.
    #[cfg(test)]
    pub(crate) fn of(self, name: Name) -> Self {
        let limit = self.limit();
        Self {
            limiter: Target::Named(Limiter { name, limit }),
            ..self
        }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.limiter.name
    }

    pub(crate) fn limit(&self) -> LimitSource {
        self.limiter.limit
    }

    /// The receipt of a call that is still to be sent.
    #[cfg(feature = "redis")]
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(Some(crate::clock::moment()))
    }

    #[cfg(not(feature = "redis"))]
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(None)
    }

    /// Returns the receipt of a call that was made then.
    pub(crate) fn receipt_made(&self, made: Option<Instant>) -> Receipt {
        self.receipt_of(self.limiter.share(), made)
    }

    /// Returns the receipt of a call that was made then, by the limiter as others hold it.
    #[cfg_attr(
        not(feature = "redis"),
        allow(unused_variables, reason = "only what is sent can be under way")
    )]
    pub(crate) fn receipt_of(&self, limiter: Arc<Limiter>, made: Option<Instant>) -> Receipt {
        Receipt {
            limiter,
            labels: Arc::clone(&self.labels),
            id: self.id,
            permits: self.permits,
            #[cfg(feature = "redis")]
            interval: Duration::ZERO,
            #[cfg(feature = "redis")]
            made,
            once: None,
            #[cfg(feature = "redis")]
            lease: None,
            #[cfg(feature = "redis")]
            place: crate::receipt::Place::Store,
        }
    }
}

#[cfg(test)]
impl Acquire {
    /// Returns one caller of a call, who stands in line or not.
    pub(crate) fn of(charges: impl IntoIterator<Item = Charge>, waits: bool) -> Self {
        let mut charges = charges.into_iter();
        Self {
            first: charges.next().unwrap(),
            rest: charges.collect(),
            on_failure: None,
            remaining: false,
            patience: waits.then_some(MaxWait::ENDLESS),
            asked: None,
        }
    }
}

#[cfg(test)]
impl Charge {
    /// Returns a charge as an algorithm sees it, whatever limiter it is of.
    pub(crate) fn plain(limit: LimitSource, permits: u32, id: PermitId) -> Self {
        let name = Name::exact("plain").unwrap();
        Self {
            id,
            ..Self::named(name, limit, Labels::unnamed("plain"), permits)
        }
    }
}
