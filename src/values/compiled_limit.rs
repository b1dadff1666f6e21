//! A limit of a rule, compiled once and shared by all that counts by it: [`CompiledLimit`]; with a
//! name it is a [`Limiter`].

use std::{
    fmt::{self, Debug},
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use crate::{
    sync::Once,
    values::{
        error::{ConfigError, Error, ErrorKind, bail},
        limit::{Algorithm, Ban, Counting, Limit, LimitSource},
        name::{BuildSpread, Name},
        observe::{ObservedRule, Observers},
    },
};

/// All that a rule says of a limit, or that code says of a `RateLimiter`.
///
/// There is one for each limit of a rule. A closure that chooses the limit of a request makes one
/// for that request.
#[derive(Clone)]
pub(crate) struct CompiledLimit {
    /// The name in responses and logs; for a `RateLimiter`, its own name.
    pub(crate) name: Arc<str>,
    /// Set if `name` is that of a rule or of a `Limit::named`. The name of any other `RateLimiter`
    /// may hold an identity, and is not logged.
    pub(crate) is_rule: bool,
    /// Set if responses do not show its limit.
    pub(crate) hidden: bool,
    /// The unit of its permits, if they are not requests.
    pub(crate) unit: Option<Arc<str>>,
    /// The cost of each request, if it is the same for all: an inner layer compares it.
    pub(crate) fixed_cost: Option<u32>,
    /// The hash of what responses show of it: the name, and whether it is hidden.
    pub(crate) answer_hash: u64,
    pub(crate) limit: LimitSource,
    /// The way to count grants.
    pub(crate) counting: Counting,
    /// The time for which permits are fetched ahead for later callers.
    pub(crate) lease: Option<Duration>,
    /// Set if callers cannot make up keys of its rule.
    pub(crate) key_is_bounded: bool,
    /// The terms by which callers are banned.
    pub(crate) ban: Option<Ban>,
    /// The closure that charges by the response.
    pub(crate) charge_if: Option<ChargeIf>,
    /// The observers of its layer and its store.
    pub(crate) observers: Observers,
    /// The handles that observers keep for the rule. All that share them show the same of it.
    pub(crate) observed: Arc<ObservedRule>,
    /// The warnings that were logged for the rule, each a bit.
    pub(crate) warned: Arc<Once>,
}

/// Returns whether a response with this HTTP status, and this gRPC status if it has one, counts.
pub(crate) type ChargeIf = Arc<dyn Fn(u16, Option<u32>) -> bool + Send + Sync>;

/// The rules that one charge is made for, each with its cost: a request that passes the layer again
/// is not charged for them again.
pub(crate) type ForRules = Arc<Vec<(Arc<CompiledLimit>, u32)>>;

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
    /// Something else is stored under the name of its limiter
    Foreign = 64,
    /// A shadow rule cannot be counted
    Uncounted = 128,
}

impl CompiledLimit {
    /// Returns that of a rule, whose limit is the stored one.
    pub(crate) fn new(name: &str, hidden: bool) -> Arc<Self> {
        Arc::new(Self::with_defaults(name, true, hidden))
    }

    /// Returns that of a limiter without a rule, whose limit is the stored one.
    #[cfg(test)]
    pub(crate) fn unnamed(name: &str) -> Arc<Self> {
        Arc::new(Self::with_defaults(name, false, false))
    }

    /// Returns one that no observer sees, and whose limit is the stored one.
    pub(crate) fn with_defaults(name: &str, is_rule: bool, hidden: bool) -> Self {
        Self {
            name: name.into(),
            is_rule,
            hidden,
            unit: None,
            fixed_cost: None,
            answer_hash: BuildSpread::new().hash_one((name, hidden)),
            limit: LimitSource::Store,
            counting: Counting {
                // The limiters of rules have names that we make.
                prefers_redisson: !is_rule,
                ..Counting::default()
            },
            lease: None,
            key_is_bounded: false,
            ban: None,
            charge_if: None,
            observers: Observers::default(),
            observed: Arc::default(),
            warned: Arc::default(),
        }
    }

    /// Returns the same with another name.
    pub(crate) fn named(&self, name: &str) -> Self {
        Self {
            name: name.into(),
            answer_hash: BuildSpread::new().hash_one((name, self.hidden)),
            observed: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns the same with this limit, counted as that limit wants it.
    pub(crate) fn with_limit(&self, limit: LimitSource) -> Arc<Self> {
        Arc::new(Self {
            counting: self.counting.for_limit(limit.given()),
            limit,
            ..self.clone()
        })
    }

    /// Returns the name of the rule; `None` if there is none.
    pub(crate) fn rule(&self) -> Option<&str> {
        self.is_rule.then_some(&self.name)
    }

    /// Returns whether responses show both in the same way.
    pub(crate) fn answers_like(&self, other: &Self) -> bool {
        self.name == other.name && self.hidden == other.hidden && self.unit == other.unit
    }

    /// Returns whether both count in the same way and by the same limit.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.limit == other.limit && self.counting == other.counting
    }

    /// Returns whether its rule lets less pass by a limiter that both rules charge.
    pub(crate) fn is_stricter_than(&self, other: &Self) -> bool {
        match (&self.charge_if, &other.charge_if) {
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) | (Some(_), Some(_)) => self.ban.is_some() && other.ban.is_none(),
        }
    }

