//! The fields of responses, by axum and by hyper, over HTTP/1.1 and HTTP/2.

use crate::scene::*;
use std::net::SocketAddr;

use axum::{Router, routing::get as on_get};
use tower_ratelimit::{HeaderStyle, RateLimitLayerBuilder, ResetUnit};

use super::{Reply, on_both_stores, send_from, send_http2_from, with, with_axum, with_hyper};

on_both_stores! { every_response_has_its_fields }

/// A layer, and what its answers say to one request after another.
struct Case {
    name: &'static str,
    build: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
    steps: &'static [Step],
}

/// Method, `Accept`, status, fields about limits by name, beginning of the body. `WAIT` stands for
/// the number in `Retry-After`, which depends on the time.
type Step = (
    &'static str,
    Option<&'static str>,
    u16,
    &'static [(&'static str, &'static str)],
    &'static str,
);

fn rule(permits: u64) -> Rule {
    // On one store a name is one limit.
    let name = if permits == 1 { "one" } else { "api" };
    Limit::per_hour(permits).by(PeerIp).named(name)
}

const CASES: &[Case] = &[
    Case {
        name: "by default",
        build: |layer| layer.otherwise(rule(2)),
        steps: &[
            (
                "GET",
                None,
                200,
                &[
                    ("ratelimit", r#""api";r=1;t=3600"#),
                    ("ratelimit-policy", r#""api";q=2;w=3600"#),
                ],
                "hello",
            ),
            (
                "HEAD",
                None,
                200,
                &[
                    ("ratelimit", r#""api";r=0;t=WAIT"#),
                    ("ratelimit-policy", r#""api";q=2;w=3600"#),
                ],
                "",
            ),
            (
                "GET",
                Some("*/*"),
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "application/problem+json"),
                    ("ratelimit", r#""api";r=0;t=WAIT"#),
                    ("ratelimit-policy", r#""api";q=2;w=3600"#),
                    ("retry-after", "WAIT"),
                ],
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"detail":"too many requests: retry after WAIT seconds","violated-policies":["api"]}"#,
            ),
            (
                "GET",
                Some("text/plain"),
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "text/plain; charset=utf-8"),
                    ("ratelimit", r#""api";r=0;t=WAIT"#),
                    ("ratelimit-policy", r#""api";q=2;w=3600"#),
                    ("retry-after", "WAIT"),
                ],
                "too many requests: retry after WAIT seconds\n",
            ),
            (
                "HEAD",
                None,
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "application/problem+json"),
                    ("ratelimit", r#""api";r=0;t=WAIT"#),
                    ("ratelimit-policy", r#""api";q=2;w=3600"#),
                    ("retry-after", "WAIT"),
                ],
                "",
            ),
        ],
    },
    Case {
        name: "draft-6 and legacy",
        build: |layer| {
            let reset = ResetUnit::DeltaSeconds;
            let legacy = HeaderStyle::Legacy { reset };
            layer
                .otherwise(rule(1))
                .headers([HeaderStyle::Draft6, legacy])
        },
        steps: &[
            (
                "GET",
                None,
                200,
                &[
                    ("ratelimit-limit", "1"),
                    ("ratelimit-policy", "1;w=3600"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "3600"),
                    ("x-ratelimit-limit", "1"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "3600"),
                ],
                "hello",
            ),
            (
                "GET",
                None,
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "application/problem+json"),
                    ("ratelimit-limit", "1"),
                    ("ratelimit-policy", "1;w=3600"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "WAIT"),
                    ("retry-after", "WAIT"),
                    ("x-ratelimit-limit", "1"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "WAIT"),
                ],
                "{",
            ),
        ],
    },
    Case {
        name: "an interval of no whole seconds, not counted",
        build: |layer| {
            let limit = Limit::new(1, Duration::from_millis(3_600_500));
            layer.otherwise(limit.by(PeerIp)).count_remaining(false)
        },
        steps: &[
            (
                "GET",
                None,
                200,
                &[("ratelimit-policy", r#""default";q=1"#)],
                "hello",
            ),
            (
                "GET",
                None,
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "application/problem+json"),
                    ("ratelimit", r#""default";r=0;t=WAIT"#),
                    ("ratelimit-policy", r#""default";q=1"#),
                    ("retry-after", "WAIT"),
                ],
                "{",
            ),
        ],
    },
    Case {
        name: "no fields",
        build: |layer| layer.otherwise(rule(1)).headers([]),
        steps: &[
            ("GET", None, 200, &[], "hello"),
            (
                "GET",
                None,
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "application/problem+json"),
                    ("retry-after", "WAIT"),
                ],
                "{",
            ),
        ],
    },
    Case {
        name: "a rule that hides",
        build: |layer| layer.otherwise(rule(1).hide_headers()),
        steps: &[
            ("GET", None, 200, &[], "hello"),
            (
                "GET",
                None,
                429,
                &[
                    ("cache-control", "no-store"),
                    ("content-type", "application/problem+json"),
                    ("retry-after", "WAIT"),
                ],
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"detail":"too many requests: retry after WAIT seconds"}"#,
            ),
        ],
    },
    Case {
        name: "a cost that never fits",
        build: |layer| layer.otherwise(rule(1).cost_by(|_| 2)),
        steps: &[(
            "GET",
            None,
            429,
            &[
                ("cache-control", "no-store"),
                ("content-type", "application/problem+json"),
                ("ratelimit-policy", r#""one";q=1;w=3600"#),
            ],
            r#"{"type":"about:blank","title":"Too Many Requests","status":429,"#,
        )],
    },
    Case {
        name: "the limit is not set",
        build: |layer| layer.otherwise(Rule::shared("never-set")),
        steps: &[(
            "GET",
            None,
            503,
            &[
                ("cache-control", "no-store"),
                ("content-type", "application/problem+json"),
            ],
            r#"{"type":"about:blank","title":"Service Unavailable","status":503,"#,
        )],
    },
];

#[derive(Clone, Copy, Debug)]
enum Over {
    Axum,
    Hyper,
    Http2,
}

async fn every_response_has_its_fields(store: impl Store) {
    for (nth, case) in CASES.iter().enumerate() {
        for over in [Over::Axum, Over::Hyper, Over::Http2] {
            let layer = (case.build)(RateLimitLayer::builder(&store))
                .build()
                .unwrap();
            let server = match over {
                Over::Axum => {
                    let app = Router::new().route("/", on_get(async || "hello"));
                    with_axum::serve(app.layer(layer)).await
                }
                Over::Hyper | Over::Http2 => with_hyper::serve(layer, true).await,
            };
            // Each finds its limits unused: by an address of its own.
            let from = [127, 1, u8::try_from(nth).unwrap(), over as u8].into();
            for (step, expected) in case.steps.iter().enumerate() {
                let what = format!("{}, {over:?}, request {step}", case.name);
                check(server, from, over, expected, &what).await;
            }
        }
    }
}

async fn check(
    server: SocketAddr,
    from: std::net::Ipv4Addr,
    over: Over,
    (method, accept, status, fields, body): &Step,
    what: &str,
) {
    let accept = accept.map(|accept| ("accept", accept));
    let request = with(method, "/", accept.as_slice());
    let reply = match over {
        Over::Http2 => Reply::read(send_http2_from(from, server, request).await).await,
        Over::Axum | Over::Hyper => send_from(from, server, request).await,
    };
    assert_eq!(reply.status, *status, "{what}: {reply:?}");
    // Of a grant until the first permit is free, which may have been taken some time before.
    let field = reply
        .header("ratelimit")
        .and_then(|field| field.split_once(";t="));
    let next = field.map_or("none", |(_, next)| next);
    let wait = reply.header("retry-after").unwrap_or(next).to_owned();
    if wait != "none" {
        let wait: u64 = wait.parse().unwrap();
        assert!((3500..=3601).contains(&wait), "{what}: {reply:?}");
    }
    let mut received: Vec<(&str, String)> = Vec::new();
    for (name, value) in &reply.headers {
        let name = name.as_str();
        // The inner service's own content is its own business.
        let ours = reply.status != 200 && ["cache-control", "content-type"].contains(&name);
        if ours || name.contains("ratelimit") || name == "retry-after" {
            received.push((name, value.to_str().unwrap().to_owned()));
        }
    }
    received.sort();
    let expected: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.replace("WAIT", &wait)))
        .collect();
    assert_eq!(received, expected, "{what}");
    let beginning = body.replace("WAIT", &wait);
    assert!(reply.body.starts_with(&beginning), "{what}: {reply:?}");
    assert_eq!(reply.body.is_empty(), *method == "HEAD", "{what}");
}
