//! Fixed windows that end by the server's clock. `keys.toml` has their state in Redis.

use super::*;

/// Those who wait are served in order, as room comes.
#[tokio::test]
async fn waiters_are_served_as_windows_end() {
    let store = shared_redis().build().unwrap();
    for way in [Way::Window, Way::OwnWindow] {
        let limiter = way.limited(&store, Limit::new(2, millis(200))).await;
        // Before the reply, which may be late.
        let begun = Instant::now();
        take(&limiter, 2).await;
        let waiters = [(); 5].map(|()| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire().await })
        });
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
        // In two windows there is room for four of them. The clock here is not the one that counts,
        // which may know whole milliseconds only.
        assert!(begun.elapsed() > millis(400), "{:?}", begun.elapsed());
    }
}
