//! Lists that decide before any rule: who is refused, and who is not counted.

use std::{
    collections::HashSet,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Method, request::Parts};
use ipnet::IpNet;

use super::pattern::Pattern;
use crate::{
    decision::{Missing, Refusal},
    error::{ConfigError, ConfigErrorKind},
    macros::warning,
    name::Identity,
    web::{
        key::{AnyKey, ClientIp, Key, KeyExtractor, NoKey, Warned, network_of},
        request::is_preflight,
    },
};

/// Requests that a list names: see [`Rules::deny`](crate::Rules::deny) and [`Rules::allow`](crate::Rules::allow).
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
pub struct Requests(Result<Which, ConfigError>);

#[derive(Clone)]
enum Which {
    From(ClientIp, Networks),
    With(Arc<dyn AnyKey>, HashSet<Identity>),
    Method(Method),
    Matching(Pattern),
}

impl Requests {
    /// Requests from these networks, as `10.0.0.0/8`, `2001:db8::/32` or single addresses: by the peer's address with
    /// [`PeerIp`](crate::key::PeerIp), by the client's with [`ClientIp`]. All of its bits count, whatever counts for keys.
    ///
    /// What is no network, or has bits beyond its prefix, is a [`ConfigError`] when the layer is
    /// built. Behind a proxy the peer is the proxy.
    pub fn from_networks<N: AsRef<str>>(
        address: impl Into<ClientIp>,
        networks: impl IntoIterator<Item = N>,
    ) -> Self {
        let networks = networks.into_iter().map(|text| {
            let text = text.as_ref();
            network_of(text).map_err(|reason| refused(text, reason))
        });
        let networks: Result<Vec<_>, _> = networks.collect();
        Self(networks.map(|networks| Which::From(address.into(), Networks::new(&networks))))
    }

    /// Requests in which an extractor finds exactly one of these. One in which it finds nothing is none of them.
    ///
    /// It is for keys of one component, and for the first of several alternatives. The store does not see them, so that
    /// credentials need no digest here.
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
        Self(Ok(Which::With(Arc::new(key), identities)))
    }

    /// Requests of this method, and no other: `GET` does not mean `HEAD` here.
    pub fn method(method: Method) -> Self {
        Self(Ok(Which::Method(method)))
    }

    /// Requests of a path, or of a method and a path, as in [`Rules::on`](crate::Rules::on).
    pub fn on(pattern: &str) -> Self {
        Self(Pattern::route(pattern).map(Which::Matching))
    }

    /// Calls of a gRPC method or of all methods of a service, as in [`Rules::on_grpc`](crate::Rules::on_grpc).
    pub fn on_grpc(method: &str) -> Self {
        Self(Pattern::grpc(method).map(Which::Matching))
    }

    /// Requests of which a closure says so.
    pub fn on_request(matches: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self(Ok(Which::Matching(Pattern::Predicate(Arc::new(matches)))))
    }

    fn checked(self) -> Result<Which, ConfigError> {
        let which = self.0?;
        match &which {
            Which::From(address, _) => KeyExtractor::check(address)?,
            Which::With(key, _) => key.check()?,
            Which::Method(_) | Which::Matching(_) => {}
        }
        Ok(which)
    }
}

// Whom it names is nobody's business.
impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Requests(..)")
    }
}

/// What lists say of a request.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a refusal is not to cost an allocation"
)]
pub(crate) enum Listed {
    Denied(Refusal),
    /// It passes without being counted.
    Allowed,
    /// Rules decide.
    No,
}

/// The lists of a layer, checked.
pub(crate) struct Lists {
    deny: Vec<Which>,
    allow: Vec<Which>,
    skip_preflight: bool,
    warned: Warned,
    warned_of_missing_peer: AtomicBool,
}

fn refused(network: &str, reason: &str) -> ConfigError {
    ConfigErrorKind::Network.error(format!(
        "{network:?} cannot be in a list of networks: {reason}"
    ))
}

