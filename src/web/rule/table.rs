//! The table of rules: first match wins.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::request::Parts;

use super::{
    IntoRules, Rule,
    compiled::{Defaults, Ready, duplicate},
    index::Index,
    list::{Listed, Lists, Requests},
    pattern::Pattern,
    reach::{Entry, first_unreached},
    unmatched::Unmatched,
};
use crate::{
    decision::{Fault, Refusal},
    demand::{Acquire, Charge, Patience},
    error::{ConfigError, ConfigErrorKind},
    failure_policy::FailurePolicy,
    macros::warning,
    store::{AnyStore, rule_names::Holder},
    web::{
        answer::HeaderStyle,
        charge::{self, Judges},
        request::is_preflight,
    },
};

/// Which requests meet which rule: a table, of which the first entry that matches counts.
///
/// Requests that no entry matches meet the rules of [`otherwise`](Self::otherwise); without it they pass. So do those of an
/// entry without rules: `.on("/health", Vec::new())` exempts a route.
///
/// What would limit nothing is an error when the layer is built: no rule at all, or a pattern that
/// is never reached because one before it matches the same requests. One warning names the entries
/// that have matched none of the first 1,000 requests.
///
/// # Several rules
///
/// An entry of several rules charges a request by all of them or by none, in one call: `[Limit::per_second(10).by(PeerIp)
/// .named("burst"), Limit::per_hour(1_000).by(PeerIp).named("hour")]`. A refusal names every limit that had no room and waits
/// for the longest of them. Of the rules' failure policies the strictest counts; rules with an
/// explicit [`FailurePolicy::Allow`] are left out of what a process decides by itself.
///
/// On a Redis Cluster that takes rules of one identity, whose keys share a slot by their names. Other rules are asked one
/// slot after the other, and what was taken is given back when a later one refuses: it stands for as long as that lasts, or
/// for one interval if this process dies in between. A warning names such entries when the layer is built.
///
/// # Cost
///
/// Routes and gRPC methods are looked up: ten thousand entries cost a request what a hundred do,
/// about a microsecond, and a long path costs one look at its bytes. Entries without either, by a
/// closure or in a file by host or method alone, are asked one after the other.
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
    pub(crate) entries: Vec<Entry>,
    pub(crate) otherwise: Vec<Rule>,
    /// Whether rules of `otherwise` were replaced by others.
    otherwise_twice: bool,
    pub(crate) headers: Option<Vec<HeaderStyle>>,
    deny: Vec<Requests>,
    allow: Vec<Requests>,
}

impl Rules {
    /// No rules yet. A layer needs one, else it is a [`ConfigError`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests of a path, or of a method and a path: `/users/{id}`, `POST /login`.
    ///
    /// The path is a route in the syntax of axum's router, `{name}` for a segment and `{*rest}` for what follows; it matches
    /// the route that serves the request, where the router says it, or the path that was asked for. `GET` means `HEAD` too.
    /// A CORS preflight is an OPTIONS request, whatever method it asks for: `POST /login` does not
    /// match it.
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

    /// Requests of which a closure says so: of methods that are not standard, for example.
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

    /// Checks that there is something to limit, and that requests reach it.
    fn check_limits(&self) -> Result<(), ConfigError> {
        let mut all = self
            .entries
            .iter()
            .map(|(_, _, rules)| rules)
            .chain([&self.otherwise]);
        if all.all(Vec::is_empty) {
            return Err(ConfigErrorKind::LimitsNothing.error(
                "there is no rule, so nothing would be limited: add `.otherwise(rule)`, or \
                 `.on(pattern, rule)`",
            ));
        }
        let unreachable = |entry: &str, behind: &str| {
            ConfigErrorKind::LimitsNothing.error(format!(
                "the entry {entry:?} is never reached, as {behind:?} before it matches the same \
                 requests: put the narrower one first, or the rules of both into one list"
            ))
        };
        if self.otherwise_twice {
            return Err(unreachable("otherwise", "otherwise"));
        }
        match first_unreached(&self.entries) {
            Some(((entry, ..), (behind, ..))) => Err(unreachable(entry, behind)),
            None => Ok(()),
        }
    }

