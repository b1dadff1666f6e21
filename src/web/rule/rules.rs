//! The rules of a layer, as code or a file adds them: [`Rules`].

use std::{fmt, sync::Arc};

use http::request::Parts;

use super::{Rule, index::Index, list::Requests, pattern::Pattern};
use crate::{
    values::error::{ConfigError, bail, config_error},
    web::answer::HeaderStyle,
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
/// counts. Rules with an explicit [`FailurePolicy::Allow`](crate::FailurePolicy::Allow) are left
/// out when a process decides by itself.
///
/// On a Redis Cluster a single call needs rules of one identity, whose keys share a hash slot by
/// their names. Other rules are called one hash slot after the other, and permits already taken are
/// given back if a later one refuses. Until then they count as used, or for one interval if this
/// process dies in between.
///
/// # Cost
///
/// Routes and gRPC methods are looked up: ten thousand entries cost a request the same as a
/// hundred, about a microsecond, and a long path is read once, unless it can be read in several
/// ways. Entries without either (closures, and in a file host or method alone) are tried one after
/// the other, for each reading.
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
    pub(crate) entries: Vec<TableEntry>,
    pub(crate) otherwise: Vec<Rule>,
    /// The error if a call has replaced rules that were there before.
    pub(super) replaced: Option<ConfigError>,
    pub(crate) headers: Option<Vec<HeaderStyle>>,
    pub(super) deny: Vec<Requests>,
    pub(super) allow: Vec<Requests>,
    /// The [counts](Self::counts) of what a rules file gave them, if one did.
    pub(crate) of_file: Option<[usize; 4]>,
}

/// An entry of the table: the rules of the requests that match a pattern.
#[derive(Clone)]
pub(crate) struct TableEntry {
    /// The pattern as it was written, or its place in a file.
    pub(super) text: String,
    /// Its line in a file.
    pub(crate) line: Option<usize>,
    /// The earlier entry of a file that has the same conditions, whatever these are.
    pub(crate) twin: Option<usize>,
    pattern: Result<Pattern, ConfigError>,
    pub(super) rules: Vec<Rule>,
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
    /// the requested path, in every spelling that a service behind may take for the same: without
    /// the empty segments and `.`, with `..` resolved, and percent-decoded. A request that can be
    /// read in several ways meets the rules of each. See *How a path is read* in
    /// [`docs::guide`](crate::docs::guide#how-a-path-is-read), also for what is another path.
    ///
    /// A method is one of those that IANA has registered. `GET` includes `HEAD` and the CONNECT
    /// that opens a WebSocket over HTTP/2, and does not include `QUERY`. A CORS preflight is an
    /// OPTIONS request, whatever method it asks for: `POST /login` does not match it.
    pub fn on(self, pattern: &str, rules: impl IntoRules) -> Self {
        self.add(pattern, Pattern::route(pattern), rules)
    }

    /// Adds rules for calls of a gRPC method, `package.Service/Method`, or of all methods of a
    /// service, `package.Service`.
    ///
    /// A call is found by its path, and behind a prefix, as of `nest("/rpc", ..)`, by the end of
    /// its path. If axum's router has not named the route, as with `nest_service` or around the
    /// whole router, such a request also meets the rules of its whole path. To avoid that, name the
    /// prefix: `.on("/rpc/shop.v1.Orders/{*method}", ..)`.
    pub fn on_grpc(self, method: &str, rules: impl IntoRules) -> Self {
        self.add(method, Pattern::grpc(method), rules)
    }

    /// Adds rules for requests for which a closure returns true: for example with methods that are
    /// not registered.
    pub fn on_request(
        self,
        matches: impl Fn(&Parts) -> bool + Send + Sync + 'static,
        rules: impl IntoRules,
    ) -> Self {
        let pattern = Pattern::default().and(Arc::new(matches));
        self.add("on_request", Ok(pattern), rules)
    }

    /// Adds an entry, with the text by which errors and warnings name it.
    pub(crate) fn add(
        mut self,
        text: &str,
        pattern: Result<Pattern, ConfigError>,
        rules: impl IntoRules,
    ) -> Self {
        let (text, rules) = (text.to_owned(), rules.into_rules());
        self.entries.push(TableEntry {
            text,
            line: None,
            twin: None,
            pattern,
            rules,
        });
        self
    }

    /// Returns these rules in place of those of a builder, which must have none yet.
    pub(crate) fn in_place_of(mut self, before: &Self) -> Self {
        // A second `otherwise` may have left no rule of those that the first had.
        if before.replaced.is_some() || before.counts() != [0; 4] {
            let replaced = config_error!(LimitsNothing: "`rules` would replace the rules and lists \
                that the builder has by now: call it first, or add those to the `Rules`");
            self.replaced = Some(replaced);
        }
        self
    }

