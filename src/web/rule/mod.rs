//! What a request may do: a limit, by whom it is counted, at what cost, under which name.

pub(crate) mod compiled;
pub(crate) mod index;
pub(crate) mod list;
pub(crate) mod pattern;
pub(crate) mod reach;
pub(crate) mod share;
pub(crate) mod table;
pub(crate) mod unmatched;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::request::Parts;

use self::share::Share;
pub(crate) use self::{
    compiled::Defaults,
    table::{Plan, Planner},
};
pub use self::{list::Requests, table::Rules};
use super::{
    charge::{ChargeIf, Outcome},
    key::{AnyKey, Constant, KeyExtractor},
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    failure_policy::FailurePolicy,
    limit::{Algorithm, Limit, Slots, check_lease},
};

/// The name of a rule that was given none.
const UNNAMED: &str = "default";

/// One limit, and whom and what it counts.
///
/// Made by [`Limit::by`], [`Rule::new`] or [`Rule::shared`].
///
/// # Example
///
/// ```
/// use tower_ratelimit::{FailurePolicy, Limit, key::PeerIp};
///
/// let login = Limit::per_minute(5).by(PeerIp).named("login").on_failure(FailurePolicy::Deny);
/// let export = Limit::per_hour(100).by(PeerIp).named("export").cost(10);
/// ```
#[derive(Clone)]
#[must_use = "a rule does nothing until a layer has it"]
pub struct Rule {
    pub(crate) name: Option<String>,
    pub(crate) limit: LimitOf,
    pub(crate) key: Option<Arc<dyn AnyKey>>,
    pub(crate) cost: Cost,
    pub(crate) on_failure: FailurePolicy,
    pub(crate) algorithm: Algorithm,
    pub(crate) slots: Option<u32>,
    pub(crate) lease: Duration,
    pub(crate) hide_headers: bool,
    pub(crate) charge_if: Option<ChargeIf>,
    pub(crate) share: Share,
    pub(crate) wait: Option<Duration>,
    pub(crate) queue: Option<usize>,
    /// Whether it was given a limit to set that it has no use for.
    pub(crate) misplaced_init: bool,
    /// The line of a file that it comes from.
    pub(crate) line: Option<usize>,
}

/// Where a rule's limit comes from.
#[derive(Clone)]
pub(crate) enum LimitOf {
    Fixed(Limit),
    /// One of several by name; each counts on its own
    Tiers(Tiers),
    /// What a closure makes of the request
    Parts(Arc<dyn Fn(&Parts) -> Limit + Send + Sync>),
    /// The stored one, under an exact name or a template
    Shared {
        name: String,
        init: Option<Limit>,
    },
}

/// Which tier a request belongs to.
pub(crate) type ChooseTier = Arc<dyn Fn(&Parts) -> &'static str + Send + Sync>;

/// What a request costs.
#[derive(Clone)]
pub(crate) enum Cost {
    Fixed(u32),
    Parts(Arc<dyn Fn(&Parts) -> u32 + Send + Sync>),
}

impl Limit {
    /// The rule that counts requests by `key` against this limit.
    pub fn by(self, key: impl KeyExtractor) -> Rule {
        Rule::of(None, LimitOf::Fixed(self), Some(Arc::new(key)))
    }
}

impl Rule {
    /// A rule of this name. The limit is fixed, one of several [`Tiers`], or what [`limit_by`] finds.
    pub fn new(name: &str, limit: impl Into<RuleLimit>, key: impl KeyExtractor) -> Self {
        Self::of(Some(name.to_owned()), limit.into().0, Some(Arc::new(key)))
    }

    /// A rule on the limiter of this exact name: the one that `redisson.getRateLimiter(name)` is in Java.
    ///
    /// Its limit is the stored one, set by `trySetRate` here or in Java; until then requests are refused as unavailable,
    /// unless [`or_init`](Self::or_init) says which limit to set. A `<key>` in the name is replaced with the identity that
    /// [`by`](Self::by) finds, encoded as in all names.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Rule, key::FromHeader};
    ///
    /// let orders = Rule::shared("orders");
    /// let each = Rule::shared("orders:<key>").by(FromHeader::new("x-tenant"));
    /// let each = each.or_init(Limit::per_second(10));
    /// ```
    pub fn shared(name: &str) -> Self {
        Self::of(
            None,
            LimitOf::Shared {
                name: name.to_owned(),
                init: None,
            },
            None,
        )
    }

