//! The entry point of the crate: [`RateLimitLayer`].

use std::sync::{Arc, Mutex};

use http::request::Parts;

use super::{
    answer::Answers,
    rule::{CompiledRules, Rules},
};
use crate::{
    limiter::RateLimiter,
    store::AnyStore,
    sync::lock,
    values::{
        compiled_limit::Limiter,
        decision::grant::LayerId,
        error::ConfigError,
        name::Identity,
        observe::{Origin, StateChange},
    },
};

/// Limits the requests to the services it wraps.
///
/// For each request the layer finds the rule, asks the store, and then either calls the inner
/// service or answers 429 Too Many Requests with `Retry-After`. A gRPC request is answered
/// RESOURCE_EXHAUSTED. Reaching a limit is never an error of the service. If a limit applied, the
/// HTTP response says how much of it is left, in the fields of a
/// [`HeaderStyle`](crate::HeaderStyle).
///
/// Cloning is cheap, and clones are the same layer: routes that use clones of one layer share its
/// limits. If the same layer is around a router and also inside it, it charges a request once: a
/// request that passes it again meets the rules that it was not charged for. Two layers on one
/// store that have the same rule also charge it once, unless the inner layer says
/// [`always`](crate::RateLimitLayerBuilder::always).
///
/// The charge of a request can be corrected until its response has ended: by
/// [`Rule::charge_if`](crate::Rule::charge_if), [`Cost`](crate::Cost) or [`Grant`](crate::Grant).
///
/// This is not `tower::limit::RateLimitLayer`, which makes all callers of one service instance
/// wait.
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
    pub(crate) shared: Arc<LayerState>,
}

/// The state that all services of a layer share.
#[derive(Debug)]
pub(crate) struct LayerState {
    pub(crate) id: LayerId,
    pub(crate) store: Arc<dyn AnyStore>,
    pub(crate) rules: Replaceable,
    pub(super) settings: LayerSettings,
    /// Lets one reload run at a time.
    pub(super) replacing: Mutex<()>,
}

/// The layer's other settings. A reload keeps them, too.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerSettings {
    pub(super) answers: Answers,
    pub(super) is_disabled: bool,
    pub(super) decide_first: bool,
    pub(super) always: bool,
    pub(super) decision_in_response: bool,
}

/// The rules of a layer, with the header fields that belong to them.
#[cfg(feature = "config")]
pub(crate) type Replaceable = arc_swap::ArcSwap<CompiledRules>;

/// The rules of a layer, which nothing replaces without the feature `config`.
#[cfg(not(feature = "config"))]
#[derive(Debug)]
pub(crate) struct Replaceable(CompiledRules);

#[cfg(not(feature = "config"))]
impl Replaceable {
    pub(super) fn from_pointee(rules: CompiledRules) -> Self {
        Self(rules)
    }

    pub(crate) fn load(&self) -> &CompiledRules {
        &self.0
    }
}

#[cfg(feature = "config")]
impl LayerState {
    /// Replaces the rules, and leaves it to [`reloaded`](Self::reloaded) to report that.
    pub(super) fn replace(&self, rules: Rules, by: Origin) -> Result<(), ConfigError> {
        let _alone = lock(&self.replacing);
        let rules = self.rules.load().successor(rules, &*self.store, by)?;
        self.rules.store(Arc::new(rules));
        Ok(())
    }

    /// Reports to the observers that rules are in force now, or were refused.
    pub(super) fn reloaded(&self, refused: Option<&ConfigError>, by: Origin) {
        let rules = self.rules.load();
        let observers = &rules.settings.observers;
        observers.changed(&StateChange::Rules { refused, by });
    }
}

