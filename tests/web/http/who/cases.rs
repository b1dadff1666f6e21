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
            other => panic!("by {other}"),
        };
        limit.by(client)
    }

    pub(super) fn socket(&self) -> Socket {
        match &*self.on {
            "tcp" => Socket::Tcp,
            "dual-stack" => Socket::DualStack,
            "unix" => Socket::Unix,
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
            other => panic!("from {other}"),
        }
    }
}