    /// Returns how many entries, rules of `otherwise` and requests on each list there are.
    pub(crate) fn counts(&self) -> [usize; 4] {
        let (entries, otherwise) = (self.entries.len(), self.otherwise.len());
        [entries, otherwise, self.deny.len(), self.allow.len()]
    }

    /// Returns whether code has added to what a rules file gave.
    pub(super) fn adds_to_file(&self) -> bool {
        self.of_file.is_some_and(|of_file| of_file != self.counts())
    }

    /// Checks that there is something to limit.
    pub(super) fn check_has_rules(&self) -> Result<(), ConfigError> {
        if let Some(replaced) = &self.replaced {
            return Err(replaced.clone());
        }
        let entries = self.entries.iter().map(|entry| &entry.rules);
        if entries.chain([&self.otherwise]).all(Vec::is_empty) {
            bail!(LimitsNothing: "there is no rule, so nothing would be limited: add \
                `.otherwise(rule)`, or `.on(pattern, rule)`");
        }
        Ok(())
    }

    /// Checks that there can be a store for all of the rules, each of which some store can have.
    pub(crate) fn check_formats(&self) -> Result<(), ConfigError> {
        let not_in = |redissons| {
            let rules = self.entries.iter().flat_map(|entry| &entry.rules);
            let mut rules = rules.chain(&self.otherwise);
            rules.find(|rule| rule.check_format(Some(redissons)).is_err())
        };
        let (Some(own), Some(redissons)) = (not_in(true), not_in(false)) else {
            return Ok(());
        };
        let error = config_error!(Rule: "rule {:?} can be counted in our own format alone, and \
            rule {:?} in Redisson's alone: no store has both, so change one of the two, or write \
            two files", own.label(), redissons.label());
        let later = if own.line > redissons.line {
            own
        } else {
            redissons
        };
        Err(error.at(later.line_and_name()))
    }

    /// Returns the index of the entries, after a check that requests reach each of them.
    pub(super) fn index(&self) -> Result<Index, ConfigError> {
        let mut entries = self.entries.iter().enumerate();
        let twins = entries.find_map(|(late, entry)| Some((late, entry.twin?)));
        let patterns = self.entries.iter().map(|entry| entry.pattern.clone());
        let patterns = patterns.collect::<Result<_, _>>()?;
        twins.map_or_else(|| Index::new(patterns), Err).map_err(|(late, early)| {
            let [late, early] = [late, early].map(|at| &self.entries[at]);
            let earlier = match early.line {
                Some(line) => format!("the entry in line {line}"),
                None => format!("{:?}", early.text),
            };
            // The place in a file stands in front of the error.
            let place = late.line.map(|line| format!("line {line}, {}", late.text));
            let it = match &place {
                Some(_) => "it".to_owned(),
                None => format!("the entry {:?}", late.text),
            };
            let error = config_error!(LimitsNothing: "{it} is never reached, as {earlier} before \
                it matches the same requests: put the narrower one first, or the rules of both \
                into one list");
            error.at(place)
        })
    }

    /// Sets the rules for all other requests. Several rules go into one list: a second call, which
    /// would replace the rules of the first, is a [`ConfigError`] when the layer is built.
    pub fn otherwise(mut self, rules: impl IntoRules) -> Self {
        if !self.otherwise.is_empty() {
            let twice = config_error!(LimitsNothing: "`otherwise` was called twice, and the second \
                call would replace the rules of the first: give all of them in one list");
            self.replaced = Some(twice);
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
    /// A path is on the list in every spelling of [`on`](Self::on), and a service may know others.
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
    /// name networks, or keys that the caller cannot choose. A path that can be read in several
    /// ways is on this list if all of them are. A list that allows every address or `/{*rest}` is a
    /// [`ConfigError`] when the layer is built.
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
        for entry in &self.entries {
            map.entry(&entry.text, &entry.rules);
        }
        map.entry(&"otherwise", &self.otherwise)
            .entry(&"deny", &self.deny)
            .entry(&"allow", &self.allow)
            .finish()
    }
}

/// One rule, or several. A request is charged by all of several rules or by none.
pub trait IntoRules {
    /// Returns the rules.
    fn into_rules(self) -> Vec<Rule>;
}

impl<R: Into<Rule>> IntoRules for R {
    fn into_rules(self) -> Vec<Rule> {
        vec![self.into()]
    }
}

impl<R: Into<Rule>, const N: usize> IntoRules for [R; N] {
    fn into_rules(self) -> Vec<Rule> {
        self.into_iter().map(Into::into).collect()
    }
}

impl IntoRules for Vec<Rule> {
    fn into_rules(self) -> Vec<Rule> {
        self
    }
}
