//! The table of rules, in which the first match wins.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::request::Parts;

use super::{
    Entry, IntoRules, Plan, Rule,
    compiled::{CompiledRule, Defaults, duplicate},
    index::Index,
    list::{Lists, Requests},
    pattern::Pattern,
    unmatched::Unmatched,
};
use crate::{
    decision::{Refusal, Source},
    demand::{Acquire, LimiterCharge, MaxWait},
    error::{ConfigError, bail, config_error},
    failure_policy::FailurePolicy,
    macros::warning,
    name::{Identity, Name},
    observe::{CallerSpan, Decided, DecidedRule, RequestResult, RuleResult},
    store::{AnyStore, rule_names::Holder},
    web::{
        answer::{Fields, HeaderStyle},
        charge::{self, ChargeIfs},
        key::{Mistakes, Warned},
    },
};

/// Maps requests to rules: a table in which the first matching entry counts.
///
/// Requests that no entry matches meet the rules of [`otherwise`](Self::otherwise); without it they
/// pass. Requests of an entry without rules pass too: `.on("/health", Vec::new())` exempts a route.
///
/// A table that would limit nothing is an error when the layer is built: one without any rule, or
/// with a pattern that is never reached because an earlier one matches the same requests. Routes
/// and gRPC methods are not compared with each other: in a nested or rewritten request they read
/// different paths. One warning names the entries that have matched none of the first 1,000
/// requests.
///
/// # Several rules
///
/// An entry with several rules charges a request by all of them or by none, in one call:
/// `[Limit::per_second(10).by(PeerIp).named("burst"),
/// Limit::per_hour(1_000).by(PeerIp).named("hour")]`. A refusal names every limit without enough
/// permits, and its wait is the longest of theirs. Of the rules' failure policies the strictest
/// counts. Rules with an explicit [`FailurePolicy::Allow`] are left out when a process decides by
/// itself.
///
/// On a Redis Cluster a single call needs rules of one identity, whose keys share a hash slot by
/// their names. Other rules are called one hash slot after the other, and permits already taken are
/// given back if a later one refuses. Until then they count as used, or for one interval if this
/// process dies in between.
///
/// # Cost
///
/// Routes and gRPC methods are looked up: ten thousand entries cost a request the same as a
/// hundred, about a microsecond, and a long path is read once. Entries without either (closures,
/// and in a file host or method alone) are tried one after the other.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Limit, Rules, key::{Constant, PeerIp}};
///
/// let rules = Rules::new()
///     .on("POST /login", Limit::per_minute(5).by(PeerIp).named("login"))
///     .on("/users/{id}", Limit::per_second(20).by(PeerIp).named("users"))
///     .on_grpc("shop.v1.Orders/Create", Limit::per_second(2).by(PeerIp).named("orders"))
///     .on_request(
///         |parts| parts.headers.contains_key("x-bulk"),
///         Limit::per_hour(9).by(Constant("bulk")).named("bulk"),
///     )
///     .otherwise(Limit::per_second(50).by(PeerIp).named("rest"));
/// ```
#[derive(Clone, Default)]
#[must_use = "rules do nothing until a layer has them"]
pub struct Rules {
    pub(crate) entries: Vec<Entry>,
    pub(crate) otherwise: Vec<Rule>,
    /// The error if a call has replaced rules that were there before.
    replaced: Option<ConfigError>,
    pub(crate) headers: Option<Vec<HeaderStyle>>,
    deny: Vec<Requests>,
    allow: Vec<Requests>,
}

impl Rules {
    /// Creates an empty table. A layer needs at least one rule; otherwise it is a [`ConfigError`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds rules for requests by path, or by method and path: `/users/{id}`, `POST /login`.
    ///
    /// The path is a route in the syntax of axum's router, `{name}` for a segment and `{*rest}` for
    /// the remainder. It matches the route that serves the request, if the router provides it, or
    /// the requested path. `GET` includes `HEAD`. A CORS preflight is an OPTIONS request, whatever
    /// method it asks for: `POST /login` does not match it.
    pub fn on(mut self, pattern: &str, rules: impl IntoRules) -> Self {
        let rules = rules.into_rules();
        self.entries
            .push((pattern.to_owned(), Pattern::route(pattern), rules));
        self
    }

