//! A rule, checked for its store, with its limits bound to their names: [`CompiledRule`].

use std::{collections::HashMap, ptr, sync::Arc, time::Duration};

use hmac_sha256::Hash;
use http::request::Parts;

use super::{CostOf, LimitOf, Rule};
use crate::{
    macros::warning,
    store::{
        About, AnyStore,
        rule_names::{CountsBy, Differs, NameHolder},
    },
    sync::Once,
    values::{
        charge::Charge,
        compiled_limit::{CompiledLimit, Limiter, Warning},
        decision::{Fault, Missing, Refusal},
        demand::MaxWait,
        error::{ConfigError, bail, config_error},
        failure_policy::FailurePolicy,
        limit::{Counting, Limit, LimitSource},
        name::{Identity, Name, Naming, check_rule_name},
        observe::{ObservedRule, Observers},
    },
    web::{
        answer::Fields,
        key::{AnyKey, Key, NoKey, mistakes},
        request::is_preflight,
    },
};

/// The default number of requests that may wait for the same limits.
const DEFAULT_QUEUE: usize = 100;

/// The unit that clients assume.
const REQUESTS: &str = "requests";

/// The percentage of keys for which a shadow rule is enforced.
const NONE: u8 = 0;
/// That of any other rule by default.
const ALL: u8 = 100;

/// The layer's settings that its rules are compiled with. A reload keeps them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleSettings {
    /// Counts the permits left.
    pub(crate) remaining: bool,
    /// The header fields if the `Rules` set none.
    pub(crate) fields: Fields,
    /// Makes every rule a shadow rule.
    pub(crate) shadow: bool,
    /// The longest wait of requests whose rules set none.
    pub(crate) wait: Option<Duration>,
    /// The queue length for rules that set none.
    pub(crate) queue: Option<usize>,
    /// Lets CORS preflights pass uncounted.
    pub(crate) skip_preflight: bool,
    /// The observers of the layer and of its store.
    pub(crate) observers: Observers,
}

/// One rule, checked for its store, with its limits bound to their names.
pub(super) struct CompiledRule {
    pub(super) rule: Rule,
    /// One for each tier, or a single one. Never empty.
    limits: Vec<NamedLimit>,
    /// What logs and observers show of the rule: that of its only limit, or with tiers one that is
    /// made for it.
    pub(super) compiled: Arc<CompiledLimit>,
    pub(super) max_wait: Option<MaxWait>,
    /// The index of the first rule of its entry that finds the same key.
    key_of: usize,
    warned: Once,
}

/// The key of a request by one of an entry's rules: the next is likely to have the same.
#[derive(Default)]
pub(super) struct FoundKey {
    key: Key,
    /// The index of the first rule with this key, and whether there is a key.
    found: Option<(usize, Result<(), NoKey>)>,
}

/// One limit of a rule, with the way it names limiters.
struct NamedLimit {
    /// Where a closure chooses the limit it has none yet (`LimitSource::Store`):
    /// `CompiledRule::limit` puts in that of the request.
    compiled: Arc<CompiledLimit>,
    naming: Naming,
}

/// Returns the error for two different rules of one name, which would count together, or one that
/// has the name of one of another's several limits.
fn duplicate(name: &str, differs: Differs) -> ConfigError {
    let settings = "limit, key, algorithm, ban or shared name";
    match differs {
        Differs::Here => config_error!(Duplicate: "two rules are named {name:?} and differ in \
            {settings}: rename one of them, or clone it if both are to be one"),
        Differs::Elsewhere => config_error!(Duplicate: "a rule of another layer on this store, or \
            a `Limit::named`, is named {name:?} and differs in {settings}: rename one of them, or \
            clone one layer"),
        Differs::MayBePart => config_error!(Duplicate: "a rule or `Limit::named` is named \
            {name:?}, which may also be one of several limits that another rule's `limit_by` \
            returns: rename one of them"),
    }
}

/// Returns whether a rule that is enforced for this percentage of keys may refuse by this limiter.
/// It keeps that when the share grows, in every process and in every release of this crate.
///
/// The name contains prefix, key and rule, so each rule begins with other callers.
fn is_enforced(percent: u8, name: &Name) -> bool {
    if matches!(percent, NONE | ALL) {
        return percent == ALL;
    }
    let [a, b, c, d, ..] = Hash::hash(name.as_str().as_bytes());
    let number = u64::from(u32::from_be_bytes([a, b, c, d]));
    // Scales a number below 2^32 to one below a hundred.
    (number * u64::from(ALL)) >> 32 < u64::from(percent)
}

