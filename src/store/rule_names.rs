//! Refuses a rule if a different rule in use has the same name: both would count in the same
//! limiters, by different limits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use crate::sync::lock;

/// The rules of all layers on a store.
///
/// Rules of one name count in one place, also those of different layers. If they differed, each
/// would count by its own limit and, in Redis, rewrite the other's. So the second is refused while
/// the first is in use.
#[derive(Debug, Default)]
pub(crate) struct RuleNames(Mutex<HashMap<Arc<str>, Vec<Claim>>>);

#[derive(Debug)]
struct Claim {
    fingerprint: String,
    /// Dropped with the layer.
    holder: Weak<()>,
}

/// Claims names for a layer's rules, for as long as the layer has them.
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
    /// Records that `holder` has a rule of this name. Returns false if another holder has a
    /// different one, other than the holder that it replaces.
    pub(crate) fn claim(&self, name: &Arc<str>, fingerprint: String, holder: &Holder) -> bool {
        let mut names = lock(&self.0);
        let claims = names.entry(Arc::clone(name)).or_default();
        claims.retain(|claim| claim.holder.strong_count() > 0);
        let differs = |claim: &Claim| claim.fingerprint != fingerprint;
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
            claims.push(Claim {
                fingerprint,
                holder,
            });
        }
        true
    }
}
