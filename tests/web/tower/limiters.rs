//! The limiters of a layer, found by a rule's name and a key, or by a request.

use super::*;

on_both_stores!(
    those_of_a_layer_are_those_of_requests,
    the_limit_of_a_rule_is_in_the_code_alone,
    a_shared_limit_is_the_stored_one,
);

on_both_by_a_clock!(one_bans_as_its_rule);

fn key() -> FromHeader {
    FromHeader::new("x-key")
}

fn rules(name: &str) -> Rules {
    let tiers = [("free", Limit::per_hour(3)), ("paid", Limit::per_hour(4))];
    let tiers = Tiers::new(tiers, |parts| match parts.headers.get("x-plan") {
        Some(_) => "paid",
        None => "free",
    });
    let three = Limit::per_hour(3);
    let hourly = |name| Rule::new(name, three, key());
    let found = limit_by(move |_: &Parts| three);
    let template = format!("{name}:<key>");
    let in_slots = format!("slots:{name}:<key>");
    let names = [name, &template, &in_slots];
    let [exact, template, slots] = names.map(|name| Rule::shared(name).or_init(three));
    Rules::new()
        .on("/one", hourly("one"))
        .on("/gcra", hourly("gcra").algorithm(Algorithm::Gcra))
        .on(
            "/window",
            hourly("window").algorithm(Algorithm::FixedWindow),
        )
        .on("/slots", slots.named("slots").by(key()).slots(100))
        .on("/both", three.by((key(), Constant("it"))).named("both"))
        .on("/tiers", Rule::new("plan", tiers, key()))
        .on("/found", Rule::new("found", found, key()))
        .on("/exact", exact.named("exact"))
        .on("/template", template.by(key()).named("template"))
}

async fn those_of_a_layer_are_those_of_requests(store: impl Store) {
    let name = unique("orders");
    let layer = layer_by(&store, rules(&name));
    let user = unique("ann ");
    for (path, rule, key, permits) in [
        ("/one", "one", &[&*user][..], 3),
        ("/gcra", "gcra", &[&user], 3),
        ("/window", "window", &[&user], 3),
        ("/slots", "slots", &[&user], 3),
        ("/both", "both", &[&user, "it"], 3),
        ("/tiers", "plan.paid", &[&user], 4),
        ("/found", "found", &[&user], 3),
        ("/exact", "exact", &[], 3),
        ("/template", "template", &[&user], 3),
    ] {
        let headers = [("x-key", &*user), ("x-plan", "paid")];
        let request = || asking(&format!("GET {path}"), &headers);
        let [of_request] = &layer.limiters_of(&request().into_parts().0)[..] else {
            panic!("{rule}");
        };
        let mut limiter = layer.limiter(rule, key).unwrap();
        assert_eq!(of_request.name(), limiter.name());
        if rule == "found" {
            // The limit that a closure chooses is known with a request.
            fails(limiter.try_acquire().await, ErrorKind::Limit);
            limiter = of_request.clone();
        }
        // An unused one has the limit of its rule.
        assert_eq!(free(&limiter).await, permits, "{rule}");
        assert!(!limiter.exists().await.unwrap(), "{rule}");
        let grant = take(&limiter, 2).await;
        let limit = grant.limits().next().unwrap();
        assert_eq!((limit.name(), limit.permits()), (rule, permits));
        // What is done to it, requests meet, and it meets what they do.
        let decision = decide(&layer, request()).await;
        let limit = decision.limits().next().unwrap();
        assert_eq!((limit.name(), limit.permits()), (rule, permits));
        assert_eq!(limit.remaining(), Some(permits - 3), "{rule}");
        assert_eq!(free(&limiter).await, permits - 3, "{rule}");
        for _ in 3..permits {
            take(&limiter, 1).await;
        }
        assert_eq!(code(&layer, request()).await, 429, "{rule}");
        assert!(of_request.delete().await.unwrap());
        assert_eq!(code(&layer, request()).await, 200, "{rule}");
    }
}

/// What [`Keyed`](tower_ratelimit::Keyed) returns for the name and the key, except that its rule
/// leases permits.
async fn the_limit_of_a_rule_is_in_the_code_alone(store: impl Settles) {
    let (name, limit) = (unique("leased"), Limit::per_hour(5));
    let rule = Rule::new(&name, limit, key()).lease(SECOND);
    let layer = layer_of(&store, rule);
    let ann = layer.limiter(&name, ["ann"]).unwrap();
    let grant = take(&ann, 2).await;
    assert_eq!(limit_in_force(&ann).await, (5, HOUR));
    let keyed = limit.named(&name).keyed(&store).unwrap();
    let same = keyed.of("ann");
    // The second of these calls finds the permits that the first would have leased.
    for left in [2, 1] {
        take(&ann, 1).await;
        assert_eq!(free(&same).await, left);
    }
    same.give_back(&grant);
    store.settled().await;
    assert_eq!(free(&ann).await, 3);
}

async fn limit_in_force(limiter: &RateLimiter) -> (u64, Duration) {
    let limit = limiter.limit().await.unwrap().unwrap();
    (limit.permits(), limit.interval())
}

