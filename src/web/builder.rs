//! The builder of a layer: [`RateLimitLayerBuilder`].

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Response, request::Parts};

use super::{
    answer::{Fields, HeaderStyle},
    layer::{LayerSettings, LayerState, RateLimitLayer, Replaceable},
    rule::{CompiledRules, IntoRules, Rule, RuleSettings, Rules},
};
use crate::{
    store::{AnyStore, Store, rule_names::NameHolder},
    values::{decision::Refusal, decision::grant::LayerId, error::ConfigError, observe::Observer},
};

impl RateLimitLayer {
    /// Creates a layer with one rule for all requests: `Limit::per_minute(60).by(PeerIp)`, or a
    /// bare [`Limit`](crate::Limit) that all requests share.
    ///
    /// # Panics
    ///
    /// Panics if the rule is not valid. [`builder`](Self::builder) returns the error instead.
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

    /// Returns a builder for a layer of several rules.
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
            settings: LayerSettings::default(),
            headers: vec![HeaderStyle::Draft11],
            rule_settings: RuleSettings {
                remaining: true,
                ..RuleSettings::default()
            },
        }
    }
}

/// Builds a [`RateLimitLayer`].
#[derive(Clone, Debug)]
#[must_use = "call `build`"]
pub struct RateLimitLayerBuilder {
    store: Arc<dyn AnyStore>,
    rules: Rules,
    settings: LayerSettings,
    headers: Vec<HeaderStyle>,
    rule_settings: RuleSettings,
}

impl RateLimitLayerBuilder {
    /// Adds an entry to the table. See [`Rules::on`].
    pub fn on(mut self, pattern: &str, rules: impl IntoRules) -> Self {
        self.rules = self.rules.on(pattern, rules);
        self
    }

    /// Adds an entry to the table. See [`Rules::on_grpc`].
    pub fn on_grpc(mut self, method: &str, rules: impl IntoRules) -> Self {
        self.rules = self.rules.on_grpc(method, rules);
        self
    }

