//! The entries: which requests meet which rules.

use std::{
    collections::{HashMap, HashSet},
    ptr,
    sync::Arc,
};

use http::{HeaderMap, Method, header, request::Parts};

use super::{
    RulesFile,
    keys::Keys,
    reader::{Node, Table, no_such},
    rules::Named,
};
use crate::{
    error::ConfigError,
    web::{
        key::network_of,
        rule::{
            Requests, Rule, Rules,
            list::{EVERYBODY, is_everybody},
            pattern::{self, Pattern},
            reach::{Entry, first_unreached},
        },
    },
};

/// Fields of an entry of a list; after the third those that entries have, too.
const LISTED: [&str; 8] = [
    "by", "networks", "values", "route", "method", "host", "grpc", "when",
];
const FIELDS: [&str; 6] = ["route", "method", "host", "grpc", "when", "rules"];

pub(crate) fn read(
    code: &RulesFile,
    mut named: Vec<Named<'_>>,
    file: &Table<'_>,
) -> Result<Rules, ConfigError> {
    let mut rules = Rules::new();
    // Looked up: each of thousands of entries may name another rule.
    let places = named.iter().enumerate();
    let places: HashMap<_, _> = places.map(|(at, named)| (named.name, at)).collect();
    if let Some(entries) = file.get("on") {
        let mut tables = Vec::new();
        for entry in entries.items()? {
            let entry = entry.table()?;
            entry.known(&FIELDS)?;
            let pattern = pattern(code, &entry)?;
            let chosen = chosen(&mut named, &places, &entry)?;
            let place = format!("on[{}]", rules.entries.len());
            rules.entries.push((place, Ok(pattern), chosen));
            tables.push(entry);
        }
        check_reached(&rules.entries, &tables)?;
    }
    if let Some(otherwise) = file.get("otherwise") {
        let otherwise = otherwise.table()?;
        otherwise.known(&["rules"])?;
        rules.otherwise = chosen(&mut named, &places, &otherwise)?;
    }
    match named.iter().find(|named| !named.used) {
        Some(unused) => Err(unused.table.fail(
            "no entry uses this rule: name it in the `rules` of an `[[on]]` or of `[otherwise]`, or remove it",
        )),
        None => Ok(rules),
    }
}

/// Checks that requests reach every entry: the first that matches counts.
fn check_reached(entries: &[Entry], tables: &[Table<'_>]) -> Result<(), ConfigError> {
    // What several conditions match together is known only to be the same where they are.
    let mut seen = HashMap::new();
    let twice = tables.iter().find_map(|table| {
        let earlier = seen.insert(conditions(table), table)?;
        Some((table, earlier))
    });
    let table_of = |entry: &Entry| {
        let place = entries.iter().position(|other| ptr::eq(other, entry))?;
        tables.get(place)
    };
    let behind =
        || first_unreached(entries).and_then(|(late, early)| table_of(late).zip(table_of(early)));
    match twice.or_else(behind) {
        Some((late, early)) => Err(late.fail(format!(
            "it is never reached, as the entry in line {} before it matches the same requests: put \
             the narrower one first, or the rules of both into one list",
            early.line()
        ))),
        None => Ok(()),
    }
}

/// What an entry says of requests, in whatever order.
fn conditions(entry: &Table<'_>) -> Vec<(&'static str, Vec<String>)> {
    let fields = FIELDS.iter().filter(|name| **name != "rules");
    let said = fields.filter_map(|name| Some((*name, entry.get(name)?.one_or_more().ok()?)));
    said.map(|(name, nodes)| {
        let texts = nodes.iter().filter_map(|node| node.text().ok());
        let mut texts: Vec<_> = texts.map(str::to_owned).collect();
        texts.sort();
        (name, texts)
    })
    .collect()
}

/// The entries of a list: addresses, keys, or what entries match by.
pub(crate) fn list(
    code: &RulesFile,
    keys: &Keys,
    list: Option<Node<'_>>,
    allows: bool,
) -> Result<Vec<Requests>, ConfigError> {
    let mut requests = Vec::new();
    for entry in list.map_or(Ok(Vec::new()), |list| list.items())? {
        let entry = entry.table()?;
        entry.known(&LISTED)?;
        let (networks, values) = (entry.get("networks"), entry.get("values"));
        let conditions = LISTED.iter().skip(3).find_map(|name| entry.get(name));
        requests.push(match (networks, values, conditions) {
            (Some(networks), None, None) => {
                let address = keys.address(&entry.need("by", "\"peer\"")?)?;
                let mut texts = Vec::new();
                for network in networks.one_or_more()? {
                    let text = network.text()?;
                    // Each alone first: so the error is the network's.
                    let refuse = |reason| network.fail(format!("{text:?}: {reason}"));
                    let read = network_of(text).map_err(refuse)?;
                    if allows && is_everybody(&read) {
                        return Err(refuse(EVERYBODY));
                    }
                    texts.push(text);
                }
                Requests::from_networks(address, texts)
            }
            (None, Some(values), None) => {
                let key = keys.key(&entry.need("by", "\"header:x-tenant\"")?)?;
                let mut texts = Vec::new();
                for value in values.one_or_more()? {
                    texts.push(value.text()?);
                }
                Requests::with_key(key, texts)
            }
            (None, None, _) => {
                if let Some(by) = entry.get("by") {
                    return Err(by.fail("it belongs to `networks` or `values`, which are not there"));
                }
                let pattern = pattern(code, &entry)?;
                Requests::on_request(move |parts| pattern.matches(parts))
            }
            _ => {
                return Err(entry.fail(
                    "`networks`, `values` and what a request asks for exclude each other: write an entry for each",
                ));
            }
        });
    }
    Ok(requests)
}

/// The rules that an entry names; `places` says where each of them stands.
fn chosen(
    named: &mut [Named<'_>],
    places: &HashMap<&str, usize>,
    entry: &Table<'_>,
) -> Result<Vec<Rule>, ConfigError> {
    let names = entry.need("rules", "[\"api\"]")?;
    let mut chosen = Vec::new();
    let mut seen = HashSet::new();
    for node in names.items()? {
        let name = node.text()?;
        let Some(rule) = places.get(name).and_then(|place| named.get_mut(*place)) else {
            let known: Vec<_> = named.iter().map(|named| named.name).collect();
            return Err(node.fail(no_such("rule", name, &known)));
        };
        if !seen.insert(name) {
            return Err(node.fail(format!("the rule {name:?} stands here twice")));
        }
        rule.used = true;
        chosen.push(rule.rule.clone());
    }
    Ok(chosen)
}

/// The conditions of an entry, all of which a request meets.
fn pattern(code: &RulesFile, entry: &Table<'_>) -> Result<Pattern, ConfigError> {
    let mut all = Vec::new();
    if let Some(route) = entry.get("route") {
        let pattern = Pattern::route(route.text()?).map_err(|error| route.fail(error))?;
        all.push(pattern);
    }
    if let Some(grpc) = entry.get("grpc") {
        let pattern = Pattern::grpc(grpc.text()?).map_err(|error| grpc.fail(error))?;
        all.push(pattern);
    }
    if let Some(method) = entry.get("method") {
        let route = entry.get("route");
        if route.is_some_and(|route| route.text().is_ok_and(|route| !route.starts_with('/'))) {
            return Err(method.fail("the route has a method, too: say it once"));
        }
        all.push(methods(&method)?);
    }
    if let Some(host) = entry.get("host") {
        all.push(hosts(&host)?);
    }
    if let Some(when) = entry.get("when") {
        let name = when.text()?;
        let Some(condition) = code.conditions.get(name) else {
            let known: Vec<_> = code.conditions.keys().map(String::as_str).collect();
            return Err(when.fail(no_such("condition", name, &known)));
        };
        all.push(Pattern::Predicate(Arc::clone(condition)));
    }
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            all.push(last);
            Ok(Pattern::All(all))
        }
        (None, _) => Err(entry.fail(
            "it says no `route`, `grpc`, `host`, `method` or `when`: the rules for all other requests stand in \
             `[otherwise]`",
        )),
    }
}

