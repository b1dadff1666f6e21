//! The peer's address as the key.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, request::Parts};

use super::{Key, KeyExtractor, KeyTraits, NoKey, mistakes};
use crate::values::{
    error::ConfigError,
    name::{IPV6_PREFIX, spell},
};

/// The address at the other end of the connection.
///
/// Found in axum's `ConnectInfo<SocketAddr>` (feature `axum`; also `MockConnectInfo`), tonic's
/// `TcpConnectInfo` (feature `tonic`) or, for TLS streams that are not tonic's own,
/// `TlsConnectInfo` (feature `tonic-tls`), or in [`PeerAddr`]. If the server records none of them,
/// one warning says how to install it, with axum
/// `into_make_service_with_connect_info::<SocketAddr>()`, and the request is refused with 500, also
/// with [`or_skip`](KeyExtractor::or_skip), unless [`or`](KeyExtractor::or) finds another key.
///
/// IPv6 addresses count by their first 56 bits, because one customer has them all, and IPv4
/// addresses written as IPv6 count as IPv4. The port does not count.
///
/// # Deployment caveat
///
/// Behind a proxy or a load balancer this is *its* address, and all clients share one limit: use
/// [`ClientIp`](super::ClientIp). A peer in a private network that sends X-Forwarded-For or
/// `Forwarded` is probably a proxy, and a warning says so once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerIp;

/// The peer's address, for servers that have no extension of their own for it: put it into the
/// request's extensions.
///
/// It has precedence over what the server records. So this is also the place for the address in a
/// PROXY-protocol header, if the listener accepts such headers only from the load balancer. `LOCAL`
/// and `UNKNOWN` (health checks) have none: put the balancer's own address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let peer = peer(&parts.extensions).ok_or_else(|| key.lacks_peer())?;
        let forwards = |name| parts.headers.contains_key(name);
        if is_near(peer) && (forwards("x-forwarded-for") || forwards("forwarded")) {
            key.mistakes |= mistakes::UNTRUSTED_PEER;
        }
        key.identity.push_display(spell(peer, IPV6_PREFIX));
        Ok(())
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        Ok(KeyTraits::BOUNDED)
    }
}

/// Returns the address at the other end of the connection, if the server or an extension provides
/// it.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    recorded(extensions).map(|address| address.to_canonical())
}

fn recorded(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(PeerAddr(address)) = extensions.get() {
        return Some(address.ip());
    }
    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        if let Some(ConnectInfo(address)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
        if let Some(MockConnectInfo(address)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
    }
    #[cfg(feature = "tonic")]
    {
        use tonic::transport::server::TcpConnectInfo;

        if let Some(info) = extensions.get::<TcpConnectInfo>() {
            return info.remote_addr().map(|address| address.ip());
        }
        #[cfg(feature = "tonic-tls")]
        if let Some(info) =
            extensions.get::<tonic::transport::server::TlsConnectInfo<TcpConnectInfo>>()
        {
            return info.get_ref().remote_addr().map(|address| address.ip());
        }
    }
    None
}

/// Returns whether the address is in a network of proxies, and not of clients of the open Internet.
pub(crate) fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // RFC 6598: between carriers and customers, and within some clouds.
            let shared = matches!(address.octets(), [100, 64..=127, ..]);
            address.is_private() || address.is_loopback() || address.is_link_local() || shared
        }
        IpAddr::V6(address) => {
            address.is_unique_local() || address.is_loopback() || address.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_live_in_private_networks() {
        for near in [
            "10.1.2.3",
            "127.0.0.1",
            "169.254.0.1",
            "100.64.0.1",
            "::1",
            "fd00::1",
            "fe80::1",
        ] {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["192.0.2.1", "100.63.0.1", "100.128.0.1", "2001:db8::1"] {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }
}
