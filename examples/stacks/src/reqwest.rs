//! reqwest: each call waits for its turn, and no call is sent that the other side would refuse.

use std::error::Error;

use reqwest::{Client, Response};
use tower_ratelimit::RateLimiter;

/// Waits until there is a permit.
///
/// # Errors
///
/// The store of the limiter or the server fails.
pub async fn get(
    client: &Client,
    turns: &RateLimiter,
    url: &str,
) -> Result<Response, Box<dyn Error + Send + Sync>> {
    turns.acquire().await?;
    Ok(client.get(url).send().await?)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::Ordering,
        time::{Duration, Instant},
    };

    use serde_json::json;
    use tower_ratelimit::{Limit, MemoryStore};

    use super::*;
    use crate::ask::counting;

    #[tokio::test]
    async fn calls_wait_for_their_turn() {
        let (server, count) = counting(json!({})).await;
        let turns = Limit::per_second(2)
            .named("shop")
            .single(&MemoryStore::new())
            .unwrap();
        let (client, url) = (Client::new(), format!("http://{server}/"));
        let begin = Instant::now();
        for _ in 0..3 {
            assert_eq!(get(&client, &turns, &url).await.unwrap().status(), 200);
        }
        // The third had to wait until the first was a second old.
        assert!(
            begin.elapsed() >= Duration::from_millis(950),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
