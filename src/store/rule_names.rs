//! Refuses a rule, or a limit without HTTP, if a different one in use has the same name: both would
//! count in the same limiters, by different limits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use crate::{
    macros::opaque,
    sync::lock,
    values::{
        compiled_limit::CompiledLimit,
        limit::{Algorithm, Ban, LimitSource},
        name::Naming,
    },
};

/// The rules of all layers on a store, and its limits without HTTP.
///
/// Rules of one name count in one place, also those of different layers. If they differed, each
/// would count by its own limit and, in Redis, rewrite the other's. So the second is refused while
/// the first is in use.
#[derive(Debug, Default)]
pub(crate) struct RuleNames(Mutex<HashMap<Arc<str>, Vec<Claim>>>);

struct Claim {
    counts: Counts,
    /// `None` if code gives any key.
    by: Option<CountsBy>,
    /// Dropped with the layer, or the limit without HTTP.
    holder: Weak<()>,
}

opaque!(Claim);

/// How a rule counts, as far as rules of its name must agree: each setting in which they may not
/// differ.
type Counts = (LimitSource, Algorithm, Option<Ban>, Naming);

/// What tells a rule's extractor from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyIdentity {
    Fingerprint(u64),
    /// Its address, where its settings cannot be compared
    Address(usize),
}

/// What decides which limiter and which limit a request meets, while its rule is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountsBy {
    pub(crate) key: Option<KeyIdentity>,
    /// The address of the closure that chooses the limit, if one does.
    pub(crate) limit: Option<usize>,
}

impl Claim {
    fn differs(&self, counts: &Counts, by: Option<CountsBy>) -> bool {
        let both = self.by.zip(by);
        self.counts != *counts || both.is_some_and(|(one, other)| one != other)
    }
}

/// Claims names for a layer's rules, or for a limit without HTTP, for as long as it has them.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    token: Arc<()>,
    /// The layer's rules so far, which are in use until these are whole.
    replaced: Weak<()>,
}

impl Holder {
    /// The rules that take the place of this one's.
    pub(crate) fn successor(&self) -> Self {
        Self {
            token: Arc::default(),
            replaced: Arc::downgrade(&self.token),
        }
    }

    fn replaces(&self, claim: &Claim) -> bool {
        self.replaced.ptr_eq(&claim.holder)
    }
}

impl RuleNames {
    /// Records that `holder` has this limit of a rule, under these names, and what decides which
    /// limiter a request meets; `None` if code gives any key. Returns false if another holder has a
    /// different one, other than the holder that it replaces.
    pub(crate) fn claim(
        &self,
        of: &CompiledLimit,
        naming: &Naming,
        by: Option<CountsBy>,
        holder: &Holder,
    ) -> bool {
        let counts = (of.limit, of.counting.algorithm, of.ban, naming.clone());
        let mut names = lock(&self.0);
        if names.len().is_power_of_two() {
            // Now and then, what has no holder any more.
            names.retain(|_, claims| claims.iter().any(|it| it.holder.strong_count() > 0));
        }
        let claims = names.entry(Arc::clone(&of.name)).or_default();
        claims.retain(|claim| claim.holder.strong_count() > 0);
        let differs = |claim: &Claim| claim.differs(&counts, by);
        if claims
            .iter()
            .any(|claim| differs(claim) && !holder.replaces(claim))
        {
            return false;
        }
        // Once for each holder: thousands of its entries may have the same rule.
        let holder = Arc::downgrade(&holder.token);
        let known = |claim: &Claim| claim.holder.ptr_eq(&holder) && !differs(claim);
        if !claims.iter().any(known) {
            claims.push(Claim { counts, by, holder });
        }
        true
    }
}