fn methods(node: &Node<'_>) -> Result<Pattern, ConfigError> {
    let mut methods: Vec<Method> = Vec::new();
    for method in node.one_or_more()? {
        let text = method.text()?;
        let read = pattern::method_of(text);
        methods.push(read.map_err(|reason| method.fail(format!("{text:?}: {reason}")))?);
    }
    Ok(Pattern::Predicate(Arc::new(move |parts: &Parts| {
        let mut methods = methods.iter();
        methods.any(|method| pattern::counts_as(&parts.method, method))
    })))
}

fn hosts(node: &Node<'_>) -> Result<Pattern, ConfigError> {
    let mut hosts = Vec::new();
    for host in node.one_or_more()? {
        hosts.push(Host::new(host.text()?).map_err(|reason| host.fail(reason))?);
    }
    Ok(Pattern::Predicate(Arc::new(move |parts: &Parts| {
        let asked = host_of(parts);
        asked.is_some_and(|asked| hosts.iter().any(|host| host.matches(asked)))
    })))
}

/// A host, or all below one.
#[derive(Debug)]
struct Host {
    name: String,
    below: bool,
}

impl Host {
    fn new(text: &str) -> Result<Self, String> {
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_v6 = |name: &str| {
            let inner = name
                .strip_prefix('[')
                .and_then(|name| name.strip_suffix(']'));
            inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
        };
        let named = !name.is_empty() && name.bytes().all(is_host) && !name.ends_with('.');
        if named || (is_v6(name) && !below) {
            return Ok(Self {
                name: name.to_ascii_lowercase(),
                below,
            });
        }
        Err(format!(
            "{text:?} is no host: write `api.example.com` without a port, or `*.example.com` for all below it"
        ))
    }

    fn matches(&self, asked: &str) -> bool {
        let asked = asked.strip_suffix('.').unwrap_or(asked);
        if !self.below {
            return asked.eq_ignore_ascii_case(&self.name);
        }
        let (asked, name) = (asked.as_bytes(), self.name.as_bytes());
        let split = asked.len().checked_sub(name.len());
        split
            .and_then(|split| asked.split_at_checked(split))
            .is_some_and(|(before, rest)| {
                rest.eq_ignore_ascii_case(name) && before.len() > 1 && before.ends_with(b".")
            })
    }
}

/// The host that was asked for, without the port: of HTTP/2 in the address, of HTTP/1 in a field that comes once.
fn host_of(parts: &Parts) -> Option<&str> {
    parts.uri.host().or_else(|| host_field(&parts.headers))
}

fn host_field(headers: &HeaderMap) -> Option<&str> {
    let mut fields = headers.get_all(header::HOST).iter();
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
        for bad in [
            "", "*", "*.", "a:80", "http://a", "a/b", "*.[::1]", "[::g]", "a.", "é",
        ] {
            assert!(Host::new(bad).is_err(), "{bad}");
        }
    }
}
