//! Reads the entries of a rules file: conditions on requests, and the rules that apply.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use http::{Method, header, request::Parts};
use serde::Deserialize;
use toml::Spanned;

use super::{
    RulesFile,
    keys::Keys,
    reader::{Fail, Mistake, Table, Texts, given, line_at, need, no_such, one_or_more, span},
    rule_fields::NamedRule,
};
use crate::web::rule::{
    Requests, Rule, Rules,
    pattern::{self, Condition, Pattern},
};

/// A table of `on`, `deny` or `allow`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryFields {
    route: Option<Spanned<String>>,
    method: Option<Spanned<Texts>>,
    host: Option<Spanned<Texts>>,
    grpc: Option<Spanned<String>>,
    when: Option<Spanned<String>>,
    rules: Option<Spanned<Vec<Spanned<String>>>>,
    by: Option<Spanned<Texts>>,
    networks: Option<Spanned<Texts>>,
    values: Option<Spanned<Texts>>,
}

/// The table `otherwise`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtherwiseFields {
    rules: Option<Spanned<Vec<Spanned<String>>>>,
}

pub(super) fn read(
    registered: &RulesFile,
    text: &str,
    mut named: BTreeMap<String, NamedRule>,
    on: &[Spanned<Table<EntryFields>>],
    otherwise: Option<&Spanned<Table<OtherwiseFields>>>,
) -> Result<Rules, Mistake> {
    let mut rules = Rules::new();
    let mut seen = HashMap::new();
    let (mut line, mut counted) = (1, 0);
    for entry in on {
        let fields = &entry.get_ref().0;
        let of_lists = span(&fields.by).or(span(&fields.networks));
        if let Some(field) = of_lists.or(span(&fields.values)) {
            return Err(field.fail("it belongs to `[[deny]]` and `[[allow]]`"));
        }
        let pattern = pattern(registered, entry)?;
        let chosen = chosen(&mut named, entry, fields.rules.as_ref())?;
        let index = rules.entries.len();
        rules = rules.add(&format!("on[{index}]"), Ok(pattern), chosen);
        // Counted on from the last entry: from the start each time would be quadratic in the text.
        let at = entry.span().start;
        line += line_at(&text[counted..], at - counted) - 1;
        counted = at;
        if let Some(added) = rules.entries.last_mut() {
            added.line = Some(line);
            added.twin = seen.insert(fields.conditions(), index);
        }
    }
    if let Some(table) = otherwise {
        rules.otherwise = chosen(&mut named, table, table.get_ref().0.rules.as_ref())?;
    }
    let unused = named.values().filter(|named| !named.used);
    match unused.min_by_key(|unused| unused.at.start) {
        Some(unused) => Err(unused.at.fail(
            "no entry uses this rule: name it in the `rules` of an `[[on]]` or of `[otherwise]`, \
             or remove it",
        )),
        None => Ok(rules),
    }
}

impl EntryFields {
    /// Returns all conditions, for comparison: the order in which they stand is ignored, and the
    /// case of hosts.
    fn conditions(&self) -> [Option<Vec<String>>; 5] {
        fn one(field: &Option<Spanned<String>>) -> Option<Vec<String>> {
            Some(vec![field.as_ref()?.get_ref().clone()])
        }
        fn many(field: &Option<Spanned<Texts>>) -> Option<Vec<String>> {
            let texts = one_or_more(field.as_ref()?).ok()?.iter();
            // Methods are in capitals, all of them.
            let mut texts: Vec<_> = texts.map(|text| text.to_ascii_lowercase()).collect();
            texts.sort_unstable();
            Some(texts)
        }
        let [route, grpc, when] = [&self.route, &self.grpc, &self.when].map(one);
        let [method, host] = [&self.method, &self.host].map(many);
        [route, grpc, when, method, host]
    }
}

/// Reads an entry of a list: addresses, keys, or the conditions of `[[on]]`.
pub(super) fn listed(
    registered: &RulesFile,
    keys: &Keys,
    entry: &Spanned<Table<EntryFields>>,
    allows: bool,
) -> Result<Requests, Mistake> {
    let fields = &entry.get_ref().0;
    let by = fields.by.as_ref();
    if let Some(rules) = &fields.rules {
        return Err(rules.fail("it belongs to `[[on]]`: a list decides before any rule"));
    }
    let has_no_condition = fields.conditions().iter().all(Option::is_none);
    match (&fields.networks, &fields.values, has_no_condition) {
        (Some(networks), None, true) => {
            let address = keys.address(need(by, entry, "by", "\"peer\"")?)?;
            let requests = Requests::from_networks(address, one_or_more(networks)?);
            networks.at_this(requests.check(allows))?;
            Ok(requests)
        }
        (None, Some(values), true) => {
            let by = need(by, entry, "by", "\"header:x-tenant\"")?;
            let key = keys.with_values(by, values)?;
            Ok(Requests::with_key(key, one_or_more(values)?))
        }
        (None, None, _) => {
            if let Some(by) = by {
                return Err(by.fail("it belongs to `networks` or `values`, which are missing"));
            }
            let requests = Requests::matching(Ok(pattern(registered, entry)?));
            entry.at_this(requests.check(allows))?;
            Ok(requests)
        }
        _ => Err(entry.fail(
            "`networks`, `values` and conditions on the request exclude each other: write an \
             entry for each",
        )),
    }
}

