//! kube: a client that waits for its turn.

use std::{error::Error, time::Duration};

use kube::{Client, Config, client::ClientBuilder};
use tower::buffer::BufferLayer;
use tower_ratelimit::{Limit, RateLimitLayer, Store, key::Constant};

/// A client whose calls together keep to this limit: those of one process, or with a `RedisStore`
/// those of all replicas. A call that would have to wait for more than ten seconds fails with 429.
///
/// # Errors
///
/// The name of the rule is taken in this store, or the configuration needs what kube was built
/// without.
///
/// # Panics
///
/// Outside of a runtime of tokio: the buffer is a task.
pub fn client(config: Config, store: &impl Store, limit: Limit) -> Result<Client, Box<dyn Error>> {
    let calls = limit.by(Constant("api-server")).named("kube");
    let limit = RateLimitLayer::builder(store)
        .otherwise(calls.wait(Duration::from_secs(10)))
        // A call that waits takes no place in the buffer.
        .decide_first(true)
        .build()?;
    // kube's own stack cannot be cloned, and the layer needs a service that can.
    let stack = ClientBuilder::try_from(config)?.with_layer(&BufferLayer::new(64));
    Ok(stack.with_layer(&limit).build())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Instant,
    };

    use serde_json::json;
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::counting;

    async fn client_of(limit: Limit) -> (Client, Arc<AtomicUsize>) {
        let version = json!({
            "major": "1", "minor": "37", "gitVersion": "v1.37.0", "gitCommit": "",
            "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        });
        let (server, count) = counting(version).await;
        let config = Config::new(format!("http://{server}").parse().unwrap());
        (client(config, &MemoryStore::new(), limit).unwrap(), count)
    }

    #[tokio::test]
    async fn calls_wait_for_their_turn() {
        let (client, count) = client_of(Limit::per_second(2)).await;
        let begin = Instant::now();
        for _ in 0..3 {
            assert_eq!(client.apiserver_version().await.unwrap().minor, "37");
        }
        // The third had to wait until the first was a second old.
        assert!(
            begin.elapsed() >= Duration::from_millis(950),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_call_that_would_wait_too_long_is_not_sent() {
        let (client, count) = client_of(Limit::per_minute(2)).await;
        for _ in 0..2 {
            client.apiserver_version().await.unwrap();
        }
        let kube::Error::Api(refused) = client.apiserver_version().await.unwrap_err() else {
            panic!("another error");
        };
        assert_eq!(refused.code, 429, "{refused:?}");
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
