//! End to end over TCP: axum, hyper and tonic servers, real clients, and both stores.

mod grpc_answers;
mod in_flight;
mod sockets;
mod spellings;
mod who;
mod with_axum;
mod with_tonic;

use crate::orders::{self, COUNT, OrdersClient, OrdersServer};
use kit::scene::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::{Router, routing::get as on_get};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tonic::{
    Code, Status,
    service::Routes,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_web::GrpcWebLayer;
use tower::Service;

use self::sockets::{Framework, Place, Socket};

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The field's value as a client reads it: whole seconds, at least one.
    fn retry_after(&self) -> u64 {
        let field = self.header("retry-after").expect("a Retry-After field");
        let seconds = field.parse().unwrap();
        assert!(seconds >= 1, "zero invites a hot loop");
        seconds
    }

    /// Returns the `detail` of the problem details.
    fn detail(&self) -> String {
        let kind = self.header("content-type");
        assert_eq!(kind, Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        problem["detail"].as_str().unwrap().to_owned()
    }

    async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }
}

/// Connects from a given address. Linux answers for all of 127.0.0.0/8 without configuration.
async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// Sends one request over a connection of its own: HTTP/1.1, and a new port each time.
pub(crate) async fn send(to: SocketAddr, request: Request<String>) -> Reply {
    let stream = connect(Ipv4Addr::LOCALHOST, to).await;
    send_on(stream, &to.to_string(), request).await
}

/// Sends one request over a connection, HTTP/1.1.
async fn send_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    mut request: Request<String>,
) -> Reply {
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    request.headers_mut().insert("host", host.parse().unwrap());
    Reply::read(sender.send_request(request).await.unwrap()).await
}

/// As [`send`], over HTTP/2; the answer's body is not read yet.
async fn send_http2(to: SocketAddr, request: Request<String>) -> Response<Incoming> {
    let stream = connect(Ipv4Addr::LOCALHOST, to).await;
    send_http2_on(stream, &to.to_string(), request).await
}

async fn send_http2_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    request: Request<String>,
) -> Response<Incoming> {
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.uri = format!("http://{host}{}", head.uri).parse().unwrap();
    sender
        .send_request(Request::from_parts(head, body))
        .await
        .unwrap()
}

pub(crate) fn get(path: &str) -> Request<String> {
    with("GET", path, &[])
}

pub(crate) fn with(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<String> {
    asking(&format!("{method} {path}"), headers)
}