    /// Adds rules for calls of a gRPC method, `package.Service/Method`, or of all methods of a
    /// service, `package.Service`.
    pub fn on_grpc(mut self, method: &str, rules: impl IntoRules) -> Self {
        self.entries
            .push((method.to_owned(), Pattern::grpc(method), rules.into_rules()));
        self
    }

    /// Adds rules for requests for which a closure returns true: for example with methods that are
    /// not standard.
    pub fn on_request(
        mut self,
        matches: impl Fn(&Parts) -> bool + Send + Sync + 'static,
        rules: impl IntoRules,
    ) -> Self {
        let pattern = Pattern::default().and(Arc::new(matches));
        self.entries
            .push(("on_request".to_owned(), Ok(pattern), rules.into_rules()));
        self
    }

    /// Returns these rules in place of those of a builder, which must have none yet.
    pub(crate) fn in_place_of(mut self, before: &Self) -> Self {
        if !before.entries.is_empty() || !before.otherwise.is_empty() {
            self.replaced = Some(
                config_error!(LimitsNothing: "`rules` would replace the rules \
                that the builder has by now: call it first, or add those to the `Rules`"),
            );
        }
        self
    }

    /// Checks that there is something to limit.
    fn check_limits(&self) -> Result<(), ConfigError> {
        if let Some(replaced) = &self.replaced {
            return Err(replaced.clone());
        }
        let mut all = self
            .entries
            .iter()
            .map(|(_, _, rules)| rules)
            .chain([&self.otherwise]);
        if all.all(Vec::is_empty) {
            bail!(LimitsNothing: "there is no rule, so nothing would be limited: add \
                `.otherwise(rule)`, or `.on(pattern, rule)`");
        }
        Ok(())
    }

    /// Returns the index of the entries, after a check that requests reach each of them.
    fn index(&self) -> Result<Index, ConfigError> {
        let patterns = self.entries.iter().map(|(_, pattern, _)| pattern.clone());
        Index::new(patterns.collect::<Result<_, _>>()?)
            .map_err(|(late, early)| unreached(&self.entries[late].0, &self.entries[early].0))
    }

    /// Sets the rules for all other requests. Several rules go into one list: a second call, which
    /// would replace the rules of the first, is a [`ConfigError`] when the layer is built.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        if !self.otherwise.is_empty() {
            self.replaced = Some(unreached("otherwise", "otherwise"));
        }
        self.otherwise = rules.into_rules();
        self
    }

    /// Sets the header fields that report how much is left. Default: those of
    /// [`RateLimitLayerBuilder::headers`](crate::RateLimitLayerBuilder::headers).
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.headers = Some(styles.into_iter().collect());
        self
    }

    /// Refuses these requests before any rule, without a call to the store: 403, in gRPC
    /// PERMISSION_DENIED, as [`RefusalKind::Blocked`](crate::RefusalKind::Blocked). Each call adds
    /// to the list.
    ///
    /// If the list needs the peer's address and the server does not record it, the request is
    /// refused with 500.
    ///
    /// A path is compared as it was sent, and the same path is easily written in another way.
    /// Protect what must not be reached by authorization, not by this list.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Requests, Rules, key::{ClientIp, PeerIp}};
    ///
    /// let client = ClientIp::behind(["10.0.0.0/8"]);
    /// let rules = Rules::new()
    ///     .deny(Requests::from_networks(client.clone(), ["192.0.2.0/24"]))
    ///     .otherwise(Limit::per_second(50).by(client));
    /// ```
    pub fn deny(mut self, requests: Requests) -> Self {
        self.deny.push(requests);
        self
    }

    /// Lets these requests pass uncounted, without a call to the store. Each call adds to the list.
    ///
    /// A request on both lists is denied. A caller that can imitate these requests has no limit:
    /// name networks, or keys that the caller cannot choose.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Requests, Rules, key::PeerIp};
    ///
    /// let rules = Rules::new()
    ///     .allow(Requests::from_networks(PeerIp, ["10.20.0.0/16"]))
    ///     .allow(Requests::on("GET /health"))
    ///     .otherwise(Limit::per_second(50).by(PeerIp));
    /// ```
    pub fn allow(mut self, requests: Requests) -> Self {
        self.allow.push(requests);
        self
    }
}

