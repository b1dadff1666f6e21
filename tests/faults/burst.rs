//! A server that hangs is left alone, however many callers ask, and who is admitted meanwhile is
//! charged. That a burst on a healthy server is no outage is in unit tests of the outbox.

use kit::{
    scene::*,
    traffic::{Http, ask_as, behind, service_with},
};
use std::cell::Cell;

use super::breaker::state;

const DEADLINE: Duration = Duration::from_millis(200);

/// A rule that counts by user.
fn by_user(limit: Limit) -> Rule {
    limit.by(FromHeader::new("x-user")).named(&unique("rule"))
}

/// One request of a user: its status, and who decided.
async fn ask(service: Http, user: usize) -> (usize, StatusCode, Source) {
    let (status, decision) = ask_as(&service, user).await;
    (user, status, decision.source())
}

async fn by_redis(service: &Http, user: usize) {
    let decided = async || ask(service.clone(), user).await.2 == Source::Store;
    until("Redis decides", decided).await;
}

async fn warm(store: &RedisStore, service: &Http) {
    by_redis(service, usize::MAX).await;
    assert!(store.health().is_well());
}

/// A rule that lets all pass does not loosen the other, which has no policy of its own.
#[tokio::test]
async fn by_default_a_process_keeps_the_limit_by_itself() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let kept = || by_user(Limit::per_hour(3));
    let open = Limit::per_hour(2)
        .by(Constant("all"))
        .named(&unique("open"));
    let open = open.on_failure(FailurePolicy::Allow);
    for rules in [vec![kept()], vec![open, kept()]] {
        let service = behind(&layer_of(&store, rules));
        by_redis(&service, 0).await;
        server.kill();
        // More than the rule that lets pass has room for, and each user no more than the other
        // rule has.
        for user in 1..4 {
            for expected in [200, 200, 200, 429] {
                let (_, status, source) = ask(service.clone(), user).await;
                assert_eq!((status.as_u16(), source), (expected, Source::Local));
            }
        }
        server.restart();
        by_redis(&service, 4).await;
    }
}

/// Permits that an abandoned call takes in the end stay taken, because its caller was admitted.
#[tokio::test]
async fn a_request_admitted_here_is_charged_there() {
    const LIMIT: u64 = 20;
    let mut server = RedisServer::start();
    let store = hasty(server.url(), DEADLINE).breaker(0).build().unwrap();
    let rule = by_user(Limit::per_hour(LIMIT));
    let service = service_with(&store, rule.clone());
    warm(&store, &service).await;
    let refusing = by_user(Limit::per_hour(LIMIT)).on_failure(FailurePolicy::Deny);
    let refusing = service_with(&store, refusing);
    warm(&store, &refusing).await;
    server.stop_process();
    for _ in 0..3 {
        let here = ask(service.clone(), 1).await;
        assert_eq!(here, (1, StatusCode::OK, Source::Local));
        let refused = ask(refusing.clone(), 1).await;
        assert_eq!(refused.1, StatusCode::SERVICE_UNAVAILABLE);
    }
    server.resume();
    let left = async |service: &Http| {
        let (_, decision) = ask_as(service, 1).await;
        (decision.source() == Source::Store)
            .then(|| decision.limits().next().unwrap().remaining().unwrap())
    };
    let asked = Cell::new(0);
    until("what was refused is given back", async || {
        // A late answer is the policy's, and takes nothing.
        let Some(left) = left(&refusing).await else {
            return false;
        };
        asked.set(asked.get() + 1);
        left + asked.get() == LIMIT
    })
    .await;
    store.close().await;
    // By a process whose answer is never late: it would be admitted by policy, and charged.
    let calm = service_with(&patient(server.url()).build().unwrap(), rule);
    assert_eq!(left(&calm).await, Some(LIMIT - 3 - 1));
}

/// Their calls are many more than those that find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_left_alone_though_many_ask() {
    for keys in [1, 5_000] {
        let mut server = RedisServer::start();
        let store = hasty(server.url(), DEADLINE).build().unwrap();
        let service = service_with(&store, by_user(Limit::per_hour(1_000_000)));
        warm(&store, &service).await;
        server.stop_process();
        let node = || store.health().nodes.remove(0);
        while node().breaker == BreakerState::Closed {
            let failures = node().failures;
            let asked = (0..5_000).map(|number| ask(service.clone(), number % keys));
            let answers = asked.collect::<JoinSet<_>>().join_all().await;
            assert!(answers.iter().all(|answer| answer.2 == Source::Local));
            // A call fails when its task sees that all its callers have left, which is later.
            until(
                &format!("{keys} keys: the burst is found out"),
                async || {
                    // Callers of one key share calls: on a busy machine they all leave in the
                    // midst of a few, which are fewer failures than open a breaker.
                    let fails = keys == 1 && node().failures > failures;
                    fails || node().breaker != BreakerState::Closed
                },
            )
            .await;
        }
        server.resume();
        until("Redis decides again", async || {
            ask(service.clone(), usize::MAX).await.2 == Source::Store
                && state(&store) == BreakerState::Closed
        })
        .await;
    }
}
