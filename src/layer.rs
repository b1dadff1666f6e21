//! What the user builds: [`RateLimitLayer`].

use std::{sync::Arc, time::Duration};

use tower_layer::Layer;

use crate::{
    error::ConfigError,
    lifetime::Lifetime,
    response::{Answers, Fields, HeaderStyle, OnRefusal},
    rule::{IntoRules, Planner, Rule, Rules},
    service::RateLimit,
    store::{AnyStore, Store},
};

/// Limits the requests to the services it wraps.
///
/// For each request it finds the rule, asks the store, and either calls the inner service or answers 429 with
/// `Retry-After`; a gRPC request is answered RESOURCE_EXHAUSTED. A limit is never an error of the service. Where a limit was
/// met, the answer over HTTP tells what is left, in the fields of a [`HeaderStyle`].
///
/// Cloning is cheap, and clones are the same layer: put one on many routes and they share its limits. Around a router and
/// within it, the same layer charges a request once.
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
    shared: Arc<Shared>,
}

/// What all services of a layer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn AnyStore>,
    pub(crate) planner: Planner,
    pub(crate) answers: Answers,
    pub(crate) enabled: bool,
    pub(crate) lifetime: Lifetime,
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
            remaining: true,
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.shared))
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
    remaining: bool,
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

    /// Adds an entry to the table: see [`Rules::on_request`].
    pub fn on_request(
        mut self,
        matches: impl Fn(&http::request::Parts) -> bool + Send + Sync + 'static,
        rules: impl IntoRules,
    ) -> Self {
        self.rules = self.rules.on_request(matches, rules);
        self
    }

    /// The rule for requests that no entry matches: see [`Rules::otherwise`]. Default: they pass.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        self.rules = self.rules.otherwise(rules);
        self
    }

    /// Replaces the table.
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

    /// Whether the permits left are counted for requests that are let pass. Default: true.
    ///
    /// Without it [`LimitState::remaining`](crate::LimitState::remaining) is `None` there,
    /// [`LimitState::reset_after`](crate::LimitState::reset_after) is the interval, and Redis has less to do.
    /// The fields of [`headers`](Self::headers) then tell the limit and not what is left of it.
    pub fn count_remaining(mut self, remaining: bool) -> Self {
        self.remaining = remaining;
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the entry, the rule or the value at fault.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        let fields = Fields::new(&self.headers)?;
        if let Some(most) = fields.most_permits() {
            self.rules.check_told(most)?;
        }
        let planner = Planner::new(self.rules, &*self.store, self.remaining)?;
        Ok(RateLimitLayer {
            shared: Arc::new(Shared {
                store: self.store,
                planner,
                answers: Answers {
                    fields,
                    jitter: self.retry_jitter,
                    on_refusal: self.on_refusal,
                },
                enabled: self.enabled,
                lifetime: Lifetime::new(),
            }),
        })
    }
}
