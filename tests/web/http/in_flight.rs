//! Places in flight over sockets: responses that last, clients that hang up, and connections that
//! are upgraded.

use axum::{Extension, body::Body, extract::Request as Asked, routing::any};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tower_ratelimit::HeaderStyle;

use super::{with_axum::serve, *};

on_both_stores! {
    a_response_counts_until_its_end_or_until_its_client_hangs_up,
    an_upgraded_connection_counts_while_its_task_keeps_the_grant,
}

/// A layer of two places, and the limiter that has them.
fn two_places(store: &impl Store) -> (RateLimitLayer, RateLimiter) {
    let name = unique("flight");
    let limit = Limit::in_flight(2, secs(3600)).by(Constant("all"));
    let layer = RateLimitLayer::builder(store).otherwise(limit.named(&name));
    let layer = layer.headers([HeaderStyle::Draft11, HeaderStyle::Legacy]);
    let layer = layer.build().unwrap();
    let limiter = layer.limiter(&name, ["all"]).unwrap();
    (layer, limiter)
}

async fn has_free(limiter: &RateLimiter, places: u64) {
    let what = format!("{places} places are free");
    until(&what, async || free(limiter).await == places).await;
}

async fn a_response_counts_until_its_end_or_until_its_client_hangs_up(store: impl Store) {
    let (layer, limiter) = two_places(&store);
    // A response lasts until the test drops its sender.
    let senders = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&senders);
    let lasts = async move || {
        let (sender, frames) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
        keep.lock().unwrap().push(sender);
        Response::new(Body::new(StreamBody::new(ReceiverStream::new(frames))))
    };
    let app = Router::new().route("/", on_get(lasts));
    let server = serve(app.layer(layer)).await;
    let ends = send_http2(server, with("GET", "/", &[])).await;
    let hangs_up = send_http2(server, with("GET", "/", &[])).await;
    assert_eq!(free(&limiter).await, 0);
    let refused = send(server, with("GET", "/", &[])).await;
    assert_eq!((refused.status, refused.retry_after()), (429, 1));
    let policy = refused.header("ratelimit-policy").unwrap();
    assert!(
        policy.ends_with(";q=2;qu=\"concurrent-requests\""),
        "{policy}"
    );
    assert!(refused.header("ratelimit").unwrap().ends_with(";r=0;t=1"));
    assert_eq!(refused.detail(), "too many requests: retry after 1 second");
    drop(hangs_up);
    has_free(&limiter, 1).await;
    senders.lock().unwrap().remove(0);
    assert!(ends.collect().await.is_ok());
    has_free(&limiter, 2).await;
    let granted = send_http2(server, with("GET", "/", &[])).await;
    let head = granted.headers();
    assert!(head["ratelimit"].to_str().unwrap().ends_with(";r=1"));
    // When all are free again, nothing knows.
    assert_eq!(head["x-ratelimit-remaining"], "1");
    assert!(!head.contains_key("x-ratelimit-reset"));
}

/// Answers what a client sends once its connection is upgraded, and keeps the grant or does not.
async fn echo(Extension(grant): Extension<Grant>, mut request: Asked) -> Response<Body> {
    let keeps = request.uri().path() == "/keeps";
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let _place = keeps.then_some(grant);
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        let (mut from, mut to) = tokio::io::split(&mut stream);
        let _ = tokio::io::copy(&mut from, &mut to).await;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let head = response.headers_mut();
    head.insert("connection", "upgrade".parse().unwrap());
    head.insert("upgrade", "echo".parse().unwrap());
    response
}

/// Upgrades a connection, which answers.
async fn upgraded(server: SocketAddr, path: &str) -> TcpStream {
    let mut stream = connect(Ipv4Addr::LOCALHOST, server).await;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    stream
}

async fn an_upgraded_connection_counts_while_its_task_keeps_the_grant(store: impl Store) {
    let (layer, limiter) = two_places(&store);
    // The grant of the layer within keeps the places of both.
    let (within, inner) = two_places(&store);
    let app = Router::new().fallback(any(echo)).layer(within).layer(layer);
    let server = serve(app).await;
    let [one, two] = [
        upgraded(server, "/keeps").await,
        upgraded(server, "/keeps").await,
    ];
    assert_eq!((free(&limiter).await, free(&inner).await), (0, 0));
    assert_eq!(send(server, with("GET", "/keeps", &[])).await.status, 429);
    drop((one, two));
    has_free(&limiter, 2).await;
    has_free(&inner, 2).await;
    let _forgets = upgraded(server, "/forgets").await;
    has_free(&limiter, 2).await;
    has_free(&inner, 2).await;
}
