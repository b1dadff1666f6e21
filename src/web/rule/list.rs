//! The deny and allow lists, which apply before any rule: requests that are refused, and requests
//! that pass uncounted.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use http::request::Parts;
use ipnet::IpNet;

use super::{index::Index, pattern::Pattern};
use crate::{
    macros::opaque,
    sync::Once,
    values::{
        decision::{Fault, Missing, Refusal},
        error::{ConfigError, bail, config_error},
        name::Identity,
        observe::RequestResult,
    },
    web::{
        key::{AnyKey, ClientIp, Key, KeyExtractor, NoKey, mistakes, network_of},
        request::is_preflight,
    },
};

/// Requests for a list: see [`Rules::deny`](crate::Rules::deny) and
/// [`Rules::allow`](crate::Rules::allow).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Limit, Requests, Rules};
/// use tower_ratelimit::key::{FromHeader, PeerIp};
///
/// let rules = Rules::new()
///     .deny(Requests::from_networks(PeerIp, ["192.0.2.0/24", "2001:db8::/32"]))
///     .allow(Requests::on("GET /health"))
///     .allow(Requests::with_key(FromHeader::new("x-tenant"), ["monitoring"]))
///     .otherwise(Limit::per_second(50).by(PeerIp));
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until a list has it"]
pub struct Requests(Result<Matcher, ConfigError>);

#[derive(Clone)]
enum Matcher {
    Networks(ClientIp, Networks),
    Key(AnyKey, HashSet<Identity>),
    Pattern(Arc<Index>),
}

impl Requests {
    /// Matches requests from these networks, written as `10.0.0.0/8`, `2001:db8::/32` or single
    /// addresses. With [`PeerIp`](crate::key::PeerIp) it goes by the peer's address, with
    /// [`ClientIp`] by the client's. All bits of the address count, even if fewer count for keys.
    ///
    /// A text that is not a network, or that has bits beyond its prefix, is a [`ConfigError`] when
    /// the layer is built. Behind a proxy the peer is the proxy.
    pub fn from_networks<N: AsRef<str>>(
        address: impl Into<ClientIp>,
        networks: impl IntoIterator<Item = N>,
    ) -> Self {
        let networks = networks.into_iter().map(|text| {
            let text = text.as_ref();
            network_of(text).map_err(|reason| refused(text, reason))
        });
        let networks: Result<Vec<_>, _> = networks.collect();
        Self(networks.map(|networks| Matcher::Networks(address.into(), Networks::new(&networks))))
    }

    /// Matches requests in which an extractor finds exactly one of these values. A request in which
    /// it finds nothing does not match, unless the server does not record the peer's address.
    ///
    /// Use it for keys of one component, and for the first of several alternatives. The values are
    /// not sent to the store, so credentials need no digest here.
    pub fn with_key<K: AsRef<[u8]>>(
        key: impl KeyExtractor,
        identities: impl IntoIterator<Item = K>,
    ) -> Self {
        let identities = identities.into_iter().map(|component| {
            let mut identity = Identity::default();
            identity.push(component.as_ref());
            identity
        });
        let identities = identities.collect();
        Self(Ok(Matcher::Key(AnyKey::new(key), identities)))
    }

    /// Matches requests by path, or by method and path, as in [`Rules::on`](crate::Rules::on).
    pub fn on(pattern: &str) -> Self {
        Self::matching(Pattern::route(pattern))
    }

    /// Matches calls of a gRPC method or of all methods of a service, as in
    /// [`Rules::on_grpc`](crate::Rules::on_grpc).
    pub fn on_grpc(method: &str) -> Self {
        Self::matching(Pattern::grpc(method))
    }

    /// Matches requests for which a closure returns true.
    pub fn on_request(matches: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self::matching(Ok(Pattern::default().and(Arc::new(matches))))
    }

    /// Matches the requests of a pattern.
    pub(crate) fn matching(pattern: Result<Pattern, ConfigError>) -> Self {
        Self(pattern.map(|pattern| Matcher::Pattern(Arc::new(Index::one(pattern)))))
    }

    /// Checks that they may be in a list: of requests that pass if it `allows` them.
    pub(crate) fn check(&self, allows: bool) -> Result<(), ConfigError> {
        match self.0.as_ref().map_err(Clone::clone)? {
            Matcher::Networks(address, networks) => {
                address.check()?;
                let every_address = networks.0.iter().find(|it| it.prefix_len() == 0);
                if let Some(network) = every_address.filter(|_| allows) {
                    let reason = "it contains every address, so nothing would be limited: name \
                                  the networks that should pass, or leave the rules out";
                    return Err(refused(&network.to_string(), reason));
                }
            }
            Matcher::Key(key, _) => _ = key.check()?,
            Matcher::Pattern(index) => {
                if allows && index.has_every_path() {
                    bail!(LimitsNothing: "every path but `/` would be allowed, so next to nothing \
                        would be limited: name the routes that should pass, or leave the rules out");
                }
            }
        }
        Ok(())
    }
}

