//! What observers are told, and who they are: [`Observer`], [`Observers`].

#[cfg(feature = "page")]
pub(crate) mod counts;
mod observed_rule;
#[cfg(feature = "redis")]
pub(crate) mod tally;

use std::{
    fmt::{self, Debug},
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub(crate) use self::observed_rule::ObservedRule;
use crate::{
    macros::warning,
    values::{
        decision::source::Source,
        error::{ConfigError, ErrorKind},
        limit::Limit,
    },
};

/// Receives decisions, calls to the store and changes of state: for metrics, logs and tests.
///
/// [`RateLimitLayerBuilder::observe`](crate::RateLimitLayerBuilder::observe) adds one to a layer,
/// and [`RedisStoreBuilder::observe`](crate::RedisStoreBuilder::observe) or
/// [`MemoryStoreBuilder::observe`](crate::MemoryStoreBuilder::observe) to a store. A layer's
/// observers receive the decisions of its requests. A store's receive all of its decisions, for
/// layers and [`RateLimiter`](crate::RateLimiter)s, its calls and its changes. They are called in
/// the order in which they were added, the layer's first. An observer that was added to both is
/// called once.
///
/// # What an observer may do
///
/// It is called after the answer is fixed, on the task that decided, with no lock held. **It must
/// not block:** that would delay the request. If it panics, that is caught and logged, and it is
/// not called again by the layer or store that called it; the request goes on.
///
/// Events hold no key and no identity, so that no label or log can show one, unless a rule says so
/// by [`observe_keys`](crate::Rule::observe_keys). [`DecidedRule::key_hash`] tells callers apart.
///
/// # Example
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// use tower_ratelimit::{
///     Limit, MemoryStore, RateLimitLayer, key::PeerIp,
///     observe::{Decided, Observer, RequestResult},
/// };
///
/// #[derive(Debug, Default)]
/// struct Refused(AtomicU64);
///
/// impl Observer for Refused {
///     fn decided(&self, event: &Decided<'_>) {
///         if event.result == RequestResult::Deny {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let refused = Arc::new(Refused::default());
/// let layer = RateLimitLayer::builder(&MemoryStore::new())
///     .otherwise(Limit::per_second(5).by(PeerIp))
///     .observe(refused.clone())
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[allow(unused_variables, reason = "by default an observer looks at nothing")]
pub trait Observer: Debug + Send + Sync + 'static {
    /// Is called once for each request that reaches a layer, and for each call of a
    /// [`RateLimiter`](crate::RateLimiter) that takes permits.
    fn decided(&self, event: &Decided<'_>) {}

    /// Is called after each call to a store in Redis, also one that failed.
    fn called(&self, event: &StoreCall<'_>) {}

    /// Is called when something has changed that is no decision.
    fn changed(&self, event: &StateChange<'_>) {}
}

/// A decision of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Decided<'a> {
    /// The result of the request.
    pub result: RequestResult,
    /// The source of the decision.
    pub source: Source,
    /// Why the store could not decide, also if the failure policy let the request pass.
    pub error: Option<ErrorKind>,
    /// How long it took, of a request that may wait for permits; `None` for others.
    pub waited: Option<Duration>,
    /// The rules that the request met, in no set order. A [`RateLimiter`](crate::RateLimiter) is
    /// one without a name.
    pub rules: &'a [DecidedRule<'a>],
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestResult {
    /// The request passed
    Allow,
    /// A limit refused it
    Deny,
    /// The request asked for more permits than a limit has
    AboveRate,
    /// The request lacks the key of a rule, or its key is too long
    MissingKey,
    /// A list refused it
    DeniedByList,
    /// A list let it pass
    AllowedByList,
    /// The request passed as a CORS preflight
    Preflight,
    /// The queue was full
    QueueFull,
    /// The store could not decide, and the failure policy refused it, or there was none
    Unavailable,
    /// Its caller left before it was decided
    Cancelled,
    /// No rule applied to it
    NoRule,
    /// A rule bans its caller
    Banned,
}

impl RequestResult {
    /// All of them in their order, each with its name.
    pub(crate) const ALL: [(Self, &'static str); Self::Banned as usize + 1] = [
        (Self::Allow, "allow"),
        (Self::Deny, "deny"),
        (Self::AboveRate, "above_rate"),
        (Self::MissingKey, "missing_key"),
        (Self::DeniedByList, "denied_by_list"),
        (Self::AllowedByList, "allowed_by_list"),
        (Self::Preflight, "preflight"),
        (Self::QueueFull, "queue_full"),
        (Self::Unavailable, "unavailable"),
        (Self::Cancelled, "cancelled"),
        (Self::NoRule, "no_rule"),
        (Self::Banned, "banned"),
    ];

    /// Returns the name that metrics and logs have for it.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// One rule that a request met.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct DecidedRule<'a> {
    /// The rule's name, `<rule>.<tier>` with tiers. `None` for a
    /// [`RateLimiter`](crate::RateLimiter), whose name may hold an identity.
    pub rule: Option<&'a str>,
    /// The result of the request by this rule.
    pub result: RuleResult,
    /// Set if the rule counts this request and does not refuse it.
    pub shadow: bool,
    /// The permits that it asked for.
    pub permits: u32,
    /// The limit, if it is known.
    pub limit: Option<Limit>,
    /// The permits left, if they were counted: of [several limits](crate::Limit::and) the fewest.
    pub remaining: Option<u64>,
    pub(crate) key: Option<&'a str>,
    pub(crate) key_hash: u64,
    pub(crate) observed: &'a ObservedRule,
}

impl<'a> DecidedRule<'a> {
    /// Returns the key, encoded as in Redis: its components in ASCII, joined by commas, or a digest
    /// of a long one. `None` if it is missing, or unless the rule has
    /// [`observe_keys`](crate::Rule::observe_keys).
    ///
    /// Callers choose it, so there may be any number: it is for samples and logs, not for labels of
    /// metrics.
    pub fn key(&self) -> Option<&'a str> {
        self.key
    }

    /// Returns a hash of the limiter's name, by a secret of this process: the same for the same
    /// caller of the rule, and different in other processes. 0 if the key is missing.
    pub fn key_hash(&self) -> u64 {
        self.key_hash
    }
}

// Also where observers are shown keys: an event that is printed as a whole is to hold none.
impl Debug for DecidedRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecidedRule")
            .field("rule", &self.rule)
            .field("result", &self.result)
            .field("shadow", &self.shadow)
            .field("permits", &self.permits)
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("key_hash", &self.key_hash)
            .finish_non_exhaustive()
    }
}

