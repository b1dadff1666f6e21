//! A client for the tests, which shows what came over the wire; and a server for those stacks that
//! are clients.
#![allow(dead_code, reason = "not every stack needs all of it")]

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, routing::any};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// An answer, as it came over the wire.
#[derive(Debug)]
pub(crate) struct Answer(String);

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.0[9..12].parse().expect("a status")
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let head = self.0.split("\r\n\r\n").next()?;
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = fields.find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    pub(crate) fn body(&self) -> &str {
        self.0.split_once("\r\n\r\n").expect("its head").1
    }

    #[track_caller]
    pub(crate) fn assert_refused(&self) {
        assert_eq!(self.status(), 429, "{self:?}");
        assert_wait(self.field("retry-after"));
    }
}

/// The limits of the tests are for a minute, most of which is left.
#[track_caller]
pub(crate) fn assert_wait(retry_after: Option<&str>) {
    let wait = retry_after.expect("Retry-After").parse::<u32>();
    assert!(
        (30..=60).contains(&wait.expect("seconds")),
        "{retry_after:?}"
    );
}

/// A document of OpenAPI says of the refusal of `GET /orders` what this one is.
#[track_caller]
pub(crate) fn assert_documented(refused: &Answer, openapi: &Value) {
    fn keys(of: &Value) -> BTreeSet<&str> {
        of.as_object()
            .expect("keys")
            .keys()
            .map(String::as_str)
            .collect()
    }
    refused.assert_refused();
    let documented = &openapi["paths"]["/orders"]["get"]["responses"]["429"];
    let fields = ["ratelimit", "ratelimit-policy", "retry-after"];
    assert!(
        fields.iter().all(|it| refused.field(it).is_some()),
        "{refused:?}"
    );
    assert_eq!(keys(&documented["headers"]), BTreeSet::from(fields));
    let kind = refused.field("content-type").expect("a body");
    let mut schema = &documented["content"][kind]["schema"];
    if let Some(reference) = schema["$ref"].as_str() {
        schema = openapi.pointer(&reference[1..]).expect("what it refers to");
    }
    let problem: Value = serde_json::from_str(refused.body()).expect("JSON");
    assert_eq!(keys(&problem), keys(&schema["properties"]));
}

/// Sends `GET /` or the like, with fields that end their lines, and reads the answer to its end.
pub(crate) async fn ask(server: SocketAddr, line: &str, fields: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(server).await.expect("a server");
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\
         {fields}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("room");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    Answer(answer)
}

/// The statuses of these requests, one after the other.
pub(crate) async fn statuses(server: SocketAddr, line: &str, fields: &[&str]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for fields in fields {
        statuses.push(ask(server, line, fields, "").await.status());
    }
    statuses
}

/// Serves on a free port, with the peer's address.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// A server that answers everything with this, and counts.
pub(crate) async fn counting(answer: Value) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let all = any(async move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Json(answer)
    });
    (serve(Router::new().fallback_service(all)).await, count)
}