// The identities in it must not be logged.
opaque!(Requests);

/// The lists of a layer, checked.
pub(super) struct Lists {
    deny: Vec<Matcher>,
    allow: Vec<Matcher>,
    skip_preflight: bool,
    warned: Once,
}

fn refused(network: &str, reason: &str) -> ConfigError {
    config_error!(Network: "{network:?} cannot be in a list of networks: {reason}")
}

impl Lists {
    pub(super) fn new(
        deny: Vec<Requests>,
        allow: Vec<Requests>,
        skip_preflight: bool,
    ) -> Result<Self, ConfigError> {
        let checked = |list: Vec<Requests>, allows| -> Result<_, ConfigError> {
            let list = list.into_iter();
            list.map(|it| it.check(allows).and(it.0)).collect()
        };
        Ok(Self {
            deny: checked(deny, false)?,
            allow: checked(allow, true)?,
            skip_preflight,
            warned: Once::default(),
        })
    }

    /// Returns why a request on a list passes, or its refusal; for all others `None`, as the rules
    /// decide.
    pub(super) fn find(&self, parts: &Parts) -> Option<Result<RequestResult, Refusal>> {
        for matcher in &self.deny {
            match self.has(matcher, parts, Index::may_match) {
                Ok(false) => {}
                Ok(true) => return Some(Err(Refusal::blocked())),
                // It is unknown whether the request is on the list. That is the server's fault, but
                // no reason to let it pass.
                Err(missing) => return Some(Err(Refusal::missing_key(missing))),
            }
        }
        if self.skip_preflight && is_preflight(parts) {
            return Some(Ok(RequestResult::Preflight));
        }
        let is_allowed =
            |matcher: &Matcher| self.has(matcher, parts, Index::matches).unwrap_or(false);
        let passes = self.allow.iter().any(is_allowed);
        passes.then_some(Ok(RequestResult::AllowedByList))
    }

    /// Returns whether the request is one of these, by its path where this index `matches` it. An
    /// error if that needs the peer's address and the server does not record it.
    fn has(
        &self,
        matcher: &Matcher,
        parts: &Parts,
        matches: fn(&Index, &Parts) -> bool,
    ) -> Result<bool, Missing> {
        let mut key = Key::default();
        let has = match matcher {
            Matcher::Pattern(index) => Ok(matches(index, parts)),
            Matcher::Networks(address, networks) => match address.address(parts, &mut key) {
                Ok(address) => Ok(networks.contain(address)),
                Err(NoKey::Missing(missing)) => Err(missing),
                Err(NoKey::Skip) => Ok(false),
            },
            Matcher::Key(extractor, identities) => match extractor.extract(parts, &mut key) {
                Ok(()) => Ok(identities.contains(&key.identity)),
                Err(NoKey::Missing(missing)) if missing.fault == Fault::Server => Err(missing),
                Err(_) => Ok(false),
            },
        };
        mistakes::warn("a list", key.mistakes, &self.warned);
        has
    }
}

/// Networks that do not overlap, sorted for a binary search.
#[derive(Clone)]
struct Networks(Vec<IpNet>);

impl Networks {
    fn new(networks: &Vec<IpNet>) -> Self {
        let mut sorted = IpNet::aggregate(networks);
        sorted.sort_unstable();
        Self(sorted)
    }

    fn contain(&self, address: IpAddr) -> bool {
        let behind = (self.0).partition_point(|network| network.network() <= address);
        let network = behind.checked_sub(1).and_then(|at| self.0.get(at));
        network.is_some_and(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_found_as_each_of_them_says() {
        let texts = [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "192.0.2.7",
            "192.0.2.8/30",
            "255.255.255.255",
            "2001:db8::/32",
            "2001:db8::/64",
            "::1",
            "::ffff:198.51.100.0/120",
        ];
        let networks: Vec<_> = texts.iter().map(|it| network_of(it).unwrap()).collect();
        let list = Networks::new(&networks);
        assert!(list.0.len() < texts.len());
        for address in [
            "9.255.255.255",
            "10.0.0.0",
            "10.1.2.3",
            "10.255.255.255",
            "11.0.0.0",
            "192.0.2.6",
            "192.0.2.7",
            "192.0.2.8",
            "192.0.2.11",
            "192.0.2.12",
            "198.51.100.9",
            "255.255.255.254",
            "255.255.255.255",
            "0.0.0.0",
            "::",
            "::1",
            "::2",
            "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db8::",
            "2001:db8:ffff::1",
            "2001:db9::",
        ] {
            let address: IpAddr = address.parse().unwrap();
            let expected = networks.iter().any(|network| network.contains(&address));
            assert_eq!(list.contain(address), expected, "{address}");
        }
        assert!(!Networks::new(&vec![]).contain("10.0.0.1".parse().unwrap()));
        let all = Networks::new(&vec![network_of("0.0.0.0/0").unwrap()]);
        assert!(all.contain("192.0.2.1".parse().unwrap()));
        assert!(!all.contain("::1".parse().unwrap()));
    }
}
