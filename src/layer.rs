//! What the user builds: [`RateLimitLayer`].

use std::sync::Arc;

use tower_layer::Layer;

use crate::{
    error::ConfigError,
    response::OnRefusal,
    rule::{IntoRules, Planner, Rule, Rules},
    service::RateLimit,
    store::{AnyStore, Store},
};

/// Limits the requests to the services it wraps.
///
/// For each request it finds the rule, asks the store, and either calls the inner service or answers 429 with
/// `Retry-After`; a gRPC request is answered RESOURCE_EXHAUSTED. A limit is never an error of the service.
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
    pub(crate) on_refusal: Option<Arc<dyn OnRefusal>>,
    pub(crate) enabled: bool,
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

    /// Whether requests are limited at all. Default: true.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Whether the permits left are counted for requests that are let pass. Default: true.
    ///
    /// Without it [`LimitState::remaining`](crate::LimitState::remaining) is `None` there, and Redis has less to do.
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
        let planner = Planner::new(self.rules, &*self.store, self.remaining)?;
        Ok(RateLimitLayer {
            shared: Arc::new(Shared {
                store: self.store,
                planner,
                on_refusal: self.on_refusal,
                enabled: self.enabled,
            }),
        })
    }
}
