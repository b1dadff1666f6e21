//! The table of rules: first match wins.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::request::Parts;

use super::{Cost, IntoRules, LimitOf, Rule, check_cost, pattern::Pattern};
use crate::{
    decision::{Fault, Missing, Refusal},
    error::ConfigError,
    key::{AnyKey, Key, NoKey},
    limit::{Limit, LimitSource},
    list::List,
    macros::warning,
    name::{Identity, Naming, check_rule_name},
    store::{Acquire, AnyStore, Charge, FailurePolicy, RuleTag},
};

/// Which requests meet which rule: a table, of which the first entry that matches counts.
///
/// Requests that no entry matches meet the rules of [`otherwise`](Self::otherwise); without it they pass. So do those of an
/// entry without rules: `.on("/health", Vec::new())` exempts a route.
///
/// # Several rules
///
/// An entry of several rules charges a request by all of them or by none, in one call: `[Limit::per_second(10).by(PeerIp)
/// .named("burst"), Limit::per_hour(1_000).by(PeerIp).named("hour")]`. A refusal names every limit that had no room and waits
/// for the longest of them. Of the rules' failure policies the strictest counts.
///
/// On a Redis Cluster that takes rules of one identity, whose keys share a slot by their names. Other rules are asked one
/// slot after the other, and what was taken is given back when a later one refuses: it stands for as long as that lasts, or
/// for one interval if this process dies in between. A warning names such entries when the layer is built.
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
///     .on_request(|parts| parts.headers.contains_key("x-bulk"), Limit::per_hour(9).by(Constant("bulk")).named("bulk"))
///     .otherwise(Limit::per_second(50).by(PeerIp).named("rest"));
/// ```
#[derive(Clone, Default)]
#[must_use = "rules do nothing until a layer has them"]
pub struct Rules {
    entries: Vec<(String, Result<Pattern, ConfigError>, Vec<Rule>)>,
    otherwise: Vec<Rule>,
}

impl Rules {
    /// No rules: every request passes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests of a path, or of a method and a path: `/users/{id}`, `POST /login`.
    ///
    /// The path is a route in the syntax of axum's router, `{name}` for a segment and `{*rest}` for what follows; it matches
    /// the route that serves the request, where the router says it, or the path that was asked for. `GET` means `HEAD` too.
    pub fn on(mut self, pattern: &str, rules: impl IntoRules) -> Self {
        self.entries.push((
            pattern.to_owned(),
            Pattern::route(pattern),
            rules.into_rules(),
        ));
        self
    }

    /// Calls of a gRPC method, `package.Service/Method`, or of all methods of a service, `package.Service`.
    pub fn on_grpc(mut self, method: &str, rules: impl IntoRules) -> Self {
        self.entries
            .push((method.to_owned(), Pattern::grpc(method), rules.into_rules()));
        self
    }

    /// Requests of which a closure says so.
    pub fn on_request(
        mut self,
        matches: impl Fn(&Parts) -> bool + Send + Sync + 'static,
        rules: impl IntoRules,
    ) -> Self {
        let pattern = Pattern::Predicate(Arc::new(matches));
        self.entries
            .push(("on_request".to_owned(), Ok(pattern), rules.into_rules()));
        self
    }

    /// All other requests.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        self.otherwise = rules.into_rules();
        self
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (pattern, _, rules) in &self.entries {
            map.entry(pattern, rules);
        }
        map.entry(&"otherwise", &self.otherwise).finish()
    }
}

/// What a layer does with a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// No rule concerns it
    Pass,
    Ask(Acquire),
    Refuse(Refusal),
}

/// The table, checked and with its names made: what a layer asks for each request.
#[derive(Debug)]
pub(crate) struct Planner {
    entries: Vec<(Pattern, Vec<Ready>)>,
    otherwise: Vec<Ready>,
    remaining: bool,
    /// Keeps the rules' names while the layer lives.
    _claims: Arc<()>,
}

