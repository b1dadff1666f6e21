//! The compiled rules of a layer, and the plan for a request: [`CompiledRules`].

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use http::request::Parts;

use super::{
    Plan, Rule,
    compiled_rule::{CompiledRule, FoundKey, RuleSettings},
    index::{Index, MatchedEntries},
    list::Lists,
    pattern::rewritten,
    rules::Rules,
};
use crate::{
    macros::{opaque, warning},
    store::{AnyStore, report::CallerSpan, rule_names::NameHolder},
    sync::Once,
    values::{
        charge::Charge,
        compiled_limit::Limiter,
        decision::{Charges, Refusal, Source},
        demand::{Demand, MaxWait},
        error::{ConfigError, bail},
        failure_policy::FailurePolicy,
        name::Identity,
        observe::{Decided, DecidedRule, Origin, RequestResult, RuleResult},
    },
    web::{
        answer::Fields,
        charge::{Earlier, PassedBy},
    },
};

/// After this many requests, an entry without a match is more likely a mistake than rare.
const ENOUGH: u32 = 1_000;
/// The number of entries that the warning names: a table may have thousands.
const NAMED: usize = 10;

/// The table, checked for its store, with its rules' limits bound to their names.
pub(crate) struct CompiledRules {
    lists: Lists,
    index: Index,
    /// In the order of the index.
    entries: Vec<CompiledEntry>,
    otherwise: Vec<CompiledRule>,
    /// Set if anything besides `otherwise` can decide: entries, lists, or preflights that pass.
    has_table: bool,
    /// The requests so far, up to [`ENOUGH`]: until then it is recorded which entries they match.
    requests: AtomicU32,
    pub(crate) settings: RuleSettings,
    /// The header fields of responses.
    pub(crate) fields: Fields,
    /// Set if code has added to the rules or lists of a file: that file alone lacks them.
    adds_to_file: bool,
    /// Reserves the rules' names for as long as the layer has these rules.
    names: NameHolder,
    /// Set once it was logged that an outer layer has charged a request.
    warned_of_duplicate: Once,
}

/// An entry of the table. Nothing but a warning shows that a pattern is wrong and matches nothing.
struct CompiledEntry {
    text: String,
    rules: Vec<CompiledRule>,
    /// Set from the start without rules: then it limits nothing anyway.
    matched: AtomicBool,
}

opaque!(CompiledRules);

impl CompiledRules {
    /// Returns the compiled form of rules that are to replace these, `by` code or a watched file.
    /// Counts stay in the store, under the limiters' names.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new), and one if a file would drop what code has
    /// added to it.
    pub(crate) fn successor(
        &self,
        rules: Rules,
        store: &dyn AnyStore,
        by: Origin,
    ) -> Result<Self, ConfigError> {
        if self.adds_to_file && by == Origin::File {
            bail!(LimitsNothing: "code has added rules or lists to those of a file, and a watched \
                file would replace all of them: move them into the file and call `reload` with it, \
                or load the file yourself, add them, and call `reload`");
        }
        Self::new(rules, store, self.settings.clone(), self.names.successor())
    }

    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the invalid entry, rule or value.
    pub(crate) fn new(
        rules: Rules,
        store: &dyn AnyStore,
        settings: RuleSettings,
        names: NameHolder,
    ) -> Result<Self, ConfigError> {
        let compile = |rules: Vec<Rule>| {
            let mut labels = HashSet::new();
            if let Some(twice) = rules.iter().find(|rule| !labels.insert(rule.label())) {
                bail!(Duplicate: "two rules of one entry are named {:?}: leave one out, or rename \
                    one", twice.label());
            }
            let rules = rules.into_iter().map(|rule| {
                let place = rule.line_and_name();
                let compiled = CompiledRule::new(rule, store, &settings, &names);
                compiled.map_err(|error| error.at(place))
            });
            let mut rules = rules.collect::<Result<Vec<_>, _>>()?;
            CompiledRule::agree_on_limiters(&rules)?;
            CompiledRule::share_keys(&mut rules);
            Ok(rules)
        };
        let fields = rules.headers.as_deref();
        let fields = fields.map_or(Ok(settings.fields), Fields::new)?;
        rules.check_has_rules()?;
        let adds_to_file = rules.adds_to_file();
        let index = rules.index()?;
        let entries = rules.entries.into_iter().map(|entry| {
            Ok(CompiledEntry {
                text: entry.text,
                matched: entry.rules.is_empty().into(),
                rules: compile(entry.rules)?,
            })
        });
        let entries: Vec<_> = entries.collect::<Result<_, ConfigError>>()?;
        Ok(Self {
            has_table: settings.skip_preflight
                || !(entries.is_empty() && rules.deny.is_empty() && rules.allow.is_empty()),
            index,
            requests: AtomicU32::new(if entries.is_empty() { ENOUGH } else { 0 }),
            entries,
            otherwise: compile(rules.otherwise)?,
            lists: Lists::new(rules.deny, rules.allow, settings.skip_preflight)?,
            settings,
            fields,
            adds_to_file,
            names,
            warned_of_duplicate: Once::default(),
        })
    }

