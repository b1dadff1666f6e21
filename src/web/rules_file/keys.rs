//! Reads keys: words joined by `or`, and tables under `keys` for the rest.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{
    RulesFile,
    reader::{
        ByName, Fail, Mistake, Table, Texts, given, in_order, need, no_such, one_or_more,
        only_with, span,
    },
};
use crate::{
    values::name::check_word,
    web::key::{
        AnyKey, ClientIp, Constant, ForwardedHeader, FromHeader, KeyExtractor, PeerIp, Route,
        intern,
    },
};

/// The words of key expressions, which name no key of the code or of `keys`.
pub(super) const RESERVED: [&str; 6] = ["peer", "client-ip", "route", "or", "shared", "skip"];

/// The words that end a key expression.
const LAST: [&str; 2] = ["shared", "skip"];

/// The reason why values cannot be those of several keys: of alternatives, only the first would
/// have them, and together they have no single one.
const SEVERAL: &str =
    "`values` are those of one key, and this is made of several: name one of them";

/// The keys that a file may name without a definition.
const KNOWN: [&str; 5] = [
    "peer",
    "route",
    "header:NAME",
    "credential:NAME",
    "constant:TEXT",
];

/// A table below `keys`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct KeyFields {
    from: Option<Spanned<Texts>>,
    digest: Option<Spanned<String>>,
    trusted: Option<Spanned<Texts>>,
    hops: Option<Spanned<usize>>,
    header: Option<Spanned<String>>,
    ipv6_prefix: Option<Spanned<u8>>,
    services: Option<Spanned<Texts>>,
    plain: Option<Spanned<bool>>,
}

/// The keys that a file may name: those of the code and its own.
pub(super) struct Keys {
    all: BTreeMap<String, AnyKey>,
    /// What is known of its own ones.
    facts: BTreeMap<String, KeyFacts>,
}

/// What a file says of a key, and the key itself does not tell.
#[derive(Clone, Default)]
struct KeyFacts {
    /// Set for an address: lists of networks need one.
    address: Option<ClientIp>,
    /// The id of the secret, if it is a digest.
    digest: Option<String>,
    /// The reason why no list of values can be of it.
    no_values: Option<&'static str>,
    /// The word at its end, `skip` or `shared`: no alternative after it would be tried.
    end: Option<&'static str>,
}

impl Keys {
    pub(super) fn read(
        registered: &RulesFile,
        tables: ByName<Table<KeyFields>>,
    ) -> Result<Self, Mistake> {
        let mut keys = Self {
            all: registered.keys.clone(),
            facts: BTreeMap::new(),
        };
        for (name, table) in in_order(tables) {
            name.at_this(check_word("a key's name", name.get_ref()))?;
            if RESERVED.contains(&name.get_ref().as_str()) {
                let reason = format!("`{name}` means something else: choose another name");
                return Err(name.fail(reason));
            }
            if keys.all.contains_key(name.get_ref()) {
                return Err(name.fail(format!("the code has a key `{name}`: choose another name")));
            }
            let (key, facts) = keys.definition(registered, &table)?;
            name.at_this(key.check())?;
            // Later definitions may be made of it.
            keys.facts.insert(name.get_ref().clone(), facts);
            keys.all.insert(name.into_inner(), key);
        }
        Ok(keys)
    }

    /// Returns a key that is an address: `peer`, or one of this file that is `client-ip`.
    pub(super) fn address(&self, by: &Spanned<Texts>) -> Result<ClientIp, Mistake> {
        let name = match by.get_ref() {
            Texts::One(name) => name.as_str(),
            Texts::Many(_) => "a list",
        };
        self.facts_of(name).address.ok_or_else(|| {
            by.fail(format!(
                "networks need an address: `peer`, or a key of this file with \
                 `from = \"client-ip\"`, not {name:?}"
            ))
        })
    }

    /// Returns the key that has these values. Those that it cannot have would match nothing.
    pub(super) fn with_values(
        &self,
        by: &Spanned<Texts>,
        values: &Spanned<Texts>,
    ) -> Result<AnyKey, Mistake> {
        let key = self.key(by)?;
        let facts = self.facts_of_all(one_or_more(by)?);
        if let Some(reason) = facts.no_values {
            return Err(by.fail(reason));
        }
        for value in one_or_more(values)? {
            if let Some(id) = &facts.digest {
                if !value.starts_with(&format!("{id}.")) {
                    return Err(values.fail(format!(
                        "{value:?} is no digest by {id:?}, and the key is one: write digests as \
                         Redis has them, or name what the key is made `from`"
                    )));
                }
            } else if facts.address.as_ref().is_some_and(|it| !it.may_be(value)) {
                return Err(values.fail(format!(
                    "{value:?} is the key of no address: name addresses and networks in `networks`"
                )));
            }
        }
        Ok(key)
    }