impl CompiledRule {
    pub(super) fn new(
        mut rule: Rule,
        store: &dyn AnyStore,
        settings: &RuleSettings,
        holder: &NameHolder,
    ) -> Result<Self, ConfigError> {
        let label = rule.label().to_owned();
        let about = store.about();
        let traits = rule.check(about.prefers_redisson)?;
        let queue = rule.queue.or(settings.queue).unwrap_or(DEFAULT_QUEUE);
        if queue == 0 {
            bail!(Rule: "rule {label:?} has a queue of 0 requests: leave `wait` out if none should \
                wait");
        }
        let key_is_bounded = traits.is_some_and(|key| key.is_bounded);
        let limits = rule.named_limits(about, &settings.observers, key_is_bounded)?;
        let takes_identity = limits.iter().all(|named| named.naming.takes_identity);
        match (&rule.key, takes_identity) {
            (None, true) => bail!(Key: "rule {label:?} has no key: add `.by(..)`, in a file \
                `by = \"peer\"`, or `by = \"constant:all\"` for all requests together"),
            (Some(_), false) => {
                bail!(Key: "rule {label:?} has a key, but no `<key>` in its shared name")
            }
            _ => {}
        }
        let counts_by = CountsBy {
            key: rule.key.as_ref().map(AnyKey::identity),
            limit: match &rule.limit {
                LimitOf::Parts(limit) => Some(Arc::as_ptr(limit).cast::<()>().addr()),
                _ => None,
            },
        };
        for named in &limits {
            let NamedLimit { compiled, naming } = named;
            about.check(&label, compiled)?;
            let claimed = about
                .rule_names
                .claim(compiled, naming, Some(counts_by), holder);
            claimed.map_err(|(name, differs)| duplicate(&name, differs))?;
        }
        rule.name = Some(label);
        if settings.shadow {
            rule.share = NONE;
        }
        let wait = rule.wait.or(settings.wait).filter(|wait| !wait.is_zero());
        let compiled = match (&rule.limit, limits.first()) {
            (LimitOf::Tiers(_), _) | (_, None) => CompiledLimit::new(rule.label(), false),
            (_, Some(only)) => Arc::clone(&only.compiled),
        };
        Ok(Self {
            limits,
            compiled,
            max_wait: wait.map(|wait| MaxWait {
                queue: Some(queue),
                ..MaxWait::at_most(wait)
            }),
            key_of: 0,
            warned: Once::default(),
            rule,
        })
    }

    /// Numbers the keys of an entry's rules, so that rules in a row with one key look for it once.
    pub(super) fn share_keys(rules: &mut [Self]) {
        let mut firsts = HashMap::new();
        for (index, rule) in rules.iter_mut().enumerate() {
            let key = rule.rule.key.as_ref().map(AnyKey::identity);
            rule.key_of = *firsts.entry(key).or_insert(index);
        }
    }

    /// Hands `take` the charge of a request; nothing if the rule does not apply to it.
    #[inline]
    pub(super) fn plan(
        &self,
        parts: &Parts,
        last: &mut FoundKey,
        take: impl FnOnce(Charge),
    ) -> Result<(), Missing> {
        let rule = &self.rule;
        let permits = match &rule.cost {
            CostOf::Fixed(cost) => *cost,
            CostOf::Parts(cost) => cost(parts),
        };
        if permits == 0 {
            return Ok(());
        }
        let found = match last.found {
            Some((of, found)) if of == self.key_of => found,
            before => {
                if before.is_some() {
                    last.key = Key::default();
                }
                let extractor = rule.key.as_ref();
                let found = extractor.map_or(Ok(()), |it| last.key.add(&*it.0, parts));
                last.found = Some((self.key_of, found));
                found
            }
        };
        let key = &mut last.key;
        if found.is_err_and(|none| none.fault() == Some(Fault::Server)) {
            // Recorded already, unless an extractor of the user's wraps `PeerIp`.
            key.mistakes |= mistakes::NO_PEER;
        }
        if key.mistakes != 0 {
            mistakes::warn(rule.label(), key.mistakes, &self.warned);
        }
        match found {
            Ok(()) => {}
            Err(NoKey::Skip) => return Ok(()),
            Err(NoKey::Missing(missing)) => return Err(missing),
        }
        if let Some((naming, compiled)) = self.limit(parts) {
            let name = naming.name(&key.identity);
            take(Charge {
                shadow: !is_enforced(rule.share, &name),
                allow_on_failure: rule.on_failure == FailurePolicy::Allow,
                ..Charge::new(Limiter { name, compiled }, permits)
            });
        }
        Ok(())
    }

