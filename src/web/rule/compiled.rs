//! A rule in a layer: checked, with the parts of its limiters' names prepared.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
    time::Duration,
};

use http::request::Parts;

use super::{ChooseTier, Cost, LimitOf, Rule, Share};
use crate::{
    decision::{Fault, Missing, Refusal},
    demand::{Charge, Labels},
    error::{ConfigError, bail, config_error},
    failure_policy::FailurePolicy,
    limit::{Limit, LimitSource},
    macros::warning,
    name::{Counting, Naming, check_rule_name},
    store::{AnyStore, rule_names::Holder},
    web::{
        answer::Fields,
        charge::ChargeIf,
        key::{AnyKey, Key, Mistakes, NoKey, Warned},
    },
};

/// The default number of requests that may wait for the same limits.
const LONGEST_QUEUE: usize = 100;

/// The layer's settings for all its rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    /// Counts the permits left.
    pub(crate) remaining: bool,
    /// The header fields of rules that choose none.
    pub(crate) fields: Fields,
    /// Makes every rule a shadow rule.
    pub(crate) shadow: bool,
    /// The longest wait of requests whose rules set none.
    pub(crate) wait: Option<Duration>,
    /// The queue length for rules that set none.
    pub(crate) queue: Option<usize>,
    /// Lets CORS preflights pass uncounted.
    pub(crate) skip_preflight: bool,
}

/// One rule, checked, with the parts of its limiters' names prepared.
pub(crate) struct CompiledRule {
    limits: Limits,
    key: Option<Arc<dyn AnyKey>>,
    /// Set if callers cannot make up keys of this rule.
    bounded: bool,
    cost: Cost,
    pub(crate) on_failure: FailurePolicy,
    /// Decides by the response whether the request is charged; `None` charges all.
    pub(crate) charge_if: Option<ChargeIf>,
    /// The part of the keys for which the rule refuses.
    pub(super) share: Share,
    /// The time for which leased permits may be held.
    lease: Option<Duration>,
    /// The longest wait, and the length of the queue.
    pub(crate) wait: Option<(Duration, usize)>,
    warned: Warned,
}

