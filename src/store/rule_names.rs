//! Refuses a rule, or a limit without HTTP, if a different one in use has the same name: both would
//! count in the same limiters, by different limits.

use std::{
    collections::HashMap,
    iter,
    sync::{Arc, Mutex, Weak},
};

use crate::{
    macros::opaque,
    sync::lock,
    values::{
        compiled_limit::CompiledLimit,
        limit::{Algorithm, Ban, LimitSource, name_of_part, name_of_whole},
        name::Naming,
    },
};

/// The rules of all layers on a store, and its limits without HTTP.
///
/// Rules of one name count together, also those of different layers. If they differed, each
/// would count by its own limit and, in Redisson's format, rewrite the other's. So the second is
/// refused while the first is in use.
#[derive(Debug, Default)]
pub(crate) struct RuleNames(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    claims: HashMap<Arc<str>, Vec<Claim>>,
    /// How many there were when those without a holder were dropped last.
    kept: usize,
}

/// The most names that are kept without a look at their holders.
const FEW: usize = 16;

struct Claim {
    terms: AgreedTerms,
    /// `None` if code gives any key.
    by: Option<CountsBy>,
    /// Dropped with the layer's rules, or the limit without HTTP.
    holder: Weak<()>,
    layer: Weak<()>,
}

/// Where the different rule of a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Differs {
    /// Among the rules of the same layer
    Here,
    /// In another layer, or it is a limit without HTTP
    Elsewhere,
    /// One of the two has a closure, which may choose several limits, one of this name
    MayBePart,
}

/// Returns the name under which a rule whose limit is a closure's claims those of all parts that
/// the limit of a request may have. No rule can be named so.
fn any_part_of(name: &str) -> Arc<str> {
    format!("{name}.*").into()
}

opaque!(Claim);

/// How a rule counts, as far as rules of its name must agree: each setting in which they may not
/// differ.
type AgreedTerms = (LimitSource, Algorithm, Option<Ban>, Naming);

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
    fn differs(&self, terms: &AgreedTerms, by: Option<CountsBy>) -> bool {
        let both = self.by.zip(by);
        self.terms != *terms || both.is_some_and(|(one, other)| one != other)
    }
}

/// Keeps the names that were claimed with it, for as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct NameHolder {
    token: Arc<()>,
    /// The layer's, which its old and new rules share: the old ones stay in use until the new ones
    /// are complete, and while a request that met them is decided.
    layer: Arc<()>,
}

impl NameHolder {
    /// Returns the holder of the rules that replace this one's.
    pub(crate) fn successor(&self) -> Self {
        Self {
            token: Arc::default(),
            layer: Arc::clone(&self.layer),
        }
    }

    fn has(&self, claim: &Claim) -> bool {
        claim.holder.as_ptr() == Arc::as_ptr(&self.token)
    }

    fn replaces(&self, claim: &Claim) -> bool {
        claim.layer.as_ptr() == Arc::as_ptr(&self.layer) && !self.has(claim)
    }
}

impl RuleNames {
    /// Records that `holder` has this limit of a rule, under these names, and what decides which
    /// limiter a request meets; `None` if code gives any key. Answers and metrics name each of
    /// several limits, so that those names are claimed, too: all that there can be, if a closure
    /// chooses the limit.
    ///
    /// # Errors
    ///
    /// Returns the name that a different limit has, and where that is. Rules that this holder's are
    /// about to replace do not count.
    pub(crate) fn claim(
        &self,
        of: &CompiledLimit,
        naming: &Naming,
        by: Option<CountsBy>,
        holder: &NameHolder,
    ) -> Result<(), (Arc<str>, Differs)> {
        let terms = (of.limit, of.counting.algorithm, of.ban, naming.clone());
        let longer = of.limit.given().into_iter();
        let longer = longer.flat_map(|limit| limit.parts().rev().skip(1));
        let longer = longer.map(|part| name_of_part(&of.name, false, part.interval).into());
        let chosen = by.and_then(|by| by.limit).map(|_| any_part_of(&of.name));
        let mut names = lock(&self.0);
        names.drop_unheld();
        for name in iter::once(Arc::clone(&of.name)).chain(longer).chain(chosen) {
            if let Some(part) = names.part_of_another(&name, holder) {
                return Err((part, Differs::MayBePart));
            }
            let claims = names.claims.entry(Arc::clone(&name)).or_default();
            claims.retain(|claim| claim.holder.strong_count() > 0);
            let differs = |claim: &Claim| claim.differs(&terms, by);
            let mut others = claims.iter().filter(|claim| differs(claim));
            if let Some(other) = others.find(|claim| !holder.replaces(claim)) {
                let is_here = holder.has(other);
                let place = if is_here {
                    Differs::Here
                } else {
                    Differs::Elsewhere
                };
                return Err((name, place));
            }
            // Once for each holder: thousands of its entries may have the same rule.
            if !claims.iter().any(|claim| holder.has(claim)) {
                claims.push(Claim {
                    terms: terms.clone(),
                    by,
                    holder: Arc::downgrade(&holder.token),
                    layer: Arc::downgrade(&holder.layer),
                });
            }
        }
        Ok(())
    }
}

impl Names {
    /// Returns a name that this one claims, or that is claimed with it, if a limit that another
    /// rule's closure chooses may have it.
    fn part_of_another(&self, name: &Arc<str>, holder: &NameHolder) -> Option<Arc<str>> {
        let is_taken = |claims: &Vec<Claim>| {
            let mut held = claims.iter().filter(|it| it.holder.strong_count() > 0);
            held.any(|claim| !holder.replaces(claim))
        };
        if let Some(whole) = name.strip_suffix(".*") {
            let is_part = |other: &Arc<str>| name_of_whole(other) == Some(whole);
            let mut taken = self
                .claims
                .iter()
                .filter(|it| is_part(it.0) && is_taken(it.1));
            return taken.next().map(|(part, _)| Arc::clone(part));
        }
        let chosen = self.claims.get(&any_part_of(name_of_whole(name)?));
        chosen.is_some_and(is_taken).then(|| Arc::clone(name))
    }

    /// Drops the names that nothing holds any more, once there are twice as many as were kept.
    fn drop_unheld(&mut self) {
        if self.claims.len() >= 2 * self.kept.max(FEW) {
            let is_held = |claim: &Claim| claim.holder.strong_count() > 0;
            self.claims.retain(|_, claims| claims.iter().any(is_held));
            self.kept = self.claims.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(names: &RuleNames, name: usize, ban: Option<Ban>, holder: &NameHolder) -> bool {
        let name = format!("rule{name}");
        let naming = Naming::derived("shop", &name).unwrap();
        let of = CompiledLimit {
            ban,
            ..CompiledLimit::with_defaults(&name, true, false)
        };
        names.claim(&of, &naming, None, holder).is_ok()
    }

    #[test]
    fn names_without_a_holder_are_forgotten_and_all_others_kept() {
        let (names, holder) = (RuleNames::default(), NameHolder::default());
        let held = 3 * FEW;
        assert!((0..held).all(|name| claim(&names, name, None, &holder)));
        for name in held..100 * held {
            assert!(claim(&names, name, None, &NameHolder::default()));
            assert!(lock(&names.0).claims.len() <= 2 * held);
        }
        let other = Some(Ban::after(3));
        assert!((0..held).all(|name| !claim(&names, name, other, &NameHolder::default())));
        assert!((0..held).all(|name| claim(&names, name, other, &holder.successor())));
    }
}
