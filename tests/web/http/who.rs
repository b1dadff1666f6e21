//! Who a request is counted as: by axum, hyper and tonic, over HTTP/1.1 and HTTP/2, on all kinds of sockets.

#[path = "who/cases.rs"]
mod cases;

use crate::scene::*;
use std::collections::HashSet;

use self::{
    Outcome::{By, Status},
    cases::CASES,
};
use super::{
    Reply, get, on_both_stores,
    orders::COUNT,
    send_http2_on, send_on,
    sockets::{Framework, From, Place, Socket, serve},
    unique, with,
};

on_both_stores! { clients_of_axum, clients_of_hyper, clients_of_tonic }

/// A rule, a server, and who sends it one request after another.
struct Case {
    name: &'static str,
    by: fn(Limit) -> Rule,
    on: Socket,
    steps: &'static [Step],
}

/// A connection's other end, the fields sent, and what comes of it.
type Step = (From, &'static [(&'static str, &'static str)], Outcome);

#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// It is counted as this client, who has one request an hour.
    By(&'static str),
    /// It is refused with this status, and takes nothing from anybody.
    Status(u16),
}

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
    for case in CASES {
        for http2 in [false, true] {
            // A name of its own: each finds its limits unused.
            let rule = (case.by)(Limit::per_hour(1)).named(&unique("who"));
            let layer = RateLimitLayer::builder(store).otherwise(rule).build();
            let server = serve(framework, case.on, layer.unwrap()).await;
            let mut seen = HashSet::new();
            for (nth, (from, fields, outcome)) in case.steps.iter().enumerate() {
                let expected = match outcome {
                    By(client) if seen.insert(client) => 200,
                    By(_) => 429,
                    Status(status) => *status,
                };
                let found = status(framework, http2, &server, *from, fields).await;
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

/// Sends one request; what a gRPC status says is told in HTTP's.
async fn status(
    framework: Framework,
    http2: bool,
    server: &Place,
    from: From,
    fields: &[(&'static str, &str)],
) -> u16 {
    let grpc = matches!(framework, Framework::Tonic);
    let mut request = if grpc {
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        // An empty message
        with("POST", COUNT, &fields).map(|_| "\0\0\0\0\0".to_owned())
    } else {
        get("/")
    };
    for (name, value) in fields {
        let name = http::HeaderName::from_static(name);
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let stream = server.connect(from).await;
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
        _ => panic!("{fields:?}: {reply:?}"),
    }
}
