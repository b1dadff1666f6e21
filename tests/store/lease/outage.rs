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
    let limiter = leased(
        &store,
        Limit::per_second(10_000),
        Duration::from_millis(100),
    )
    .await;
    warm(&limiter).await;
    // So that the next lease has enough.
    for _ in 0..30 {
        limiter.try_acquire().await.unwrap().assert_allowed();
    }
    server.kill();
    clock.advance(Duration::from_millis(99));
    let decision = limiter.try_acquire().await.unwrap();
    assert_eq!(decision.source(), Source::Lease);
    clock.advance(Duration::from_millis(1));
    let error = limiter.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
