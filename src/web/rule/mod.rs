//! Rules: a limit, the key it counts by, the cost of a request, and a name.

mod checks;
mod compiled_rule;
mod compiled_rules;
mod index;
pub(crate) mod limits;
pub(crate) mod list;
mod path;
pub(crate) mod pattern;
mod rules;

use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;

pub(crate) use self::{
    compiled_rule::RuleSettings, compiled_rules::CompiledRules, limits::LimitOf,
};
pub use self::{
    limits::{RuleLimit, Tiers, limit_by},
    list::Requests,
    rules::{IntoRules, Rules},
};
use super::{
    charge::{Outcome, charge_if},
    key::{AnyKey, Constant, KeyExtractor},
};
use crate::values::{
    compiled_limit::ChargeIf,
    decision::Refusal,
    demand::Demand,
    failure_policy::FailurePolicy,
    limit::{Algorithm, Ban, Limit},
};

/// The name of a rule without one.
const UNNAMED: &str = "default";

/// One limit, the key it counts by, and the cost of a request.
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
    name: Option<String>,
    limit: LimitOf,
    key: Option<AnyKey>,
    pub(crate) cost: CostOf,
    on_failure: FailurePolicy,
    pub(crate) algorithm: Algorithm,
    pub(crate) slots: Option<u32>,
    pub(crate) lease: Duration,
    pub(crate) unit: Option<String>,
    pub(crate) hide_headers: bool,
    pub(crate) observe_keys: bool,
    pub(crate) charge_if: Option<ChargeIf>,
    pub(crate) ban: Option<Ban>,
    /// The percentage of keys for which it is enforced; for all others it is a shadow rule.
    share: u8,
    pub(crate) wait: Option<Duration>,
    pub(crate) queue: Option<usize>,
    /// The limit of [`or_init`](Self::or_init).
    pub(crate) init: Option<Limit>,
    /// The line of the rules file that defines it.
    pub(crate) line: Option<usize>,
}

/// The source of a request's cost.
#[derive(Clone)]
pub(crate) enum CostOf {
    Fixed(u32),
    Parts(CostBy),
}

/// Returns the cost of a request.
pub(crate) type CostBy = Arc<dyn Fn(&Parts) -> u32 + Send + Sync>;

/// The layer's plan for a request.
pub(crate) enum Plan {
    /// No rule applies, or a list or a skipped preflight lets the request pass
    Pass,
    /// Ask the store for these permits
    Demand(Demand),
    Refuse(Refusal),
}

impl Limit {
    /// Creates a rule that counts requests by `key` against this limit.
    pub fn by(self, key: impl KeyExtractor) -> Rule {
        Rule::with_defaults(None, LimitOf::Fixed(self), Some(AnyKey::new(key)))
    }
}

impl Rule {
    /// Creates a rule with a name. The limit is fixed, one of several [`Tiers`], or found by
    /// [`limit_by`].
    pub fn new(name: &str, limit: impl Into<RuleLimit>, key: impl KeyExtractor) -> Self {
        Self::with_defaults(
            Some(name.to_owned()),
            limit.into().0,
            Some(AnyKey::new(key)),
        )
    }

    /// Creates a rule on the limiter with exactly this name, the one that
    /// `redisson.getRateLimiter(name)` returns in Java.
    ///
    /// Its limit is the stored one, set by `trySetRate` here or in Java. Until a limit is set,
    /// requests are refused as unavailable, unless [`or_init`](Self::or_init) gives a limit to set.
    /// A `<key>` in the name is replaced with the identity that [`by`](Self::by) finds, encoded as
    /// in all names.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Rule, key::FromHeader};
    ///
    /// let orders = Rule::shared("orders");
    /// let each = Rule::shared("orders:<key>").by(FromHeader::new("x-tenant"));
    /// let each = each.or_init(Limit::per_second(10));
    /// ```
    pub fn shared(name: &str) -> Self {
        Self::with_defaults(None, LimitOf::Shared(name.to_owned()), None)
    }