impl Lists {
    pub(crate) fn new(
        deny: Vec<Requests>,
        allow: Vec<Requests>,
        skip_preflight: bool,
    ) -> Result<Self, ConfigError> {
        let checked = |list: Vec<Requests>| -> Result<Vec<_>, ConfigError> {
            list.into_iter().map(Requests::checked).collect()
        };
        let (deny, allow) = (checked(deny)?, checked(allow)?);
        for which in &allow {
            if let Which::From(_, networks) = which
                && let Some(network) = networks.everybody
            {
                return Err(refused(&network.to_string(), EVERYBODY));
            }
        }
        Ok(Self {
            deny,
            allow,
            skip_preflight,
            warned: Warned::default(),
            warned_of_missing_peer: AtomicBool::new(false),
        })
    }

    pub(crate) fn find(&self, parts: &Parts) -> Listed {
        for which in &self.deny {
            match self.has(which, parts) {
                Ok(false) => {}
                Ok(true) => return Listed::Denied(Refusal::blocked()),
                // Nobody knows whether it is on the list: the server's fault, and no reason to let it pass.
                Err(missing) => return Listed::Denied(Refusal::missing_key(missing)),
            }
        }
        let allowed = |which: &Which| self.has(which, parts).unwrap_or(false);
        if (self.skip_preflight && is_preflight(parts)) || self.allow.iter().any(allowed) {
            return Listed::Allowed;
        }
        Listed::No
    }

    /// Whether these are requests like this one; an error where the peer's address would tell, and is not noted.
    fn has(&self, which: &Which, parts: &Parts) -> Result<bool, Missing> {
        let mut key = Key::default();
        let has = match which {
            Which::Matching(pattern) => pattern.matches(parts),
            Which::Method(method) => parts.method == *method,
            Which::From(address, networks) => match address.address(parts, &mut key) {
                Ok(address) => networks.contain(address),
                Err(NoKey::Missing(missing)) => {
                    if !self.warned_of_missing_peer.swap(true, Ordering::Relaxed) {
                        warning!(
                            hint = crate::web::key::PEER_HINT,
                            "a list of networks cannot be used because requests lack the peer's address"
                        );
                    }
                    return Err(missing);
                }
                Err(NoKey::Skip) => false,
            },
            Which::With(extractor, identities) => {
                extractor.extract(parts, &mut key).is_ok() && identities.contains(&key.0)
            }
        };
        self.warned.warn("a list", key.1);
        Ok(has)
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lists")
            .field("deny", &self.deny.len())
            .field("allow", &self.allow.len())
            .field("skip_preflight", &self.skip_preflight)
            .finish_non_exhaustive()
    }
}

/// Networks as ranges of addresses that do not overlap, in order: long lists are looked up as fast as short ones.
#[derive(Clone)]
struct Networks {
    ranges: Vec<(IpAddr, IpAddr)>,
    /// The first of them that all addresses of its version are in
    everybody: Option<IpNet>,
}

/// What is wrong with such a network in a list of those who pass.
pub(crate) const EVERYBODY: &str = "everybody is in it, and nobody would be limited: name the \
                                    networks that are to pass, or leave the rules out";

/// Whether all addresses of its version are in it.
pub(crate) fn is_everybody(network: &IpNet) -> bool {
    network.prefix_len() == 0
}

impl Networks {
    fn new(networks: &[IpNet]) -> Self {
        let mut ranges: Vec<_> = networks
            .iter()
            .map(|network| (network.network(), network.broadcast()))
            .collect();
        ranges.sort_unstable();
        // Of two networks that overlap, one lies within the other: the greater comes first unless both begin together.
        ranges.dedup_by(|later, earlier| {
            let overlap = later.0 <= earlier.1;
            if overlap {
                earlier.1 = earlier.1.max(later.1);
            }
            overlap
        });
        let everybody = networks.iter().copied().find(is_everybody);
        Self { ranges, everybody }
    }

    fn contain(&self, address: IpAddr) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= address);
        let range = behind
            .checked_sub(1)
            .and_then(|place| self.ranges.get(place));
        range.is_some_and(|(_, last)| address <= *last)
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
        assert!(list.ranges.len() < texts.len());
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
        assert!(!Networks::new(&[]).contain("10.0.0.1".parse().unwrap()));
        let all = Networks::new(&[network_of("0.0.0.0/0").unwrap()]);
        assert!(all.contain("192.0.2.1".parse().unwrap()));
        assert!(!all.contain("::1".parse().unwrap()));
    }
}
