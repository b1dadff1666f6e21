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

pub(super) async fn by_redis(service: &Http, user: impl ToString + Copy) {
    let decided = async || ask_as(service, user).await.1.source() == Source::Store;
    until("Redis decides", decided).await;
}

async fn outage(
    deadline: Duration,
    fault: impl Fn(&mut RedisServer),
    end: impl Fn(&mut RedisServer),
    used: u64,
) {
    const OK: StatusCode = StatusCode::OK;
    const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
    let mut server = RedisServer::start();
    let store = hasty(server.url(), deadline).build().unwrap();
    let service = quarter(&store, &unique("rule"));
    by_redis(&service, "first").await;
    let answers = async |rows: &[(&str, u32, (u32, StatusCode, Source))]| {
        for (user, times, expected) in rows {
            let answer = admitted(&service, user, *times).await;
            assert_eq!(answer, *expected, "{user}, {times} times");
        }
    };
    answers(&[
        ("flood", 21, (20, REFUSED, Source::Store)),
        ("busy", 8, (8, OK, Source::Store)),
        ("patient", 3, (3, OK, Source::Store)),
    ])
    .await;

    fault(&mut server);
    answers(&[
        // The refusal announced when there is room, so that instant is known.
        ("flood", 3, (0, REFUSED, Source::Cache)),
        ("busy", 3, (0, REFUSED, Source::Local)),
        ("patient", 2, (2, OK, Source::Local)),
        ("patient", 3, (0, REFUSED, Source::Local)),
        ("idle", 5, (5, OK, Source::Local)),
        ("idle", 20, (0, REFUSED, Source::Local)),
    ])
    .await;

    end(&mut server);
    by_redis(&service, "last").await;
    // It knows nothing of what was granted meanwhile, except by the calls that were sent to find
    // out whether it answers: their callers were admitted, and have paid.
    let (status, decision) = ask_as(&service, "patient").await;
    assert_eq!((status, decision.source()), (OK, Source::Store));
    let remaining = decision.limits().next().unwrap().remaining().unwrap();
    let most = 20 - used - 1;
    assert!((most - 2..=most).contains(&remaining), "{remaining}");
}

#[tokio::test]
async fn a_server_that_is_down_neither_frees_the_flooded_nor_resets_the_patient() {
    outage(secs(5), RedisServer::kill, RedisServer::restart, 0).await;
}

#[tokio::test]
async fn a_server_that_hangs_neither_frees_the_flooded_nor_resets_the_patient() {
    // So long that a busy machine answers before it, and five calls wait for it.
    outage(secs(2), RedisServer::stop_process, RedisServer::resume, 3).await;
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
        all += admitted(&quarter(&store, &rule), "ann", 30).await.0;
    }
    assert_eq!(all, 20);
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
