//! While Redis is gone, this process decides by its share of the limit.

use super::wait::until;
use crate::scene::*;

/// A quarter of it is five.
const HOURLY: Limit = Limit::per_hour(20);

/// One request of somebody: its status, and the decision.
async fn ask(layer: &RateLimitLayer, user: &str) -> (StatusCode, Decision) {
    let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(())));
    let inner = inner.map_response(|response: Response<()>| response.map(|()| String::new()));
    let request = Request::builder().header("x-user", user).body(()).unwrap();
    let Ok(response) = layer.layer(inner).oneshot(request).await;
    let decision = response.extensions().get::<Decision>().unwrap().clone();
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        assert!(response.headers().contains_key("retry-after"));
    }
    (response.status(), decision)
}

/// Returns how many of these requests are admitted, and the source of the last decision.
async fn admitted(layer: &RateLimitLayer, user: &str, times: u32) -> (u32, StatusCode, Source) {
    let (mut admitted, mut last) = (0, (StatusCode::OK, Source::Store));
    for _ in 0..times {
        let (status, decision) = ask(layer, user).await;
        admitted += u32::from(status == StatusCode::OK);
        last = (status, decision.source());
    }
    (admitted, last.0, last.1)
}

async fn outage(
    deadline: Duration,
    fault: impl Fn(&mut RedisServer),
    end: impl Fn(&mut RedisServer),
    keeps: bool,
) {
    const OK: StatusCode = StatusCode::OK;
    const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(deadline)
        .response_timeout(Duration::from_secs(20))
        .build()
        .unwrap();
    let rule = HOURLY.by(FromHeader::new("x-user")).named(&unique("rule"));
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::local(0.25)));
    until("Redis decides", || async {
        ask(&layer, "first").await.1.source() == Source::Store
    })
    .await;
    assert_eq!(
        admitted(&layer, "flood", 21).await,
        (20, REFUSED, Source::Store)
    );
    assert_eq!(admitted(&layer, "busy", 8).await, (8, OK, Source::Store));
    assert_eq!(admitted(&layer, "patient", 3).await, (3, OK, Source::Store));

    fault(&mut server);
    // The refusal announced when there is room, so that instant is known.
    assert_eq!(
        admitted(&layer, "flood", 3).await,
        (0, REFUSED, Source::Cache)
    );
    assert_eq!(
        admitted(&layer, "busy", 3).await,
        (0, REFUSED, Source::Local)
    );
    assert_eq!(admitted(&layer, "patient", 2).await, (2, OK, Source::Local));
    assert_eq!(
        admitted(&layer, "patient", 3).await,
        (0, REFUSED, Source::Local)
    );
    assert_eq!(admitted(&layer, "idle", 5).await, (5, OK, Source::Local));
    assert_eq!(
        admitted(&layer, "idle", 20).await,
        (0, REFUSED, Source::Local)
    );

    end(&mut server);
    until("Redis decides again", || async {
        ask(&layer, "last").await.1.source() == Source::Store
    })
    .await;
    // It knows nothing of what was granted meanwhile, except by the calls that were sent to find
    // out whether it answers: their callers were admitted, and have paid.
    let used = if keeps { 3 } else { 0 };
    let (status, decision) = ask(&layer, "patient").await;
    assert_eq!((status, decision.source()), (OK, Source::Store));
    let remaining = decision.limits().next().unwrap().remaining().unwrap();
    let most = 20 - used - 1;
    assert!((most - 2..=most).contains(&remaining), "{remaining}");
}

#[tokio::test]
async fn a_server_that_is_down_neither_frees_the_flooded_nor_resets_the_patient() {
    outage(
        Duration::from_secs(5),
        RedisServer::kill,
        RedisServer::restart,
        false,
    )
    .await;
}

#[tokio::test]
async fn a_server_that_hangs_neither_frees_the_flooded_nor_resets_the_patient() {
    outage(
        // So long that a busy machine answers before it, and five calls wait for it.
        Duration::from_secs(1),
        RedisServer::stop_process,
        RedisServer::resume,
        true,
    )
    .await;
}

/// Two instances with half each are one limit.
#[tokio::test]
async fn instances_with_their_shares_are_one_limit() {
    let mut server = RedisServer::start();
    server.kill();
    let rule = unique("rule");
    let mut all = 0;
    for _ in 0..4 {
        let store = patient(server.url()).build().unwrap();
        let rule = HOURLY.by(FromHeader::new("x-user")).named(&rule);
        let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::local(0.25)));
        all += admitted(&layer, "ann", 30).await.0;
    }
    assert_eq!(all, 20);
}

/// The limiters of an outage are as many as a `MemoryStore` has: others are counted by an estimate,
/// in which what Redis granted counts, too.
#[tokio::test]
async fn a_flood_in_an_outage_locks_no_user_out() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let rule = HOURLY.by(FromHeader::new("x-user")).named(&unique("rule"));
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::local(0.25)));
    assert_eq!(admitted(&layer, "busy", 8).await.0, 8);
    assert_eq!(admitted(&layer, "patient", 3).await.2, Source::Store);
    server.kill();
    assert_eq!(admitted(&layer, "known", 3).await.0, 3);
    for number in 0..100_100 {
        let (status, _) = ask(&layer, &format!("made-up-{number}")).await;
        assert_eq!(status, StatusCode::OK, "{number}");
    }
    for (user, left) in [("newcomer", 5), ("busy", 0), ("patient", 2), ("known", 2)] {
        let expected = (left, StatusCode::TOO_MANY_REQUESTS, Source::Local);
        assert_eq!(admitted(&layer, user, 20).await, expected, "{user}");
    }
}