    /// Sets this limit where none is stored, in the same call. Only for [`shared`](Self::shared)
    /// rules: with others it is a [`ConfigError`], as they have their own.
    pub fn or_init(mut self, limit: Limit) -> Self {
        match &mut self.limit {
            LimitOf::Shared { init, .. } => *init = Some(limit),
            _ => self.misplaced_init = true,
        }
        self
    }

    /// Counts requests by this key.
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.key = Some(Arc::new(key));
        self
    }

    /// The rule's name: part of its limiters' names in Redis, and what answers call it. Default: `default`.
    ///
    /// Characters: `A-Z a-z 0-9 . _ -`. Rules of one name count together, and so must have the same limit and key.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// How many permits a request takes. Default: 1.
    pub fn cost(mut self, permits: u32) -> Self {
        self.cost = Cost::Fixed(permits);
        self
    }

    /// How many permits a request takes, by its head. Zero is free: the rule then does not concern the request.
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.cost = Cost::Parts(Arc::new(cost));
        self
    }

    /// Sets what happens to a request while the store cannot decide. Default:
    /// [`FailurePolicy::local(1.0)`](FailurePolicy::local), by which each process keeps the limit
    /// by itself.
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = policy;
        self
    }

    /// How permits in use are counted. Default: [`Algorithm::SlidingLog`].
    ///
    /// It goes with the name: every rule, process and Java peer of a name must say the same. Two rules of one name that
    /// differ in it are a [`ConfigError`]; what other processes say cannot be seen.
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Limit, key::PeerIp};
    ///
    /// let feed = Limit::per_minute(100_000).by(PeerIp).named("feed").algorithm(Algorithm::FixedWindow);
    /// ```
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Notes what is granted in slots of the interval, so many of them, instead of each grant by itself: for large limits. See
    /// [`RateLimiter::slots`](crate::RateLimiter::slots) for what it costs. Default: none.
    ///
    /// Other rules and processes of the name may do otherwise. It is a [`ConfigError`] when the
    /// layer is built if there are fewer than 10 or more than 10 000, if a limit that is known by
    /// then has an interval of fewer milliseconds, or if the rule counts by another algorithm. An
    /// interval that is found with a request, or is stored, may be as short: it then has a slot for
    /// each millisecond.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::PeerIp};
    ///
    /// let feed = Limit::per_minute(100_000).by(PeerIp).named("feed").slots(1000);
    /// ```
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Takes permits ahead for so long, a few at a time, and grants out of them without asking the store. Default, and zero:
    /// every request asks.
    ///
    /// For a limit that very many requests meet, as one of a whole service: most of them then cost no round trip. How many
    /// permits a process takes ahead follows what it used of the last lease, and is an eighth of what is left at most, so that
    /// near exhaustion nothing is. The limit is never exceeded by it. What is not used is given back when the lease ends.
    ///
    /// Worst case: what one process holds and does not use is refused to others until the lease ends; a process that dies
    /// leaves it in use for the lease and one interval. After a reset of the limit, permits in hand are granted beside the new
    /// ones: at most one lease of each process. [More](crate::docs::tuning) on what it saves. The store in memory has no round
    /// trip to save, and takes nothing ahead; neither does a request that meets several limits, or a rule that is tried out.
    ///
    /// At most a tenth of the interval, in whole milliseconds, and only for a sliding log without [slots](Self::slots); else it is a
    /// [`ConfigError`] when the layer is built. Where the limit is known only by the request, or is
    /// the stored one, a longer lease is cut to a tenth of the interval in force.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::Constant};
    ///
    /// let whole_service = Limit::per_second(50_000).by(Constant("all")).lease(Duration::from_millis(50));
    /// let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise([whole_service]).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Leaves the rule out of the fields that tell how much is left, and its name out of refusals. Default: it is told.
    ///
    /// For limits that callers share with others, as that of an account which anybody may name at a login: what is left
    /// there tells what somebody else has done. A refusal still says `Retry-After`, and handlers still find the
    /// [`Decision`](crate::Decision).
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::FromHeader};
    ///
    /// let per_account = Limit::per_hour(10).by(FromHeader::new("x-account")).named("account");
    /// let per_account = per_account.hide_headers();
    /// ```
    pub fn hide_headers(mut self) -> Self {
        self.hide_headers = true;
        self
    }

    /// Charges only requests whose answer `counts`: so that only failed logins do. Default: all.
    ///
    /// The permits are taken before the request all the same, and given back when its answer is known: of HTTP by its head,
    /// of gRPC by its status, which mostly comes behind the body. So at most as many requests as the limit allows are under
    /// way at once, and one is refused that comes while others, which will not count, hold the permits. A request that is
    /// dropped before its answer is known stays charged, and so does one whose inner service fails: hanging up must not be
    /// free. What a handler says, by [`Charge`](crate::Charge) or [`Cost`](crate::Cost), goes before.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{FailurePolicy, Limit, key::PeerIp};
    ///
    /// let login = Limit::per_minute(5)
    ///     .by(PeerIp)
    ///     .named("login")
    ///     .on_failure(FailurePolicy::Deny)
    ///     .charge_if(|outcome| !outcome.is_success());
    /// ```
    pub fn charge_if(mut self, counts: impl Fn(&Outcome) -> bool + Send + Sync + 'static) -> Self {
        self.charge_if = Some(Arc::new(counts));
        self
    }

    /// Tries the rule out: it counts, and refuses nobody. Default: it refuses.
    ///
    /// A request takes its permits if there is room and no other rule refuses it; it passes either way. What would have been
    /// refused is told by [`LimitState::is_refused`](crate::LimitState::is_refused) of the decision in the extensions, and
    /// by an event at debug level that names the rule. Callers are told nothing. Neither a missing key nor a limit that
    /// nobody has set refuses a request: it then is not counted, which is warned about once.
    ///
    /// What was not taken is not settled either. The same as [`enforce_share(0)`](Self::enforce_share); for all rules of a
    /// layer there is [`RateLimitLayerBuilder::shadow`](crate::RateLimitLayerBuilder::shadow).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// let tried = Limit::per_second(5).by(PeerIp).named("per-second").shadow();
    /// let kept = Limit::per_hour(1_000).by(PeerIp).named("per-hour");
    /// let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise([tried, kept]).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn shadow(self) -> Self {
        self.enforce_share(0)
    }

    /// Refuses for so many of a hundred keys, and tries the rule out for all others: see [`shadow`](Self::shadow).
    /// Default: 100. More are a [`ConfigError`] when the layer is built.
    ///
    /// Which keys these are is decided by the first 32 bits of the SHA-256 of the limiter's name in Redis: the same in all
    /// processes and releases. With a greater share others come to them, and none goes. So a rule on one exact name is
    /// enforced for all or for nobody; and until it is for all, a request without the key passes.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::PeerIp};
    ///
    /// let rule = Limit::per_second(5).by(PeerIp).enforce_share(10);
    /// ```
    pub fn enforce_share(mut self, percent: u8) -> Self {
        self.share = Share(percent);
        self
    }

    /// Holds a request for which there is no room, for up to this time, until there is. Default: it is refused at once, or
    /// what [`RateLimitLayerBuilder::wait`](crate::RateLimitLayerBuilder::wait) says. Zero: it is refused at once.
    ///
    /// Requests that wait for the same limits are let pass in the order in which they came to this
    /// process. One whose turn is known to come too late is refused at once, and so is one that
    /// finds [`queue`](Self::queue) others waiting. A caller that hangs up leaves the line, and
    /// takes nothing. Where several rules meet a request, the shortest time counts, and that of a
    /// rule that says nothing is zero; rules that are tried out have no say. The store's deadline
    /// comes on top. It needs a tokio runtime with a timer: without one a request is refused at
    /// once, with its wait. A store in Redis cannot be asked there, and the failure policy counts.
    ///
    /// # Deployment caveat
    ///
    /// A request that waits holds its connection, its memory and, unless the layer
    /// [decides first](crate::RateLimitLayerBuilder::decide_first), its place in the inner service. The
    /// [guide](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/docs/guide) compares it with back-pressure.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower_ratelimit::{Limit, key::PeerIp};
    ///
    /// let rule = Limit::per_second(10).by(PeerIp).wait(Duration::from_secs(2)).queue(20);
    /// ```
    pub fn wait(mut self, up_to: Duration) -> Self {
        self.wait = Some(up_to);
        self
    }

    /// How many requests may wait for the limits of one caller, or of one list of them, in this process. Default: 100, or
    /// what [`RateLimitLayerBuilder::queue`](crate::RateLimitLayerBuilder::queue) says.
    ///
    /// One more is refused as [`RefusalKind::QueueFull`](crate::RefusalKind::QueueFull): 429, because the queue is the
    /// caller's own and full by what it has sent, with the time until those in it have been served as `Retry-After`. Of
    /// several rules the least counts. Zero is a [`ConfigError`] when the layer is built. How many
    /// callers wait in all is for the server to bound, by connections or a concurrency limit
    /// outside.
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = Some(requests);
        self
    }

    pub(crate) fn of(name: Option<String>, limit: LimitOf, key: Option<Arc<dyn AnyKey>>) -> Self {
        Self {
            name,
            limit,
            key,
            cost: Cost::Fixed(1),
            on_failure: FailurePolicy::default(),
            algorithm: Algorithm::default(),
            slots: None,
            lease: Duration::ZERO,
            hide_headers: false,
            charge_if: None,
            share: Share::ALL,
            wait: None,
            queue: None,
            misplaced_init: false,
            line: None,
        }
    }

    /// Checks that permits can be leased for so long.
    pub(crate) fn check_lease(&self, lease: Duration) -> Result<(), ConfigError> {
        let check = |limit| {
            let in_slots = self.slots.is_some();
            check_lease(self.label(), lease, self.algorithm, in_slots, limit)
        };
        // Also where no limit is known.
        check(None)?;
        self.known_limits().try_for_each(|limit| check(Some(limit)))
    }

    /// Where a file defines it.
    fn place(&self) -> Option<String> {
        self.line
            .map(|line| format!("line {line}, rules.{}", self.label()))
    }

    /// Checks that answers can tell its permits, unless they are not to.
    fn check_told(&self, most: u64) -> Result<(), ConfigError> {
        let mut permits = self.known_limits().map(Limit::permits);
        match permits.find(|permits| *permits > most) {
            Some(permits) if !self.hide_headers => Err(ConfigErrorKind::Rule.error(format!(
                "rule {:?} has {permits} permits, and answers can tell at most {most}: add \
                 `.hide_headers()`, or turn the fields off",
                self.label()
            ))),
            _ => Ok(()),
        }
    }

    /// Into how many slots its intervals are divided.
    fn checked_slots(&self) -> Result<Option<Slots>, ConfigError> {
        match self.slots {
            Some(slots) if self.algorithm != Algorithm::SlidingLog => {
                let reason = "only a sliding log has slots";
                Err(Slots::refused(slots, self.label(), reason))
            }
            Some(slots) => {
                let intervals = self.known_limits().map(Limit::interval);
                Slots::try_new(slots, self.label(), intervals).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Checks that its algorithm can count by its limits.
    fn check_countable(&self) -> Result<(), ConfigError> {
        let mut limits = self.known_limits();
        limits.try_for_each(|limit| {
            let limit = limit.stored();
            self.algorithm.check(limit.rate, limit.interval)
        })
    }

    /// Its limits, but for those that only a request determines, or that others set.
    fn known_limits(&self) -> impl Iterator<Item = &Limit> {
        let (fixed, tiers) = match &self.limit {
            LimitOf::Fixed(limit) => (Some(limit), &[][..]),
            LimitOf::Shared { init, .. } => (init.as_ref(), &[][..]),
            LimitOf::Tiers(tiers) => (None, &tiers.tiers[..]),
            LimitOf::Parts(_) => (None, &[][..]),
        };
        let tiers = tiers.iter().map(|(_, limit)| limit);
        fixed.into_iter().chain(tiers)
    }

    /// The name it goes by. A shared name is its rule's name, too, where it can be one.
    fn label(&self) -> &str {
        match (&self.name, &self.limit) {
            (Some(name), _) => name,
            (None, LimitOf::Shared { name, .. }) if crate::name::is_word(name) => name,
            (None, _) => UNNAMED,
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.label())
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

impl From<Limit> for Rule {
    /// One limit for all requests together.
    fn from(limit: Limit) -> Self {
        limit.by(Constant("all"))
    }
}

/// A rule's limit, in one of its forms: a [`Limit`], [`Tiers`], or what [`limit_by`] finds.
#[derive(Clone)]
pub struct RuleLimit(LimitOf);

impl From<Limit> for RuleLimit {
    fn from(limit: Limit) -> Self {
        Self(LimitOf::Fixed(limit))
    }
}

impl From<Tiers> for RuleLimit {
    fn from(tiers: Tiers) -> Self {
        Self(LimitOf::Tiers(tiers))
    }
}

impl fmt::Debug for RuleLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuleLimit(..)")
    }
}

/// A limit that a request's head determines, for limits that differ from caller to caller.
///
/// A caller whose limit changes keeps what it has used: the stored limit is rewritten with its next request, at most once
/// a minute by each process.
pub fn limit_by(limit: impl Fn(&Parts) -> Limit + Send + Sync + 'static) -> RuleLimit {
    RuleLimit(LimitOf::Parts(Arc::new(limit)))
}

/// Several limits, of which a request's head determines one: free, paid.
///
/// Each tier is a rule of its own, named `<rule>.<tier>`: a caller that changes its tier begins anew there.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Limit, Rule, Tiers, key::FromExtension};
///
/// #[derive(Clone)]
/// struct Account {
///     id: String,
///     paying: bool,
/// }
///
/// let by_plan = Tiers::new(
///     [("free", Limit::per_hour(1_000)), ("paid", Limit::per_hour(100_000))],
///     |parts| match parts.extensions.get::<Account>() {
///         Some(account) if account.paying => "paid",
///         _ => "free",
///     },
/// );
/// let rule = Rule::new("api", by_plan, FromExtension::by(|account: &Account| account.id.clone()));
/// ```
#[derive(Clone)]
pub struct Tiers {
    pub(crate) tiers: Vec<(Cow<'static, str>, Limit)>,
    pub(crate) choose: ChooseTier,
}

impl Tiers {
    /// Tiers, and which of them a request belongs to.
    ///
    /// A tier that `choose` makes up is treated as the first: put the strictest there.
    pub fn new(
        tiers: impl IntoIterator<Item = (&'static str, Limit)>,
        choose: impl Fn(&Parts) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        Self {
            tiers: tiers
                .into_iter()
                .map(|(name, limit)| (Cow::Borrowed(name), limit))
                .collect(),
            choose: Arc::new(choose),
        }
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tiers.iter().cloned()).finish()
    }
}

/// One rule, or several: then a request meets all of them, and is charged by all or by none.
pub trait IntoRules {
    /// The rules.
    fn into_rules(self) -> Vec<Rule>;
}

impl<R: Into<Rule>> IntoRules for R {
    fn into_rules(self) -> Vec<Rule> {
        vec![self.into()]
    }
}

impl<R: Into<Rule>, const N: usize> IntoRules for [R; N] {
    fn into_rules(self) -> Vec<Rule> {
        self.into_iter().map(Into::into).collect()
    }
}

impl IntoRules for Vec<Rule> {
    fn into_rules(self) -> Vec<Rule> {
        self
    }
}
