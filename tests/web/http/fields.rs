//! The fields of responses, by axum and by hyper, over HTTP/1.1 and HTTP/2.

use super::{sockets::serve, *};
use tower_ratelimit::{HeaderStyle, RateLimitLayerBuilder};

on_both_stores! { every_response_has_its_fields }

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

/// What the answers of a layer say to one request after another.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    step: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    method: Option<String>,
    accept: Option<String>,
    status: u16,
    #[serde(default)]
    fields: Vec<String>,
    body: String,
}

fn rule(permits: u64) -> Rule {
    // On one store a name is one limit.
    let name = if permits == 1 { "one" } else { "api" };
    Limit::per_hour(permits).by(PeerIp).named(name)
}

type Build = fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder;

/// How the layer of each case is built.
const BUILDS: &[(&str, Build)] = &[
    ("by default", |layer| layer.otherwise(rule(2))),
    ("draft-6 and legacy", |layer| {
        let layer = layer.otherwise(rule(1));
        layer.headers([HeaderStyle::Draft6, HeaderStyle::Legacy])
    }),
    ("an interval of no whole seconds, not counted", |layer| {
        let limit = Limit::new(1, Duration::from_millis(3_600_500));
        layer.otherwise(limit.by(PeerIp)).count_remaining(false)
    }),
    ("no fields", |layer| layer.otherwise(rule(1)).headers([])),
    ("a rule that hides", |layer| {
        layer.otherwise(rule(1).hide_headers())
    }),
    ("a cost that never fits", |layer| {
        layer.otherwise(rule(1).cost_by(|_| 2))
    }),
    ("the limit is not set", |layer| {
        layer.otherwise(Rule::shared("never-set"))
    }),
];

/// A server, and whether it is asked over HTTP/2.
type Over = (Framework, bool);

const OVERS: [Over; 3] = [
    (Framework::Axum, false),
    (Framework::Hyper, false),
    (Framework::Hyper, true),
];

async fn every_response_has_its_fields(store: impl Store) {
    let file: File = toml::from_str(include_str!("fields.toml")).unwrap();
    assert_eq!(file.case.len(), BUILDS.len());
    for (nth, (case, (name, build))) in file.case.iter().zip(BUILDS).enumerate() {
        assert_eq!(case.name, *name);
        for (last, over) in (0..).zip(OVERS) {
            let layer = build(RateLimitLayer::builder(&store)).build().unwrap();
            let server = serve(over.0, Socket::Tcp, layer).await.address();
            // Each finds its limits unused: by an address of its own.
            let from = [127, 1, u8::try_from(nth).unwrap(), last].into();
            for (step, expected) in case.step.iter().enumerate() {
                let what = format!("{}, {over:?}, request {step}", case.name);
                check(server, from, over, expected, &what).await;
            }
        }
    }
}

async fn check(server: SocketAddr, from: Ipv4Addr, over: Over, step: &Step, what: &str) {
    let method = step.method.as_deref().unwrap_or("GET");
    let accept = step.accept.as_deref().map(|accept| ("accept", accept));
    let request = with(method, "/", accept.as_slice());
    let (stream, host) = (connect(from, server).await, server.to_string());
    let reply = match over {
        (_, true) => Reply::read(send_http2_on(stream, &host, request).await).await,
        (_, false) => send_on(stream, &host, request).await,
    };
    assert_eq!(reply.status, step.status, "{what}: {reply:?}");
    // Of a grant until the first permit is free, which may have been taken some time before.
    let field = reply.header("ratelimit");
    let field = field.and_then(|field| field.split_once(";t="));
    let next = field.map_or("none", |(_, next)| next);
    let wait = reply.header("retry-after").unwrap_or(next).to_owned();
    if wait != "none" {
        let wait: u64 = wait.parse().unwrap();
        assert!((3500..=3601).contains(&wait), "{what}: {reply:?}");
    }
    let mut received = Vec::new();
    for (name, value) in &reply.headers {
        let name = name.as_str();
        // The inner service's own content is its own business.
        let ours = reply.status != 200 && ["cache-control", "content-type"].contains(&name);
        if ours || name.contains("ratelimit") || name == "retry-after" {
            received.push(format!("{name}: {}", value.to_str().unwrap()));
        }
    }
    received.sort();
    let expected = step.fields.iter().map(|it| it.replace("WAIT", &wait));
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    assert_eq!(received, expected, "{what}");
    let beginning = step.body.replace("WAIT", &wait);
    assert!(reply.body.starts_with(&beginning), "{what}: {reply:?}");
    assert_eq!(reply.body.is_empty(), method == "HEAD", "{what}");
}
