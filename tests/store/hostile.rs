//! Attacks: secrets in output, input chosen by the sender of a request, and the cost of a flood.

mod first;
mod injection;
mod secrets;

use crate::log;
use kit::scene::*;
use std::net::SocketAddr;

use http::HeaderValue;

fn patient(server: &RedisServer) -> RedisStore {
    kit::scene::patient(server.url()).build().unwrap()
}

/// A request from this address that says so in its header.
fn request(peer: &str, header: &'static str, value: &[u8]) -> Request<String> {
    let mut request = Request::new(String::new());
    let value = HeaderValue::from_bytes(value).unwrap();
    request.headers_mut().insert(header, value);
    let address = SocketAddr::new(peer.parse().unwrap(), 50_000);
    request.extensions_mut().insert(PeerAddr(address));
    request
}

/// The keys of a server, each with its time to live in milliseconds: -1 where it has none.
fn keys(server: &RedisServer) -> Vec<(String, i64)> {
    let listed = server.cli(&["KEYS", "*"]);
    let listed = listed.lines().filter(|line| !line.is_empty());
    listed
        .map(|key| (key.to_owned(), server.cli(&["PTTL", key]).parse().unwrap()))
        .collect()
}