    /// Returns whether this is one of its limits, also as a reload has made it again.
    pub(super) fn has(&self, compiled: &CompiledLimit) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|named| named.compiled.name == compiled.name)
    }

    /// Returns the names of its limits, with the limiter of this identity by each.
    pub(super) fn limiters(
        &self,
        identity: &Identity,
    ) -> impl Iterator<Item = (&str, Option<Limiter>)> {
        let takes_identity = !identity.is_empty();
        self.limits.iter().map(move |named| {
            let fits = named.naming.takes_identity == takes_identity;
            let limiter = fits.then(|| Limiter {
                name: named.naming.name(identity),
                compiled: Arc::clone(&named.compiled),
            });
            (&*named.compiled.name, limiter)
        })
    }

    /// Returns the limit of a request. Never `None`: each rule has a limit, checked when it was
    /// built.
    fn limit(&self, parts: &Parts) -> Option<(&Naming, Arc<CompiledLimit>)> {
        let first = self.limits.first()?;
        let named = match &self.rule.limit {
            LimitOf::Fixed(_) | LimitOf::Shared(_) => first,
            LimitOf::Parts(choose) => {
                let limit = LimitSource::Code(choose(parts).for_request_key());
                return Some((&first.naming, first.compiled.with_limit(limit)));
            }
            LimitOf::Tiers(tiers) => {
                let tier = (tiers.choose)(parts);
                let mut tiers = tiers.limits.iter().zip(&self.limits);
                // The first also stands for tiers that are not in the list.
                let found = tiers.find(|((name, _), _)| *name == tier);
                found.map_or(first, |(_, named)| named)
            }
        };
        Some((&named.naming, Arc::clone(&named.compiled)))
    }

    /// Checks that rules of one entry on the same limiter can be charged together: their costs are
    /// summed and settled as one.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) if two of them count or
    /// settle differently.
    pub(super) fn agree_on_limiters(rules: &[Self]) -> Result<(), ConfigError> {
        // The first rule on a limiter stands for all earlier ones, which agree with each other.
        let mut firsts = HashMap::new();
        for rule in rules {
            let has_charge_if = rule.rule.charge_if.is_some();
            for this in &rule.limits {
                let name = this.naming.to_string();
                let (that, that_has_one) = *firsts.entry(name).or_insert((this, has_charge_if));
                let agree = this.compiled.counting == that.compiled.counting
                    && this.compiled.ban == that.compiled.ban
                    && !(has_charge_if || that_has_one);
                if !agree && !ptr::eq(this, that) {
                    let [one, other] = [that, this].map(|named| &named.compiled.name);
                    bail!(Rule: "rules {one:?} and {other:?} of one entry charge the same limiter: \
                        give them the same algorithm, the same slots, the same `ban` and no \
                        `charge_if`, or make one rule of them");
                }
            }
        }
        Ok(())
    }

    /// Returns the refusal of a request that lacks the key; `None` if the rule lets it pass.
    pub(super) fn refuse(&self, missing: Missing, parts: &Parts) -> Option<Refusal> {
        // Browsers send no credentials with a preflight: a refusal would lock their users out.
        if missing.fault == Fault::Caller && is_preflight(parts) {
            return None;
        }
        let (rule, is_shadow) = (self.rule.label(), self.rule.share != ALL);
        let (effect, later) = if is_shadow {
            (
                "pass uncounted",
                ": once it is enforced, they will be refused",
            )
        } else {
            ("are refused", "")
        };
        match missing.fault {
            Fault::Caller if self.compiled.claim_warning(Warning::MissingKey) => warning!(
                rule,
                missing = missing.what,
                hint = "if a layer of yours provides it, that layer must be outside of this one",
                "requests {effect} because they lack the key of the rule{later}"
            ),
            Fault::TooLong { most } if self.compiled.claim_warning(Warning::LongKey) => warning!(
                rule,
                header = missing.what,
                max_len = most,
                hint = "if honest values are this long, raise `FromHeader::max_len`",
                "requests {effect} because a header is longer than the key of the rule \
                 accepts{later}"
            ),
            // Once is enough; a fault of the server has its own warning.
            Fault::Caller | Fault::TooLong { .. } | Fault::Ambiguous | Fault::Server => {}
        }
        (!is_shadow).then(|| Refusal::missing_key(missing))
    }
}

