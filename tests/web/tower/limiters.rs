//! The limiters of a layer, found by a rule's name and a key, or by a request.

use crate::scene::*;
use http::request::Parts;
use proptest::prelude::*;
use tower_ratelimit::{
    Rules, Tiers,
    key::{Constant, FromHeader, FromParts, PeerIp},
    limit_by,
};

use super::{Inner, asking, status};

fn key() -> FromHeader {
    FromHeader::new("x-key")
}

fn rules(name: &str) -> Rules {
    let tiers = [("free", Limit::per_hour(3)), ("paid", Limit::per_hour(30))];
    let tiers = Tiers::new(tiers, |parts| match parts.headers.get("x-plan") {
        Some(_) => "paid",
        None => "free",
    });
    Rules::new()
        .on("/one", Limit::per_hour(3).by(key()).named("one"))
        .on(
            "/gcra",
            Limit::per_hour(3)
                .by(key())
                .named("gcra")
                .algorithm(Algorithm::Gcra),
        )
        .on(
            "/slots",
            Limit::per_hour(3).by(key()).named("slots").slots(100),
        )
        .on(
            "/both",
            Limit::per_hour(3).by((key(), Constant("it"))).named("both"),
        )
        .on("/tiers", Rule::new("plan", tiers, key()))
        .on(
            "/found",
            Rule::new("found", limit_by(|_: &Parts| Limit::per_hour(3)), key()),
        )
        .on(
            "/exact",
            Rule::shared(name)
                .or_init(Limit::per_hour(3))
                .named("exact"),
        )
        .on(
            "/template",
            Rule::shared(&format!("{name}:<key>"))
                .by(key())
                .or_init(Limit::per_hour(3))
                .named("template"),
        )
}

async fn left(limiter: &RateLimiter) -> u64 {
    limiter.available_permits().await.unwrap()
}

async fn are_those_of_requests(store: &impl Store) {
    let name = unique("orders");
    let layer = RateLimitLayer::builder(store)
        .rules(rules(&name))
        .build()
        .unwrap();
    let service = layer.layer(Inner::default());
    let user = unique("ann ");
    for (path, rule, key) in [
        ("/one", "one", &[&*user][..]),
        ("/gcra", "gcra", &[&user]),
        ("/slots", "slots", &[&user]),
        ("/both", "both", &[&user, "it"]),
        ("/tiers", "plan.free", &[&user]),
        ("/found", "found", &[&user]),
        ("/exact", "exact", &[]),
        ("/template", "template", &[&user]),
    ] {
        let request = || asking(&format!("GET {path}"), &[("x-key", &user)]);
        assert_eq!(status(&service, request()).await, 200);
        let limiter = layer.limiter(rule, key).unwrap();
        assert_eq!(left(&limiter).await, 2, "{rule}");
        let [of_request] = &layer.limiters_of(&request().into_parts().0)[..] else {
            panic!("{rule}");
        };
        assert_eq!(of_request.name(), limiter.name());
        // What is done to it, requests meet.
        for _ in 0..2 {
            if rule == "gcra" {
                // In Redis its limit is in each call, and not stored.
                assert_eq!(status(&service, request()).await, 200);
                continue;
            }
            let taken = limiter.try_acquire().await;
            assert!(taken.is_ok_and(|taken| taken.is_allowed()), "{rule}");
        }
        assert_eq!(status(&service, request()).await, 429, "{rule}");
        assert!(of_request.delete().await.unwrap());
        assert_eq!(status(&service, request()).await, 200, "{rule}");
    }
}

#[tokio::test]
async fn those_in_memory_are_those_of_requests() {
    are_those_of_requests(&MemoryStore::new()).await;
}

#[tokio::test]
async fn those_in_redis_are_those_of_requests() {
    are_those_of_requests(&shared_redis().build().unwrap()).await;
}

#[test]
fn what_is_not_there_is_named() {
    let layer = RateLimitLayer::builder(&MemoryStore::new())
        .rules(rules("n"))
        .build();
    let layer = layer.unwrap();
    let none: [&str; 0] = [];
    for (rule, key, kind, said) in [
        (
            "two",
            &["ann"][..],
            ConfigErrorKind::Rule,
            "there is no rule \"two\": there are [",
        ),
        (
            "plan",
            &["ann"],
            ConfigErrorKind::Rule,
            "there is no rule \"plan\": there are [",
        ),
        (
            "one",
            &none,
            ConfigErrorKind::Key,
            "rule \"one\" counts by a key",
        ),
        (
            "exact",
            &["ann"],
            ConfigErrorKind::Key,
            "rule \"exact\" counts by no key",
        ),
    ] {
        mistake(layer.limiter(rule, key), kind, said);
    }
    let parts = |line| asking(line, &[]).into_parts().0;
    assert_eq!(layer.limiters_of(&parts("GET /one")).len(), 0);
    assert_eq!(layer.limiters_of(&parts("GET /elsewhere")).len(), 0);
    let of_peer = layer_of(
        &MemoryStore::new(),
        [
            Limit::per_hour(1).by(PeerIp).named("peer"),
            Limit::per_hour(1).by(key()).named("key"),
        ],
    );
    let parts = asking("GET /", &[("x-key", "a")]).into_parts().0;
    assert_eq!(of_peer.limiters_of(&parts).len(), 1);
}

proptest! {
    /// Whatever a key is, it is spelt as for a request.
    #[test]
    fn any_key_names_the_limiter_of_its_requests(
        first in proptest::collection::vec(any::<u8>(), 1..100),
        second in proptest::collection::vec(any::<u8>(), 1..100),
    ) {
        let (one, other) = (first.clone(), second.clone());
        let keys = (
            FromParts(move |_: &Parts| Some(one.clone())),
            FromParts(move |_: &Parts| Some(other.clone())),
        );
        let layer = layer_of(&MemoryStore::new(), Limit::per_hour(1).by(keys).named("both"));
        let of_requests = layer.limiters_of(&asking("GET /", &[]).into_parts().0);
        let by_key = layer.limiter("both", [first, second]).unwrap();
        prop_assert_eq!(by_key.name(), of_requests[0].name());
    }
}