    /// Sets this limit if none is stored, in the same call. Only for [`shared`](Self::shared)
    /// rules; on others it is a [`ConfigError`](crate::ConfigError), because they have their own
    /// limit.
    pub fn or_init(mut self, limit: Limit) -> Self {
        self.init = Some(limit);
        self
    }

    /// Counts requests by this key.
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.key = Some(AnyKey::new(key));
        self
    }

    /// Names the rule. The name is part of its limiters' names in Redis and appears in responses.
    /// Default: `default`.
    ///
    /// Characters: `A-Z a-z 0-9 . _ -`. Rules of one name count together, and so must have the same
    /// limit and key.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets how many permits a request takes. Default: 1.
    pub fn cost(mut self, permits: u32) -> Self {
        self.cost = CostOf::Fixed(permits);
        self
    }

    /// Computes how many permits a request takes from its head. With zero the rule does not apply
    /// to the request.
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.cost = CostOf::Parts(Arc::new(cost));
        self
    }

    /// Sets the policy for requests that the store cannot decide. Default:
    /// [`FailurePolicy::Local(1.0)`](FailurePolicy::Local), with which each process enforces the
    /// limit by itself.
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = policy;
        self
    }

    /// Sets how permits in use are counted. Default: [`Algorithm::SlidingLog`].
    ///
    /// The algorithm belongs to the name: all rules, processes and Java peers that use a name must
    /// agree on it, see [`Algorithm`]. [`Algorithm::Gcra`] for a [shared](Self::shared) limit is a
    /// [`ConfigError`](crate::ConfigError): it counts by limits of the code.
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Limit, key::PeerIp};
    ///
    /// let feed = Limit::per_minute(100_000).by(PeerIp).named("feed");
    /// let feed = feed.algorithm(Algorithm::FixedWindow);
    /// ```
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Records grants in this many slots of the interval, instead of each grant by itself: for
    /// large limits in Redisson's format. See [`RateLimiter::slots`](crate::RateLimiter::slots) for
    /// the effect. Default: none.
    ///
    /// Other rules and processes of the name may use other slots, or none. It is a
    /// [`ConfigError`](crate::ConfigError) when the layer is built if the rule's limiters are in
    /// our own format, whose logs merge grants by themselves: only a [shared](Self::shared) rule
    /// and those of a store built with [`redisson`](crate::RedisStoreBuilder::redisson) have slots.
    /// It is one, too, if there are fewer than 10 or more than 10 000, if a limit known by then has
    /// fewer milliseconds in its interval, or if the rule counts by another algorithm. An interval
    /// that is stored or comes with a request may be shorter: it then has one slot for each
    /// millisecond.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Rule};
    ///
    /// let feed = Rule::shared("feed").or_init(Limit::per_minute(100_000)).slots(1000);
    /// ```
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Fetches permits ahead for this long, a few at a time, and grants from them without a call to
    /// the store. Default: zero, which means that every request calls the store.
    ///
    /// Use it for a limit that very many requests share, such as the limit of a whole service: most
    /// of them then cost no round trip. The number of permits fetched follows the use of the last
    /// lease and is at most an eighth of the permits left, so nothing is fetched near exhaustion. A
    /// lease never exceeds the limit. Unused permits are given back when the lease ends.
    ///
    /// Worst case: permits that one process holds and does not use are refused to others until the
    /// lease ends. A process that dies leaves them in use for the lease and one interval. After a
    /// reset of the limit, permits in hand are granted in addition to the new ones: at most one
    /// lease per process. See [tuning](crate::docs::tuning) for the savings. The store in memory
    /// fetches nothing ahead, because it has no round trip to save; neither does a request with
    /// several limits, or a shadow rule.
    ///
    /// The lease is at most a tenth of the interval, in whole milliseconds, and only for a sliding
    /// log without [slots](Self::slots); otherwise it is a [`ConfigError`](crate::ConfigError) when
    /// the layer is built. If the limit is stored or comes with a request, a longer lease is cut to
    /// a tenth of the interval in force.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::Constant};
    ///
    /// let all = Limit::per_second(50_000).by(Constant("all")).lease(Duration::from_millis(50));
    /// let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise([all]).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the unit of the permits that clients read, as `qu` of `RateLimit-Policy` in
    /// [`HeaderStyle::Draft11`](crate::HeaderStyle::Draft11). Default: `requests`, which has no
    /// `qu`, as clients assume it.
    ///
    /// The draft defines `content-bytes`, too; another, such as `tokens`, is for clients that know
    /// it. A character other than `A-Z a-z 0-9 . _ -` is a [`ConfigError`](crate::ConfigError) when
    /// the layer is built.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::PeerIp};
    ///
    /// let upload = Limit::per_hour(1_000_000).by(PeerIp).named("upload").unit("content-bytes");
    /// ```
    pub fn unit(mut self, unit: &str) -> Self {
        self.unit = Some(unit.to_owned());
        self
    }

    /// Omits the rule from the fields that report how much is left, and its name from refusals.
    /// Default: it is included.
    ///
    /// Use it for limits that callers share, such as the limit of an account that anyone may name
    /// at a login: how much is left there reveals the activity of others. A refusal still has
    /// `Retry-After`, and handlers still find the [`Grant`](crate::Grant).
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

    /// Shows observers the key of each request, as [`DecidedRule::key`]. Default: they are shown no
    /// key.
    ///
    /// Use it where a key is no personal data, such as a tenant or a route. It is a
    /// [`ConfigError`](crate::ConfigError) if the rule has no key, or one with a credential or a
    /// [digest](KeyExtractor::digest).
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::Route};
    ///
    /// let by_route = Limit::per_second(100).by(Route::new()).named("route").observe_keys();
    /// ```
    ///
    /// [`DecidedRule::key`]: crate::values::observe::DecidedRule::key
    pub fn observe_keys(mut self) -> Self {
        self.observe_keys = true;
        self
    }

    /// Charges only requests for whose response `counts` returns true, for example only failed
    /// logins. Default: all requests.
    ///
    /// The permits are still taken before the request, and given back when its response is known:
    /// in HTTP by its head, in gRPC by its status, which usually follows the body. So the limit
    /// also bounds how many requests are under way at once, and a request is refused while requests
    /// that will not count hold the permits. A request that is dropped before its response is known
    /// stays charged, and so does one whose inner service fails, so that disconnecting is never
    /// free. A handler's own correction, by [`Grant`](crate::Grant) or [`Cost`](crate::Cost),
    /// takes precedence.
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
        self.charge_if = Some(charge_if(counts));
        self
    }

    /// Bans a caller that this rule refuses too often. Default: none is banned.
    ///
    /// A ban holds for all processes that share the store, for the rule's key, until it ends or
    /// [`RateLimiter::unban`](crate::RateLimiter::unban) lifts it. It is a
    /// [`ConfigError`](crate::ConfigError) together with a [`lease`](Self::lease), and if one of
    /// its numbers is out of range. See [`Ban`] for what counts, and the
    /// [guide](crate::docs::guide#bans) for the worst case.
    ///
    /// # Example
    ///
    /// See [`Ban`].
    pub fn ban(mut self, ban: Ban) -> Self {
        self.ban = Some(ban);
        self
    }

    /// Makes this a shadow rule: it counts, but refuses nothing. Default: it refuses.
    ///
    /// A request takes its permits if there are enough and no other rule refuses it, and passes in
    /// either case. Would-be refusals are visible in
    /// [`LimitState::is_refused`](crate::LimitState::is_refused) of the grant in the extensions,
    /// and in a debug event that names the rule, but not to callers. A missing key, or a limit that
    /// was never set, does not refuse the request either: it passes uncounted, and one warning
    /// reports it.
    ///
    /// Permits that were not taken are not settled. Same as
    /// [`enforce_share(0)`](Self::enforce_share): of the two, the last call wins. For all rules of
    /// a layer there is [`RateLimitLayerBuilder::shadow`](crate::RateLimitLayerBuilder::shadow).
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

    /// Enforces the rule for this percentage of keys; for all others it is a
    /// [`shadow`](Self::shadow) rule. Default: 100. A larger value is a
    /// [`ConfigError`](crate::ConfigError) when the layer is built.
    ///
    /// The keys are chosen by the first 32 bits of the SHA-256 of the limiter's name in Redis,
    /// which is the same in all processes and releases. A larger share adds keys and removes none.
    /// So a rule on one exact name is enforced for all requests or for none. Below 100, a request
    /// without the key passes.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, key::PeerIp};
    ///
    /// let rule = Limit::per_second(5).by(PeerIp).enforce_share(10);
    /// ```
    pub fn enforce_share(mut self, percent: u8) -> Self {
        self.share = percent;
        self
    }

    /// Holds a request that finds no permits, for up to this time, until there are enough. Default:
    /// the value of [`RateLimitLayerBuilder::wait`](crate::RateLimitLayerBuilder::wait); without
    /// one, and with zero, the request is refused at once.
    ///
    /// Requests that wait for the same limits are admitted in the order in which they came to this
    /// process. A request whose turn is known to come too late is refused at once, and so is one
    /// that finds [`queue`](Self::queue) others waiting. A caller that disconnects leaves the queue
    /// and takes nothing. If several rules apply, the shortest time counts, and a rule without a
    /// setting counts as zero; shadow rules are ignored. The store's deadline comes on top. Waiting
    /// needs a tokio runtime with a timer: without one, a request is refused at once and the
    /// refusal has its wait. A store in Redis cannot be called there, so the failure policy
    /// decides.
    ///
    /// # Deployment caveat
    ///
    /// A waiting request holds its connection, its memory and, unless the layer [decides
    /// first](crate::RateLimitLayerBuilder::decide_first), its place in the inner service. The
    /// [guide](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/docs/guide) compares it with
    /// back-pressure.
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

    /// Sets how many requests may wait in this process for the limits of one caller, or of one list
    /// of them. Default: the value of
    /// [`RateLimitLayerBuilder::queue`](crate::RateLimitLayerBuilder::queue), or 100.
    ///
    /// One more is refused as [`RefusalKind::QueueFull`](crate::RefusalKind::QueueFull). The status
    /// is 429, because the caller's own requests fill the queue, and `Retry-After` is the time
    /// until those in it have been served. Of several rules the smallest value counts. Zero is a
    /// [`ConfigError`](crate::ConfigError) when the layer is built. The number of waiting callers
    /// in total is bounded by the server, through connections or a concurrency limit outside.
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = Some(requests);
        self
    }

    pub(crate) fn with_defaults(name: Option<String>, limit: LimitOf, key: Option<AnyKey>) -> Self {
        Self {
            name,
            limit,
            key,
            cost: CostOf::Fixed(1),
            on_failure: FailurePolicy::default(),
            algorithm: Algorithm::default(),
            slots: None,
            lease: Duration::ZERO,
            unit: None,
            hide_headers: false,
            observe_keys: false,
            charge_if: None,
            ban: None,
            share: 100,
            wait: None,
            queue: None,
            init: None,
            line: None,
        }
    }

    /// Returns the place in the file that defines it.
    fn line_and_name(&self) -> Option<String> {
        let line = self.line?;
        Some(format!("line {line}, rules.{}", self.label()))
    }

    /// Returns its name. A shared name is also the rule's name, if the characters allow it.
    fn label(&self) -> &str {
        match (&self.name, &self.limit) {
            (Some(name), _) => name,
            (None, LimitOf::Shared(name)) if crate::values::name::is_word(name) => name,
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
    /// Creates a rule with one limit for all requests together.
    fn from(limit: Limit) -> Self {
        limit.by(Constant("all"))
    }
}
