//! The service of the examples, over sockets, on both stores, while its limits change; as
//! documented `tests/examples` runs it.
#![cfg(all(
    feature = "axum",
    feature = "config",
    feature = "redis",
    feature = "tonic"
))]

#[path = "../../examples/service.rs"]
mod example;

use kit::scene::*;
use std::{fs, net::SocketAddr, path::PathBuf};

use tonic::{Code, transport::Channel};

use crate::http::{Reply, get, listen, send, with};

use example::orders::OrdersClient;

/// The running service, and the file of its limits.
struct Running {
    address: SocketAddr,
    limits: PathBuf,
}

impl Running {
    async fn start(store: &impl Store) -> Self {
        let limits = std::env::temp_dir().join(unique("service"));
        fs::copy(
            concat!(env!("CARGO_MANIFEST_DIR"), "/examples/service.toml"),
            &limits,
        )
        .unwrap();
        let layer = example::limits(store, limits.to_str().unwrap()).unwrap();
        let (listener, address) = listen().await;
        let app = example::app(layer);
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(axum::serve(listener, app).into_future());
        Self { address, limits }
    }

    /// A user's request, or one from an address that the proxy names.
    async fn get(&self, path: &str, who: &str) -> Reply {
        let token = format!("Bearer token-of-{who}");
        let who = if who.contains('.') {
            ("x-forwarded-for", who)
        } else {
            ("authorization", &*token)
        };
        send(self.address, with("GET", path, &[who])).await
    }

    fn write(&self, from: &str, to: &str) {
        let text = fs::read_to_string(&self.limits).unwrap();
        assert!(text.contains(from), "{from}");
        // Beside it and then over it, as one should.
        let beside = self.limits.with_extension("new");
        fs::write(&beside, text.replace(from, to)).unwrap();
        fs::rename(beside, &self.limits).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.limits);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory() {
    works(&MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_redis() {
    let redis = RedisServer::start();
    let store = patient(redis.url()).prefix("service").build().unwrap();
    works(&store).await;
    // What `user or client` finds stands in the names, and no token does.
    let keys = redis.cli(&["KEYS", "service:*"]);
    for name in [
        "service:{alice}:api.paid",
        "service:{+1,198.51.100.9}:api.free",
    ] {
        assert!(keys.contains(name), "{name}\n{keys}");
    }
    assert!(!keys.contains("token"), "{keys}");
}

async fn works(store: &impl Store) {
    let shop = Running::start(store).await;
    plans(&shop).await;
    calls(&shop).await;
    rows(&shop).await;
}

fn policy(answer: &Reply) -> &str {
    answer.header("ratelimit-policy").unwrap()
}

/// The free plan has two a minute, the paid one four. Another user, or none, has a limit of its
/// own.
async fn plans(shop: &Running) {
    for (who, allowed) in [("bob", 2), ("alice", 4), ("198.51.100.9", 2)] {
        for _ in 0..allowed {
            assert_eq!(shop.get("/items", who).await.status, 200, "{who}");
        }
        let refused = shop.get("/items", who).await;
        assert_eq!(refused.status, 429, "{who}");
        assert!(policy(&refused).contains("\"burst\";q=100;w=1"));
        assert_eq!(shop.get("/health", who).await.status, 200);
    }
}

/// gRPC on the same port.
async fn calls(shop: &Running) {
    let channel = Channel::from_shared(format!("http://{}", shop.address)).unwrap();
    let mut client = OrdersClient::new(channel.connect().await.unwrap());
    for left in [1, 0] {
        assert_eq!(client.create("tea").await.unwrap().calls_left, Some(left));
    }
    let refused = client.count().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

/// Rows, before and after other limits, while requests go on.
async fn rows(shop: &Running) {
    let rows = async |rows: u32| shop.get(&format!("/export?rows={rows}"), "alice").await;
    let answer = rows(60).await;
    assert_eq!((answer.status, &*answer.body), (200, "60 rows\n"));
    assert_eq!(policy(&answer), "\"rows\";q=100;w=3600");
    assert_eq!(rows(41).await.status, 429);

    let address = shop.address;
    let beside = tokio::spawn(async move {
        loop {
            assert_eq!(send(address, get("/health")).await.status, 200);
        }
    });
    // A mistake in between keeps the limits that there are.
    shop.write("rate = \"100/1h\"", "rate = \"100 an hour\"");
    assert_eq!(rows(41).await.status, 429);
    shop.write("rate = \"100 an hour\"", "rate = \"200/1h\"");
    // Sixty are used of two hundred: what was counted stays. A refused request costs nothing.
    until("the new limit is in force", async || {
        policy(&rows(141).await) == "\"rows\";q=200;w=3600"
    })
    .await;
    assert_eq!(rows(141).await.status, 429);
    assert_eq!(rows(140).await.status, 200);
    assert_eq!(rows(1).await.status, 429);
    assert!(!beside.is_finished());
    beside.abort();
}
