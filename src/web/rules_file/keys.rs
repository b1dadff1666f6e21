//! Keys as a file writes them: words, joined by `or`, and tables for what needs more.

use std::collections::BTreeMap;

use super::{
    RulesFile,
    reader::{Node, Table, no_such},
};
use crate::{
    error::ConfigError,
    name::is_word,
    web::key::{
        All, Any, ClientIp, Constant, ForwardedHeader, FromHeader, KeyExtractor, PeerIp, Route,
        intern,
    },
};

/// What files say without being told how.
pub(crate) const WORDS: [&str; 6] = ["peer", "client-ip", "route", "or", "shared", "skip"];

/// The keys that a file may name: the code's and its own.
pub(crate) struct Keys {
    known: BTreeMap<String, Any>,
    /// Those that are addresses, for lists of networks.
    addresses: BTreeMap<String, ClientIp>,
}

impl Keys {
    pub(crate) fn read(code: &RulesFile, keys: Option<Node<'_>>) -> Result<Self, ConfigError> {
        let mut known = Self {
            known: code.keys.clone(),
            addresses: BTreeMap::new(),
        };
        let Some(keys) = keys else {
            return Ok(known);
        };
        for (name, node) in keys.table()?.fields() {
            if !is_word(name) {
                return Err(node.fail("a key's name has one or more of A-Z a-z 0-9 . _ -"));
            }
            if WORDS.contains(&name) {
                return Err(node.fail(format!(
                    "`{name}` means something else: choose another name"
                )));
            }
            if known.known.contains_key(name) {
                return Err(node.fail(format!("the code has a key `{name}`: choose another name")));
            }
            let key = known.definition(code, name, &node.table()?)?;
            key.check().map_err(|error| node.fail(error))?;
            // Those further down may be made of it.
            known.known.insert(name.to_owned(), key);
        }
        Ok(known)
    }

    /// An address: `peer`, or a key of this file that is `client-ip`.
    pub(crate) fn address(&self, node: &Node<'_>) -> Result<ClientIp, ConfigError> {
        let name = node.text()?;
        if name == "peer" {
            return Ok(PeerIp.into());
        }
        self.addresses.get(name).cloned().ok_or_else(|| {
            node.fail(format!(
                "networks need an address: `peer`, or a key of this file with `from = \"client-ip\"`, not {name:?}"
            ))
        })
    }

    /// What counts: an expression, or several, all of which count together.
    pub(crate) fn key(&self, node: &Node<'_>) -> Result<Any, ConfigError> {
        if node.is_text() {
            return self.expression(node);
        }
        let parts: Vec<_> = node
            .one_or_more()?
            .iter()
            .map(|part| self.expression(part))
            .collect::<Result<_, _>>()?;
        Ok(Any::new(All(parts)))
    }

    /// `user or header:x-tenant or shared`.
    fn expression(&self, node: &Node<'_>) -> Result<Any, ConfigError> {
        let text = node.text()?;
        let mut terms: Vec<_> = text.split(" or ").map(str::trim).collect();
        let last = terms.pop_if(|last| ["shared", "skip"].contains(last));
        let terms: Vec<_> = terms
            .into_iter()
            .map(|term| self.term(node, term))
            .collect::<Result<_, _>>()?;
        let Some(key) = Any::first_of(terms) else {
            return Err(
                node.fail("a key stands before `or shared` and `or skip`, as in `user or skip`")
            );
        };
        Ok(match last {
            Some("shared") => Any::new(key.or_shared()),
            Some(_) => Any::new(key.or_skip()),
            None => key,
        })
    }