    /// Returns the key of one expression, or of several, which count together.
    pub(super) fn key(&self, by: &Spanned<Texts>) -> Result<AnyKey, Mistake> {
        if let Texts::One(text) = by.get_ref() {
            return self.expression(by, text);
        }
        let parts = one_or_more(by)?.iter();
        let parts = parts.map(|text| self.expression(by, text));
        Ok(AnyKey::new(parts.collect::<Result<Vec<_>, _>>()?))
    }

    /// Returns what is known of the key of one expression, or of several, which count together.
    fn facts_of_all(&self, texts: &[String]) -> KeyFacts {
        if let [text] = texts {
            return self.facts_of(text);
        }
        // One key that skips a request skips it for the whole list, unless one before it is
        // missing: that leaves the request to the alternatives.
        let may_be_missing = |text: &&String| {
            self.facts_of(text).address.is_none() && !text.trim().starts_with("constant:")
        };
        let first = texts.iter().find(may_be_missing);
        let skips = first.is_some_and(|text| self.facts_of(text).end == Some("skip"));
        KeyFacts {
            no_values: Some(SEVERAL),
            end: skips.then_some("skip"),
            ..KeyFacts::default()
        }
    }

    /// Returns what is known of the key of one expression.
    fn facts_of(&self, text: &str) -> KeyFacts {
        if let Some((before, last)) = text.rsplit_once(" or ") {
            if last.trim() == "skip" {
                // It finds what it would find without that, and never skips an address.
                let facts = self.facts_of(before);
                let end = facts.address.is_none().then_some("skip").or(facts.end);
                return KeyFacts { end, ..facts };
            }
            let end = LAST.into_iter().find(|end| *end == last.trim());
            return KeyFacts {
                no_values: Some(SEVERAL),
                end: end.or_else(|| self.facts_of(last).end),
                ..KeyFacts::default()
            };
        }
        let term = text.trim();
        let mut facts = self.facts.get(term).cloned().unwrap_or_default();
        if term == "peer" {
            facts.address = Some(PeerIp.into());
        } else if term == "route" {
            facts.no_values = Some(
                "a route is a method and a path, and no single value: write `route`, and `method`, \
                 in place of `by` and `values`",
            );
        } else if term.starts_with("constant:") {
            facts.no_values = Some("all requests have this key: name one in which they differ");
        }
        facts
    }

    /// Reads `user or header:x-tenant or shared`.
    fn expression(&self, at: &impl Fail, text: &str) -> Result<AnyKey, Mistake> {
        let mut terms: Vec<_> = text.split(" or ").map(str::trim).collect();
        for (index, term) in terms.iter().enumerate().take(terms.len() - 1) {
            let ends_so = terms[index + 1..] == ["skip"];
            let end = self.facts_of(term).end;
            if let Some(end) = end.filter(|end| *end != "skip" || !ends_so) {
                return Err(at.fail(format!(
                    "`{term}` ends in `or {end}`, and what follows it would never be tried: name \
                     it last, or leave `or {end}` out of it"
                )));
            }
        }
        let last = terms.pop_if(|last| LAST.contains(last));
        let terms = terms.into_iter().map(|term| self.term(at, term));
        let Some(key) = AnyKey::first_of(terms.collect::<Result<_, _>>()?) else {
            let reason = "a key must come before `or shared` and `or skip`, as in `user or skip`";
            return Err(at.fail(reason));
        };
        Ok(match last {
            Some("shared") => AnyKey::new(key.or_shared()),
            Some(_) => AnyKey::new(key.or_skip()),
            None => key,
        })
    }

