//! While Redis is gone, what is in hand goes on being granted, until its end.

use super::{leased, warm};
use crate::scene::*;

#[tokio::test]
async fn leased_permits_are_granted_until_the_lease_ends() {
    let mut server = RedisServer::start();
    let clock = ManualClock::new();
    let store = patient(server.url())
        .client_clock(clock.clone())
        .build()
        .unwrap();
    let limiter = leased(&store, Limit::per_second(10_000), millis(100)).await;
    warm(&limiter).await;
    // So that the next lease has enough.
    for _ in 0..30 {
        take(&limiter, 1).await;
    }
    server.kill();
    clock.advance(millis(99));
    let decision = limiter.try_acquire().await.unwrap();
    assert_eq!(decision.source(), Source::Lease);
    clock.advance(millis(1));
    fails(limiter.try_acquire().await, ErrorKind::Unavailable);
}
