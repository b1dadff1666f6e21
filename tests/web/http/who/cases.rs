//! The cases of `who.rs`: whom a server believes, what it reads, and on which socket.

use crate::scene::*;
use tower_ratelimit::key::ForwardedHeader;

use super::{
    super::sockets::{
        From::{self, Balancer, Peer, Unix},
        Socket,
    },
    By, Case, Status,
};

/// The trusted one.
const PROXY: From = Peer(1);
/// A client that connects past the proxy.
const PAST: From = Peer(2);
const XFF: &str = "x-forwarded-for";
const REAL: &str = "x-real-ip";

fn local() -> ClientIp {
    ClientIp::behind(["127.0.0.1"])
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "no proxy: nothing that is written counts",
        by: |limit| limit.by(PeerIp),
        on: Socket::Tcp,
        steps: &[
            (PROXY, &[], By("127.0.0.1")),
            (PROXY, &[(XFF, "198.51.100.1")], By("127.0.0.1")),
            (PROXY, &[("forwarded", "for=198.51.100.1")], By("127.0.0.1")),
            (PAST, &[(REAL, "127.0.0.1")], By("127.0.0.2")),
            (PAST, &[], By("127.0.0.2")),
        ],
    },
    Case {
        name: "no network is trusted",
        by: |limit| limit.by(ClientIp::behind([] as [&str; 0])),
        on: Socket::Tcp,
        steps: &[
            (PROXY, &[(XFF, "198.51.100.1")], By("127.0.0.1")),
            (PROXY, &[(XFF, "198.51.100.2")], By("127.0.0.1")),
        ],
    },
    Case {
        name: "a trusted proxy that adds to X-Forwarded-For",
        by: |limit| limit.by(local()),
        on: Socket::Tcp,
        steps: &[
            (PROXY, &[(XFF, "198.51.100.1")], By("198.51.100.1")),
            // Made up before its own, on the same line or on one before.
            (
                PROXY,
                &[(XFF, "203.0.113.9, 198.51.100.1")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[(XFF, "203.0.113.9"), (XFF, "198.51.100.1")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[(XFF, "198.51.100.1, 198.51.100.2")],
                By("198.51.100.2"),
            ),
            // The other headers are not read.
            (
                PROXY,
                &[
                    (XFF, "198.51.100.2"),
                    ("forwarded", "for=203.0.113.9"),
                    (REAL, "203.0.113.9"),
                ],
                By("198.51.100.2"),
            ),
            // With a port, and as IPv6.
            (PROXY, &[(XFF, "198.51.100.2:4711")], By("198.51.100.2")),
            (PROXY, &[(XFF, "::ffff:198.51.100.2")], By("198.51.100.2")),
            (
                PROXY,
                &[(XFF, "[::ffff:198.51.100.2]:4711")],
                By("198.51.100.2"),
            ),
            // Nobody who was named above has lost anything.
            (PROXY, &[(XFF, "203.0.113.9")], By("203.0.113.9")),
        ],
    },
    Case {
        name: "past the proxy nothing that is written counts",
        by: |limit| limit.by(local()),
        on: Socket::Tcp,
        steps: &[
            (PAST, &[(XFF, "198.51.100.3")], By("127.0.0.2")),
            (PAST, &[(XFF, "198.51.100.4")], By("127.0.0.2")),
            (PAST, &[(XFF, "127.0.0.1")], By("127.0.0.2")),
            (PAST, &[], By("127.0.0.2")),
            // The same client, by the proxy.
            (PROXY, &[(XFF, "127.0.0.2")], By("127.0.0.2")),
            (PROXY, &[(XFF, "198.51.100.3")], By("198.51.100.3")),
        ],
    },
    Case {
        name: "what cannot be read ends the walk",
        by: |limit| limit.by(ClientIp::behind(["127.0.0.1", "10.0.0.0/8"])),
        on: Socket::Tcp,
        steps: &[
            (PROXY, &[], By("127.0.0.1")),
            (PROXY, &[(XFF, "")], By("127.0.0.1")),
            (PROXY, &[(XFF, "198.51.100.1, unknown")], By("127.0.0.1")),
            (PROXY, &[(XFF, "198.51.100.1,")], By("127.0.0.1")),
            (
                PROXY,
                &[(XFF, "198.51.100.1, 10.0.0.7\u{e9}")],
                By("127.0.0.1"),
            ),
            (
                PROXY,
                &[(XFF, "198.51.100.1, 1.2.3, 10.0.0.7")],
                By("10.0.0.7"),
            ),
            (
                PROXY,
                &[(XFF, "198.51.100.2"), (XFF, ", 10.0.0.7")],
                By("10.0.0.7"),
            ),
            // All of them are trusted.
            (PROXY, &[(XFF, "10.0.0.8, 10.0.0.7")], By("10.0.0.8")),
        ],
    },
    Case {
        name: "several proxies, by their networks",
        by: |limit| {
            limit.by(ClientIp::behind([
                "127.0.0.0/31",
                "::ffff:10.0.0.0/104",
                "fd00::/8",
            ]))
        },
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[(XFF, "198.51.100.1, 10.0.0.7")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[(XFF, "203.0.113.9, 198.51.100.1, fd00::7, ::ffff:10.9.9.9")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[(XFF, "198.51.100.1, 11.0.0.7, 10.0.0.7")],
                By("11.0.0.7"),
            ),
            (PAST, &[(XFF, "198.51.100.2, 10.0.0.7")], By("127.0.0.2")),
        ],
    },
    Case {
        name: "one proxy, by number",
        by: |limit| limit.by(ClientIp::hops(1)),
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[(XFF, "203.0.113.9, 198.51.100.1")],
                By("198.51.100.1"),
            ),
            (PAST, &[(XFF, "198.51.100.1")], By("198.51.100.1")),
            (PAST, &[], By("127.0.0.2")),
            (PROXY, &[(XFF, "198.51.100.1, unknown")], By("127.0.0.1")),
        ],
    },
    Case {
        name: "two proxies, by number",
        by: |limit| limit.by(ClientIp::hops(2)),
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[(XFF, "203.0.113.9, 198.51.100.1, 203.0.113.7")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[(XFF, "198.51.100.1"), (XFF, "203.0.113.8")],
                By("198.51.100.1"),
            ),
            // There are fewer: the leftmost.
            (PROXY, &[(XFF, "203.0.113.8")], By("203.0.113.8")),
        ],
    },
    Case {
        name: "a trusted proxy that writes Forwarded",
        by: |limit| limit.by(local().header(ForwardedHeader::Forwarded)),
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[("forwarded", "for=198.51.100.1")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[(
                    "forwarded",
                    "for=203.0.113.9, for=\"198.51.100.1:4711\";proto=https;by=_edge",
                )],
                By("198.51.100.1"),
            ),
            // What a client left open does not swallow what the proxy adds.
            (
                PROXY,
                &[("forwarded", "for=\"203.0.113.9, For=198.51.100.1;x=\"a,b\"")],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[
                    ("forwarded", "for=203.0.113.9"),
                    ("forwarded", "for=198.51.100.1"),
                ],
                By("198.51.100.1"),
            ),
            (
                PROXY,
                &[("forwarded", "for=\"[2001:db8:1:200::1]:80\"")],
                By("2001:db8:1:200::/56"),
            ),
            (
                PROXY,
                &[("forwarded", "for=\"[2001:db8:1:2ff::1]\"")],
                By("2001:db8:1:200::/56"),
            ),
            (
                PROXY,
                &[("forwarded", "for=198.51.100.2, for=_hidden")],
                By("127.0.0.1"),
            ),
            (
                PROXY,
                &[("forwarded", "for=198.51.100.2;for=198.51.100.2")],
                By("127.0.0.1"),
            ),
            (PROXY, &[(XFF, "198.51.100.2")], By("127.0.0.1")),
            (PAST, &[("forwarded", "for=198.51.100.2")], By("127.0.0.2")),
            (PAST, &[("forwarded", "for=198.51.100.3")], By("127.0.0.2")),
        ],
    },
    Case {
        name: "an edge that sets a header of one address",
        by: |limit| limit.by(local().header(ForwardedHeader::Single("X-Real-IP"))),
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[(REAL, "198.51.100.1"), (XFF, "203.0.113.9")],
                By("198.51.100.1"),
            ),
            (PROXY, &[(REAL, " 198.51.100.1\t")], By("198.51.100.1")),
            // Twice, or a list: nobody knows which one the edge wrote.
            (
                PROXY,
                &[(REAL, "198.51.100.2"), (REAL, "198.51.100.2")],
                By("127.0.0.1"),
            ),
            (
                PROXY,
                &[(REAL, "198.51.100.2, 198.51.100.2")],
                By("127.0.0.1"),
            ),
            (PROXY, &[(XFF, "198.51.100.2")], By("127.0.0.1")),
            (PAST, &[(REAL, "198.51.100.2")], By("127.0.0.2")),
            (PAST, &[(REAL, "198.51.100.3")], By("127.0.0.2")),
        ],
    },
    Case {
        name: "IPv6 counts by customer",
        by: |limit| limit.by(local()),
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[(XFF, "2001:db8:1:200::1")],
                By("2001:db8:1:200::/56"),
            ),
            (
                PROXY,
                &[(XFF, "[2001:DB8:1:2ff:a:b:c:d]:443")],
                By("2001:db8:1:200::/56"),
            ),
            (
                PROXY,
                &[(XFF, "2001:db8:1:300::1")],
                By("2001:db8:1:300::/56"),
            ),
        ],
    },
    Case {
        name: "prefixes of one's own",
        by: |limit| limit.by(local().ipv6_prefix(64).ipv4_prefix(24)),
        on: Socket::Tcp,
        steps: &[
            (
                PROXY,
                &[(XFF, "2001:db8:1:200::1")],
                By("2001:db8:1:200::/64"),
            ),
            (
                PROXY,
                &[(XFF, "2001:db8:1:200:ffff::1")],
                By("2001:db8:1:200::/64"),
            ),
            (
                PROXY,
                &[(XFF, "2001:db8:1:201::1")],
                By("2001:db8:1:201::/64"),
            ),
            (PROXY, &[(XFF, "198.51.100.1")], By("198.51.100.0/24")),
            (
                PROXY,
                &[(XFF, "::ffff:198.51.100.254")],
                By("198.51.100.0/24"),
            ),
            (PROXY, &[(XFF, "198.51.101.1")], By("198.51.101.0/24")),
            (PAST, &[], By("127.0.0.0/24")),
            (Peer(3), &[], By("127.0.0.0/24")),
        ],
    },
    Case {
        name: "a listener where IPv4 is written as IPv6",
        by: |limit| limit.by(local()),
        on: Socket::DualStack,
        steps: &[
            (PROXY, &[(XFF, "198.51.100.1")], By("198.51.100.1")),
            (PAST, &[(XFF, "198.51.100.1")], By("127.0.0.2")),
            (Peer(3), &[], By("127.0.0.3")),
            (PROXY, &[(XFF, "127.0.0.3")], By("127.0.0.3")),
        ],
    },
    Case {
        name: "a Unix socket, and one proxy",
        by: |limit| limit.by(ClientIp::hops(1)),
        on: Socket::Unix,
        steps: &[
            (Unix, &[(XFF, "198.51.100.1")], By("198.51.100.1")),
            (
                Unix,
                &[(XFF, "203.0.113.9, 198.51.100.1")],
                By("198.51.100.1"),
            ),
            (Unix, &[(XFF, "198.51.100.2")], By("198.51.100.2")),
            // There is no peer to fall back to.
            (Unix, &[], Status(500)),
            (Unix, &[(XFF, "198.51.100.1, unknown")], Status(500)),
            // nginx's $proxy_add_x_forwarded_for, where its own peer is a Unix socket, too
            (Unix, &[(XFF, "198.51.100.1, unix:")], Status(500)),
        ],
    },
    Case {
        name: "a Unix socket, and two proxies",
        by: |limit| limit.by(ClientIp::hops(2).header(ForwardedHeader::Forwarded)),
        on: Socket::Unix,
        steps: &[
            (
                Unix,
                &[(
                    "forwarded",
                    "for=203.0.113.9, for=198.51.100.1, for=203.0.113.7",
                )],
                By("198.51.100.1"),
            ),
            (
                Unix,
                &[("forwarded", "for=198.51.100.1, for=203.0.113.8")],
                By("198.51.100.1"),
            ),
            (Unix, &[("forwarded", "for=203.0.113.8")], By("203.0.113.8")),
        ],
    },
    Case {
        name: "a Unix socket, and an edge that sets a header of one address",
        by: |limit| limit.by(ClientIp::hops(1).header(ForwardedHeader::Single(REAL))),
        on: Socket::Unix,
        steps: &[
            (
                Unix,
                &[(REAL, "198.51.100.1"), (XFF, "203.0.113.9")],
                By("198.51.100.1"),
            ),
            (Unix, &[(REAL, "198.51.100.1")], By("198.51.100.1")),
            (
                Unix,
                &[(REAL, "198.51.100.2"), (REAL, "198.51.100.1")],
                Status(500),
            ),
            (Unix, &[(XFF, "198.51.100.2")], Status(500)),
            (Unix, &[(REAL, "198.51.100.2")], By("198.51.100.2")),
        ],
    },
    Case {
        name: "a Unix socket is no network",
        by: |limit| limit.by(ClientIp::behind(["127.0.0.1", "::1"])),
        on: Socket::Unix,
        steps: &[
            (Unix, &[(XFF, "198.51.100.1")], Status(500)),
            (Unix, &[], Status(500)),
        ],
    },
    Case {
        name: "a Unix socket has no peer",
        by: |limit| limit.by(PeerIp),
        on: Socket::Unix,
        steps: &[(Unix, &[(XFF, "198.51.100.1")], Status(500))],
    },
    Case {
        name: "a Unix socket whose other end the user knows",
        by: |limit| limit.by(local().peer(|_| Some([127, 0, 0, 1].into()))),
        on: Socket::Unix,
        steps: &[
            (
                Unix,
                &[(XFF, "203.0.113.9, 198.51.100.1")],
                By("198.51.100.1"),
            ),
            (Unix, &[(XFF, "198.51.100.1")], By("198.51.100.1")),
            (Unix, &[], By("127.0.0.1")),
            (Unix, &[(XFF, "unknown")], By("127.0.0.1")),
        ],
    },
    Case {
        name: "a balancer of layer 4 that speaks the PROXY protocol",
        by: |limit| limit.by(PeerIp),
        on: Socket::Proxied,
        steps: &[
            (Balancer(V1), &[], By("198.51.100.1")),
            (Balancer(V2), &[], By("198.51.100.1")),
            (Balancer(V2_MAPPED), &[], By("198.51.100.1")),
            (
                Balancer(V2_OTHER),
                &[(XFF, "198.51.100.1")],
                By("198.51.100.2"),
            ),
            (Balancer(V1_IPV6), &[], By("2001:db8:1:200::/56")),
            (Balancer(V2_IPV6), &[], By("2001:db8:1:200::/56")),
            // Health checks: the balancer itself
            (Balancer(V1_UNKNOWN), &[], By("127.0.0.1")),
            (Balancer(V2_LOCAL), &[], By("127.0.0.1")),
        ],
    },
    Case {
        name: "the same, and no header is believed",
        by: |limit| limit.by(local()),
        on: Socket::Proxied,
        steps: &[
            (Balancer(V1), &[(XFF, "203.0.113.9")], By("198.51.100.1")),
            (Balancer(V2), &[(XFF, "203.0.113.8")], By("198.51.100.1")),
            (
                Balancer(V2_OTHER),
                &[(XFF, "127.0.0.1")],
                By("198.51.100.2"),
            ),
        ],
    },
    Case {
        name: "an edge, then a balancer of layer 4",
        by: |limit| {
            let edge = ClientIp::behind(["198.51.100.1", "2001:db8:1::/48"]);
            limit.by(edge.header(ForwardedHeader::Single("cf-connecting-ip")))
        },
        on: Socket::Proxied,
        steps: &[
            (
                Balancer(V1),
                &[("cf-connecting-ip", "203.0.113.1")],
                By("203.0.113.1"),
            ),
            (
                Balancer(V2),
                &[("cf-connecting-ip", "203.0.113.1"), (XFF, "203.0.113.2")],
                By("203.0.113.1"),
            ),
            (
                Balancer(V2_MAPPED),
                &[("cf-connecting-ip", "203.0.113.2")],
                By("203.0.113.2"),
            ),
            (
                Balancer(V2_IPV6),
                &[("cf-connecting-ip", "203.0.113.2")],
                By("203.0.113.2"),
            ),
            (
                Balancer(V2_OTHER),
                &[("cf-connecting-ip", "203.0.113.3")],
                By("198.51.100.2"),
            ),
            (
                Balancer(V2_OTHER),
                &[("cf-connecting-ip", "203.0.113.4")],
                By("198.51.100.2"),
            ),
        ],
    },
    Case {
        name: "credentials",
        by: |limit| {
            let secret = Secret::new("k1", "3f1d7a0c55e94b6f8a2be07d41c9631e").unwrap();
            limit.by(FromHeader::new("authorization").digest(&secret))
        },
        on: Socket::Tcp,
        steps: &[
            (PROXY, &[("authorization", "Bearer a")], By("a")),
            (PAST, &[("authorization", "Bearer a")], By("a")),
            (PROXY, &[("authorization", "Bearer b")], By("b")),
            (PROXY, &[], Status(401)),
        ],
    },
];

/// 198.51.100.1
const V1: &[u8] = b"PROXY TCP4 198.51.100.1 127.0.0.1 4711 80\r\n";
const V1_IPV6: &[u8] = b"PROXY TCP6 2001:db8:1:200::1 ::1 4711 80\r\n";
/// What stands behind `UNKNOWN` does not count.
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
/// What stands behind `LOCAL` does not count.
const V2_LOCAL: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x20\x11\0\x0c\xc6\x33\x64\x09\x7f\0\0\x01\x12\x67\0\x50";
