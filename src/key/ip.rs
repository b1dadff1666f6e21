//! The peer's address as the key.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{Extensions, request::Parts};

use super::{Key, KeyExtractor, NoKey};

/// Who has a part of an IPv6 network that a provider hands to one customer (RFC 6177, RIPE-690).
const IPV6_PREFIX: u32 = 56;

/// The address at the other end of the connection.
///
/// Found in axum's `ConnectInfo<SocketAddr>` (feature `axum`; `MockConnectInfo` counts, too), tonic's `TcpConnectInfo`
/// (feature `tonic`) or, for TLS streams that are not tonic's own, `TlsConnectInfo` (feature `tonic-tls`), or in [`PeerAddr`]. Where the server notes none of them the request is refused with 500, and one warning says how
/// to install it: with axum, `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// IPv6 addresses count by their first 56 bits, because one customer has them all, and IPv4 addresses written as IPv6 as
/// what they are. The port does not count.
///
/// # Deployment caveat
///
/// Behind a proxy or a load balancer this is *its* address, and everybody shares one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerIp;

/// The peer's address, for servers that have no extension of their own for it: put it into the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let peer = peer(&parts.extensions).ok_or(NoKey::missing_peer())?;
        key.push(spelled(peer));
        Ok(())
    }
}

fn peer(extensions: &Extensions) -> Option<IpAddr> {
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

/// The text under which an address counts: fixed, because another one would reset every limit.
fn spelled(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << (128 - IPV6_PREFIX));
            format!("{}/{IPV6_PREFIX}", Ipv6Addr::from_bits(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_by_customer() {
        for (address, text) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2ff:3:4:5:6", "2001:db8:1:200::/56"),
            ("2001:DB8:0001:0200::1", "2001:db8:1:200::/56"),
            ("2001:db8::192.0.2.1", "2001:db8::/56"),
            ("::1", "::/56"),
            ("fe80::1", "fe80::/56"),
        ] {
            assert_eq!(spelled(address.parse().unwrap()), text, "{address}");
        }
    }
}
