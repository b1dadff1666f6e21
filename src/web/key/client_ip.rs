//! The client's address behind proxies as the key.

use std::{any::TypeId, net::IpAddr, sync::Arc};

use http::{
    HeaderMap, HeaderName,
    header::{self, HeaderValue},
    request::Parts,
};
use ipnet::IpNet;

use super::{
    Key, KeyExtractor, KeyTraits, NoKey, PeerIp, fingerprint_of,
    forwarded::{self, ForwardedHeader},
    header::no_header_name,
    ip::{is_near, peer},
    mistakes,
};
use crate::{
    macros::opaque,
    values::{
        error::{ConfigError, bail, config_error},
        name::{IPV6_PREFIX, spell},
    },
};

/// The longest chain of hops that is read.
const LONGEST_CHAIN: usize = 64;
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the client, also behind proxies.
///
/// Name your proxies, by their networks ([`behind`](Self::behind)) or by their number
/// ([`hops`](Self::hops)), and the header they write ([`header`](Self::header); default:
/// X-Forwarded-For). No other header is read.
///
/// # Which address counts
///
/// The walk starts with the peer's address. While the current address is a trusted proxy's, it
/// moves to what that proxy wrote: one element to the left, through all field lines, from the
/// right. The first address that is not a trusted proxy's counts; the client may have invented
/// everything to the left of it. With `hops(n)` the n-th element from the right counts.
///
/// - A header from a peer that is not trusted is ignored, and a warning says so once.
/// - At an element without an address (`unknown`, `_hidden`, a zone id, nothing at all), or after
///   64 elements, the walk ends: the last trustworthy address counts, at worst the peer's. No
///   element is skipped.
/// - If all of them are trusted, or there are fewer than `n`, the leftmost counts; if there are
///   none, the peer.
/// - If the peer is unknown and networks are trusted, the request is refused with 500, as for
///   [`PeerIp`]. The header is not believed.
///
/// IPv4 addresses written as IPv6 count as IPv4, also in the list of networks. IPv6 addresses count
/// by their first 56 bits. NAT64 and carrier-grade NAT put many customers behind one address; this
/// is not reversed here.
///
/// # Deployment caveat
///
/// A trusted proxy must append to the header, or replace it: one that forwards what a client wrote
/// lets the client choose. The
/// [guide](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/docs/guide) says how to configure
/// common ones.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::ClientIp};
///
/// let client = ClientIp::behind(["10.0.0.0/8", "fd00::/8"]);
/// let layer = RateLimitLayer::builder(&MemoryStore::new())
///     .otherwise(Limit::per_minute(60).by(client))
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a rule has it"]
pub struct ClientIp {
    /// An error if it is invalid, returned when a layer is built.
    trust: Result<Trust, ConfigError>,
    header: ForwardedHeader,
    /// `None` if HTTP does not allow the name.
    name: Option<HeaderName>,
    ipv6_prefix: u8,
    peer: Option<PeerBy>,
}

/// The proxies whose header is believed.
#[derive(Clone, Debug, Hash)]
enum Trust {
    Networks(Arc<[IpNet]>),
    Hops(usize),
}

type FindPeer = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;

/// A closure, and its type, by which two without captured values are the same.
#[derive(Clone)]
struct PeerBy(TypeId, Arc<FindPeer>);

impl PeerIp {
    /// Counts by the peer's address like `PeerIp`, but with this many bits of an IPv6 address: see
    /// [`ClientIp::ipv6_prefix`].
    pub fn ipv6_prefix(self, bits: u8) -> ClientIp {
        ClientIp::from(self).ipv6_prefix(bits)
    }
}

impl ClientIp {
    /// Expects proxies in these networks, as `10.0.0.0/8`, `fd00::/8` or single addresses. With
    /// none of them the peer counts.
    ///
    /// A text that is no network, has bits beyond its prefix, or trusts every address (`0.0.0.0/0`)
    /// is a [`ConfigError`] when the layer is built.
    pub fn behind<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Self {
        let networks = networks.into_iter();
        let trusted = networks.map(|network| trusted_network_of(network.as_ref()));
        Self::new(trusted.collect::<Result<_, _>>().map(Trust::Networks))
    }

    /// Expects this many proxies, with one element from each: with 1, the peer is the only proxy.
    ///
    /// Zero, and more than 64, are a [`ConfigError`] when the layer is built: without a proxy count
    /// by [`PeerIp`]. The peer's address may be unknown here: servers on a Unix socket have none.
    ///
    /// # Deployment caveat
    ///
    /// Every peer is taken for your proxy. No other client may be able to reach the port, nor may
    /// one of the proxies be reachable past those in front of it. If you know the proxies'
    /// networks, [`behind`](Self::behind) is safer.
    pub fn hops(proxies: usize) -> Self {
        if (1..=LONGEST_CHAIN).contains(&proxies) {
            return Self::new(Ok(Trust::Hops(proxies)));
        }
        let refused = config_error!(Network: "1 to 64 proxies can be trusted, not {proxies}: \
            without a proxy count by `PeerIp`, in a file by `peer`");
        Self::new(Err(refused))
    }