/// Returns the rules that an entry names.
fn chosen(
    named: &mut BTreeMap<String, NamedRule>,
    entry: &impl Fail,
    names: Option<&Spanned<Vec<Spanned<String>>>>,
) -> Result<Vec<Rule>, Mistake> {
    let mut chosen = Vec::new();
    let mut seen = HashSet::new();
    for name in need(names, entry, "rules", "[\"api\"]")?.get_ref() {
        let Some(rule) = named.get_mut(name.get_ref()) else {
            let known: Vec<_> = named.keys().map(String::as_str).collect();
            return Err(name.fail(no_such("rule", name.get_ref(), &known)));
        };
        if !seen.insert(name.get_ref()) {
            return Err(name.fail(format!("the rule {:?} is listed twice", name.get_ref())));
        }
        rule.used = true;
        chosen.push(rule.rule.clone());
    }
    Ok(chosen)
}

/// Reads the conditions of an entry. A request must meet all of them.
fn pattern(
    registered: &RulesFile,
    entry: &Spanned<Table<EntryFields>>,
) -> Result<Pattern, Mistake> {
    let fields = &entry.get_ref().0;
    let mut pattern = match (&fields.route, &fields.grpc) {
        (None, None) => Pattern::default(),
        (Some(route), None) => route.at_this(Pattern::route(route.get_ref()))?,
        (None, Some(grpc)) => grpc.at_this(Pattern::grpc(grpc.get_ref()))?,
        (Some(_), Some(grpc)) => {
            return Err(grpc.fail("a gRPC method is a path of its own: leave `route` out"));
        }
    };
    if let Some(method) = &fields.method {
        let route = fields.route.as_ref();
        if route.is_some_and(|route| !route.get_ref().starts_with('/')) {
            return Err(method.fail("the route has a method too: give it once"));
        }
        pattern = pattern.with_methods(methods(method)?);
    }
    if let Some(host) = &fields.host {
        pattern = pattern.and(hosts(host)?);
    }
    if let Some(when) = &fields.when {
        let condition = given(when, "condition", when.get_ref(), &registered.conditions)?;
        pattern = pattern.and(Arc::clone(condition));
    }
    if pattern.is_everything() {
        return Err(entry.fail(
            "it has no `route`, `grpc`, `host`, `method` or `when`: the rules for all other \
             requests belong in `[otherwise]`",
        ));
    }
    Ok(pattern)
}

fn methods(texts: &Spanned<Texts>) -> Result<Vec<Method>, Mistake> {
    let methods = one_or_more(texts)?.iter().map(|text| {
        let refuse = |reason| texts.fail(format!("{text:?}: {reason}"));
        pattern::method_of(text).map_err(refuse)
    });
    methods.collect()
}

fn hosts(texts: &Spanned<Texts>) -> Result<Condition, Mistake> {
    let mut hosts = Vec::new();
    for text in one_or_more(texts)? {
        hosts.push(texts.at_this(Host::new(text))?);
    }
    Ok(Arc::new(move |parts| {
        let asked = host_of(parts);
        asked.is_some_and(|asked| hosts.iter().any(|host| host.matches(asked)))
    }))
}

/// A host, or the end of all hosts below one: a dot and its name.
#[derive(Debug)]
struct Host(String);

impl Host {
    fn new(text: &str) -> Result<Self, String> {
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_v6 = |name: &str| {
            let inner = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
        };
        let named = !name.is_empty() && name.bytes().all(is_host);
        let named = named && !name.starts_with('.') && !name.ends_with('.');
        if named || (is_v6(name) && !below) {
            let ends_with = if below { &text[1..] } else { text };
            return Ok(Self(ends_with.to_owned()));
        }
        Err(format!(
            "{text:?} is not a host: write `api.example.com` without a port, or `*.example.com` \
             for all below it"
        ))
    }

    fn matches(&self, asked: &str) -> bool {
        let asked = asked.strip_suffix('.').unwrap_or(asked).as_bytes();
        let Some(before) = asked.len().checked_sub(self.0.len()) else {
            return false;
        };
        asked[before..].eq_ignore_ascii_case(self.0.as_bytes())
            && (before > 0) == self.0.starts_with('.')
    }
}

/// Returns the requested host without the port. HTTP/2 has it in the URI, HTTP/1 in a field that
/// must not be repeated.
fn host_of(parts: &Parts) -> Option<&str> {
    if let Some(host) = parts.uri.host() {
        return Some(host);
    }
    let mut fields = parts.headers.get_all(header::HOST).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return None;
    };
    let text = field.to_str().ok()?;
    match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(host),
        _ => Some(text),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn asked(pattern: &str, uri: &str, fields: &[&str]) -> bool {
        let mut request = Request::builder().uri(uri);
        for field in fields {
            request = request.header("host", *field);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let host = Host::new(pattern).unwrap();
        host_of(&parts).is_some_and(|asked| host.matches(asked))
    }

    #[test]
    fn a_host_is_found_wherever_it_stands() {
        for (pattern, uri, fields, expected) in [
            ("api.example.com", "/", &["api.example.com"][..], true),
            ("api.example.com", "/", &["API.Example.com.:8443"], true),
            ("api.example.com", "http://api.example.com:80/", &[], true),
            (
                "api.example.com",
                "http://other/",
                &["api.example.com"],
                false,
            ),
            ("api.example.com", "/", &["example.com"], false),
            ("api.example.com", "/", &[], false),
            (
                "api.example.com",
                "/",
                &["api.example.com", "api.example.com"],
                false,
            ),
            ("*.example.com", "/", &["api.example.com"], true),
            ("*.example.com", "/", &["a.b.EXAMPLE.com"], true),
            ("*.example.com", "/", &["example.com"], false),
            ("*.example.com", "/", &[".example.com"], false),
            ("*.example.com", "/", &["badexample.com"], false),
            ("[::1]", "/", &["[::1]:80"], true),
            ("[::1]", "/", &["[::1]"], true),
        ] {
            assert_eq!(
                asked(pattern, uri, fields),
                expected,
                "{pattern} {uri} {fields:?}"
            );
        }
    }
}
