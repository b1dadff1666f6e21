//! Reads `cases.toml`: the trusted proxies, the header, and the socket of each case.

use std::collections::BTreeMap;
use tower_ratelimit::key::ForwardedHeader;

use super::{super::sockets::From, *};

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

/// A rule, a server, and who sends it one request after another.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    by: String,
    on: String,
    pub(super) steps: Vec<Step>,
}

/// A connection's other end, the fields sent, and what comes of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    from: String,
    #[serde(default)]
    pub(super) fields: BTreeMap<String, Vec<String>>,
    /// As this client, who has one request an hour
    pub(super) counted: Option<String>,
    /// It is refused with this status, and takes nothing.
    pub(super) status: Option<u16>,
}

pub(super) fn cases() -> Vec<Case> {
    let file: File = toml::from_str(include_str!("cases.toml")).unwrap();
    file.case
}

impl Case {
    pub(super) fn rule(&self, limit: Limit) -> Rule {
        let local = || ClientIp::behind(["127.0.0.1"]);
        let real_ip = ForwardedHeader::Single("X-Real-IP");
        let client = match &*self.by {
            "peer" => return limit.by(PeerIp),
            "digest" => {
                let secret = Secret::new("k1", "3f1d7a0c55e94b6f8a2be07d41c9631e").unwrap();
                return limit.by(FromHeader::new("authorization").digest(&secret));
            }
            "no proxy" => ClientIp::behind([] as [&str; 0]),
            "local" => local(),
            "two networks" => ClientIp::behind(["127.0.0.1", "10.0.0.0/8"]),
            "networks" => ClientIp::behind(["127.0.0.0/31", "::ffff:10.0.0.0/104", "fd00::/8"]),
            "localhosts" => ClientIp::behind(["127.0.0.1", "::1"]),
            "one hop" => ClientIp::hops(1),
            "two hops" => ClientIp::hops(2),
            "two hops forwarded" => ClientIp::hops(2).header(ForwardedHeader::Forwarded),
            "one hop real-ip" => ClientIp::hops(1).header(real_ip),
            "forwarded" => local().header(ForwardedHeader::Forwarded),
            "real-ip" => local().header(real_ip),
            "prefixes" => local().ipv6_prefix(64),
            "known peer" => local().peer(|_| Some([127, 0, 0, 1].into())),
            "edge" => ClientIp::behind(["198.51.100.1", "2001:db8:1::/48"])
                .header(ForwardedHeader::Single("cf-connecting-ip")),
            other => panic!("by {other}"),
        };
        limit.by(client)
    }

    pub(super) fn socket(&self) -> Socket {
        match &*self.on {
            "tcp" => Socket::Tcp,
            "dual-stack" => Socket::DualStack,
            "unix" => Socket::Unix,
            "proxied" => Socket::Proxied,
            other => panic!("on {other}"),
        }
    }
}

impl Step {
    pub(super) fn from(&self) -> From {
        match &*self.from {
            "proxy" => From::Peer(1),
            "past" => From::Peer(2),
            "third" => From::Peer(3),
            "unix" => From::Unix,
            "v1" => From::Balancer(V1),
            "v1-ipv6" => From::Balancer(V1_IPV6),
            "v1-unknown" => From::Balancer(V1_UNKNOWN),
            "v2" => From::Balancer(V2),
            "v2-other" => From::Balancer(V2_OTHER),
            "v2-mapped" => From::Balancer(V2_MAPPED),
            "v2-ipv6" => From::Balancer(V2_IPV6),
            "v2-local" => From::Balancer(V2_LOCAL),
            other => panic!("from {other}"),
        }
    }
}

/// 198.51.100.1
const V1: &[u8] = b"PROXY TCP4 198.51.100.1 127.0.0.1 4711 80\r\n";
const V1_IPV6: &[u8] = b"PROXY TCP6 2001:db8:1:200::1 ::1 4711 80\r\n";
/// Bytes after `UNKNOWN` are ignored.
const V1_UNKNOWN: &[u8] = b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n";
/// 198.51.100.1 from another port, and an additional field that says nothing
const V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f\xc6\x33\x64\x01\x7f\0\0\x01\x12\x68\0\x50\x04\0\0";
/// 198.51.100.2
const V2_OTHER: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x02\x7f\0\0\x01\x12\x67\0\x50";
/// `::ffff:198.51.100.1`
const V2_MAPPED: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24\
    \0\0\0\0\0\0\0\0\0\0\xff\xff\xc6\x33\x64\x01\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01\x12\x67\0\x50";
/// `2001:db8:1:2ff::2`
const V2_IPV6: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24\
    \x20\x01\x0d\xb8\0\x01\x02\xff\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x12\x67\0\x50";
/// Bytes after `LOCAL` are ignored.
const V2_LOCAL: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x20\x11\0\x0c\xc6\x33\x64\x09\x7f\0\0\x01\x12\x67\0\x50";
