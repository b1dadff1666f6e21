//! While Redis is gone, this process decides by its share of the limit.

use kit::{
    scene::*,
    traffic::{Http, ask_as, service_with},
};

/// A quarter of it is five.
const HOURLY: Limit = Limit::per_hour(20);

/// A service with that limit for each user. In an outage this process has a quarter of it.
fn quarter(store: &RedisStore, rule: &str) -> Http {
    let rule = HOURLY.by(FromHeader::new("x-user")).named(rule);
    service_with(store, rule.on_failure(FailurePolicy::Local(0.25)))
}

/// Returns how many of these requests are admitted, and the last answer.
async fn admitted(service: &Http, user: &str, times: u32) -> (u32, StatusCode, Source) {
    let (mut admitted, mut last) = (0, (StatusCode::OK, Source::Store));
    for _ in 0..times {
        let (status, decision) = ask_as(service, user).await;
        admitted += u32::from(status == StatusCode::OK);
        last = (status, decision.source());
    }
    (admitted, last.0, last.1)
}

/// The limiters of an outage are as many as a `MemoryStore` has: others are counted by an estimate,
/// in which what Redis granted counts, too.
#[tokio::test]
async fn a_flood_in_an_outage_locks_no_user_out() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let layer = quarter(&store, &unique("rule"));
    assert_eq!(admitted(&layer, "busy", 8).await.0, 8);
    assert_eq!(admitted(&layer, "patient", 3).await.2, Source::Store);
    server.kill();
    assert_eq!(admitted(&layer, "known", 3).await.0, 3);
    for number in 0..100_100 {
        let (status, _) = ask_as(&layer, format!("made-up-{number}")).await;
        assert_eq!(status, StatusCode::OK, "{number}");
    }
    for (user, left) in [("newcomer", 5), ("busy", 0), ("patient", 2), ("known", 2)] {
        let expected = (left, StatusCode::TOO_MANY_REQUESTS, Source::Local);
        assert_eq!(admitted(&layer, user, 20).await, expected, "{user}");
    }
}