/// The result of a request by one of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuleResult {
    /// The request took its permits
    Taken,
    /// The limit refused it
    Deny,
    /// The request asked for more permits than the limit has
    AboveRate,
    /// The request lacks the key, or its key is too long
    MissingKey,
    /// The queue was full
    QueueFull,
    /// The store could not count it
    Unavailable,
    /// Its caller left before it was decided
    Cancelled,
    /// Another rule refused it
    NotTaken,
    /// A shadow rule would have refused it
    ShadowDeny,
    /// The rule bans its caller
    Banned,
    /// A shadow rule would have banned its caller
    ShadowBanned,
}

impl RuleResult {
    /// All of them in their order, each with its name.
    pub(crate) const ALL: [(Self, &'static str); Self::ShadowBanned as usize + 1] = [
        (Self::Taken, "taken"),
        (Self::Deny, "deny"),
        (Self::AboveRate, "above_rate"),
        (Self::MissingKey, "missing_key"),
        (Self::QueueFull, "queue_full"),
        (Self::Unavailable, "unavailable"),
        (Self::Cancelled, "cancelled"),
        (Self::NotTaken, "not_taken"),
        (Self::ShadowDeny, "shadow_deny"),
        (Self::Banned, "banned"),
        (Self::ShadowBanned, "shadow_banned"),
    ];

    /// Returns whether the rule has refused the request. False for a missing key, which only some
    /// rules refuse.
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::Deny | Self::AboveRate | Self::QueueFull | Self::Banned
        )
    }

    /// Returns the name that metrics and logs have for it.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A call to Redis.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreCall<'a> {
    /// The script or command.
    pub operation: &'static str,
    /// The server, without user and password, if it is known.
    pub node: Option<&'a str>,
    /// The number of requests that share the call; 0 if it takes no permits.
    pub callers: usize,
    /// From sending to the reply, or to giving up.
    pub duration: Duration,
    /// The kind of the error that ended it.
    pub result: Result<(), ErrorKind>,
}