    /// All other requests. Several rules stand in one list: a second call, which would replace the
    /// rules of the first, is a [`ConfigError`] when the layer is built.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        self.otherwise_twice |= !self.otherwise.is_empty();
        self.otherwise = rules.into_rules();
        self
    }

    /// The fields that tell callers how much is left, instead of those that
    /// [`RateLimitLayerBuilder::headers`](crate::RateLimitLayerBuilder::headers) says. Default: those.
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.headers = Some(styles.into_iter().collect());
        self
    }

    /// Refuses these requests, before any rule and without asking the store: 403, or PERMISSION_DENIED in gRPC, as
    /// [`RefusalKind::Blocked`](crate::RefusalKind::Blocked). Each call adds to the list.
    ///
    /// Where the peer's address would tell and the server does not note it, the request is refused with 500.
    ///
    /// A path is compared as it was sent, and so is easily written otherwise: what must not be reached needs authorization,
    /// not this list.
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

    /// Lets these requests pass uncounted, without asking the store. Each call adds to the list.
    ///
    /// A request that is on both lists is denied. Whoever can make a request look like these has no limit: name networks,
    /// or keys that the caller cannot choose.
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

/// What a layer does with a request.
pub(crate) enum Plan {
    /// No rule concerns it
    Pass,
    /// With the rules that judge by the answer
    Ask(Acquire, Judges),
    Refuse(Refusal),
}

/// The table, checked and with its names made: what a layer asks for each request.
#[derive(Debug)]
pub(crate) struct Planner {
    lists: Lists,
    index: Index,
    /// The rules of each entry, in the order of the index.
    entries: Vec<Vec<Ready>>,
    unmatched: Unmatched,
    otherwise: Vec<Ready>,
    defaults: Defaults,
    #[cfg_attr(
        not(feature = "config"),
        allow(dead_code, reason = "held; read where rules are replaced")
    )]
    /// Keeps the rules' names while the layer has these rules.
    claims: Holder,
    told_of_twin: AtomicBool,
}

impl Planner {
    /// # Errors
    ///
    /// [`ConfigError`], with the entry, rule or value at fault.
    pub(crate) fn new(
        rules: Rules,
        store: &dyn AnyStore,
        defaults: Defaults,
    ) -> Result<Self, ConfigError> {
        Self::held_by(Holder::default(), rules, store, defaults)
    }

    /// The planner of other rules that is to replace this one. What limiters have counted stays where it is: in the store,
    /// under their names.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    #[cfg(feature = "config")]
    pub(crate) fn successor(
        &self,
        rules: Rules,
        store: &dyn AnyStore,
    ) -> Result<Self, ConfigError> {
        Self::held_by(self.claims.successor(), rules, store, self.defaults.clone())
    }

    fn held_by(
        claims: Holder,
        rules: Rules,
        store: &dyn AnyStore,
        defaults: Defaults,
    ) -> Result<Self, ConfigError> {
        let ready = |entry: &str, rules: Vec<Rule>| {
            let mut labels = HashSet::new();
            if let Some(twice) = rules.iter().find(|rule| !labels.insert(rule.label())) {
                return Err(duplicate(twice.label()));
            }
            let rules: Vec<_> = rules
                .into_iter()
                .map(|rule| {
                    let place = rule.place();
                    Ready::new(rule, store, &defaults, &claims).map_err(|error| error.at(place))
                })
                .collect::<Result<_, _>>()?;
            Ready::agree_on_limiters(&rules)?;
            if store.has_slots() && !Ready::share_identity(&rules) {
                warning!(
                    entry,
                    "the rules of this entry have different keys, and so stand in different slots of the Cluster: they are \
                     asked one after the other"
                );
            }
            Ok(rules)
        };
        rules.check_limits()?;
        let unmatched = Unmatched::new(&rules.entries);
        let mut entries = Vec::with_capacity(rules.entries.len());
        let mut patterns = Vec::with_capacity(rules.entries.len());
        for (text, pattern, rules) in rules.entries {
            patterns.push(pattern?);
            entries.push(ready(&text, rules)?);
        }
        let otherwise = ready("otherwise", rules.otherwise)?;
        Ok(Self {
            lists: Lists::new(rules.deny, rules.allow, defaults.skip_preflight)?,
            index: Index::new(patterns),
            entries,
            unmatched,
            otherwise,
            defaults,
            claims,
            told_of_twin: AtomicBool::new(false),
        })
    }

