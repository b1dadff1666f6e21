//! The client's address: the files of `tests/pure/client_ip/`, and properties of all headers.
//! `tests/web/http/who.rs` uses real servers.
//!
//! A file is a list of `[[case]]`. A case has the configuration of `ClientIp` (`behind` or `hops`,
//! and optionally `header`, `ipv6_prefix`), the `peer`, its `headers`, and the
//! outcome:
//!
//! ```toml
//! key = "198.51.100.1"   # the text by which the request is counted
//! status = 500           # or: refused
//! error = "some words"   # or: not even built
//! ```
//!
//! A header has one value or a list of them, one for each field line. A character stands for the
//! byte of its number. `hops_added` appends this many trusted hops, `10.0.1.1`, to X-Forwarded-For.

use kit::scene::*;
use std::{collections::BTreeMap, fs, net::IpAddr, net::SocketAddr};

use http::HeaderValue;
use proptest::prelude::*;
use serde::Deserialize;
use tower_ratelimit::{Requests, Rules, key::ForwardedHeader};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    behind: Option<Vec<String>>,
    hops: Option<usize>,
    header: Option<String>,
    ipv6_prefix: Option<u8>,

    peer: Option<IpAddr>,
    #[serde(default)]
    headers: BTreeMap<String, Values>,
    #[serde(default)]
    hops_added: usize,

    key: Option<String>,
    status: Option<u16>,
    error: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Several(Vec<String>),
}

impl Case {
    fn client(&self) -> ClientIp {
        let mut client = match (&self.behind, self.hops) {
            (Some(networks), None) => ClientIp::behind(networks),
            (None, Some(hops)) => ClientIp::hops(hops),
            _ => panic!("{}: say `behind` or `hops`", self.name),
        };
        if let Some(header) = &self.header {
            client = client.header(match header.as_str() {
                "x-forwarded-for" => ForwardedHeader::XForwardedFor,
                "forwarded" => ForwardedHeader::Forwarded,
                // Names of headers are part of the program everywhere else.
                name => ForwardedHeader::Single(Box::leak(name.to_owned().into_boxed_str())),
            });
        }
        if let Some(bits) = self.ipv6_prefix {
            client = client.ipv6_prefix(bits);
        }
        client
    }

    fn request(&self) -> Request<String> {
        let mut headers = Vec::new();
        for (name, values) in &self.headers {
            let mut values = match values.clone() {
                Values::One(value) => vec![value],
                Values::Several(values) => values,
            };
            if name == "x-forwarded-for" && self.hops_added > 0 {
                values.push(vec!["10.0.1.1"; self.hops_added].join(", "));
            }
            for value in values {
                let bytes = value.chars().map(|c| u8::try_from(u32::from(c)).unwrap());
                headers.push((name.as_str(), bytes.collect::<Vec<_>>()));
            }
        }
        request(self.peer, &headers)
    }
}

fn request(peer: Option<IpAddr>, headers: &[(&str, Vec<u8>)]) -> Request<String> {
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    let mut request = request.body(String::new()).unwrap();
    if let Some(peer) = peer {
        let address = PeerAddr(SocketAddr::new(peer, 50_000));
        request.extensions_mut().insert(address);
    }
    request
}

/// Sends a request through a layer. Returns the status, and whether a key was counted.
async fn send(
    client: impl KeyExtractor,
    request: Request<String>,
) -> Result<(StatusCode, impl AsyncFn(&str) -> bool), String> {
    let store = MemoryStore::new();
    let layer = RateLimitLayer::builder(&store)
        .otherwise(Limit::per_hour(2).by(client))
        .build()
        .map_err(|error| error.to_string())?;
    let answer = layer.layer(service_fn(serve)).oneshot(request).await;
    let answer = answer.unwrap();
    let counted = async move |key: &str| {
        let encoded = key.replace(':', "%3A").replace('/', "%2F");
        let limiter = RateLimiter::new(&store, &format!("memory:{{{encoded}}}:default"));
        limiter.unwrap().available_permits().await.ok() == Some(1)
    };
    Ok((answer.status(), counted))
}