/// A change that is no decision.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StateChange<'a> {
    /// The breaker of a server has opened or closed
    #[non_exhaustive]
    Breaker {
        /// The server, without user and password
        node: &'a str,
        /// Set if it has opened
        open: bool,
    },
    /// A connection was opened or lost
    #[non_exhaustive]
    Connection {
        /// The server, without user and password
        node: &'a str,
        /// Set if it was opened
        connected: bool,
    },
    /// The rules of a layer were replaced, or new ones refused
    #[non_exhaustive]
    Rules {
        /// Why they were refused
        refused: Option<&'a ConfigError>,
        /// Their origin: code or a file
        by: Origin,
    },
    /// The charge of a request was corrected: after its response, or by a
    /// [`RateLimiter`](crate::RateLimiter)
    #[non_exhaustive]
    Settled {
        /// The rule; `None` for a [`RateLimiter`](crate::RateLimiter)
        rule: Option<&'a str>,
        /// The permits that were taken
        taken: u32,
        /// The permits that it is charged
        charged: u32,
    },
    /// Corrections could not be sent to the store
    #[non_exhaustive]
    Lost {
        /// Set if permits remain in use that should be free; else a charge is missing
        receipt: bool,
    },
    /// A request met its failure policy unsent: the store would have answered it too late
    Overload,
    /// A request begins to wait for permits, or has ended waiting
    #[non_exhaustive]
    Waiting {
        /// The first of its rules; `None` for a [`RateLimiter`](crate::RateLimiter)
        rule: Option<&'a str>,
        /// How long it has waited; `None` when it begins
        ended: Option<Duration>,
    },
    /// A limiter was changed by a [`RateLimiter`](crate::RateLimiter)
    #[non_exhaustive]
    Managed {
        /// The verb, such as `set_rate`
        verb: &'static str,
        /// The rule, if the limiter was reached by it:
        /// [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter)
        rule: Option<&'a str>,
        /// The party that changed it: code or a tool
        by: Origin,
    },
    /// A [`MemoryStore`](crate::MemoryStore) has made or forgotten limiters
    #[non_exhaustive]
    Limiters {
        /// The number that was reported last
        before: usize,
        /// The number now
        now: usize,
    },
    /// The deny cache has kept or dropped refusals
    #[non_exhaustive]
    Remembered {
        /// The number that was reported last
        before: usize,
        /// The number now, with those that are over
        now: usize,
    },
}

/// The origin of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The service's code
    #[default]
    Code,
    /// A rules file that is watched
    File,
    /// An operator's tool, such as an admin route: see
    /// [`RateLimiter::by_tool`](crate::RateLimiter::by_tool)
    Tool,
}

/// The observers of a layer or a store, usually none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observers(Option<Arc<[Arc<Observed>]>>);

#[derive(Debug)]
struct Observed {
    observer: Arc<dyn Observer>,
    /// Set once it has panicked.
    is_off: AtomicBool,
}

impl Observers {
    /// Returns these and another one.
    pub(crate) fn and(&self, observer: Arc<dyn Observer>) -> Self {
        let is_off = AtomicBool::new(false);
        self.with(iter::once(Arc::new(Observed { observer, is_off })))
    }

    /// Returns these and those of a store, each once.
    pub(crate) fn and_all(&self, others: &Self) -> Self {
        self.with(others.iter().cloned())
    }

    fn with(&self, others: impl Iterator<Item = Arc<Observed>>) -> Self {
        let mut all: Vec<_> = self.iter().cloned().collect();
        for other in others {
            let is_other = |it: &Arc<Observed>| Arc::ptr_eq(&it.observer, &other.observer);
            if !all.iter().any(is_other) {
                all.push(other);
            }
        }
        Self((!all.is_empty()).then(|| all.into()))
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Observed>> {
        self.0.iter().flat_map(|all| all.iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn decided(&self, event: &Decided<'_>) {
        self.report(|observer| observer.decided(event));
    }

    pub(crate) fn called(&self, event: &StoreCall<'_>) {
        self.report(|observer| observer.called(event));
    }

    pub(crate) fn changed(&self, event: &StateChange<'_>) {
        self.report(|observer| observer.changed(event));
    }

    fn report(&self, report: impl Fn(&dyn Observer)) {
        let Some(all) = &self.0 else {
            return;
        };
        for observed in all.iter() {
            if observed.is_off.load(Ordering::Relaxed) {
                continue;
            }
            let called = catch_unwind(AssertUnwindSafe(|| report(&*observed.observer)));
            if called.is_err() && !observed.is_off.swap(true, Ordering::Relaxed) {
                warning!("an observer has panicked: it is not called any more");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_where_its_number_is() {
        let numbers = [
            RequestResult::ALL.map(|(it, _)| it as usize).to_vec(),
            RuleResult::ALL.map(|(it, _)| it as usize).to_vec(),
            Source::ALL.map(|(it, _)| it as usize).to_vec(),
        ];
        for numbers in numbers {
            assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>());
        }
    }
}