impl Planner {
    /// # Errors
    ///
    /// [`ConfigError`], with the entry, rule or value at fault.
    #[cfg_attr(
        not(feature = "tracing"),
        allow(unused_variables, reason = "only logs name the entry")
    )]
    pub(crate) fn new(
        rules: Rules,
        store: &dyn AnyStore,
        remaining: bool,
    ) -> Result<Self, ConfigError> {
        let token = Arc::new(());
        let ready = |entry: &str, rules: Vec<Rule>| {
            for (place, rule) in rules.iter().enumerate() {
                if rules
                    .iter()
                    .take(place)
                    .any(|other| other.label() == rule.label())
                {
                    return Err(ConfigError::DuplicateName(rule.label().to_owned()));
                }
            }
            let rules: Vec<_> = rules
                .into_iter()
                .map(|rule| Ready::new(rule, store, &token))
                .collect::<Result<_, _>>()?;
            if store.has_slots() && !Ready::share_identity(&rules) {
                warning!(
                    entry,
                    "the rules of this entry have different keys, and so stand in different slots of the Cluster: they are \
                     asked one after the other"
                );
            }
            Ok(rules)
        };
        let mut entries = Vec::with_capacity(rules.entries.len());
        for (text, pattern, rules) in rules.entries {
            entries.push((pattern?, ready(&text, rules)?));
        }
        let otherwise = ready("otherwise", rules.otherwise)?;
        Ok(Self {
            entries,
            otherwise,
            remaining,
            _claims: token,
        })
    }

    pub(crate) fn plan(&self, parts: &Parts, store: &dyn AnyStore) -> Plan {
        let entry = self
            .entries
            .iter()
            .find(|(pattern, _)| pattern.matches(parts));
        let rules = entry.map_or(&self.otherwise, |(_, rules)| rules);
        let strictest = rules
            .iter()
            .map(|rule| rule.on_failure)
            .fold(FailurePolicy::Allow, FailurePolicy::stricter);
        let mut charges: List<Charge> = List::EMPTY;
        let mut id = None;
        for rule in rules {
            let (named, identity, limit, permits) = match rule.plan(parts) {
                Ok(Some(charge)) => charge,
                Ok(None) => continue,
                Err(missing) => return Plan::Refuse(rule.refuse(missing)),
            };
            // One for all: each limiter has a log of its own.
            let id = match id {
                Some(id) => id,
                None => match store.permit_id() {
                    Ok(new) => *id.insert(new),
                    // Without entropy there is no id; the policy decides, as for any other failure.
                    Err(error) if strictest == FailurePolicy::Deny => {
                        return Plan::Refuse(Refusal::unavailable(error));
                    }
                    Err(_) => return Plan::Pass,
                },
            };
            let charge = Charge {
                name: named.naming.name(&identity),
                rule: Arc::clone(&named.rule),
                limit,
                permits,
                id,
                shadow: false,
            };
            match charges
                .iter_mut()
                .find(|earlier| earlier.name == charge.name)
            {
                // One limiter is charged once, with what its rules cost together.
                Some(earlier) => earlier.permits = earlier.permits.saturating_add(permits),
                None => charges.push(charge),
            }
        }
        let mut charges = charges.into_iter();
        match charges.next() {
            None => Plan::Pass,
            Some(first) => Plan::Ask(Acquire {
                first,
                rest: charges.collect(),
                on_failure: Some(strictest),
                remaining: self.remaining,
                patience: None,
            }),
        }
    }
}

/// One rule, checked and with the parts of its names.
struct Ready {
    limits: Limits,
    key: Option<Arc<dyn AnyKey>>,
    cost: Cost,
    on_failure: FailurePolicy,
    warned_of_missing_key: AtomicBool,
}

enum Limits {
    One(Named, LimitSource),
    /// By tier; the first is for tiers that are not in the list
    Tiers(
        Vec<(&'static str, Named, Limit)>,
        Arc<dyn Fn(&Parts) -> &'static str + Send + Sync>,
    ),
    Parts(Named, Arc<dyn Fn(&Parts) -> Limit + Send + Sync>),
}

/// A charge that lacks its id.
type Planned<'a> = (&'a Named, Identity, LimitSource, u32);

/// A rule's name, and how it names limiters.
#[derive(Clone)]
struct Named {
    rule: Arc<RuleTag>,
    naming: Naming,
}

impl Named {
    fn derived(prefix: &str, rule: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            rule: RuleTag::new(rule),
            naming: Naming::derived(prefix, rule)?,
        })
    }
}

