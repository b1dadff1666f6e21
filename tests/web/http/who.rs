//! The key of a request: by axum, hyper and tonic, over HTTP/1.1 and HTTP/2, on all kinds of
//! sockets.

#[path = "who/cases.rs"]
mod cases;

use std::collections::HashSet;

use self::cases::{Step, cases};
use super::{sockets::serve, *};

on_both_stores! { clients_of_axum, clients_of_hyper, clients_of_tonic }

async fn clients_of_axum(store: impl Store) {
    every_case(Framework::Axum, &store).await;
}

async fn clients_of_hyper(store: impl Store) {
    every_case(Framework::Hyper, &store).await;
}

async fn clients_of_tonic(store: impl Store) {
    every_case(Framework::Tonic, &store).await;
}

async fn every_case(framework: Framework, store: &impl Store) {
    let mut wrong = Vec::new();
    for case in cases() {
        for http2 in [false, true] {
            // A name of its own: each finds its limits unused.
            let rule = case.rule(Limit::per_hour(1)).named(&unique("who"));
            let layer = RateLimitLayer::builder(store).otherwise(rule).build();
            let server = serve(framework, case.socket(), layer.unwrap()).await;
            let mut seen = HashSet::new();
            for (nth, step) in case.steps.iter().enumerate() {
                let expected = match (&step.counted, step.status) {
                    (Some(client), None) if seen.insert(client) => 200,
                    (Some(_), None) => 429,
                    (None, Some(status)) => status,
                    _ => panic!("{}: either", case.name),
                };
                let found = status(framework, http2, &server, step).await;
                if found != expected {
                    let over = if http2 { "HTTP/2" } else { "HTTP/1.1" };
                    wrong.push(format!(
                        "{}, {over}, request {nth}: {found} instead of {expected}",
                        case.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{framework:?}: {wrong:#?}");
}

/// Sends one request. Returns the status; that of gRPC as its HTTP equivalent.
async fn status(framework: Framework, http2: bool, server: &Place, step: &Step) -> u16 {
    let grpc = matches!(framework, Framework::Tonic);
    let mut request = if grpc {
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        // An empty message
        with("POST", COUNT, &fields).map(|_| "\0\0\0\0\0".to_owned())
    } else {
        get("/")
    };
    for (name, values) in &step.fields {
        let name: http::HeaderName = name.parse().unwrap();
        for value in values {
            request.headers_mut().append(&name, value.parse().unwrap());
        }
    }
    let stream = server.connect(step.from()).await;
    let reply = if http2 {
        Reply::read(send_http2_on(stream, "localhost", request).await).await
    } else {
        send_on(stream, "localhost", request).await
    };
    let status = reply.header("grpc-status");
    match (grpc, status) {
        (false, None) => reply.status,
        (true, None) if reply.status == 200 && !reply.body.is_empty() => 200,
        (true, Some("8")) => 429,
        (true, Some("13")) => 500,
        (true, Some("16")) => 401,
        _ => panic!("{:?}: {reply:?}", step.fields),
    }
}