enum Limits {
    One(Named, LimitSource),
    /// One by tier; the first also stands for tiers that are not in the list
    Tiers(Vec<(Cow<'static, str>, Named, Limit)>, ChooseTier),
    Parts(Named, Arc<dyn Fn(&Parts) -> Limit + Send + Sync>),
}

/// The labels of a rule, and how it names limiters.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) labels: Arc<Labels>,
    pub(crate) naming: Naming,
}

impl Named {
    fn derived(prefix: &str, labels: Arc<Labels>, counting: Counting) -> Result<Self, ConfigError> {
        Ok(Self {
            naming: Naming::derived(prefix, &labels.name)?.counted(counting),
            labels,
        })
    }
}

/// Returns the error for two rules of one name that would count together.
pub(super) fn duplicate(name: &str) -> ConfigError {
    config_error!(Duplicate: "two rules are named {name:?} and differ in limit or key: rename one \
        of them")
}

impl CompiledRule {
    pub(crate) fn new(
        rule: Rule,
        store: &dyn AnyStore,
        defaults: &Defaults,
        holder: &Holder,
    ) -> Result<Self, ConfigError> {
        let (prefix, names) = (store.prefix(), store.rule_names());
        let (label, hidden) = (rule.label().to_owned(), rule.hide_headers);
        check_rule_name(&label)?;
        if rule.misplaced_init {
            bail!(Rule: "rule {label:?} is not shared: `or_init` is for `Rule::shared`");
        }
        if rule.share.0 > Share::ALL.0 {
            bail!(Rule: "rule {label:?} is enforced for 0 to 100 percent of its keys, not {}",
                rule.share.0);
        }
        rule.check_lease(rule.lease)?;
        rule.on_failure.check(&label)?;
        let wait = rule.wait.or(defaults.wait);
        let queue = rule.queue.or(defaults.queue).unwrap_or(LONGEST_QUEUE);
        if queue == 0 {
            bail!(Rule: "rule {label:?} has a queue of 0 requests: leave `wait` out if none should \
                wait");
        }
        if let Some(key) = &rule.key {
            key.check()?;
            if let Some(header) = key.exposed_credential() {
                bail!(Key: "the header {header:?} holds a credential, which would be visible in \
                    Redis: add `.digest(&secret)`, or `.plain()` if it may be visible");
            }
        }
        rule.check_countable()?;
        let counted = Counting {
            algorithm: rule.algorithm,
            slots: rule.checked_slots()?,
        };
        let fixed_cost = match rule.cost {
            Cost::Fixed(permits) => Some(permits),
            Cost::Parts(_) => None,
        };
        let labels = |name: &str| Labels::new(name, hidden, fixed_cost);
        let bad_tiers = || config_error!(Rule: "rule {label:?} has no tiers, or two with one name");
        let limits = match &rule.limit {
            LimitOf::Fixed(limit) => {
                check_cost(&label, &rule.cost, Some(limit))?;
                let source = LimitSource::Code(limit.for_request_key());
                let named = Named::derived(prefix, labels(&label), counted)?;
                Limits::One(named, source)
            }
            LimitOf::Parts(limit) => {
                check_cost(&label, &rule.cost, None)?;
                let named = Named::derived(prefix, labels(&label), counted)?;
                Limits::Parts(named, Arc::clone(limit))
            }
            LimitOf::Tiers(tiers) => {
                let mut named: Vec<(Cow<'static, str>, Named, Limit)> = Vec::new();
                for (tier, limit) in &tiers.tiers {
                    check_rule_name(tier)?;
                    check_cost(&label, &rule.cost, Some(limit))?;
                    if named.iter().any(|(other, ..)| other == tier) {
                        return Err(bad_tiers());
                    }
                    let name = format!("{label}.{tier}");
                    let name = Named::derived(prefix, labels(&name), counted)?;
                    named.push((tier.clone(), name, limit.for_request_key()));
                }
                if named.is_empty() {
                    return Err(bad_tiers());
                }
                Limits::Tiers(named, Arc::clone(&tiers.choose))
            }
            LimitOf::Shared { name, init } => {
                check_cost(&label, &rule.cost, init.as_ref())?;
                let naming = Naming::shared(name)?.counted(counted);
                let source = init.map_or(LimitSource::Store, LimitSource::StoreOrInit);
                Limits::One(
                    Named {
                        labels: labels(&label),
                        naming,
                    },
                    source,
                )
            }
        };
        let takes_identity = match &limits {
            Limits::One(named, _) | Limits::Parts(named, _) => named.naming.takes_identity(),
            Limits::Tiers(..) => true,
        };
        match (&rule.key, takes_identity) {
            (None, true) => bail!(Key: "rule {label:?} has no key: add `.by(..)`"),
            (Some(_), false) => {
                bail!(Key: "rule {label:?} has a key, but no `<key>` in its shared name")
            }
            _ => {}
        }
        for (name, fingerprint) in limits.fingerprints(rule.key.as_ref()) {
            if !names.claim(&name, fingerprint, holder) {
                return Err(duplicate(&name));
            }
        }
        Ok(Self {
            limits,
            bounded: rule.key.as_ref().is_some_and(|key| key.is_bounded()),
            lease: (!rule.lease.is_zero()).then_some(rule.lease),
            key: rule.key,
            cost: rule.cost,
            on_failure: rule.on_failure,
            charge_if: rule.charge_if,
            share: if defaults.shadow {
                Share::NONE
            } else {
                rule.share
            },
            wait: wait
                .filter(|wait| !wait.is_zero())
                .map(|wait| (wait, queue)),
            warned: Warned::default(),
        })
    }

    /// Returns the charge for a request; `None` if the rule does not apply to it.
    pub(crate) fn plan(&self, parts: &Parts) -> Result<Option<Charge>, Missing> {
        let permits = match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::Parts(cost) => cost(parts),
        };
        if permits == 0 {
            return Ok(None);
        }
        let mut key = Key::default();
        let found = match &self.key {
            Some(extractor) => extractor.extract(parts, &mut key),
            None => Ok(()),
        };
        if found.is_err_and(|none| none.fault() == Some(Fault::Server)) {
            // Recorded already, unless an extractor of the user's wraps `PeerIp`.
            key.1.add(Mistakes::NO_PEER);
        }
        if key.1 != Mistakes::default() {
            self.warned.warn(self.rule(), key.1);
        }
        match found {
            Ok(()) if self.key.is_some() && key.0.is_empty() => {
                return Err(Missing {
                    what: "identity",
                    fault: Fault::Caller,
                });
            }
            Ok(()) => {}
            Err(NoKey::Skip) => return Ok(None),
            Err(NoKey::Missing(missing)) => return Err(missing),
        }
        let (named, limit) = match &self.limits {
            Limits::One(named, limit) => (named, *limit),
            Limits::Parts(named, limit) => {
                (named, LimitSource::Code(limit(parts).for_request_key()))
            }
            Limits::Tiers(tiers, choose) => {
                let tier = choose(parts);
                let chosen = tiers
                    .iter()
                    .find(|(name, ..)| *name == tier)
                    .or(tiers.first());
                // Never empty: checked when the rule was built.
                let Some((_, named, limit)) = chosen else {
                    return Ok(None);
                };
                (named, LimitSource::Code(*limit))
            }
        };
        let name = named.naming.name(&key.0);
        Ok(Some(Charge {
            shadow: !self.share.has(&name),
            passes: self.on_failure == FailurePolicy::Allow,
            bounded: self.bounded,
            lease: self.lease,
            ..Charge::named(name, limit, Arc::clone(&named.labels), permits)
        }))
    }