    fn term(&self, at: &impl Fail, term: &str) -> Result<AnyKey, Mistake> {
        let text = |text: &str| match text {
            "" => Err(at.fail(format!("something must follow `{term}`"))),
            text => Ok(intern(text)),
        };
        let key = match (term, term.split_once(':')) {
            (_, Some(("header", name))) => AnyKey::new(FromHeader::new(text(name)?)),
            (_, Some(("credential", name))) => AnyKey::new(FromHeader::credential(text(name)?)),
            (_, Some(("constant", name))) => AnyKey::new(Constant(text(name)?)),
            ("peer", _) => AnyKey::new(PeerIp),
            ("route", _) => AnyKey::new(Route::new()),
            ("client-ip", _) => {
                return Err(at.fail(
                    "`client-ip` must know your proxies: define `[keys.client]` with \
                     `from = \"client-ip\"` and `trusted = [\"10.0.0.0/8\"]` or `hops = 1`, and \
                     name `client` here",
                ));
            }
            ("shared" | "skip", _) => return Err(at.fail(format!("`{term}` must come last"))),
            _ => match self.all.get(term) {
                Some(key) => key.clone(),
                None => {
                    let mut known = KNOWN.to_vec();
                    known.extend(self.all.keys().map(String::as_str));
                    return Err(at.fail(no_such("key", term, &known)));
                }
            },
        };
        at.at_this(key.check())?;
        Ok(key)
    }

    fn definition(
        &self,
        registered: &RulesFile,
        table: &Spanned<Table<KeyFields>>,
    ) -> Result<(AnyKey, KeyFacts), Mistake> {
        let fields = &table.get_ref().0;
        let from = need(fields.from.as_ref(), table, "from", "\"peer\"")?;
        let source = match from.get_ref() {
            Texts::One(text) => text,
            Texts::Many(_) => "",
        };
        let mut facts = self.facts_of_all(one_or_more(from)?);
        fields.check_owners(source)?;
        let key = match (source, source.split_once(':'), &fields.plain) {
            ("client-ip", ..) => {
                let client = client_ip(table)?;
                facts.address = Some(client.clone());
                AnyKey::new(client)
            }
            ("route", ..) => AnyKey::new(match &fields.services {
                None => Route::new(),
                Some(services) => {
                    let names = one_or_more(services)?.iter();
                    Route::services(names.map(|name| intern(name)))
                }
            }),
            (_, Some(("header", header)), Some(plain)) => {
                let header = FromHeader::new(intern(header));
                let plain = *plain.get_ref();
                AnyKey::new(if plain { header.plain() } else { header })
            }
            _ => self.key(from)?,
        };
        let Some(digest) = &fields.digest else {
            return Ok((key, facts));
        };
        let secret = given(digest, "secret", digest.get_ref(), &registered.secrets)?;
        (facts.digest, facts.no_values) = (Some(secret.id.to_string()), None);
        Ok((AnyKey::new(key.digest(secret)), facts))
    }
}

impl KeyFields {
    /// Checks that each field belongs to the source of the key.
    fn check_owners(&self, source: &str) -> Result<(), Mistake> {
        let proxies = span(&self.trusted).or(span(&self.hops));
        let proxies = proxies.or(span(&self.header)).or(span(&self.ipv6_prefix));
        only_with(source == "client-ip", "`from = \"client-ip\"`", proxies)?;
        let services = span(&self.services);
        only_with(source == "route", "`from = \"route\"`", services)?;
        let is_header = source.starts_with("header:");
        only_with(is_header, "`from = \"header:NAME\"`", span(&self.plain))
    }
}

fn client_ip(table: &Spanned<Table<KeyFields>>) -> Result<ClientIp, Mistake> {
    let fields = &table.get_ref().0;
    let mut client = match (&fields.trusted, &fields.hops) {
        (Some(trusted), None) => {
            let client = ClientIp::behind(one_or_more(trusted)?);
            trusted.at_this(client.check())?;
            client
        }
        (None, Some(hops)) => {
            let client = ClientIp::hops(*hops.get_ref());
            hops.at_this(client.check())?;
            client
        }
        _ => {
            return Err(table.fail(
                "one of `trusted = [\"10.0.0.0/8\"]` and `hops = 1` says which proxies are yours; \
                 without any it is `peer`",
            ));
        }
    };
    if let Some(header) = &fields.header {
        let name = header.get_ref();
        client = client.header(match name.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => ForwardedHeader::XForwardedFor,
            "forwarded" => ForwardedHeader::Forwarded,
            _ => ForwardedHeader::Single(intern(name)),
        });
        header.at_this(client.check())?;
    }
    if let Some(bits) = &fields.ipv6_prefix {
        client = client.ipv6_prefix(*bits.get_ref());
        bits.at_this(client.check())?;
    }
    Ok(client)
}