    /// Warns once that an outer layer has charged a request for a rule that this layer has too.
    fn warn_of_duplicate(&self, rule: &str) {
        if self.warned_of_duplicate.claim(1) {
            warning!(
                rule,
                hint = "build one layer and clone it; if both should charge, call `always()` on \
                        the inner one",
                "two nested layers have the same rule: only the outer one charges a request"
            );
        }
    }

    /// Returns the limiter of a rule for an identity.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) without such a rule, and of
    /// kind [`Key`](crate::ConfigErrorKind::Key) if it has a key and there is no identity, or has
    /// none.
    pub(crate) fn limiter_of(
        &self,
        rule: &str,
        identity: &Identity,
    ) -> Result<Limiter, ConfigError> {
        let entries = self.entries.iter().flat_map(|entry| &entry.rules);
        let rules = entries.chain(&self.otherwise);
        let all: BTreeMap<_, _> = rules.flat_map(|rule| rule.limiters(identity)).collect();
        match all.get(rule) {
            Some(Some(limiter)) => Ok(limiter.clone()),
            Some(None) if identity.is_empty() => {
                bail!(Key: "rule {rule:?} counts by a key, and none is given")
            }
            Some(None) => bail!(Key: "rule {rule:?} counts by no key, and one is given"),
            None => {
                let known: Vec<_> = all.into_keys().collect();
                bail!(Rule: "there is no rule {rule:?}: there are {known:?}")
            }
        }
    }

    /// Returns the limiters that a request would be counted in: their rules and names.
    pub(crate) fn limiters_of(&self, parts: &Parts) -> Vec<Limiter> {
        let rewritten = rewritten(parts);
        if self.listed(parts, rewritten.as_ref()).is_some() {
            return Vec::new();
        }
        // It is asked for, and says nothing of which entries requests match.
        let find = |parts: &Parts| self.index.find(parts);
        let found = self.entries_of(parts, rewritten.as_ref(), false, find);
        let rules = found.iter().flat_map(|entry| self.rules_of(entry));
        let mut limiters: Vec<Limiter> = Vec::new();
        for rule in rules {
            // One without a key is not counted.
            let _ = rule.plan(
                parts,
                &mut FoundKey::default(),
                |Charge { limiter, .. }| {
                    // Two readings of a path may lead to one limiter.
                    if found.more.is_empty() || limiters.iter().all(|it| !it.is_same(&limiter)) {
                        limiters.push(limiter);
                    }
                },
            );
        }
        limiters
    }

    /// Returns the rules of an entry, or those of requests without one.
    fn rules_of(&self, entry: Option<usize>) -> &[CompiledRule] {
        let entry = entry.and_then(|at| self.entries.get(at));
        entry.map_or(&self.otherwise, |entry| &entry.rules)
    }