impl RateLimitLayer {
    /// Returns the limiter of one caller of a rule, to look at it or to take from it.
    ///
    /// `rule` is the rule's name, as [`LimitState::name`](crate::LimitState::name) has it; with
    /// tiers, `<rule>.<tier>`. `key` has the components that the rule's key finds in a request:
    /// one for a header or an address, several for a tuple, none for a rule on one exact name.
    /// [Keys](crate::docs::keys) describes how to write addresses, digests and alternatives;
    /// [`limiters_of`](Self::limiters_of) needs no key.
    ///
    /// It is the limiter that [`Keyed::of`](crate::Keyed::of) returns for the same name and key. It
    /// counts by the rule's own limit, also before a request has met the rule, and bans by the
    /// rule's [terms](crate::Rule::ban). It asks the store each time, whatever the rule
    /// [leases](crate::Rule::lease). What would change the limit, the expiry or the name is an
    /// error of kind [`Limit`](crate::ErrorKind::Limit): change the rule.
    ///
    /// Of a [shared](crate::Rule::shared) rule, the limit is the stored one, and the first permits
    /// that are taken store that of [`or_init`](crate::Rule::or_init). If a closure
    /// [chooses](crate::limit_by) the limit, there is none without a request: what needs it is an
    /// error of kind [`Limit`](crate::ErrorKind::Limit), except in a store that keeps limits in
    /// [Redisson's format](crate::RedisStoreBuilder::redisson), where it is the one stored last.
    /// [`limiters_of`](Self::limiters_of) returns those of a request. A reload does not reach a
    /// limiter that was returned before: ask for it again.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) if there is no such rule,
    /// and of kind [`Key`](crate::ConfigErrorKind::Key) if the rule has a key and none is given, or
    /// has none.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::FromHeader};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let login = Limit::per_hour(5).by(FromHeader::new("x-user")).named("login");
    /// let layer = RateLimitLayer::new(&MemoryStore::new(), login);
    /// // Ann may try again.
    /// layer.limiter("login", ["ann"])?.delete().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter<K: AsRef<[u8]>>(
        &self,
        rule: &str,
        key: impl IntoIterator<Item = K>,
    ) -> Result<RateLimiter, ConfigError> {
        let mut identity = Identity::default();
        key.into_iter()
            .for_each(|component| identity.push(component.as_ref()));
        let limiter = self.shared.rules.load().limiter_of(rule, &identity)?;
        Ok(self.reach(limiter))
    }

    /// Returns the limiters that would count a request with this head, in the order of its rules,
    /// each by the limit that the request would have.
    ///
    /// None for a request that no rule applies to, that lacks the keys, or that a list or a skipped
    /// preflight decides.
    pub fn limiters_of(&self, request: &Parts) -> Vec<RateLimiter> {
        let limiters = self.shared.rules.load().limiters_of(request);
        let limiters = limiters.into_iter().map(|limiter| self.reach(limiter));
        limiters.collect()
    }

    fn reach(&self, limiter: Limiter) -> RateLimiter {
        RateLimiter::with(Arc::clone(&self.shared.store), limiter)
    }
}

#[cfg(feature = "config")]
impl RateLimitLayer {
    /// Replaces the rules of this layer, also in the services it has already made, while they
    /// serve.
    ///
    /// Each request is decided by the old rules or by the new ones, never by a mix. Requests under
    /// way finish with the rules they started with. Counts are kept, because limiters are
    /// identified by the names of rules and keys. A changed limit applies from the next request of
    /// each limiter, and permits in use stay in use, with the exceptions that the
    /// [guide](crate::docs::guide#while-it-runs) names. If this process changed the same limiter in
    /// Redisson's format within the last minute, the new limit applies from the first request after
    /// that minute. The builder's settings do not change: the store, the hook, whether the layer is
    /// enabled.
    ///
    /// Layers that were built one by one on a store, and have a rule of the same name, cannot
    /// change it one after the other: each would count by its own limit. Build one layer and clone
    /// it; a reload reaches all clones.
    ///
    /// # Errors
    ///
    /// Returns the same [`ConfigError`]s as [`build`](crate::RateLimitLayerBuilder::build). The
    /// layer then keeps its current rules.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, Rules, key::PeerIp};
    ///
    /// let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(60).by(PeerIp));
    /// layer.reload(Rules::new().otherwise(Limit::per_minute(90).by(PeerIp)))?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn reload(&self, rules: Rules) -> Result<(), ConfigError> {
        let replaced = self.shared.replace(rules, Origin::Code);
        self.shared.reloaded(replaced.as_ref().err(), Origin::Code);
        replaced
    }
}
