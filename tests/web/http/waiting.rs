//! Requests that wait, over sockets: held until there is room, and gone with their connection.

use axum::{
    body::Body,
    middleware::{Next, from_fn},
};

use super::*;

on_both_stores! { a_client_is_held_until_there_is_room_unless_it_disconnects }

/// A request that is under way in a service.
struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Serves behind the layer. Returns the number of the requests that are under way, too.
async fn serve(layer: RateLimitLayer) -> (SocketAddr, Arc<AtomicUsize>) {
    let under_way = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&under_way);
    let count = from_fn(move |request: Request<Body>, next: Next| {
        counting.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(Arc::clone(&counting));
        async move {
            let _under_way = under_way;
            next.run(request).await
        }
    });
    let app = Router::new().route("/", on_get(async || "hello"));
    let address = with_axum::serve(app.layer(layer).layer(count)).await;
    (address, under_way)
}

async fn a_client_is_held_until_there_is_room_unless_it_disconnects(store: impl Store) {
    let name = unique("line");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    limiter.try_set_rate(Limit::per_hour(1)).await.unwrap();
    let rule = Rule::shared(&name).wait(Duration::from_secs(7200)).queue(1);
    let (server, under_way) = serve(RateLimitLayer::new(&store, rule)).await;
    assert_eq!(send(server, get("/")).await.status, 200);

    let under_way_are = async |number| {
        let what = "so many requests are under way";
        until(what, async || under_way.load(Ordering::SeqCst) == number).await;
    };
    let hold = async || {
        let mut stream = connect(Ipv4Addr::LOCALHOST, server).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        under_way_are(1).await;
        stream
    };
    let first = hold().await;
    // Its place is the only one.
    until("its place is taken", async || {
        send(server, get("/")).await.detail() == "too many requests wait already"
    })
    .await;
    drop(first);
    under_way_are(0).await;
    let mut second = hold().await;
    // Nothing was taken for the caller that has left.
    limiter.release(1).await.unwrap();
    let mut line = [0; 15];
    second.read_exact(&mut line).await.unwrap();
    assert_eq!(line, *b"HTTP/1.1 200 OK");
    under_way_are(0).await;
    assert_eq!(free(&limiter).await, 0);
}