    /// Checks that rules of one entry on the same limiter can be charged together: their costs are
    /// summed and settled as one.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) if two of them count or
    /// settle differently.
    pub(crate) fn agree_on_limiters(rules: &[Self]) -> Result<(), ConfigError> {
        let named = |rule: &Self| match &rule.limits {
            Limits::One(named, _) | Limits::Parts(named, _) => {
                Some((named.clone(), rule.charge_if.is_some()))
            }
            // Each tier has a limiter name of its own.
            Limits::Tiers(..) => None,
        };
        // The first rule on a limiter stands for all earlier ones, which agree with each other.
        let mut firsts: HashMap<String, (Named, bool)> = HashMap::new();
        for (this, judges) in rules.iter().filter_map(named) {
            let (that, that_judges) = match firsts.entry(this.naming.to_string()) {
                Entry::Vacant(vacant) => {
                    vacant.insert((this, judges));
                    continue;
                }
                Entry::Occupied(first) => first.into_mut(),
            };
            let agree = this.naming.counting == that.naming.counting && !judges && !*that_judges;
            if !agree {
                let [one, other] = [&*that, &this].map(|named| &named.labels.name);
                bail!(Rule: "rules {one:?} and {other:?} of one entry charge the same limiter: \
                    give them the same algorithm, the same slots and no `charge_if`, or make one \
                    rule of them");
            }
        }
        Ok(())
    }

    /// Returns whether the limiters of these rules share an identity, and so a hash slot.
    pub(crate) fn share_identity(rules: &[Self]) -> bool {
        let derived = |rule: &Self| match &rule.limits {
            Limits::One(named, _) | Limits::Parts(named, _) => named.naming.is_derived(),
            Limits::Tiers(..) => true,
        };
        let key = |rule: &Self| rule.key.as_ref().map(|key| key.description());
        let same = |pair: &[Self]| key(&pair[0]) == key(&pair[1]);
        rules.len() < 2 || (rules.iter().all(derived) && rules.windows(2).all(same))
    }

    /// Returns the refusal of a request that lacks the key; `None` if a shadow rule lets it pass.
    pub(crate) fn refuse(&self, missing: Missing) -> Option<Refusal> {
        let is_shadow = !self.share.is_all();
        // A fault of the server has its own warning; these are about the caller's.
        if missing.fault == Fault::Caller && self.warned.is_first(Mistakes::MISSING_KEY) {
            let what = if is_shadow {
                "requests pass uncounted because they lack the key of the rule: once it is \
                 enforced, they will be refused"
            } else {
                "requests are refused because they lack the key of the rule"
            };
            warning!(
                rule = self.rule(),
                missing = missing.what,
                hint = "if a layer of yours provides it, that layer must be outside of this one",
                "{what}"
            );
        }
        if let Fault::TooLong { most } = missing.fault
            && self.warned.is_first(Mistakes::LONG_KEY)
        {
            let what = if is_shadow {
                "requests pass uncounted because a header is longer than the key of the rule \
                 accepts: once it is enforced, they will be refused"
            } else {
                "requests are refused because a header is longer than the key of the rule accepts"
            };
            warning!(
                rule = self.rule(),
                header = missing.what,
                max_len = most,
                hint = "if honest values are this long, raise `FromHeader::max_len`",
                "{what}"
            );
        }
        (!is_shadow).then(|| Refusal::missing_key(missing))
    }

    fn rule(&self) -> &str {
        match &self.limits {
            Limits::One(named, _) | Limits::Parts(named, _) => &named.labels.name,
            Limits::Tiers(tiers, _) => tiers
                .first()
                .map_or("", |(_, named, _)| &*named.labels.name),
        }
    }
}

/// Checks that a fixed cost is between 1 and the limit, if the limit is known.
pub(crate) fn check_cost(
    rule: &str,
    cost: &Cost,
    limit: Option<&Limit>,
) -> Result<(), ConfigError> {
    match cost {
        Cost::Fixed(cost)
            if *cost == 0 || limit.is_some_and(|limit| u64::from(*cost) > limit.permits()) =>
        {
            bail!(Rule: "rule {rule:?} costs {cost} permits: the cost must be between 1 and the \
                limit")
        }
        _ => Ok(()),
    }
}

impl fmt::Debug for CompiledRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledRule")
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

impl Limits {
    /// Returns each label of the rule with all that distinguishes the rule from another one.
    fn fingerprints(&self, key: Option<&Arc<dyn AnyKey>>) -> Vec<(Arc<str>, String)> {
        let key = key.map(|key| key.description());
        match self {
            Self::One(named, limit) => {
                vec![(
                    Arc::clone(&named.labels.name),
                    format!(
                        "{limit:?} {key:?} {:?} {}",
                        named.naming.counting.algorithm, named.naming
                    ),
                )]
            }
            Self::Parts(named, limit) => {
                vec![(
                    Arc::clone(&named.labels.name),
                    format!(
                        "{:p} {key:?} {:?}",
                        Arc::as_ptr(limit),
                        named.naming.counting.algorithm
                    ),
                )]
            }
            Self::Tiers(tiers, _) => tiers
                .iter()
                .map(|(_, named, limit)| {
                    (
                        Arc::clone(&named.labels.name),
                        format!(
                            "{:?} {key:?} {:?} {}",
                            LimitSource::Code(*limit),
                            named.naming.counting.algorithm,
                            named.naming
                        ),
                    )
                })
                .collect(),
        }
    }
}