impl Rule {
    /// Returns all that it says of each of its limits.
    fn compiled(
        &self,
        observers: &Observers,
        key_is_bounded: bool,
        prefers_redisson: bool,
    ) -> Result<CompiledLimit, ConfigError> {
        let unit = self.unit.as_deref().filter(|it| *it != REQUESTS);
        Ok(CompiledLimit {
            fixed_cost: match self.cost {
                CostOf::Fixed(permits) => Some(permits),
                CostOf::Parts(_) => None,
            },
            counting: Counting {
                algorithm: self.algorithm,
                slots: self.checked_slots()?,
                prefers_redisson,
                ..Counting::default()
            },
            lease: (!self.lease.is_zero()).then_some(self.lease),
            key_is_bounded,
            observers: observers.clone(),
            ban: self.ban,
            charge_if: self.charge_if.clone(),
            unit: unit.map(Into::into),
            ..CompiledLimit::with_defaults(self.label(), true, self.hide_headers)
        })
    }

    /// Returns its limits with the names under which they count.
    fn named_limits(
        &self,
        about: &About,
        observers: &Observers,
        key_is_bounded: bool,
    ) -> Result<Vec<NamedLimit>, ConfigError> {
        let prefers_redisson = self.prefers_redisson(about.prefers_redisson);
        let compiled = self.compiled(observers, key_is_bounded, prefers_redisson)?;
        let named = |label: &str, naming: Naming, limit: LimitSource| {
            let fixed = match limit {
                LimitSource::Code(limit) => Some(limit),
                _ => None,
            };
            let shown = self.observe_keys.then(|| naming.around());
            let compiled = CompiledLimit {
                observed: ObservedRule::new(fixed, shown).into(),
                warned: Arc::default(),
                ..compiled.named(label)
            };
            NamedLimit {
                compiled: compiled.with_limit(limit),
                naming,
            }
        };
        let derived = |label: &str, limit: Option<&Limit>| {
            let code = |limit: &Limit| LimitSource::Code(limit.for_request_key());
            let limit = limit.map_or(LimitSource::Store, code);
            Ok(named(label, Naming::derived(&about.prefix, label)?, limit))
        };
        let label = self.label();
        match &self.limit {
            LimitOf::Fixed(limit) => Ok(vec![derived(label, Some(limit))?]),
            LimitOf::Parts(_) => Ok(vec![derived(label, None)?]),
            LimitOf::Tiers(tiers) => {
                let tiers = tiers.limits.iter().map(|(tier, limit)| {
                    check_rule_name(tier)?;
                    derived(&format!("{label}.{tier}"), Some(limit))
                });
                tiers.collect()
            }
            LimitOf::Shared(name) => {
                let source = self
                    .init
                    .map_or(LimitSource::Store, LimitSource::StoreOrInit);
                Ok(vec![named(label, Naming::shared(name)?, source)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: usize) -> Name {
        Name::exact(&format!("shop:{{{key}}}:login")).unwrap()
    }

    #[test]
    fn a_share_is_as_large_as_it_says_and_only_grows() {
        let share = |percent| (0..10_000).filter(move |key| is_enforced(percent, &name(*key)));
        assert_eq!(share(0).count(), 0);
        assert_eq!(share(100).count(), 10_000);
        let mut before = Vec::new();
        for percent in [1, 10, 50, 99] {
            let enforced: Vec<_> = share(percent).collect();
            let expected = usize::from(percent) * 100;
            assert!(
                enforced.len().abs_diff(expected) < 200,
                "{} of 10000 at {percent} percent",
                enforced.len()
            );
            assert!(before.iter().all(|key| enforced.contains(key)));
            before = enforced;
        }
    }

    /// Fixed since the first release: another choice would change which callers an update refuses.
    #[test]
    fn a_share_is_of_the_same_keys_for_ever() {
        let enforced: Vec<_> = (0..40).filter(|key| is_enforced(10, &name(*key))).collect();
        assert_eq!(enforced, [0, 29, 37]);
    }
}