    /// Says once that a layer around has charged for a rule of this one.
    fn tell_of_twin(&self, rule: &str) {
        // Requests that show nothing new must not write what all threads read.
        if !self.told_of_twin.load(Ordering::Relaxed)
            && !self.told_of_twin.swap(true, Ordering::Relaxed)
        {
            warning!(
                rule,
                hint = "build one layer and clone it; where both are to charge, say `always()` of \
                        the inner one",
                "two layers around each other have the same rule: a request is charged by the \
                 outer one alone"
            );
        }
    }

    /// What to do with a request. On the store `once`, what a layer around has charged by the same
    /// rule is not charged again.
    pub(crate) fn plan(&self, parts: &Parts, once: Option<&Arc<dyn AnyStore>>) -> Plan {
        match self.lists.find(parts) {
            Listed::Denied(refusal) => return Plan::Refuse(refusal),
            Listed::Allowed => return Plan::Pass,
            Listed::No => {}
        }
        let entry = self.index.find(parts);
        self.unmatched.note(entry);
        let rules = entry.and_then(|entry| self.entries.get(entry));
        let rules = rules.unwrap_or(&self.otherwise);
        let outer = once.zip(parts.extensions.get::<charge::Charge>());
        // Rules that are only tried out have no say in it.
        let mut strictest = FailurePolicy::Allow;
        // Of several the least patient counts.
        let mut patience = Some((Duration::MAX, usize::MAX));
        let mut judges = Judges::EMPTY;
        let (mut first, mut rest): (Option<Charge>, Vec<Charge>) = (None, Vec::new());
        for rule in rules {
            let charge = match rule.plan(parts) {
                Ok(Some(charge)) => charge,
                Ok(None) => continue,
                // Browsers send no credentials with it: refusing it would lock their users out.
                Err(missing) if missing.fault == Fault::Caller && is_preflight(parts) => continue,
                Err(missing) => match rule.refuse(missing) {
                    Some(refusal) => return Plan::Refuse(refusal),
                    None => continue,
                },
            };
            if outer.is_some_and(|(store, outer)| outer.has_charged(store, &charge)) {
                self.tell_of_twin(&charge.labels.name);
                continue;
            }
            let shadow = charge.shadow;
            if !shadow {
                strictest = strictest.stricter(rule.on_failure);
                let both = patience.zip(rule.patience);
                patience = both.map(|(a, b)| (a.0.min(b.0), a.1.min(b.1)));
            }
            if let Some(charge_if) = &rule.charge_if {
                judges.push((Arc::clone(&charge.labels), Arc::clone(charge_if)));
            }
            let mut others = first.iter_mut().chain(&mut rest);
            match others.find(|earlier| earlier.name() == charge.name()) {
                // One limiter is charged once, with what its rules cost together.
                Some(earlier) if earlier.shadow == shadow => {
                    earlier.permits = earlier.permits.saturating_add(charge.permits);
                    // One of them counts it while the store fails.
                    if earlier.passes && !charge.passes {
                        (earlier.labels, earlier.passes) = (charge.labels, false);
                        (earlier.lease, earlier.bounded) = (charge.lease, charge.bounded);
                    }
                }
                // What is only tried out must not refuse by way of another rule.
                Some(earlier) if earlier.shadow => *earlier = charge,
                Some(_) => {}
                None => match first {
                    None => first = Some(charge),
                    Some(_) => rest.push(charge),
                },
            }
        }
        let Some(first) = first else {
            return Plan::Pass;
        };
        // Where nothing refuses there is nothing to wait for.
        let enforced = !(first.shadow && rest.iter().all(|charge| charge.shadow));
        let patience = patience.filter(|_| enforced);
        let acquire = Acquire {
            // What is left says how much may be taken ahead.
            remaining: self.defaults.remaining || first.lease.is_some(),
            first,
            rest,
            on_failure: Some(strictest),
            patience: patience.map(|(wait, queue)| Patience::Queue(wait, queue)),
            asked: None,
        };
        Plan::Ask(acquire, judges)
    }
}
