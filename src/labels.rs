//! The name of a limit in responses and logs, with the warnings that exist once for it: [`Labels`].

use std::{
    any::Any,
    fmt::{self, Debug},
    hash::BuildHasher,
    sync::Arc,
};

use crate::{
    limit::Ban,
    name::BuildSpread,
    observe::{ObservedRule, Observers},
    sync::Once,
};

/// The name of a limit in responses and logs: made once per rule, and shared by all its decisions.
pub(crate) struct Labels {
    /// The name in responses; for a `RateLimiter`, its own name.
    pub(crate) name: Arc<str>,
    /// Set if there is a rule: the name of a `RateLimiter` may hold an identity.
    pub(crate) is_rule: bool,
    /// Set if responses do not show its limit.
    pub(crate) hidden: bool,
    /// The unit of its permits, if they are not requests.
    pub(crate) unit: Option<Box<str>>,
    /// The cost of each request, if it is the same for all: an inner layer compares it.
    pub(crate) fixed_cost: Option<u32>,
    /// The hash of what responses show of it: the name, and whether it is hidden.
    pub(crate) answer_hash: u64,
    /// The observers of its layer and its store.
    pub(crate) observers: Observers,
    /// The handles that observers keep for it.
    pub(crate) kept: ObservedRule,
    /// The terms by which callers are banned.
    pub(crate) ban: Option<Ban>,
    /// The layer's closure that charges by the response.
    pub(crate) charge_if: Option<OfHttp>,
    /// The warnings that were logged, each a bit.
    pub(crate) warned: Once,
}

/// The rules that one charge is made for, each with its cost: a request that passes the layer again
/// is not charged for them again.
pub(crate) type ForRules = Arc<Vec<(Arc<Labels>, u32)>>;

/// A value whose type only the HTTP side of the crate names.
pub(crate) type OfHttp = Box<dyn Any + Send + Sync>;

/// The warnings that are logged once per rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warning {
    /// Its limit was never set
    Unset = 1,
    /// Another process has stored another limit
    Rewritten = 2,
    /// A wrong clock takes part
    Repaired = 4,
    /// Only the store knows its limit, and fails
    Unknown = 8,
    /// A request lacks the key
    MissingKey = 16,
    /// A header is longer than the key accepts
    LongKey = 32,
}

impl Labels {
    /// Returns the labels of a rule.
    pub(crate) fn new(name: &str, hidden: bool) -> Arc<Self> {
        Arc::new(Self::of(name, true, hidden))
    }

    /// Returns the labels of a limiter without a rule.
    pub(crate) fn unnamed(name: &str) -> Arc<Self> {
        Arc::new(Self::of(name, false, false))
    }

    /// Returns labels that no observer sees.
    pub(crate) fn of(name: &str, is_rule: bool, hidden: bool) -> Self {
        Self {
            name: name.into(),
            is_rule,
            hidden,
            unit: None,
            fixed_cost: None,
            answer_hash: BuildSpread::new().hash_one((name, hidden)),
            observers: Observers::default(),
            kept: ObservedRule::default(),
            ban: None,
            charge_if: None,
            warned: Once::default(),
        }
    }

    /// Returns the name of the rule; `None` if there is none.
    pub(crate) fn rule(&self) -> Option<&str> {
        self.is_rule.then_some(&self.name)
    }

    /// Returns whether responses show both in the same way.
    pub(crate) fn answers_like(&self, other: &Self) -> bool {
        self.name == other.name && self.hidden == other.hidden && self.unit == other.unit
    }

    /// Returns whether its rule lets less pass by a limiter that both rules charge.
    pub(crate) fn is_stricter_than(&self, other: &Self) -> bool {
        match (&self.charge_if, &other.charge_if) {
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) | (Some(_), Some(_)) => self.ban.is_some() && other.ban.is_none(),
        }
    }

    /// Returns whether this is still to be logged; true once.
    pub(crate) fn is_to_warn(&self, of: Warning) -> bool {
        self.warned.is_first(of as u8)
    }

    /// Returns the name as logs may have it.
    pub(crate) fn for_logs(&self) -> &str {
        self.rule().unwrap_or("a RateLimiter")
    }
}

// The name of a limiter without a rule may hold an identity.
impl Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.for_logs().fmt(f)
    }
}