#[tokio::test]
async fn every_case() {
    let cases = cases();
    let keys: Vec<_> = cases
        .iter()
        .filter_map(|(_, case)| case.key.clone())
        .collect();
    let mut wrong = Vec::new();
    for (file, case) in &cases {
        let found = match send(case.client(), case.request()).await {
            Err(error) => format!("error: {error}"),
            Ok((StatusCode::OK, counted)) => {
                let mut found = "an address that no case expects".to_owned();
                for key in &keys {
                    if counted(key).await {
                        found.clone_from(key);
                        break;
                    }
                }
                found
            }
            Ok((status, _)) => format!("status: {}", status.as_u16()),
        };
        let right = match (&case.key, case.status, &case.error) {
            (Some(key), None, None) => found == *key,
            (None, Some(status), None) => found == format!("status: {status}"),
            (None, None, Some(words)) => found.starts_with("error: ") && found.contains(words),
            _ => panic!("{}: say `key`, `status` or `error`", case.name),
        };
        let address = case.client().find(&case.request().into_parts().0);
        let is_found = case.error.is_some() || address.is_some() == case.key.is_some();
        if !right || !is_found {
            wrong.push(format!("{file}: {}: {found}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// For each proxy, the guide and the cases of `proxies.toml` have the same networks, header and
/// number of hops.
#[test]
fn the_guide_says_what_is_tried_for_each_proxy() {
    let cases = cases();
    let cases = cases.iter().filter(|(file, _)| file == "proxies.toml");
    let guide = include_str!("../../src/docs/guide.md");
    let mut missing = Vec::new();
    for (_, case) in cases {
        let networks = case.behind.iter().flatten();
        let hops = case
            .hops
            .iter()
            .map(|hops| format!("ClientIp::hops({hops})"));
        let header = case.header.iter();
        let header = header.map(|name| format!("ForwardedHeader::Single({name:?})"));
        for words in networks.cloned().chain(hops).chain(header) {
            if !guide.contains(&words) {
                missing.push((&case.name, words));
            }
        }
    }
    assert!(missing.is_empty(), "the guide lacks {missing:#?}");
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let cases = cases();
    assert!(cases.len() >= 147, "only {} cases were found", cases.len());
    let mut names: Vec<_> = cases.iter().map(|(_, case)| &case.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), cases.len());
}

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for path in kit::files("tests/pure/client_ip", "toml") {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let read: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        cases.extend(read.case.into_iter().map(|case| (file.clone(), case)));
    }
    cases
}

#[tokio::test]
async fn a_closure_says_who_the_peer_is() {
    #[derive(Clone)]
    struct Proxied(IpAddr);

    let client = || {
        ClientIp::behind(["10.0.0.0/8"])
            .peer(|parts| parts.extensions.get::<Proxied>().map(|peer| peer.0))
    };
    let sent = |peer: Option<&str>| {
        // What the server itself has noted is another proxy, and does not count.
        let other = Some("10.0.0.9".parse().unwrap());
        let mut request = request(other, &[("x-forwarded-for", b"198.51.100.1".to_vec())]);
        if let Some(peer) = peer {
            request
                .extensions_mut()
                .insert(Proxied(peer.parse().unwrap()));
        }
        request
    };
    for (peer, key) in [
        ("192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "198.51.100.1"),
        ("::ffff:10.0.0.1", "198.51.100.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ] {
        let (_, counted) = send(client(), sent(Some(peer))).await.unwrap();
        assert!(counted(key).await, "{peer}");
    }
    let (status, _) = send(client(), sent(None)).await.unwrap();
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_peer_counts_by_another_prefix() {
    let sent = || request(Some("2001:db8:1:2ff::1".parse().unwrap()), &[]);
    let (_, counted) = send(PeerIp.ipv6_prefix(48), sent()).await.unwrap();
    assert!(counted("2001:db8:1::/48").await);
    let error = send(PeerIp.ipv6_prefix(8), sent()).await.err();
    assert!(error.unwrap().contains("not 8"));
}

/// It may be the address in a header of the PROXY protocol.
#[cfg(feature = "axum")]
#[tokio::test]
async fn a_peer_that_is_given_goes_before_the_one_that_the_server_has_recorded() {
    let mut request = request(Some("198.51.100.1".parse().unwrap()), &[]);
    let balancer: SocketAddr = "10.0.0.1:443".parse().unwrap();
    let recorded = axum::extract::ConnectInfo(balancer);
    request.extensions_mut().insert(recorded);
    let (_, counted) = send(PeerIp, request).await.unwrap();
    assert!(counted("198.51.100.1").await);
}

/// An address, and the ways to write it.
fn viewer() -> impl Strategy<Value = (IpAddr, Vec<String>)> {
    // Zeros make `::` likely, and nines what is a group and a port.
    let group = || prop_oneof![Just(0), Just(0x99), any::<u16>()];
    let v6 = prop::array::uniform8(group()).prop_map(|groups| {
        let ip = std::net::Ipv6Addr::from(groups);
        let each = groups.map(|group| format!("{group:04X}"));
        let ways = vec![ip.to_string(), each.join(":")];
        (IpAddr::V6(ip).to_canonical(), ways)
    });
    let v4 = any::<[u8; 4]>().prop_map(|bytes| {
        let ip = std::net::Ipv4Addr::from(bytes);
        let [a, b] = [[bytes[0], bytes[1]], [bytes[2], bytes[3]]].map(u16::from_be_bytes);
        let ways = vec![
            ip.to_string(),
            format!("::ffff:{ip}"),
            format!("::ffff:{a:x}:{b:x}"),
        ];
        (IpAddr::V4(ip), ways)
    });
    prop_oneof![v6, v4]
}

const ALL_HEADERS: [ForwardedHeader; 3] = [
    ForwardedHeader::XForwardedFor,
    ForwardedHeader::Forwarded,
    ForwardedHeader::Single("x-real-ip"),
];

/// Returns field lines of forwarding headers: meaningful pieces, and any bytes that HTTP allows.
fn headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "for=", "For=\"", "\"", "\\", ",", ", ", ";", "=", ":80", "[", "]", "198.51.100.9", "10.0.0.9", "192.0.2.1",
            "2001:db8::9", "::ffff:10.0.0.9", "_hidden", "unknown", "by=",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(prop_oneof![32_u8..127, 128_u8..], 0..4),
    ];
    let value = prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat());
    let name = prop::sample::select(vec!["x-forwarded-for", "forwarded", "x-real-ip"]);
    prop::collection::vec((name, value), 0..5)
}

proptest! {
    /// With and without a port and brackets, however it is written, and a list sees it.
    #[test]
    fn the_viewer_is_the_one_that_the_edge_wrote(
        (viewer, ways) in viewer(),
        port in prop_oneof![1..10_000_u16, any::<u16>()],
    ) {
        const CLOUDFRONT: ForwardedHeader = ForwardedHeader::Single("CloudFront-Viewer-Address");
        let check = |header: ForwardedHeader, value: String| {
            let value = match header {
                ForwardedHeader::Forwarded => format!("for=\"{value}\""),
                _ => value,
            };
            let name = match header {
                ForwardedHeader::XForwardedFor => "x-forwarded-for",
                ForwardedHeader::Forwarded => "forwarded",
                ForwardedHeader::Single(name) => name,
                other => panic!("{other:?}"),
            };
            let edge = Some(IpAddr::from([10, 0, 0, 1]));
            let request = request(edge, &[(name, value.clone().into_bytes())]);
            let client = ClientIp::hops(1).header(header);
            let parts = request.into_parts().0;
            assert_eq!(client.find(&parts), Some(viewer), "{name}: {value}");
            let denied = Requests::from_networks(client, [viewer.to_string()]);
            let rules = Rules::new().deny(denied).otherwise(Limit::per_hour(9));
            let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(rules);
            let service = layer.build().unwrap().layer(service_fn(serve));
            let answer = service.oneshot(Request::from_parts(parts, String::new()));
            assert_eq!(runtime().block_on(answer).unwrap().status(), 403, "{name}: {value}");
        };
        for way in ways {
            let is_v6 = way.contains(':');
            check(CLOUDFRONT, format!("{way}:{port}"));
            for header in ALL_HEADERS.into_iter().chain([CLOUDFRONT]) {
                if is_v6 {
                    check(header, format!("[{way}]:{port}"));
                    check(header, format!("[{way}]"));
                }
                // In all others, an address alone goes before one with a port.
                let is_ambiguous = format!("{way}:{port}").parse::<IpAddr>().is_ok();
                if header != CLOUDFRONT {
                    check(header, way.clone());
                }
                if !is_ambiguous {
                    check(header, format!("{way}:{port}"));
                }
            }
        }
    }

    #[test]
    fn no_header_counts_unless_the_peer_is_trusted(headers in headers(), last in 0_u8..) {
        for header in ALL_HEADERS {
            let peer = IpAddr::from([192, 0, 2, last]);
            let client = ClientIp::behind(["10.0.0.0/8", "::ffff:198.51.100.0/120"]).header(header);
            let counted = runtime().block_on(async {
                let (_, counted) = send(client, request(Some(peer), &headers)).await.unwrap();
                counted(&peer.to_string()).await
            });
            prop_assert!(counted, "{header:?} from {peer}");
        }
    }

    #[test]
    fn nothing_left_of_the_first_untrusted_hop_counts(
            headers in headers(),
            on_its_own_line: bool,
            proxies in 0_usize..3,
        ) {
        for header in [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded] {
            let mut headers = headers.clone();
            let (name, mut added) = match header {
                ForwardedHeader::Forwarded => ("forwarded", r#"for="198.51.100.1:80";by="_a\",b""#.to_owned()),
                _ => ("x-forwarded-for", "198.51.100.1:80".to_owned()),
            };
            for proxy in 0..proxies {
                added += match header {
                    ForwardedHeader::Forwarded => ", for=10.0.0.",
                    _ => ", 10.0.0.",
                };
                added += &proxy.to_string();
            }
            let last = headers.iter_mut().rfind(|(other, _)| *other == name);
            match last {
                Some((_, value)) if !on_its_own_line => {
                    value.extend(b",");
                    value.extend(added.as_bytes());
                }
                _ => headers.push((name, added.into_bytes())),
            }
            let peer = Some(IpAddr::from([10, 0, 0, 1]));
            for client in [ClientIp::behind(["10.0.0.0/8"]), ClientIp::hops(proxies + 1)] {
                let client = client.header(header);
                let counted = runtime().block_on(async {
                    let (_, counted) = send(client, request(peer, &headers)).await.unwrap();
                    counted("198.51.100.1").await
                });
                prop_assert!(counted, "{:?}", header);
            }
        }
    }
}
