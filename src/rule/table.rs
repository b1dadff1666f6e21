//! The table of rules: first match wins.

use std::{fmt, sync::Arc};

use http::request::Parts;

use super::{IntoRules, Rule, pattern::Pattern, ready::Ready};
use crate::{
    decision::Refusal,
    error::ConfigError,
    list::List,
    macros::warning,
    store::{Acquire, AnyStore, Charge, FailurePolicy},
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

    /// Checks that answers can tell the permits of all rules that do not hide them.
    pub(crate) fn check_told(&self, most: u64) -> Result<(), ConfigError> {
        let entries = self.entries.iter().flat_map(|(_, _, rules)| rules);
        let mut all = entries.chain(&self.otherwise);
        all.try_for_each(|rule| rule.check_told(most))
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
