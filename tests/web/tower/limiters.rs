//! The limiters of a layer, found by a rule's name and a key, or by a request.

use super::*;

on_both_stores!(those_of_a_layer_are_those_of_requests);

fn key() -> FromHeader {
    FromHeader::new("x-key")
}

fn rules(name: &str) -> Rules {
    let tiers = [("free", Limit::per_hour(3)), ("paid", Limit::per_hour(30))];
    let tiers = Tiers::new(tiers, |parts| match parts.headers.get("x-plan") {
        Some(_) => "paid",
        None => "free",
    });
    let three = Limit::per_hour(3);
    let hourly = |name| Rule::new(name, three, key());
    let found = limit_by(move |_: &Parts| three);
    let template = format!("{name}:<key>");
    let [exact, template] = [name, &template].map(|name| Rule::shared(name).or_init(three));
    Rules::new()
        .on("/one", hourly("one"))
        .on("/gcra", hourly("gcra").algorithm(Algorithm::Gcra))
        .on("/slots", hourly("slots").slots(100))
        .on("/both", three.by((key(), Constant("it"))).named("both"))
        .on("/tiers", Rule::new("plan", tiers, key()))
        .on("/found", Rule::new("found", found, key()))
        .on("/exact", exact.named("exact"))
        .on("/template", template.by(key()).named("template"))
}

async fn those_of_a_layer_are_those_of_requests(store: impl Store) {
    let name = unique("orders");
    let layer = RateLimitLayer::builder(&store).rules(rules(&name));
    let layer = layer.build().unwrap();
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
        let decision = decide(&layer, request()).await;
        let limit = decision.limits().next().unwrap();
        assert_eq!((limit.name(), limit.permits()), (rule, 3));
        let limiter = layer.limiter(rule, key).unwrap();
        assert_eq!(free(&limiter).await, 2, "{rule}");
        let [of_request] = &layer.limiters_of(&request().into_parts().0)[..] else {
            panic!("{rule}");
        };
        assert_eq!(of_request.name(), limiter.name());
        // What is done to it, requests meet.
        for _ in 0..2 {
            if rule == "gcra" {
                // In Redis its limit is in each call, and not stored.
                assert_eq!(code(&layer, request()).await, 200);
                continue;
            }
            let taken = limiter.try_acquire().await;
            assert!(taken.is_ok_and(|taken| taken.is_allowed()), "{rule}");
        }
        assert_eq!(code(&layer, request()).await, 429, "{rule}");
        assert!(of_request.delete().await.unwrap());
        assert_eq!(code(&layer, request()).await, 200, "{rule}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(rules("n"));
    let layer = layer.build().unwrap();
    for rule in ["two", "plan"] {
        let said = format!("there is no rule {rule:?}: there are [");
        mistake(layer.limiter(rule, ["ann"]), ConfigErrorKind::Rule, &said);
    }
    for (rule, key, by) in [("exact", &["ann"][..], "no key"), ("one", &[], "a key")] {
        let said = format!("rule {rule:?} counts by {by}");
        mistake(layer.limiter(rule, key), ConfigErrorKind::Key, &said);
    }
    let parts = |line| asking(line, &[]).into_parts().0;
    assert_eq!(layer.limiters_of(&parts("GET /one")).len(), 0);
    assert_eq!(layer.limiters_of(&parts("GET /elsewhere")).len(), 0);
    let of_peer = Limit::per_hour(1).by(PeerIp).named("peer");
    let of_peer = layer_of(&MemoryStore::new(), [of_peer, by_key(1)]);
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
