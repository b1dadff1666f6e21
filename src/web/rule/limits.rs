//! The limits of a rule: fixed, one of several tiers, computed by a closure, or stored.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::{macros::opaque, values::limit::Limit};

/// The source of a rule's limit.
#[derive(Clone)]
pub(crate) enum LimitOf {
    Fixed(Limit),
    /// One of several limits, by name; each counts on its own
    Tiers(Tiers),
    /// The limit that a closure returns for the request
    Parts(Arc<dyn Fn(&Parts) -> Limit + Send + Sync>),
    /// The stored limit, under an exact name or a template
    Shared(String),
}

/// Returns the tier of a request.
pub(crate) type ChooseTier = Arc<dyn Fn(&Parts) -> &'static str + Send + Sync>;

/// The limit of a rule in any of its forms: a [`Limit`], [`Tiers`], or found by [`limit_by`].
#[derive(Clone)]
pub struct RuleLimit(pub(super) LimitOf);

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

opaque!(RuleLimit);

/// Determines the limit from a request's head, for limits that differ between callers.
///
/// A caller whose limit changes keeps the permits it has used. The limit of each request counts for
/// that request; in a store that keeps it in [Redisson's
/// format](crate::RedisStoreBuilder::redisson), it is rewritten with the caller's next request, at
/// most once a minute by each process.
pub fn limit_by(limit: impl Fn(&Parts) -> Limit + Send + Sync + 'static) -> RuleLimit {
    RuleLimit(LimitOf::Parts(Arc::new(limit)))
}

/// One of several limits, which is chosen by a request's head: free, paid.
///
/// Each tier is a rule of its own, named `<rule>.<tier>`. A caller that changes its tier starts
/// there with a full limit.
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
    pub(crate) limits: Vec<(&'static str, Limit)>,
    pub(crate) choose: ChooseTier,
}

impl Tiers {
    /// Creates tiers, with a closure that returns the tier of a request.
    ///
    /// An unknown tier is treated as the first one: put the strictest there.
    pub fn new(
        tiers: impl IntoIterator<Item = (&'static str, Limit)>,
        choose: impl Fn(&Parts) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        Self {
            limits: tiers.into_iter().collect(),
            choose: Arc::new(choose),
        }
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.limits.iter().cloned()).finish()
    }
}