    /// Checks that its algorithm can count by this limit.
    pub(crate) fn check(&self, limit: &Limit) -> Result<(), Error> {
        let (in_own_format, algorithm) = (self.counting.in_own_format(), self.counting.algorithm);
        let has_log = in_own_format && algorithm == Algorithm::SlidingLog;
        if limit.is_several() && !(has_log && self.lease.is_none()) {
            let detail = "several limits are counted by a sliding log in our own format, without a \
                          lease";
            return Err(Error::new(ErrorKind::Limit).detail(detail));
        }
        if limit.is_per_client() && in_own_format {
            let detail = "for all clients together: leave `per_client` out, and name the client in \
                          the key";
            return Err(Error::new(ErrorKind::Limit).detail(detail));
        }
        let checked = algorithm.check(limit);
        let checked = checked.and_then(|()| self.check_in_flight());
        checked.map_err(|error| Error::new(ErrorKind::Limit).caused_by(error))
    }

    /// Returns whether it limits what is in flight.
    #[inline]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.limit.given().is_some_and(|limit| limit.in_flight)
    }

    /// Checks that nothing contradicts a limit of what is in flight.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit), with its name, the limit
    /// and what to leave out.
    pub(crate) fn check_in_flight(&self) -> Result<(), ConfigError> {
        let Some(limit) = self.limit.given().filter(|limit| limit.in_flight) else {
            return Ok(());
        };
        let reason = if matches!(self.limit, LimitSource::StoreOrInit(_)) {
            "no store has such a limit: give it to `Rule::new`"
        } else if self.counting.algorithm != Algorithm::SlidingLog {
            "only a sliding log has places: leave the algorithm out"
        } else if self.counting.slots.is_some() {
            "what is merged in slots cannot be given back: leave `slots` out"
        } else if limit.is_per_client() {
            "places are those of the whole fleet: leave `per_client` out"
        } else if self.lease.is_some() {
            "a lease takes places that nothing holds: leave `lease` out"
        } else if self.charge_if.is_some() {
            "each place comes back, whatever the response is: leave `charge_if` out"
        } else if self.ban.is_some() {
            "its callers are to ask again: leave `ban` out, or give it to a rate next to it"
        } else {
            return Ok(());
        };
        bail!(Limit: "{:?} counts {limit}: {reason}", self.name)
    }

    /// Returns whether this is still to be logged: true for the first that asks.
    pub(crate) fn claim_warning(&self, of: Warning) -> bool {
        self.warned.claim(of as u8)
    }

    /// Returns the name as logs may have it.
    pub(crate) fn for_logs(&self) -> &str {
        self.rule().unwrap_or("a RateLimiter")
    }
}

// The name of a limiter without a rule may hold an identity.
impl Debug for CompiledLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.for_logs().fmt(f)
    }
}

/// One limiter as a demand names it, without its counts.
///
/// Two are equal if they have one name, and count in the same way and by the same limit.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    pub(crate) name: Name,
    pub(crate) compiled: Arc<CompiledLimit>,
}

impl Limiter {
    /// Returns whether both have one name, algorithm and format. Others cannot share a name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let key = |limiter: &Self| {
            let counting = &limiter.compiled.counting;
            (counting.algorithm, counting.in_own_format())
        };
        self.name == other.name && key(self) == key(other)
    }
}

impl PartialEq for Limiter {
    fn eq(&self, other: &Self) -> bool {
        let same = || {
            Arc::ptr_eq(&self.compiled, &other.compiled)
                || self.compiled.counts_like(&other.compiled)
        };
        self.name == other.name && same()
    }
}

impl Eq for Limiter {}

impl Hash for Limiter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiters_are_equal_that_count_by_the_same_limit_in_the_same_way() {
        let limit = LimitSource::Code(Limit::per_second(5));
        let named = |compiled| Limiter {
            name: Name::exact("orders").unwrap(),
            compiled,
        };
        let plain = CompiledLimit::new("orders", false);
        let limiter = named(plain.with_limit(limit));
        assert_eq!(
            limiter,
            named(CompiledLimit::new("other", false).with_limit(limit))
        );
        assert_ne!(limiter, named(Arc::clone(&plain)));
        let counting = Counting {
            algorithm: Algorithm::FixedWindow,
            ..Counting::default()
        };
        let windowed = CompiledLimit {
            counting,
            ..(*limiter.compiled).clone()
        };
        assert_ne!(limiter, named(windowed.into()));
    }

    #[test]
    fn a_limit_that_the_algorithm_cannot_count_by_is_an_error() {
        let limit = Limit::new(3001, Duration::from_millis(3));
        let mut compiled = CompiledLimit::with_defaults("orders", true, false);
        assert!(compiled.check(&limit).is_ok());
        compiled.counting.algorithm = Algorithm::Gcra;
        assert!(compiled.check(&limit).is_err());
    }
}