    /// Sets the header that counts. Default: [`ForwardedHeader::XForwardedFor`].
    ///
    /// A name that HTTP does not allow is a [`ConfigError`] when the layer is built.
    pub fn header(mut self, header: ForwardedHeader) -> Self {
        self.name = match header {
            ForwardedHeader::XForwardedFor => Some(X_FORWARDED_FOR),
            ForwardedHeader::Forwarded => Some(header::FORWARDED),
            ForwardedHeader::Single(name) => HeaderName::from_bytes(name.as_bytes()).ok(),
        };
        self.header = header;
        self
    }

    /// Sets how many bits of an IPv6 address count, 32 to 128. Default: 56, the size that a
    /// provider assigns to one customer (RFC 6177, RIPE-690).
    ///
    /// Other values are a [`ConfigError`] when the layer is built. Fewer bits count more customers
    /// together; more bits give one customer more limits, with all 128 as many as its network has
    /// addresses.
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    /// Sets where a request has the peer's address, for servers that [`PeerIp`] does not know.
    /// `None` means that it is unknown: no other place is searched then.
    ///
    /// With the PROXY protocol, this is the address in the protocol's header, if your load balancer
    /// sent it.
    ///
    /// # Example
    ///
    /// ```
    /// use std::net::IpAddr;
    ///
    /// use tower_ratelimit::key::ClientIp;
    ///
    /// #[derive(Clone)]
    /// struct Connection {
    ///     peer: IpAddr,
    /// }
    ///
    /// let client = ClientIp::behind(["10.0.0.0/8"])
    ///     .peer(|parts| parts.extensions.get::<Connection>().map(|connection| connection.peer));
    /// ```
    pub fn peer<F>(mut self, peer: F) -> Self
    where
        F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    {
        self.peer = Some(PeerBy(TypeId::of::<F>(), Arc::new(peer)));
        self
    }

    /// Returns whether the key of some address reads so.
    pub(crate) fn may_be(&self, key: &str) -> bool {
        let address = key.split('/').next().unwrap_or(key).parse();
        address.is_ok_and(|address| spell(address, self.ipv6_prefix).to_string() == key)
    }

    /// Returns the address that counts, with all of its bits; `None` if no limit could count it.
    ///
    /// For what else needs the client's address, such as an access log.
    pub fn find(&self, parts: &Parts) -> Option<IpAddr> {
        self.address(parts, &mut Key::default()).ok()
    }

    fn new(trust: Result<Trust, ConfigError>) -> Self {
        Self {
            trust,
            header: ForwardedHeader::XForwardedFor,
            name: Some(X_FORWARDED_FOR),
            ipv6_prefix: IPV6_PREFIX,
            peer: None,
        }
    }

    fn trusts(&self, peer: Option<IpAddr>) -> bool {
        match &self.trust {
            Ok(Trust::Networks(networks)) => {
                peer.is_some_and(|peer| networks.iter().any(|network| network.contains(&peer)))
            }
            Ok(Trust::Hops(_)) => true,
            Err(_) => false,
        }
    }

    fn expects_proxies(&self) -> bool {
        !matches!(&self.trust, Ok(Trust::Networks(networks)) if networks.is_empty())
    }

    /// Walks from the peer to the left, while the current address is trusted.
    fn walk(&self, peer: Option<IpAddr>, headers: &HeaderMap, key: &mut Key) -> Option<IpAddr> {
        let values = self.name.iter().map(|name| headers.get_all(name));
        let lines = values.flat_map(|values| values.iter().map(HeaderValue::as_bytes));
        let mut client = peer;
        for (index, hop) in forwarded::hops(self.header, lines).enumerate() {
            let Some(address) = hop.filter(|_| index < LONGEST_CHAIN) else {
                key.mistakes |= mistakes::UNREADABLE;
                break;
            };
            client = Some(address);
            let trusted = match self.trust {
                Ok(Trust::Hops(proxies)) => index + 1 < proxies,
                _ => self.trusts(client),
            };
            if !trusted {
                break;
            }
        }
        client
    }