fn unreached(entry: &str, behind: &str) -> ConfigError {
    config_error!(LimitsNothing: "the entry {entry:?} is never reached, as {behind:?} before it \
        matches the same requests: put the narrower one first, or the rules of both into one list")
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (pattern, _, rules) in &self.entries {
            map.entry(pattern, rules);
        }
        map.entry(&"otherwise", &self.otherwise)
            .entry(&"deny", &self.deny)
            .entry(&"allow", &self.allow)
            .finish()
    }
}

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
    warned: Warned,
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
            let rules: Vec<_> = rules
                .into_iter()
                .map(|rule| {
                    let place = rule.place();
                    CompiledRule::new(rule, store, &defaults, &names)
                        .map_err(|error| error.at(place))
                })
                .collect::<Result<_, _>>()?;
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
                .map(|(_, _, rules)| compile(rules))
                .collect::<Result<_, _>>()?,
            otherwise: compile(rules.otherwise)?,
            lists: Lists::new(rules.deny, rules.allow, defaults.skip_preflight)?,
            defaults,
            fields,
            names,
            warned: Warned::default(),
        })
    }

    /// Warns once that an outer layer has charged a request for a rule that this layer has too.
    fn warn_of_duplicate(&self, rule: &str) {
        if self.warned.is_first(Mistakes::DUPLICATE_RULE) {
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
        let charges = self
            .rules_for(self.index.find(parts))
            .iter()
            .filter_map(|rule| {
                let charge = rule.plan(parts).ok()?;
                let charge = charge?;
                Some((Arc::clone(&charge.labels.name), charge.name().clone()))
            });
        charges.collect()
    }

    /// Returns the rules of an entry.
    fn rules_for(&self, entry: Option<usize>) -> &[CompiledRule] {
        let rules = entry.and_then(|entry| self.entries.get(entry));
        rules.unwrap_or(&self.otherwise)
    }

    fn passes(&self, result: RequestResult) -> Plan {
        self.tell(result, None);
        Plan::Pass
    }

    fn refuses(&self, refusal: Refusal, rule: Option<&CompiledRule>) -> Plan {
        self.tell(refusal.kind().into(), rule);
        Plan::Refuse(refusal)
    }

    /// Tells the observers and the caller's span of a request that is decided without the store, by
    /// this rule if by one.
    fn tell(&self, result: RequestResult, rule: Option<&CompiledRule>) {
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
        let mut charge_ifs = ChargeIfs::new();
        let (mut first, mut rest): (Option<LimiterCharge>, Vec<LimiterCharge>) = (None, Vec::new());
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
            if let Some(charge_if) = &rule.rule.charge_if {
                charge_ifs.push((Arc::clone(&charge.labels), Arc::clone(charge_if)));
            }
            add(charge, &mut first, &mut rest);
        }
        let Some(first) = first else {
            return self.passes(RequestResult::NoRule);
        };
        // If all rules are shadow rules, nothing refuses, so there is nothing to wait for.
        let enforced = !(first.shadow && rest.iter().all(|charge| charge.shadow));
        let wait = wait.filter(|_| enforced);
        let acquire = Acquire {
            // A lease is sized by the permits left.
            wants_remaining: self.defaults.remaining || first.lease.is_some(),
            first,
            rest,
            on_failure: Some(strictest),
            max_wait: wait.map(|(up_to, queue)| MaxWait {
                queue: Some(queue),
                ..MaxWait::of(up_to)
            }),
            asked_at: None,
            unsent: OnceLock::new(),
        };
        Plan::Acquire(acquire, charge_ifs)
    }
}

/// Adds a charge to those of a request, in which each limiter is charged once.
fn add(charge: LimiterCharge, first: &mut Option<LimiterCharge>, rest: &mut Vec<LimiterCharge>) {
    let mut earlier = first.iter_mut().chain(rest.iter_mut());
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
        None => match first {
            None => *first = Some(charge),
            Some(_) => rest.push(charge),
        },
    }
}
