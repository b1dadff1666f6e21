//! What the user builds: [`RateLimitLayer`].

#[cfg(feature = "config")]
use std::sync::{Mutex, PoisonError};
use std::{sync::Arc, time::Duration};

use super::{
    answer::{Answers, Fields, HeaderStyle, OnRefusal},
    charge::LayerId,
    rule::{Defaults, IntoRules, Planner, Rule, Rules},
};
use crate::{
    error::ConfigError,
    store::{AnyStore, Store},
    swap::Swap,
};

/// Limits the requests to the services it wraps.
///
/// For each request it finds the rule, asks the store, and either calls the inner service or answers 429 with
/// `Retry-After`; a gRPC request is answered RESOURCE_EXHAUSTED. A limit is never an error of the service. Where a limit was
/// met, the answer over HTTP tells what is left, in the fields of a [`HeaderStyle`].
///
/// Cloning is cheap, and clones are the same layer: put one on many routes and they share its limits. Around a router and
/// within it, the same layer charges a request once. So do the same rules of two layers on one
/// store, unless the inner one says [`always`](RateLimitLayerBuilder::always).
///
/// What a request is charged can be corrected until its answer is over: by [`Rule::charge_if`](crate::Rule::charge_if),
/// [`Cost`](crate::Cost) or [`Charge`](crate::Charge).
///
/// Not to be confused with `tower::limit::RateLimitLayer`, which makes all callers of one service instance wait.
///
/// # Example
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
///
/// let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(60).by(PeerIp));
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RateLimitLayer {
    pub(crate) shared: Arc<Shared>,
}

/// What all services of a layer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: LayerId,
    pub(crate) store: Arc<dyn AnyStore>,
    pub(crate) planner: Swap<Planner>,
    pub(crate) answers: Answers,
    pub(crate) enabled: bool,
    pub(crate) decide_first: bool,
    pub(crate) always: bool,
    /// One at a time replaces the rules. With the fields of rules that choose none.
    #[cfg(feature = "config")]
    replacing: Mutex<Fields>,
}

#[cfg(feature = "config")]
impl Shared {
    /// See [`RateLimitLayer::reload`].
    pub(crate) fn reload(&self, rules: Rules) -> Result<(), ConfigError> {
        let default = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let fields = fields_of(&rules, *default)?;
        let planner = self.planner.load().successor(rules, &*self.store)?;
        self.planner.store(planner);
        self.answers.fields.store(fields);
        Ok(())
    }
}

/// The fields that rules choose, and that can tell their limits.
fn fields_of(rules: &Rules, default: Fields) -> Result<Fields, ConfigError> {
    let fields = rules.headers.as_deref().map_or(Ok(default), Fields::new)?;
    if let Some(most) = fields.most_permits() {
        rules.check_told(most)?;
    }
    Ok(fields)
}

