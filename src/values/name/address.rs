//! Writes IP addresses as they are in the names of limiters.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

/// The number of bits of an IPv6 address that count. A customer usually has a whole part of the
/// network that a provider assigns (RFC 6177, RIPE-690).
pub(crate) const IPV6_PREFIX: u8 = 56;

/// Returns the text under which an address counts: fixed, because another one would reset every
/// limit.
pub(crate) fn spell(address: IpAddr, ipv6_prefix: u8) -> Spelled {
    let address = address.to_canonical();
    let bits = if address.is_ipv4() { 32 } else { ipv6_prefix };
    // Checked when the layer was built: an address has as many bits.
    let network = IpNet::new(address, bits);
    Spelled(network.map_or(address.into(), |network| network.trunc()))
}

/// The text of an address, or of its network. A whole IPv4 address has no length.
pub(crate) struct Spelled(IpNet);

impl fmt::Display for Spelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpNet::V4(whole) if whole.prefix_len() == 32 => whole.addr().fmt(f),
            network => network.fmt(f),
        }
    }
}