async fn a_shared_limit_is_the_stored_one(store: impl Store) {
    let [unset, init] = ["unset", "init"].map(unique);
    let of_init = Rule::shared(&init).or_init(Limit::per_hour(3));
    let layer = layer_of(&store, [Rule::shared(&unset), of_init]);
    let [unset, init] = [unset, init].map(|rule| layer.limiter::<&str>(&rule, []).unwrap());
    fails(unset.try_acquire().await, ErrorKind::NotInitialized);
    fails(unset.available_permits().await, ErrorKind::NotInitialized);
    assert_eq!((free(&init).await, init.limit().await.unwrap()), (3, None));
    take(&init, 1).await;
    for limiter in [&unset, &init] {
        limiter
            .set_or_update_rate(Limit::per_hour(7))
            .await
            .unwrap();
        take(limiter, 2).await;
        assert!(limiter.expire(HOUR).await.unwrap());
    }
    assert_eq!((free(&unset).await, free(&init).await), (5, 4));
    let other = unique("other");
    let renamed = init.rename(&other).await.unwrap();
    assert_eq!((renamed.name(), free(&renamed).await), (&*other, 4));
    assert!(renamed.delete().await.unwrap());
    // It is of no rule.
    fails(renamed.try_acquire().await, ErrorKind::NotInitialized);
    take(&init, 3).await;
}

async fn one_bans_as_its_rule(store: impl Settles, clock: ManualClock) {
    let ban = tower_ratelimit::Ban::after(2).within(HOUR).lasting(HOUR);
    let name = unique("login");
    let layer = layer_of(&store, Rule::new(&name, Limit::per_hour(1), key()).ban(ban));
    let ann = layer.limiter(&name, ["ann"]).unwrap();
    take(&ann, 1).await;
    let request = || asking("GET /", &[("x-key", "ann")]);
    assert_eq!(code(&layer, request()).await, 429);
    clock.advance(SECOND);
    let refusal = refused(ann.try_acquire().await.unwrap());
    assert_eq!(refusal.kind(), RefusalKind::Banned);
    let refusal = refused(decide(&layer, request()).await);
    assert_eq!(refusal.kind(), RefusalKind::Banned);
    // Who waits does not wait for the end of a ban.
    fails(ann.acquire().await, ErrorKind::Banned);
    let for_a_day = ann.try_acquire_for(1, 24 * HOUR).await.unwrap();
    assert_eq!(refused(for_a_day).kind(), RefusalKind::Banned);
    assert!(ann.unban().await.unwrap());
}

#[cfg(feature = "config")]
#[tokio::test]
async fn one_of_before_a_reload_has_the_limit_of_then() {
    let layer = layer_of(&MemoryStore::new(), by_key(9).named("rule"));
    let before = layer.limiter("rule", ["a"]).unwrap();
    take(&before, 1).await;
    let rules = Rules::new().otherwise(by_key(5).named("rule"));
    layer.reload(rules).unwrap();
    let after = layer.limiter("rule", ["a"]).unwrap();
    take(&after, 1).await;
    for (limiter, permits) in [(before, 9), (after, 5)] {
        assert_eq!(limit_in_force(&limiter).await.0, permits);
    }
}

#[test]
fn what_is_not_there_is_named() {
    let layer = layer_by(&MemoryStore::new(), rules("n"));
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

/// Lists and skipped preflights decide before any rule, so no limiter counts the request.
#[test]
fn a_request_that_meets_no_rule_has_no_limiters() {
    let rules = || Rules::new().otherwise(by_key(1));
    let of = |rules: Rules, line: &str| {
        let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(rules);
        let layer = layer.skip_preflight().build().unwrap();
        let fields = [
            ("x-key", "a"),
            ("origin", "https://a.example"),
            ("access-control-request-method", "POST"),
        ];
        let limiters = layer.limiters_of(&asking(line, &fields).into_parts().0);
        limiters.len()
    };
    let listed = || Requests::on("/listed");
    for (rules, line, count) in [
        (rules().deny(listed()), "GET /listed", 0),
        (rules().deny(listed()), "GET /other", 1),
        (rules().allow(listed()), "GET /listed", 0),
        (rules().allow(listed()), "GET /other", 1),
        (rules(), "OPTIONS /listed", 0),
    ] {
        assert_eq!(of(rules, line), count, "{line}");
    }
}

#[cfg(feature = "axum")]
#[test]
fn a_rewritten_path_has_the_limiters_of_both() {
    let at = |name| Limit::per_hour(3).by(key()).named(name);
    let rules = Rules::new().on("/sent", at("sent")).on("/now", at("now"));
    let layer = layer_by(&MemoryStore::new(), rules);
    let mut parts = asking("GET /now", &[("x-key", "a")]).into_parts().0;
    let sent = axum::extract::OriginalUri("/sent".parse().unwrap());
    parts.extensions.insert(sent);
    let limiters = layer.limiters_of(&parts);
    let rules: Vec<_> = limiters
        .iter()
        .map(|limiter| limiter.name().rsplit(':').next())
        .collect();
    assert_eq!(rules, [Some("sent"), Some("now")]);
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