    /// Returns the address, with all of its bits. What looks like a mistake is recorded in `key`.
    pub(crate) fn address(&self, parts: &Parts, key: &mut Key) -> Result<IpAddr, NoKey> {
        let peer = match &self.peer {
            Some(PeerBy(_, by)) => by(parts).map(|address| address.to_canonical()),
            None => peer(&parts.extensions),
        };
        let both = self.header != ForwardedHeader::Forwarded
            && parts.headers.contains_key(header::FORWARDED);
        let client = if self.trusts(peer) {
            if both {
                key.mistakes |= mistakes::FORWARDED_TOO;
            }
            self.walk(peer, &parts.headers, key)
        } else {
            let peer = peer.ok_or_else(|| key.lacks_peer())?;
            let named = self.name.as_ref();
            let forwards = both || named.is_some_and(|name| parts.headers.contains_key(name));
            // If no proxy is expected, clients may write what they like; a neighbour that forwards
            // is a proxy.
            if forwards && (self.expects_proxies() || is_near(peer)) {
                key.mistakes |= mistakes::UNTRUSTED_PEER;
            }
            Some(peer)
        };
        client.ok_or_else(|| key.lacks_peer())
    }
}

impl From<PeerIp> for ClientIp {
    /// Expects no proxy.
    fn from(_: PeerIp) -> Self {
        Self::behind([""; 0])
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let client = self.address(parts, key)?;
        key.identity.push_display(spell(client, self.ipv6_prefix));
        Ok(())
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        self.trust.as_ref().map_err(Clone::clone)?;
        if let (None, ForwardedHeader::Single(name)) = (&self.name, self.header) {
            return Err(no_header_name(name));
        }
        let bits = self.ipv6_prefix;
        if !(32..=128).contains(&bits) {
            bail!(Key: "`ipv6_prefix` must be 32 to 128, not {bits}");
        }
        Ok(KeyTraits::BOUNDED)
    }

    fn fingerprint(&self) -> Option<u64> {
        let peer = match &self.peer {
            Some(PeerBy(_, find)) if size_of_val(&**find) > 0 => return None,
            Some(PeerBy(of, _)) => Some(of),
            None => None,
        };
        let trust = self.trust.as_ref().ok();
        fingerprint_of((trust, self.header, &self.name, self.ipv6_prefix, peer))
    }
}

opaque!(PeerBy);

/// Parses a network of proxies, or a single one.
fn trusted_network_of(text: &str) -> Result<IpNet, ConfigError> {
    let network = network_of(text).and_then(|network| match network.prefix_len() {
        0 => Err("it trusts every address, so any client could choose its own"),
        _ => Ok(network),
    });
    network.map_err(|reason| {
        config_error!(Network: "{text:?} cannot be a network of trusted proxies: {reason}")
    })
}

/// Parses a network, or a single address. IPv4 written as IPv6 becomes IPv4, as addresses do.
pub(crate) fn network_of(text: &str) -> Result<IpNet, &'static str> {
    let alone = || text.parse().map(|address: IpAddr| address.into());
    let network = (text.parse::<IpNet>().or_else(|_| alone()))
        .map_err(|_| "it is neither an address nor a network such as `10.0.0.0/8`")?;
    if network.addr() != network.network() {
        return Err("it has bits beyond its prefix");
    }
    match (network.addr().to_canonical(), network) {
        (IpAddr::V4(address), IpNet::V6(written)) => {
            let bits = written.prefix_len().checked_sub(96);
            bits.and_then(|bits| IpNet::new(address.into(), bits).ok())
                .ok_or("its prefix is shorter than that of IPv4 written as IPv6")
        }
        _ => Ok(network),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::web::key::PeerAddr;

    /// A warning is for a setup that is likely wrong, and not for what clients may write.
    #[test]
    fn a_mistake_is_what_only_the_operator_can_mend() {
        const FAR: [u8; 4] = [198, 51, 100, 1];
        const NEAR: [u8; 4] = [10, 0, 0, 1];
        let behind = || ClientIp::behind(["10.0.0.0/8"]);
        let forwarded = || behind().header(ForwardedHeader::Forwarded);
        let alone = || ClientIp::from(PeerIp);
        let (chain, standard) = (
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1"),
        );
        let broken = ("x-forwarded-for", "not an address");
        for (client, peer, headers, mistakes) in [
            (behind(), NEAR, &[chain][..], 0),
            (behind(), NEAR, &[broken], mistakes::UNREADABLE),
            (behind(), NEAR, &[chain, standard], mistakes::FORWARDED_TOO),
            (forwarded(), NEAR, &[chain, standard], 0),
            (behind(), FAR, &[], 0),
            (behind(), FAR, &[chain], mistakes::UNTRUSTED_PEER),
            (behind(), FAR, &[standard], mistakes::UNTRUSTED_PEER),
            (alone(), FAR, &[chain], 0),
            (alone(), NEAR, &[chain], mistakes::UNTRUSTED_PEER),
            (alone(), NEAR, &[], 0),
        ] {
            let mut request = http::Request::builder();
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let mut parts = request.body(()).unwrap().into_parts().0;
            let peer = SocketAddr::from((peer, 50_000));
            parts.extensions.insert(PeerAddr(peer));
            let mut key = Key::default();
            client.address(&parts, &mut key).unwrap();
            assert_eq!(
                key.mistakes, mistakes,
                "{client:?} from {peer}: {headers:?}"
            );
        }
    }
}