impl Ready {
    fn new(rule: Rule, store: &dyn AnyStore, token: &Arc<()>) -> Result<Self, ConfigError> {
        let (prefix, names) = (store.prefix(), store.rule_names());
        let label = rule.label().to_owned();
        check_rule_name(&label)?;
        if rule.misplaced_init {
            return Err(ConfigError::NotShared(label));
        }
        if let Some(key) = &rule.key {
            key.check()?;
        }
        let limits = match &rule.limit {
            LimitOf::Fixed(limit) => {
                check_cost(&label, &rule.cost, Some(limit))?;
                let source = LimitSource::Code(limit.for_request_key());
                Limits::One(Named::derived(prefix, &label)?, source)
            }
            LimitOf::Parts(limit) => {
                check_cost(&label, &rule.cost, None)?;
                Limits::Parts(Named::derived(prefix, &label)?, Arc::clone(limit))
            }
            LimitOf::Tiers(tiers) => {
                let mut named: Vec<(&'static str, Named, Limit)> = Vec::new();
                for &(tier, limit) in &tiers.tiers {
                    check_rule_name(tier)?;
                    check_cost(&label, &rule.cost, Some(&limit))?;
                    if named.iter().any(|(other, ..)| *other == tier) {
                        return Err(ConfigError::Tiers(label));
                    }
                    let name = Named::derived(prefix, &format!("{label}.{tier}"))?;
                    named.push((tier, name, limit.for_request_key()));
                }
                if named.is_empty() {
                    return Err(ConfigError::Tiers(label));
                }
                Limits::Tiers(named, Arc::clone(&tiers.choose))
            }
            LimitOf::Shared { name, init } => {
                check_cost(&label, &rule.cost, init.as_ref())?;
                let naming = Naming::shared(name)?;
                let source = init.map_or(LimitSource::Store, LimitSource::StoreOrInit);
                Limits::One(
                    Named {
                        rule: RuleTag::new(&label),
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
            (None, true) => return Err(ConfigError::MissingKey(label)),
            (Some(_), false) => return Err(ConfigError::UnusedKey(label)),
            _ => {}
        }
        for (name, fingerprint) in limits.fingerprints(rule.key.as_ref()) {
            if !names.claim(&name, fingerprint, token) {
                return Err(ConfigError::DuplicateName(name.to_string()));
            }
        }
        Ok(Self {
            limits,
            key: rule.key,
            cost: rule.cost,
            on_failure: rule.on_failure,
            warned_of_missing_key: AtomicBool::new(false),
        })
    }

    /// What a request is charged: by which name, whom, against which limit, how much. `None` where the rule does not concern
    /// it.
    fn plan(&self, parts: &Parts) -> Result<Option<Planned<'_>>, Missing> {
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
                // Never empty: it was checked when it was built.
                let Some((_, named, limit)) = chosen else {
                    return Ok(None);
                };
                (named, LimitSource::Code(*limit))
            }
        };
        Ok(Some((named, key.0, limit, permits)))
    }

    /// Whether the limiters of these rules have one identity, and so one slot of a Cluster.
    fn share_identity(rules: &[Self]) -> bool {
        let derived = |rule: &Self| match &rule.limits {
            Limits::One(named, _) | Limits::Parts(named, _) => named.naming.is_derived(),
            Limits::Tiers(..) => true,
        };
        let key = |rule: &Self| rule.key.as_ref().map(|key| key.description());
        let same = |pair: &[Self]| key(&pair[0]) == key(&pair[1]);
        rules.len() < 2 || (rules.iter().all(derived) && rules.windows(2).all(same))
    }

    #[cfg_attr(
        not(feature = "tracing"),
        allow(unused_variables, reason = "only logs hint")
    )]
    fn refuse(&self, missing: Missing) -> Refusal {
        let hint = match missing.fault {
            Fault::Server => {
                "the server does not note the peer's address: with axum, serve \
                 `router.into_make_service_with_connect_info::<SocketAddr>()`; with another server, put a \
                 `tower_ratelimit::key::PeerAddr` into the request's extensions"
            }
            Fault::Caller => {
                "if a layer of yours provides it, that layer must be outside of this one"
            }
        };
        if !self.warned_of_missing_key.swap(true, Ordering::Relaxed) {
            warning!(
                rule = self.rule(),
                missing = missing.what,
                hint,
                "requests are refused because they lack the key of the rule"
            );
        }
        Refusal::missing_key(missing)
    }

    #[cfg_attr(
        not(feature = "tracing"),
        allow(dead_code, reason = "only logs name rules")
    )]
    fn rule(&self) -> &str {
        match &self.limits {
            Limits::One(named, _) | Limits::Parts(named, _) => &named.rule.name,
            Limits::Tiers(tiers, _) => tiers.first().map_or("", |(_, named, _)| &*named.rule.name),
        }
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready")
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

impl Limits {
    /// The names that answers call the rule by, each with all that makes it this rule and no other.
    fn fingerprints(&self, key: Option<&Arc<dyn AnyKey>>) -> Vec<(Arc<str>, String)> {
        let key = key.map(|key| key.description());
        match self {
            Self::One(named, limit) => {
                vec![(
                    Arc::clone(&named.rule.name),
                    format!("{limit:?} {key:?} {}", named.naming),
                )]
            }
            Self::Parts(named, limit) => {
                vec![(
                    Arc::clone(&named.rule.name),
                    format!("{:p} {key:?}", Arc::as_ptr(limit)),
                )]
            }
            Self::Tiers(tiers, _) => tiers
                .iter()
                .map(|(_, named, limit)| {
                    (
                        Arc::clone(&named.rule.name),
                        format!("{:?} {key:?} {}", LimitSource::Code(*limit), named.naming),
                    )
                })
                .collect(),
        }
    }
}
