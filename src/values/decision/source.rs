//! Where a decision comes from, such as the store, a cache or a policy: [`Source`].

/// The source of a [`Decision`](crate::Decision).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// In the store
    Store,
    /// In the store, by an upper bound of what the key has taken: the store is full, and has no
    /// room for that key. The permits left are a lower bound then, and waits may be longer by an
    /// eighth of the interval. See [`MemoryStore`](crate::MemoryStore#bounds)
    Estimate,
    /// In the store, a moment ago: a refusal that still stands is repeated. See
    /// [`deny_cache`](crate::RedisStoreBuilder::deny_cache)
    Cache,
    /// In this process, from permits fetched ahead: see [`Rule::lease`](crate::Rule::lease)
    Lease,
    /// In this process, by a share of the limit, because the store could not: see
    /// [`FailurePolicy::Local`](crate::FailurePolicy::Local)
    Local,
    /// By the rule's [`FailurePolicy`](crate::FailurePolicy), because the store could not
    FailurePolicy,
    /// By no store: the request lacks the key of a rule, a list denies it, its caller left, or the
    /// store failed and no policy answers
    None,
}

impl Source {
    /// All of them in their order, each with its name.
    pub(crate) const ALL: [(Self, &'static str); Self::None as usize + 1] = [
        (Self::Store, "store"),
        (Self::Estimate, "estimate"),
        (Self::Cache, "cache"),
        (Self::Lease, "lease"),
        (Self::Local, "local"),
        (Self::FailurePolicy, "policy"),
        (Self::None, "none"),
    ];

    /// Returns the name that metrics and logs have for it.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}