    /// Records which entries a request has matched. After [`ENOUGH`] requests it warns of the
    /// entries that none has matched.
    fn record(&self, found: &MatchedEntries) {
        for entry in found.iter().flatten().filter_map(|at| self.entries.get(at)) {
            entry.matched.store(true, Relaxed);
        }
        if self.requests.fetch_add(1, Relaxed) + 1 != ENOUGH {
            return;
        }
        let unmatched = self.entries.iter().filter(|it| !it.matched.load(Relaxed));
        let mut patterns: Vec<_> = unmatched.map(|entry| entry.text.as_str()).collect();
        if patterns.len() > NAMED {
            patterns.truncate(NAMED);
            patterns.push("..");
        }
        if !patterns.is_empty() {
            warning!(
                ?patterns,
                requests = ENOUGH,
                hint = "a pattern is the whole path as the client requests it: with axum's \
                        `nest`, it includes the prefix. If such requests are rare, nothing is \
                        wrong",
                "entries of the table have matched no request so far: their rules limit nothing"
            );
        }
    }

    /// Returns what the lists say of a request. They deny by the path that was sent and by the
    /// present one, and allow by the present one.
    fn listed(
        &self,
        parts: &Parts,
        rewritten: Option<&Parts>,
    ) -> Option<Result<RequestResult, Refusal>> {
        let sent = self.lists.find(parts);
        let Some(rewritten) = rewritten else {
            return sent;
        };
        let present = self.lists.find(rewritten);
        match sent {
            // A request on both lists is denied.
            Some(Err(refusal)) if !matches!(present, Some(Err(_))) => Some(Err(refusal)),
            _ => present,
        }
    }

    /// Returns the entries of a request, by what it `find`s for the path that was sent and, on one
    /// that was rewritten, for the present one. `again` says that this layer has planned the
    /// request before.
    fn entries_of(
        &self,
        parts: &Parts,
        rewritten: Option<&Parts>,
        again: bool,
        find: impl Fn(&Parts) -> MatchedEntries,
    ) -> MatchedEntries {
        let mut found = find(parts);
        if let Some(rewritten) = rewritten {
            // `otherwise` is left out if the path that was sent has rules.
            let takes_otherwise = again || found.iter().all(|it| self.rules_of(it).is_empty());
            for entry in find(rewritten).iter() {
                if entry.is_some() || takes_otherwise {
                    found.add(entry);
                }
            }
        }
        found
    }

    /// Returns the entries of a request by one path, and records them.
    fn met_by(&self, parts: &Parts) -> MatchedEntries {
        let found = self.index.find(parts);
        // After enough of them, requests write nothing that other threads read.
        if self.requests.load(Relaxed) < ENOUGH {
            self.record(&found);
        }
        found
    }

    /// Adds the charges of an entry's rules: each limiter is charged once, for the sum of what its
    /// rules cost. Returns the plan to refuse a request without a key.
    #[inline]
    fn charge_by(
        &self,
        entry: Option<usize>,
        parts: &Parts,
        earlier: Option<Earlier<'_>>,
        planned: &mut Planned,
    ) -> Option<Plan> {
        let (rules, mut key) = (self.rules_of(entry), FoundKey::default());
        for rule in rules {
            let take = |charge: Charge| {
                if earlier.is_some_and(|earlier| self.has_charged(earlier, &charge)) {
                    planned.was_met = true;
                    return;
                }
                if !charge.shadow {
                    planned.enforce(rule.rule.on_failure, rule.max_wait);
                }
                if planned.charges.is_empty() {
                    planned.charges = Charges::one(charge);
                } else {
                    planned.charges.reserve(rules.len());
                    planned.join(charge, u32::saturating_add);
                }
            };
            match rule.plan(parts, &mut key, take) {
                Ok(()) => {}
                // A service in between may remove what the key was found in.
                Err(_) if earlier.is_some_and(|it| it.has_met(|of| rule.has(of))) => {
                    planned.was_met = true;
                }
                Err(missing) => {
                    if let Some(refusal) = rule.refuse(missing, parts) {
                        return Some(self.report_refusal(refusal, Some(rule)));
                    }
                }
            }
        }
        None
    }

    /// Returns whether an outer layer, or this one before, has made the same charge.
    fn has_charged(&self, earlier: Earlier<'_>, charge: &Charge) -> bool {
        let charged_by = earlier.charged_by(charge);
        if charged_by == Some(PassedBy::OtherLayer) {
            self.warn_of_duplicate(&charge.compiled().name);
        }
        charged_by.is_some()
    }

