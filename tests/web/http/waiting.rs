//! Requests that wait, over sockets: held until there is room, and gone with their connection.

use crate::scene::*;
use std::net::SocketAddr;

use axum::{Router, routing::get as on_get};
use tokio::io::AsyncWriteExt;
use tower::Service;

use super::{connect, get, listen, on_both_stores, send, until};

on_both_stores! { a_request_is_held_until_there_is_room, a_client_that_disconnects_leaves_the_line }

/// Counts the requests that are under way in a service.
#[derive(Clone, Debug)]
struct Counting<S> {
    inner: S,
    under_way: Arc<AtomicUsize>,
}

struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(layer: RateLimitLayer) -> (SocketAddr, Arc<AtomicUsize>) {
    let (listener, address) = listen().await;
    let under_way = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&under_way);
    let count = tower::layer::layer_fn(move |inner| Counting {
        inner,
        under_way: Arc::clone(&counting),
    });
    let app = Router::new()
        .route("/", on_get(async || "hello"))
        .layer(layer)
        .layer(count);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    (address, under_way)
}

impl<S, R> Service<R> for Counting<S>
where
    S: Service<R, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(Arc::clone(&self.under_way));
        let answer = self.inner.clone().oneshot(request);
        Box::pin(async move {
            let _under_way = under_way;
            answer.await
        })
    }
}

async fn a_request_is_held_until_there_is_room(store: impl Store) {
    let limit = Limit::new(1, Duration::from_millis(300));
    let rule = limit.by(PeerIp).wait(Duration::from_secs(60));
    let (server, _) = serve(RateLimitLayer::new(&store, rule)).await;
    let sent = (0..4).map(|_| tokio::spawn(send(server, get("/"))));
    for answer in sent.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}

async fn a_client_that_disconnects_leaves_the_line(store: impl Store) {
    let name = unique("line");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    limiter.try_set_rate(Limit::per_hour(1)).await.unwrap();
    let rule = Rule::shared(&name).wait(Duration::from_secs(7200)).queue(1);
    let (server, under_way) = serve(RateLimitLayer::new(&store, rule)).await;
    assert_eq!(send(server, get("/")).await.status, 200);

    let hold = async || {
        let mut stream = connect(std::net::Ipv4Addr::LOCALHOST, server).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        until("it is so", async || under_way.load(Ordering::SeqCst) == 1).await;
        stream
    };
    let first = hold().await;
    // Its place is the only one.
    until("it is so", async || {
        send(server, get("/")).await.detail() == "too many requests wait already"
    })
    .await;
    drop(first);
    until("it is so", async || under_way.load(Ordering::SeqCst) == 0).await;
    let second = hold().await;
    // Nothing was taken for the caller that has left.
    limiter.release(1).await.unwrap();
    until("it is so", async || under_way.load(Ordering::SeqCst) == 0).await;
    assert_eq!(limiter.available_permits().await.unwrap(), 0);
    drop(second);
}
