//! What a store is asked for.

pub(crate) mod outage;

use std::{
    fmt::Debug,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytes::Bytes;

use self::outage::OfRule;
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
    /// How long it waits in line for permits; `None` takes a refusal for an answer.
    pub(crate) patience: Option<Patience>,
    /// Since when its caller waits for the store; `None` until that is asked.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "a store in memory answers at once")
    )]
    pub(crate) asked: Option<Instant>,
}

/// How long a caller waits for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    For(Duration),
    Endless,
    /// So long, if fewer than so many wait already.
    Queue(Duration, usize),
}

impl Acquire {
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Checks that its limits, as far as the caller has them, can be counted by.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for charge in self.charges() {
            if let Some(limit) = charge.limit.given() {
                charge.name.check(&limit.stored())?;
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

/// Permits of one limiter.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) name: Name,
    pub(crate) rule: Arc<RuleTag>,
    pub(crate) limit: LimitSource,
    pub(crate) permits: u32,
    /// Of no meaning until the store has given it one.
    pub(crate) id: PermitId,
    /// Whether it is taken if there is room, and no reason to refuse if there is none.
    pub(crate) shadow: bool,
    /// By how many milliseconds it is scored ahead: taken for callers that are still to come, see `guard/lease.rs`.
    pub(crate) lead: i64,
}

/// The policy of a rule as answers first gave it: it seldom is another, and each answer has it.
#[derive(Debug, Default)]
pub(crate) struct PolicyText(OnceLock<(u64, Duration, Bytes)>);

impl PolicyText {
    /// Returns the text for a limit, made by `render` where it is not known yet.
    pub(crate) fn of(
        &self,
        permits: u64,
        interval: Duration,
        render: impl FnOnce() -> Bytes,
    ) -> Bytes {
        match self.0.get() {
            Some((known, at, text)) if *known == permits && *at == interval => text.clone(),
            _ => {
                let text = render();
                let _ = self.0.set((permits, interval, text.clone()));
                text
            }
        }
    }
}

/// A rule as its charges and its limits know it: its name and what was already said of it.
pub(crate) struct RuleTag {
    /// What answers call it; of a `RateLimiter`, its own name.
    pub(crate) name: Arc<str>,
    /// Whether there is a rule: the name of a `RateLimiter` may be somebody's.
    pub(crate) is_rule: bool,
    /// Whether answers do not tell of its limit.
    pub(crate) hidden: bool,
    /// Set where callers cannot make up keys of it.
    bounded: OnceLock<()>,
    /// What is done with its requests while the store fails.
    pub(crate) fallback: OfRule,
    /// For how long permits are taken ahead; not at all without it.
    lease: OnceLock<Duration>,
    /// What each request costs, where it is the same for all.
    pub(crate) fixed_cost: OnceLock<u32>,
    /// The policy that answers give for its limit.
    pub(crate) policy_text: PolicyText,
    /// That nobody has set its limit.
    pub(crate) told_unset: AtomicBool,
    /// That another process has stored another limit.
    #[cfg(feature = "redis")]
    pub(crate) told_rewritten: AtomicBool,
    /// That a wrong clock takes part.
    #[cfg(feature = "redis")]
    pub(crate) told_repaired: AtomicBool,
}

impl RuleTag {
    pub(crate) fn new(name: &str, hidden: bool) -> Arc<Self> {
        Self::tag(name, true, hidden)
    }

    /// Of a limiter without a rule.
    pub(crate) fn unnamed(name: &str) -> Arc<Self> {
        Self::tag(name, false, false)
    }

    fn tag(name: &str, is_rule: bool, hidden: bool) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            is_rule,
            hidden,
            bounded: OnceLock::new(),
            fallback: OfRule::default(),
            lease: OnceLock::new(),
            fixed_cost: OnceLock::new(),
            policy_text: PolicyText::default(),
            told_unset: AtomicBool::new(false),
            #[cfg(feature = "redis")]
            told_rewritten: AtomicBool::new(false),
            #[cfg(feature = "redis")]
            told_repaired: AtomicBool::new(false),
        })
    }

    /// Whether answers name and show the one as the other.
    #[cfg(feature = "redis")]
    pub(crate) fn answers_like(&self, other: &Self) -> bool {
        self.name == other.name && self.hidden == other.hidden
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded.get().is_some()
    }

    /// Says that callers cannot make up keys of it.
    pub(crate) fn bounds(&self) {
        let _ = self.bounded.set(());
    }

    pub(crate) fn lease(&self) -> Option<Duration> {
        self.lease.get().copied()
    }

    /// Says for how long permits are taken ahead, once. Zero: not at all.
    pub(crate) fn leases(&self, lease: Duration) {
        if !lease.is_zero() {
            let _ = self.lease.set(lease);
        }
    }

    /// The name as logs may know it.
    pub(crate) fn for_logs(&self) -> &str {
        if self.is_rule {
            &self.name
        } else {
            "a RateLimiter"
        }
    }
}

// By what they are called: a limit that is told again is the same, whoever's tag it has.
impl PartialEq for RuleTag {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for RuleTag {}

impl Debug for RuleTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "RuleTag({})",
            if self.is_rule { &self.name } else { ".." }
        )
    }
}

impl Charge {
    /// The receipt of a call that is still to be sent.
    #[cfg(feature = "redis")]
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(Some(crate::clock::moment()))
    }

    #[cfg(not(feature = "redis"))]
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(None)
    }

    #[cfg_attr(
        not(feature = "redis"),
        allow(unused_variables, reason = "only what is sent can be under way")
    )]
    pub(crate) fn receipt_made(&self, made: Option<Instant>) -> Receipt {
        Receipt {
            name: self.name.clone(),
            id: self.id,
            permits: self.permits,
            rule: Arc::clone(&self.rule),
            limit: self.limit,
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
