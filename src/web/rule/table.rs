//! The compiled rules of a layer, and the plan for a request: [`CompiledRules`].

use std::{
    collections::{BTreeMap, HashSet},
    fmt, iter,
    sync::Arc,
    time::Duration,
};

use http::request::Parts;

use super::{
    Plan, Rule,
    compiled::{CompiledRule, Defaults, duplicate},
    index::Index,
    list::Lists,
    rules::Rules,
    unmatched::Unmatched,
};
use crate::{
    decision::{Refusal, Source},
    demand::{Acquire, LimiterCharge, MaxWait},
    error::{ConfigError, bail},
    failure_policy::FailurePolicy,
    macros::warning,
    name::{Identity, Name},
    observe::{CallerSpan, Decided, DecidedRule, RequestResult, RuleResult},
    store::{AnyStore, rule_names::Holder},
    sync::Once,
    web::{answer::Fields, charge},
};

/// The table, checked and with the limiters' names prepared, as used for each request.
pub(crate) struct CompiledRules {
    lists: Lists,
    index: Index,
    /// The rules of each entry, in the order of the index.
    entries: Vec<Vec<CompiledRule>>,
    unmatched: Unmatched,
    otherwise: Vec<CompiledRule>,
    pub(crate) defaults: Defaults,
    /// The header fields of responses.
    pub(crate) fields: Fields,
    /// Reserves the rules' names for as long as the layer has these rules.
    names: Holder,
    warned: Once,
}

impl fmt::Debug for CompiledRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledRules(..)")
    }
}

impl CompiledRules {
    /// Returns the compiled form of rules that are to replace these. Counts stay in the store,
    /// under the limiters' names.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new).
    pub(crate) fn successor(
        &self,
        rules: Rules,
        store: &dyn AnyStore,
    ) -> Result<Self, ConfigError> {
        Self::new(rules, store, self.defaults.clone(), self.names.successor())
    }

    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the invalid entry, rule or value.
    pub(crate) fn new(
        rules: Rules,
        store: &dyn AnyStore,
        defaults: Defaults,
        names: Holder,
    ) -> Result<Self, ConfigError> {
        let compile = |rules: Vec<Rule>| {
            let mut labels = HashSet::new();
            if let Some(twice) = rules.iter().find(|rule| !labels.insert(rule.label())) {
                return Err(duplicate(twice.label()));
            }
            let compile = |rule: Rule| {
                let place = rule.place();
                let compiled = CompiledRule::new(rule, store, &defaults, &names);
                compiled.map_err(|error| error.at(place))
            };
            let rules = rules.into_iter().map(compile);
            let rules = rules.collect::<Result<Vec<_>, _>>()?;
            CompiledRule::agree_on_limiters(&rules)?;
            Ok(rules)
        };
        let fields = rules.headers.as_deref();
        let fields = fields.map_or(Ok(defaults.fields), Fields::new)?;
        rules.check_limits()?;
        let (index, unmatched) = (rules.index()?, Unmatched::new(&rules.entries));
        let entries = rules.entries.into_iter();
        Ok(Self {
            index,
            unmatched,
            entries: entries
                .map(|entry| compile(entry.rules))
                .collect::<Result<_, _>>()?,
            otherwise: compile(rules.otherwise)?,
            lists: Lists::new(rules.deny, rules.allow, defaults.skip_preflight)?,
            defaults,
            fields,
            names,
            warned: Once::default(),
        })
    }

    /// Warns once that an outer layer has charged a request for a rule that this layer has too.
    fn warn_of_duplicate(&self, rule: &str) {
        if self.warned.set(1) != 0 {
            warning!(
                rule,
                hint = "build one layer and clone it; if both should charge, call `always()` on \
                        the inner one",
                "two nested layers have the same rule: only the outer one charges a request"
            );
        }
    }

    /// Returns the name of a rule's limiter.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) without such a rule, and of
    /// kind [`Key`](crate::ConfigErrorKind::Key) if it has a key and there is no identity, or has
    /// none.
    pub(crate) fn name_of(&self, rule: &str, identity: &Identity) -> Result<Name, ConfigError> {
        let rules = self.entries.iter().flatten().chain(&self.otherwise);
        let names: BTreeMap<_, _> = rules.flat_map(|rule| rule.names(identity)).collect();
        match names.get(rule) {
            Some(Some(name)) => Ok(name.clone()),
            Some(None) if identity.is_empty() => {
                bail!(Key: "rule {rule:?} counts by a key, and none is given")
            }
            Some(None) => bail!(Key: "rule {rule:?} counts by no key, and one is given"),
            None => {
                let known: Vec<_> = names.into_keys().collect();
                bail!(Rule: "there is no rule {rule:?}: there are {known:?}")
            }
        }
    }

    /// Returns the limiters that a request would be counted in: their rules and names.
    pub(crate) fn names_of(&self, parts: &Parts) -> Vec<(Arc<str>, Name)> {
        let rules = self.rules_for(self.index.find(parts)).iter();
        let charges = rules.filter_map(|rule| rule.plan(parts).ok().flatten());
        let named = charges.map(|it| (Arc::clone(&it.labels.name), it.name().clone()));
        named.collect()
    }