impl RateLimitLayer {
    /// One rule for all requests: `Limit::per_minute(60).by(PeerIp)`, or a bare [`Limit`](crate::Limit) for all of them
    /// together.
    ///
    /// # Panics
    ///
    /// If the rule is not valid: [`builder`](Self::builder) returns the error instead.
    #[allow(
        clippy::panic,
        reason = "documented: layers are built when a service starts"
    )]
    #[track_caller]
    pub fn new(store: &impl Store, rule: impl Into<Rule>) -> Self {
        match Self::builder(store).otherwise(rule.into()).build() {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Builds a layer of several rules.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{FailurePolicy, Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .on(
    ///         "POST /login",
    ///         Limit::per_minute(5).by(PeerIp).named("login").on_failure(FailurePolicy::Deny),
    ///     )
    ///     .on("GET /export", Limit::per_hour(100).by(PeerIp).named("export").cost(10))
    ///     .otherwise(Limit::per_second(50).by(PeerIp))
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn builder(store: &impl Store) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder {
            store: store.handle().0,
            rules: Rules::new(),
            on_refusal: None,
            headers: vec![HeaderStyle::Draft11],
            retry_jitter: Duration::ZERO,
            enabled: true,
            decide_first: false,
            always: false,
            defaults: Defaults {
                remaining: true,
                shadow: false,
                wait: None,
                queue: None,
                skip_preflight: false,
            },
        }
    }
}

#[cfg(feature = "config")]
#[cfg_attr(docsrs, doc(cfg(feature = "config")))]
impl RateLimitLayer {
    /// Puts other rules in the place of the layer's, also in the services that it has made, while they serve.
    ///
    /// Each request is decided by the rules of before or by these, never by some of both; those under way end as they
    /// began. What has been counted stays: limiters are known by the names of rules and keys. A limit that has changed is
    /// in force with each limiter's next request, and what is in use stays in use; in Redis, where this process has changed the
    /// same limiter within the last minute, with the first request after that minute. The settings of the builder stay as they
    /// are: the store, the hook, whether it is enabled.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], as from [`RateLimitLayerBuilder::build`]. The layer then keeps the rules that it has.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, Rules, RulesFile, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(60).by(PeerIp));
    /// layer.reload(Rules::new().otherwise(Limit::per_minute(90).by(PeerIp)))?;
    ///
    /// let text = "
    ///     [rules.default]
    ///     rate = '120/1m'
    ///     by = 'peer'
    ///
    ///     [otherwise]
    ///     rules = ['default']
    /// ";
    /// layer.reload(RulesFile::new().parse(text)?)?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn reload(&self, rules: Rules) -> Result<(), ConfigError> {
        self.shared.reload(rules)
    }
}

/// Builds a [`RateLimitLayer`].
#[derive(Clone, Debug)]
#[must_use = "call `build`"]
pub struct RateLimitLayerBuilder {
    store: Arc<dyn AnyStore>,
    rules: Rules,
    on_refusal: Option<Arc<dyn OnRefusal>>,
    headers: Vec<HeaderStyle>,
    retry_jitter: Duration,
    enabled: bool,
    decide_first: bool,
    always: bool,
    defaults: Defaults,
}

impl RateLimitLayerBuilder {
    /// Adds an entry to the table: see [`Rules::on`].
    pub fn on(mut self, pattern: &str, rules: impl IntoRules) -> Self {
        self.rules = self.rules.on(pattern, rules);
        self
    }

    /// Adds an entry to the table: see [`Rules::on_grpc`].
    pub fn on_grpc(mut self, method: &str, rules: impl IntoRules) -> Self {
        self.rules = self.rules.on_grpc(method, rules);
        self
    }

    /// The rule for requests that no entry matches: see [`Rules::otherwise`]. Default: they pass.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        self.rules = self.rules.otherwise(rules);
        self
    }

    /// Lets CORS preflights pass uncounted, unless a list denies them. Default: they meet the
    /// rules.
    ///
    /// A preflight is a request with the method OPTIONS and the fields `Origin` and
    /// `Access-Control-Request-Method`. Browsers send it on their own and without credentials, so a
    /// rule whose key it lacks is left out instead of refusing it; the rules whose key it has, an
    /// address or a constant, count it as any other request.
    ///
    /// # Deployment caveat
    ///
    /// Any client can send what looks like a preflight, as often as it likes. Set this only where
    /// nothing within does more for OPTIONS than answer it: no proxy, no handler for all methods.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_minute(60).by(PeerIp))
    ///     .skip_preflight()
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn skip_preflight(mut self) -> Self {
        self.defaults.skip_preflight = true;
        self
    }

    /// Replaces the table and its lists: see [`Rules`], which has more than this builder.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Edits the answers to refused requests. Default: they are sent as they are.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{HeaderValue, Response, request::Parts};
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, Refusal};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_second(100))
    ///     .on_refusal(|_: &Refusal, _: &Parts, mut answer: Response<bytes::Bytes>| {
    ///         answer.headers_mut().insert("x-plans", HeaderValue::from_static("/pricing"));
    ///         answer
    ///     })
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn on_refusal(mut self, on_refusal: impl OnRefusal) -> Self {
        self.on_refusal = Some(Arc::new(on_refusal));
        self
    }

    /// The fields that tell callers how much is left, on every response over HTTP for which a limit was met. Default:
    /// [`HeaderStyle::Draft11`]. An empty list: none.
    ///
    /// gRPC responses have none of them. [`Rule::hide_headers`] leaves single rules out. In a browser, scripts read
    /// them only where CORS exposes them: see the [guide](crate::docs::guide).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{HeaderStyle, Limit, MemoryStore, RateLimitLayer, ResetUnit};
    ///
    /// let legacy = HeaderStyle::Legacy { reset: ResetUnit::EpochSeconds };
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_second(100))
    ///     .headers([HeaderStyle::Draft11, legacy])
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.headers = styles.into_iter().collect();
        self
    }

    /// Adds a random time of at most this to the wait that a refusal tells: `Retry-After` and all fields that say the same;
    /// in gRPC the pushback and `RetryInfo`. Default: zero.
    ///
    /// Callers that were refused together are told the same instant, and otherwise come back together. `Retry-After` is
    /// rounded up to whole seconds, so that jitter of less than a second may not be seen there; gRPC is told milliseconds,
    /// and its clients wait exactly as long as the pushback says, without a jitter of their own (gRFC A6). Nobody is told to
    /// come earlier than there is room, and [`Refusal::retry_after`](crate::Refusal::retry_after) stays exact.
    pub fn retry_jitter(mut self, jitter: Duration) -> Self {
        self.retry_jitter = jitter;
        self
    }

    /// Whether requests are limited at all. Default: true.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Holds requests for which there is no room, for up to this time: see [`Rule::wait`], which goes before. Default: they
    /// are refused at once.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_second(10).by(PeerIp))
    ///     .wait(Duration::from_secs(2))
    ///     .queue(20)
    ///     .decide_first(true)
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn wait(mut self, up_to: Duration) -> Self {
        self.defaults.wait = Some(up_to);
        self
    }

    /// How many requests may wait for the same limits: see [`Rule::queue`], which goes before. Default: 100.
    pub fn queue(mut self, requests: usize) -> Self {
        self.defaults.queue = Some(requests);
        self
    }

    /// Whether a request is decided on before the inner service is ready for it. Default: false.
    ///
    /// By default this layer is ready when the inner service is, as tower's other layers: back-pressure reaches the caller,
    /// and a request holds its place in the inner service, a permit of a `ConcurrencyLimit` for example, while the store is
    /// asked and while it waits for permits. With `true` this layer is always ready; a request that is let pass then waits
    /// for the inner service, charged. So refusals are answered, and places stay free, while the inner service is busy;
    /// but nothing here bounds how many wait for it.
    ///
    /// An error of the inner service's readiness is that of the call. A request that is dropped while it waits for the inner
    /// service stays charged.
    ///
    /// # Example
    ///
    /// ```
    /// use tower::{ServiceBuilder, limit::ConcurrencyLimitLayer};
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer};
    ///
    /// let limit = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_second(100))
    ///     .decide_first(true)
    ///     .build()?;
    /// // Of the ten places none is taken by a request that may be refused.
    /// let layers = ServiceBuilder::new().layer(limit).layer(ConcurrencyLimitLayer::new(10));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn decide_first(mut self, decide_first: bool) -> Self {
        self.decide_first = decide_first;
        self
    }

    /// Charges a request whatever layers around this one have charged it. Default: what was charged
    /// outside is not charged again.
    ///
    /// By default, a layer that is met a second time, of a router and of one nested in it, lets the
    /// request pass. Of another layer on the same store, a rule that charges the same limiter under
    /// the same name and at the same fixed cost is charged once, and a warning says so once; rules
    /// that differ in any of these, or whose cost depends on the request, are charged by each. A
    /// charge outside counts until its answer is over.
    ///
    /// Set this on the inner layer where a request is meant to be charged twice: in a gateway, for
    /// example, that limits what comes in and, by the same rule, what it sends on.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::Constant};
    ///
    /// let (store, rule) = (MemoryStore::new(), Limit::per_second(100).by(Constant("all")));
    /// let inbound = RateLimitLayer::new(&store, rule.clone());
    /// let outbound = RateLimitLayer::builder(&store).otherwise(rule).always().build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Whether the permits left are counted for requests that are let pass. Default: true.
    ///
    /// Without it [`LimitState::remaining`](crate::LimitState::remaining) is `None` there,
    /// [`LimitState::reset_after`](crate::LimitState::reset_after) is the interval, and Redis has less to do.
    /// The fields of [`headers`](Self::headers) then tell the limit and not what is left of it.
    pub fn count_remaining(mut self, remaining: bool) -> Self {
        self.defaults.remaining = remaining;
        self
    }

    /// Whether all rules are only tried out, whatever they say themselves: see [`Rule::shadow`]. Default: false.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_second(5).by(PeerIp))
    ///     .shadow(true)
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.defaults.shadow = shadow;
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the entry, the rule or the value at fault.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        let default = Fields::new(&self.headers)?;
        let fields = fields_of(&self.rules, default)?;
        let planner = Planner::new(self.rules, &*self.store, self.defaults)?;
        Ok(RateLimitLayer {
            shared: Arc::new(Shared {
                id: LayerId::new(),
                store: self.store,
                planner: Swap::new(planner),
                answers: Answers {
                    fields: Swap::new(fields),
                    jitter: self.retry_jitter,
                    on_refusal: self.on_refusal,
                },
                enabled: self.enabled,
                decide_first: self.decide_first,
                always: self.always,
                #[cfg(feature = "config")]
                replacing: Mutex::new(default),
            }),
        })
    }
}