    fn report_pass(&self, result: RequestResult) -> Plan {
        self.report(result, None);
        Plan::Pass
    }

    fn report_refusal(&self, refusal: Refusal, rule: Option<&CompiledRule>) -> Plan {
        self.report(refusal.result(), rule);
        Plan::Refuse(refusal)
    }

    /// Reports a request that is decided without the store, by this rule if by one, to the
    /// observers and the caller's span.
    fn report(&self, result: RequestResult, rule: Option<&CompiledRule>) {
        let (observers, span) = (&self.settings.observers, CallerSpan::current());
        if observers.is_empty() && span.is_none() {
            return;
        }
        let rule = rule.map(|rule| DecidedRule {
            rule: rule.compiled.rule(),
            result: RuleResult::MissingKey,
            shadow: false,
            permits: 0,
            limit: None,
            remaining: None,
            key: None,
            key_hash: 0,
            observed: &rule.compiled.observed,
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

    /// Returns the plan for a request. It skips the rules that the request was charged for earlier;
    /// `None` skips none.
    pub(crate) fn plan(&self, parts: &Parts, earlier: Option<Earlier<'_>>) -> Plan {
        let again = earlier.is_some_and(|earlier| earlier.is_of_this_layer());
        let mut found = MatchedEntries::default();
        if self.has_table {
            let rewritten = rewritten(parts);
            match self.listed(parts, rewritten.as_ref()) {
                Some(Ok(result)) => return self.report_pass(result),
                Some(Err(refusal)) => return self.report_refusal(refusal, None),
                None => {
                    let find = |parts: &Parts| self.met_by(parts);
                    found = self.entries_of(parts, rewritten.as_ref(), again, find);
                }
            }
        }
        let mut all = Planned::default();
        if let Some(refused) = self.charge_by(found.first, parts, earlier, &mut all) {
            return refused;
        }
        for entry in found.more {
            let mut further = Planned::default();
            if let Some(refused) = self.charge_by(entry, parts, earlier, &mut further) {
                return refused;
            }
            all.include(&further);
        }
        let Some(first) = all.charges.first() else {
            // The pass that decided this request has reported it.
            return if again || all.was_met {
                Plan::Pass
            } else {
                self.report_pass(RequestResult::NoRule)
            };
        };
        // If all rules are shadow rules, nothing refuses, so there is nothing to wait for.
        let (policy, max_wait) = all.enforced.unwrap_or((FailurePolicy::Allow, None));
        Plan::Demand(Demand {
            // A lease is sized by the permits left.
            wants_remaining: self.settings.remaining || first.compiled().lease.is_some(),
            on_failure: Some(policy),
            ..Demand::new(all.charges, max_wait)
        })
    }
}

/// The charges of a request.
#[derive(Default)]
struct Planned {
    charges: Charges,
    /// The strictest policy, and the shortest wait and queue, of the rules that are enforced.
    enforced: Option<(FailurePolicy, Option<MaxWait>)>,
    /// Set if a rule applied that an outer layer, or this one before, has charged already.
    was_met: bool,
}

impl Planned {
    /// Adds the charges of another reading of the request's path. A limiter that both charge is
    /// charged once, for the higher cost.
    fn include(&mut self, other: &Self) {
        if let Some((policy, wait)) = other.enforced {
            self.enforce(policy, wait);
        }
        for charge in other.charges.iter().cloned() {
            self.join(charge, u32::max);
        }
        self.was_met |= other.was_met;
    }

    fn enforce(&mut self, policy: FailurePolicy, wait: Option<MaxWait>) {
        self.enforced = Some(match self.enforced {
            None => (policy, wait),
            Some((strictest, shortest)) => {
                let wait = wait.zip(shortest).map(|(a, b)| a.shorter(b));
                (policy.stricter(strictest), wait)
            }
        });
    }

    fn join(&mut self, charge: Charge, of_both: fn(u32, u32) -> u32) {
        let mut earlier = self.charges.iter();
        match earlier.position(|earlier| earlier.limiter.is_same(&charge.limiter)) {
            Some(index) => self.charges[index].join(charge, of_both),
            None => self.charges.push(charge),
        }
    }
}