    /// Returns the rules of an entry.
    fn rules_for(&self, entry: Option<usize>) -> &[CompiledRule] {
        let rules = entry.and_then(|entry| self.entries.get(entry));
        rules.unwrap_or(&self.otherwise)
    }

    fn passes(&self, result: RequestResult) -> Plan {
        self.report(result, None);
        Plan::Pass
    }

    fn refuses(&self, refusal: Refusal, rule: Option<&CompiledRule>) -> Plan {
        self.report(refusal.kind().into(), rule);
        Plan::Refuse(refusal)
    }

    /// Reports a request that is decided without the store, by this rule if by one, to the
    /// observers and the caller's span.
    fn report(&self, result: RequestResult, rule: Option<&CompiledRule>) {
        let (observers, span) = (&self.defaults.observers, CallerSpan::current());
        if observers.is_empty() && span.is_none() {
            return;
        }
        let rule = rule.map(|rule| DecidedRule {
            rule: rule.labels.rule(),
            result: RuleResult::MissingKey,
            shadow: false,
            permits: 0,
            limit: None,
            remaining: None,
            key: None,
            key_hash: 0,
            kept: &rule.labels.kept,
        });
        let decided = Decided {
            result,
            source: Source::None,
            error: None,
            waited: None,
            rules: rule.as_slice(),
        };
        observers.decided(&decided);
        if let Some(span) = span {
            span.decided(&decided);
        }
    }

    /// Returns the plan for a request. It leaves out the rules that an outer layer has charged in
    /// `store`; `None` leaves out none.
    pub(crate) fn plan(&self, parts: &Parts, store: Option<&Arc<dyn AnyStore>>) -> Plan {
        if let Some(listed) = self.lists.find(parts) {
            return listed.map_or_else(|it| self.refuses(it, None), |it| self.passes(it));
        }
        let entry = self.index.find(parts);
        self.unmatched.record(entry);
        let rules = self.rules_for(entry);
        let outer = store.zip(parts.extensions.get::<charge::Charge>());
        // Shadow rules are ignored here.
        let mut strictest = FailurePolicy::Allow;
        // Of several rules the shortest wait and the shortest queue count.
        let mut wait = Some((Duration::MAX, usize::MAX));
        let mut asked: Option<Acquire> = None;
        for rule in rules {
            let charge = match rule.plan(parts) {
                Ok(Some(charge)) => charge,
                Ok(None) => continue,
                Err(missing) => match rule.refuse(missing, parts) {
                    Some(refusal) => return self.refuses(refusal, Some(rule)),
                    None => continue,
                },
            };
            if outer.is_some_and(|(store, outer)| outer.has_charged(store, &charge)) {
                self.warn_of_duplicate(&charge.labels.name);
                continue;
            }
            if !charge.shadow {
                strictest = strictest.stricter(rule.rule.on_failure);
                let both = wait.zip(rule.wait);
                wait = both.map(|(a, b)| (a.0.min(b.0), a.1.min(b.1)));
            }
            match &mut asked {
                None => asked = Some(Acquire::new(charge, Vec::new(), None)),
                Some(acquire) => add(charge, acquire),
            }
        }
        let Some(mut acquire) = asked else {
            return self.passes(RequestResult::NoRule);
        };
        // A lease is sized by the permits left.
        acquire.wants_remaining = self.defaults.remaining || acquire.first.lease.is_some();
        acquire.on_failure = Some(strictest);
        // If all rules are shadow rules, nothing refuses, so there is nothing to wait for.
        let wait = wait.filter(|_| !acquire.is_all_shadow());
        acquire.max_wait = wait.map(|(up_to, queue)| MaxWait {
            queue: Some(queue),
            ..MaxWait::of(up_to)
        });
        Plan::Acquire(acquire)
    }
}

/// Adds a charge to those of a request, in which each limiter is charged once.
fn add(charge: LimiterCharge, acquire: &mut Acquire) {
    let mut earlier = iter::once(&mut acquire.first).chain(&mut acquire.rest);
    match earlier.find(|earlier| earlier.name() == charge.name()) {
        // The sum of its rules' costs.
        Some(earlier) if earlier.shadow == charge.shadow => {
            earlier.permits = earlier.permits.saturating_add(charge.permits);
            // A rule with a stricter policy counts the limiter while the store fails.
            if earlier.allow_on_failure && !charge.allow_on_failure {
                (earlier.labels, earlier.allow_on_failure) = (charge.labels, false);
                (earlier.lease, earlier.key_is_bounded) = (charge.lease, charge.key_is_bounded);
            }
        }
        // A shadow rule must not refuse through an enforced rule on the same limiter.
        Some(earlier) if earlier.shadow => *earlier = charge,
        Some(_) => {}
        None => acquire.rest.push(charge),
    }
}