    /// Sets the rules for requests that no entry matches. See [`Rules::otherwise`]. Default: such
    /// requests pass.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        self.rules = self.rules.otherwise(rules);
        self
    }

    /// Lets CORS preflights pass uncounted, unless a list denies them. Default: the rules apply to
    /// them.
    ///
    /// A preflight is a request with the method OPTIONS and the fields `Origin` and
    /// `Access-Control-Request-Method`. Browsers send it on their own and without credentials. A
    /// rule whose key is missing in a preflight is therefore skipped and does not refuse it. A rule
    /// whose key is present, such as an address or a constant, counts it like any other request.
    ///
    /// # Deployment caveat
    ///
    /// Any client can send a request that looks like a preflight, as often as it likes. Set this
    /// only if the inner service answers OPTIONS and does no other work for it: no proxy, no
    /// handler for all methods.
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
        self.rule_settings.skip_preflight = true;
        self
    }

    /// Sets the table and its lists. [`Rules`] has more settings than this builder.
    ///
    /// Call it before `on` and `otherwise`, which add to it: rules that were added before it would
    /// be lost, and that is a [`ConfigError`] when the layer is built. If they add to the rules of
    /// a file, no [watch](RateLimitLayer::watch) replaces these: the file lacks what they add.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules.in_place_of(&self.rules);
        self
    }

    /// Edits the responses to refused requests. Default: they are sent unchanged.
    ///
    /// The answer is complete, for HTTP or gRPC: unchanged parts stay valid. For gRPC it must stay
    /// without a body; one to HEAD has the body of GET, which is removed afterwards.
    ///
    /// It is called as soon as a request is refused: in [`Service::call`](tower_service::Service)
    /// where that is decided at once, also if the response is then not awaited.
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
    pub fn on_refusal(
        mut self,
        on_refusal: impl Fn(&Refusal, &Parts, Response<Bytes>) -> Response<Bytes>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.settings.answers.on_refusal = Some(Arc::new(on_refusal));
        self
    }

    /// Sets the header fields that report how much is left, on every HTTP response to which a limit
    /// applied. Default: [`HeaderStyle::Draft11`]. An empty list sends none.
    ///
    /// gRPC responses never have them. [`Rule::hide_headers`] leaves out single rules. In a
    /// browser, scripts can read them only if CORS exposes them: see the
    /// [guide](crate::docs::guide).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{HeaderStyle, Limit, MemoryStore, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_second(100))
    ///     .headers([HeaderStyle::Draft11, HeaderStyle::LegacyEpoch])
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.headers = styles.into_iter().collect();
        self
    }

    /// Adds a random time, at most this long, to the wait that a refusal announces: `Retry-After`
    /// and all fields with the same meaning, and in gRPC the pushback and `RetryInfo`. Default:
    /// zero.
    ///
    /// Without jitter, callers that are refused together come back together. `Retry-After` is
    /// rounded up to whole seconds, so jitter below one second may not show there. gRPC uses
    /// milliseconds, and its clients wait exactly as long as the pushback says, without jitter of
    /// their own (gRFC A6). Jitter only lengthens the announced wait, and
    /// [`Refusal::retry_after`](crate::Refusal::retry_after) stays exact.
    pub fn retry_jitter(mut self, jitter: Duration) -> Self {
        self.settings.answers.jitter = jitter;
        self
    }

    /// Sets whether requests are limited at all. Default: true.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.settings.is_disabled = !enabled;
        self
    }

    /// Holds requests that find no permits, for up to this time. See [`Rule::wait`], which takes
    /// precedence. Default: they are refused at once.
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
        self.rule_settings.wait = Some(up_to);
        self
    }

    /// Sets how many requests may wait for the same limits. See [`Rule::queue`], which takes
    /// precedence. Default: 100.
    pub fn queue(mut self, requests: usize) -> Self {
        self.rule_settings.queue = Some(requests);
        self
    }

    /// Sets whether a request is decided before the inner service is ready for it. Default: false.
    ///
    /// By default this layer is ready when the inner service is, like tower's other layers.
    /// Back-pressure reaches the caller, and a request holds its place in the inner service (for
    /// example a permit of a `ConcurrencyLimit`) while the store decides and while it waits for
    /// permits. With `true` this layer is always ready, and an admitted request then waits for the
    /// inner service, already charged. Refusals are answered and places stay free while the inner
    /// service is busy, but this layer does not bound how many requests wait for it.
    ///
    /// An error from the inner service's readiness becomes the error of the call. A request that is
    /// dropped while it waits for the inner service stays charged.
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
        self.settings.decide_first = decide_first;
        self
    }

    /// Charges a request even if a layer around this one has already charged it. Default: a charge
    /// made outside is not made again.
    ///
    /// By default, a request that meets the same layer twice, around a router and inside it, is
    /// charged the second time by the rules that have not charged it: by another key or at another
    /// cost, a rule charges again. If two different layers share a store, a rule that charges the
    /// same limiter under the same name and at the same fixed cost is charged once, and one warning
    /// reports it. Rules that differ in any of these, or whose cost depends on the request, are
    /// charged by each layer. A charge made outside counts until its response has ended.
    ///
    /// Set this on the inner layer if a request should be charged twice: for example in a gateway
    /// that limits incoming requests and, by the same rule, the requests it forwards.
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
        self.settings.always = true;
        self
    }

    /// Sets whether the permits left are counted for admitted requests. Default: true.
    ///
    /// With `false`, [`LimitState::remaining`](crate::LimitState::remaining) is `None` for them,
    /// [`LimitState::reset_after`](crate::LimitState::reset_after) may be the interval, and Redis
    /// has less work for limiters in Redisson's format. The fields of [`headers`](Self::headers)
    /// then report the limit but not how much of it is left.
    pub fn count_remaining(mut self, remaining: bool) -> Self {
        self.rule_settings.remaining = remaining;
        self
    }

    /// Leaves the [`Decision`](crate::Decision) on an admitted request in the extensions of its
    /// response, too, for middleware around this layer. Default: only a refusal is left there, and
    /// a grant where an outer layer of this crate needs it.
    ///
    /// Handlers need no setting: they find the [`Grant`](crate::Grant) in the request's extensions.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::builder(&MemoryStore::new())
    ///     .otherwise(Limit::per_minute(60).by(PeerIp))
    ///     .decision_in_response()
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn decision_in_response(mut self) -> Self {
        self.settings.decision_in_response = true;
        self
    }

    /// Makes every rule a shadow rule, whatever its own setting. See [`Rule::shadow`]. Default:
    /// false.
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
        self.rule_settings.shadow = shadow;
        self
    }

    /// Adds an observer, which receives the decision of each request that reaches the layer.
    /// Default: only those of the store, which always receive it. They are called in the order
    /// in which they were added, those of the store last.
    ///
    /// # Example
    ///
    /// See [`Observer`].
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.rule_settings.observers = self.rule_settings.observers.and(observer);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the invalid entry, rule or value.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        let of_store = &self.store.about().observers;
        let rule_settings = RuleSettings {
            fields: Fields::new(&self.headers)?,
            observers: self.rule_settings.observers.and_all(of_store),
            ..self.rule_settings
        };
        let rules = CompiledRules::new(
            self.rules,
            &*self.store,
            rule_settings,
            NameHolder::default(),
        )?;
        Ok(RateLimitLayer {
            shared: Arc::new(LayerState {
                id: LayerId::new(),
                store: self.store,
                rules: Replaceable::from_pointee(rules),
                settings: self.settings,
                replacing: Mutex::new(()),
            }),
        })
    }
}
