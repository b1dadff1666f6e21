//! One address that stands for several shards, as of Azure's Enterprise policy: it takes no call
//! with keys of several hash slots.

use kit::{proxy::Proxy, scene::*};
use tower_ratelimit::inspect::Severity;

const ROOM: u64 = 5;

fn by(header: &'static str, limit: u64) -> Rule {
    let limit = Limit::per_hour(limit).by(FromHeader::new(header));
    limit.named(header).on_failure(FailurePolicy::Deny)
}

async fn ask(layer: &RateLimitLayer, user: usize) -> Decision {
    let fields = [("x-site", "shop"), ("x-user", &user.to_string())];
    let answer = send(layer, asking("GET /", &fields)).await;
    decision_of(&answer).clone()
}

/// Each is decided by calls of its own; what the first call took is given back where the second
/// one refuses.
#[tokio::test]
async fn a_list_is_decided_by_a_call_for_each_limiter() {
    let (_server, proxy) = Proxy::and_server();
    proxy.refuse_mixed_from_now(true);
    let store = patient(proxy.url()).deny_cache(Duration::ZERO);
    let store = store.prefix(&unique("shards")).build().unwrap();
    let layer = layer_of(&store, [by("x-site", 2 * ROOM), by("x-user", ROOM)]);
    for asked in 0..2 * ROOM {
        let decision = ask(&layer, 0).await;
        assert_eq!(decision.source(), Source::Store, "{asked}: {decision:?}");
        assert_eq!(decision.is_allowed(), asked < ROOM, "{asked}");
    }
    // Learnt once, for all lists.
    assert_eq!(proxy.refused_mixed(), 1);
    store.close().await;
    for asked in 0..2 * ROOM {
        let decision = ask(&layer, 1).await;
        assert_eq!(decision.source(), Source::Store, "{asked}: {decision:?}");
        assert_eq!(decision.is_allowed(), asked < ROOM, "{asked}");
    }
    assert_eq!(proxy.refused_mixed(), 1);
}

/// A call that is in flight when another one shows it is refused, too.
#[tokio::test]
async fn lists_that_are_sent_at_once_are_decided_too() {
    let (_server, proxy) = Proxy::and_server();
    proxy.refuse_mixed_from_now(true);
    let store = patient(proxy.url()).build().unwrap();
    let layer = layer_of(&store, [by("x-site", 100), by("x-user", ROOM)]);
    let asking = (0..16).map(|user| {
        let layer = layer.clone();
        tokio::spawn(async move { ask(&layer, user).await })
    });
    for asked in asking.collect::<Vec<_>>() {
        let decision = asked.await.unwrap();
        assert_eq!(decision.source(), Source::Store, "{decision:?}");
        assert!(decision.is_allowed(), "{decision:?}");
    }
    assert!(proxy.refused_mixed() > 1, "they were in flight together");
}

/// What is learnt by receipts counts for all of them.
#[tokio::test]
async fn receipts_go_alone_once_a_command_of_several_was_refused() {
    let (_server, proxy) = Proxy::and_server();
    proxy.refuse_mixed_from_now(true);
    let store = patient(proxy.url()).build().unwrap();
    let mut limiters = Vec::new();
    for _ in 0..3 {
        limiters.push(Way::OwnLog.limited(&store, Limit::per_hour(10)).await);
    }
    for _ in 0..2 {
        let mut taken = Vec::new();
        for limiter in &limiters {
            taken.push((limiter, take(limiter, 1).await));
        }
        // The first goes alone, and the others together behind it.
        taken
            .iter()
            .for_each(|(limiter, grant)| limiter.give_back(grant));
        store.close().await;
        for limiter in &limiters {
            assert_eq!(free(limiter).await, 10);
        }
        assert_eq!(proxy.refused_mixed(), 1);
    }
}

#[tokio::test]
async fn verify_says_it_beforehand() {
    let (_server, proxy) = Proxy::and_server();
    for shards in [false, true] {
        proxy.refuse_mixed_from_now(shards);
        let store = patient(proxy.url()).build().unwrap();
        let verified = store.verify().await.unwrap();
        let mut found = verified.findings();
        found.retain(|it| it.code() == "keys_in_several_slots");
        assert_eq!(found.len(), usize::from(shards), "{verified}");
        for finding in found {
            assert_eq!(finding.severity(), Severity::Note);
            assert!(finding.to_string().contains("several shards"), "{finding}");
        }
    }
}