    fn term(&self, node: &Node<'_>, term: &str) -> Result<Any, ConfigError> {
        let text = |text: &str| match text {
            "" => Err(node.fail(format!("something must follow `{term}`"))),
            text => Ok(intern(text)),
        };
        let key = match (term, term.split_once(':')) {
            (_, Some(("header", name))) => Any::new(FromHeader::new(text(name)?)),
            (_, Some(("credential", name))) => Any::new(FromHeader::credential(text(name)?)),
            (_, Some(("constant", name))) => Any::new(Constant(text(name)?)),
            ("peer", _) => Any::new(PeerIp),
            ("route", _) => Any::new(Route::new()),
            ("client-ip", _) => {
                return Err(node.fail(
                    "`client-ip` must know your proxies: define `[keys.client]` with `from = \"client-ip\"` and \
                     `trusted = [\"10.0.0.0/8\"]` or `hops = 1`, and name `client` here",
                ));
            }
            ("shared" | "skip", _) => {
                return Err(node.fail(format!("`{term}` stands at the end")));
            }
            _ => match self.known.get(term) {
                Some(key) => key.clone(),
                None => {
                    let mut known = vec!["peer", "route", "header:NAME", "constant:TEXT"];
                    known.extend(self.known.keys().map(String::as_str));
                    return Err(node.fail(no_such("key", term, &known)));
                }
            },
        };
        key.check().map_err(|error| node.fail(error))?;
        Ok(key)
    }

    /// A table below `keys`.
    fn definition(
        &mut self,
        code: &RulesFile,
        name: &str,
        table: &Table<'_>,
    ) -> Result<Any, ConfigError> {
        let from = table.need("from", "\"peer\"")?;
        let source = if from.is_text() { from.text()? } else { "" };
        let mut known = vec!["from", "digest"];
        match source.split_once(':') {
            None if source == "client-ip" => {
                known.extend(["trusted", "hops", "header", "ipv4-prefix", "ipv6-prefix"]);
            }
            None if source == "route" => known.push("services"),
            Some(("header", _)) => known.push("plain"),
            _ => {}
        }
        table.known(&known)?;
        let key = match (source, source.split_once(':')) {
            ("client-ip", _) => {
                let client = client_ip(table)?;
                self.addresses.insert(name.to_owned(), client.clone());
                Any::new(client)
            }
            ("route", _) => Any::new(match table.get("services") {
                None => Route::new(),
                Some(services) => {
                    let mut names = Vec::new();
                    for service in services.one_or_more()? {
                        names.push(intern(service.text()?));
                    }
                    Route::services(names)
                }
            }),
            (_, Some(("header", header))) if table.get("plain").is_some() => {
                let header = FromHeader::new(intern(header));
                let plain = table.get("plain").map_or(Ok(false), |plain| plain.flag())?;
                Any::new(if plain { header.plain() } else { header })
            }
            _ => self.key(&from)?,
        };
        let Some(digest) = table.get("digest") else {
            return Ok(key);
        };
        let id = digest.text()?;
        let Some(secret) = code.secrets.get(id) else {
            let known: Vec<_> = code.secrets.keys().map(String::as_str).collect();
            return Err(digest.fail(no_such("secret", id, &known)));
        };
        Ok(Any::new(key.digest(secret)))
    }
}

fn client_ip(table: &Table<'_>) -> Result<ClientIp, ConfigError> {
    let mut client = match (table.get("trusted"), table.get("hops")) {
        (Some(trusted), None) => {
            let mut networks = Vec::new();
            for network in trusted.one_or_more()? {
                let text = network.text()?;
                // Each alone first: so the error is the network's.
                let alone = ClientIp::behind([text]);
                KeyExtractor::check(&alone).map_err(|error| network.fail(error))?;
                networks.push(text);
            }
            ClientIp::behind(networks)
        }
        (None, Some(hops)) => {
            let client = ClientIp::hops(hops.number()?);
            KeyExtractor::check(&client).map_err(|error| hops.fail(error))?;
            client
        }
        _ => {
            return Err(table.fail(
                "one of `trusted = [\"10.0.0.0/8\"]` and `hops = 1` says which proxies are yours; without any it is `peer`",
            ));
        }
    };
    if let Some(header) = table.get("header") {
        let name = header.text()?;
        client = client.header(match name.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => ForwardedHeader::XForwardedFor,
            "forwarded" => ForwardedHeader::Forwarded,
            _ => ForwardedHeader::Single(intern(name)),
        });
        KeyExtractor::check(&client).map_err(|error| header.fail(error))?;
    }
    if let Some(bits) = table.get("ipv4-prefix") {
        client = client.ipv4_prefix(bits.number()?);
        KeyExtractor::check(&client).map_err(|error| bits.fail(error))?;
    }
    if let Some(bits) = table.get("ipv6-prefix") {
        client = client.ipv6_prefix(bits.number()?);
        KeyExtractor::check(&client).map_err(|error| bits.fail(error))?;
    }
    Ok(client)
}
