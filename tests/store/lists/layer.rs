//! Several rules on one request.

use super::{world::World, world::ask, world::on_both, world::refused_by, world::service};
use crate::scene::*;

on_both!(
    per_address_and_per_user_and_per_route,
    a_burst_and_an_hour,
    more_than_one_limit_ever_allows,
    a_refusal_waits_for_the_longest,
    refusals_are_free,
    the_tightest_comes_first,
    a_limiter_of_two_rules_is_charged_once_for_both,
    a_missing_key_charges_no_limit,
    a_rule_that_does_not_concern_the_request_is_left_out,
    an_unset_limit_charges_no_other,
    another_rate_type_charges_no_limit,
);

fn seconds(permits: u64) -> Limit {
    Limit::new(permits, secs(10))
}

async fn per_address_and_per_user_and_per_route<S: Store>(world: World<S>) {
    let service = world.service([
        seconds(6).by(FromHeader::new("address")).named("address"),
        seconds(4).by(FromHeader::new("user")).named("user").cost(2),
        seconds(5).by(Constant("export")).named("route"),
    ]);
    let ann = [("address", "here"), ("user", "ann")];
    let (status, decision) = ask(&service, &ann).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(granted(decision).receipts().len(), 3);
    let left = async || {
        [
            world.left("here", "address").await,
            world.left("ann", "user").await,
            world.left("export", "route").await,
        ]
    };
    assert_eq!(left().await, [5, 2, 4]);
    assert_eq!(ask(&service, &ann).await.0, StatusCode::OK);
    assert_eq!(left().await, [4, 0, 3]);

    // The user has no more; the address and the route have, and keep it for others.
    let (status, decision) = ask(&service, &ann).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        refused_by(&refused(decision)),
        [("user".to_owned(), Some(10_000))]
    );
    assert_eq!(left().await, [4, 0, 3]);
    for user in ["bob", "eve", "joe"] {
        let status = ask(&service, &[("address", "there"), ("user", user)]).await;
        assert_eq!(status.0, StatusCode::OK, "{user}");
    }
    assert_eq!(left().await, [4, 0, 0]);
    let (_, decision) = ask(&service, &ann).await;
    let refusal = refused(decision);
    assert_eq!(refused_by(&refusal).len(), 2, "{refusal:?}");
    assert_eq!(left().await, [4, 0, 0]);
}

/// L2 for lists: refused at every instant before the announced wait, granted at it.
async fn a_refusal_waits_for_the_longest<S: Store>(world: World<S>) {
    let rule = |name: &str, permits, interval| {
        let limit = Limit::new(permits, millis(interval));
        limit.by(FromHeader::new("user")).named(name)
    };
    let service = world.service([
        rule("short", 2, 300),
        rule("middle", 3, 1000),
        rule("wide", 100, 1000),
        rule("long", 4, 2500).cost(2),
    ]);
    let ann = [("user", "ann")];
    assert_eq!(ask(&service, &ann).await.0, StatusCode::OK);
    world.advance(100);
    assert_eq!(ask(&service, &ann).await.0, StatusCode::OK);
    world.advance(50);
    // Short has room when the first has left it, and long a good while later.
    let refusal = refused(ask(&service, &ann).await.1);
    assert_eq!(
        refused_by(&refusal),
        [
            ("long".to_owned(), Some(2350)),
            ("short".to_owned(), Some(150))
        ]
    );
    assert_eq!(refusal.retry_after(), Some(millis(2350)));
    for later in [149, 1, 700, 1499] {
        world.advance(later);
        let (status, _) = ask(&service, &ann).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{later}");
    }
    world.advance(1);
    assert_eq!(ask(&service, &ann).await.0, StatusCode::OK);
}

/// L3 for lists.
async fn refusals_are_free<S: Store>(world: World<S>) {
    let limits = [("a", 3), ("b", 7), ("c", 50)];
    let service = world.service(limits.map(|(name, permits)| {
        let cost = |parts: &http::request::Parts| {
            let cost = parts.headers.get("cost").unwrap().to_str().unwrap();
            cost.parse::<u32>().unwrap()
        };
        seconds(permits)
            .by(Constant("all"))
            .named(name)
            .cost_by(cost)
    }));
    let left = async || {
        let mut left = Vec::new();
        for (name, _) in limits {
            left.push(world.left("all", name).await);
        }
        left
    };
    assert_eq!(ask(&service, &[("cost", "2")]).await.0, StatusCode::OK);
    let before = left().await;
    assert_eq!(before, [1, 5, 48]);
    for cost in ["2", "3", "4", "7", "8", "51", "4294967295"] {
        let (status, decision) = ask(&service, &[("cost", cost)]).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        let above = cost.parse::<u32>().unwrap() > 3;
        let refusal = refused(decision);
        assert_eq!(refusal.kind() == RefusalKind::AboveRate, above, "{cost}");
        assert_eq!(refusal.retry_after().is_none(), above, "{cost}");
        let first = refused_by(&refusal)[0].1;
        assert_eq!(first.is_none(), above, "{cost}");
        assert_eq!(left().await, before, "{cost}");
    }
    assert_eq!(ask(&service, &[("cost", "1")]).await.0, StatusCode::OK);
    assert_eq!(left().await, [0, 4, 47]);
}

async fn the_tightest_comes_first<S: Store>(world: World<S>) {
    let service = world.service([
        seconds(100).by(Constant("all")).named("wide"),
        seconds(2).by(Constant("all")).named("narrow"),
        seconds(20).by(Constant("all")).named("middle").cost(15),
    ]);
    let names = |decision: &Decision| {
        let limits = decision.limits();
        let each = limits.map(|limit| (limit.name().to_owned(), limit.remaining()));
        each.collect::<Vec<_>>()
    };
    let named = |limits: &[(&str, u64)]| {
        let each = limits.iter();
        each.map(|(name, left)| ((*name).to_owned(), Some(*left)))
            .collect::<Vec<_>>()
    };
    let (_, decision) = ask(&service, &[]).await;
    assert_eq!(
        names(&decision),
        named(&[("middle", 5), ("narrow", 1), ("wide", 99)])
    );
    // The limit that refuses comes before one with fewer permits left.
    let (_, decision) = ask(&service, &[]).await;
    assert_eq!(refused_by(&refused(decision.clone()))[0].0, "middle");
    assert_eq!(names(&decision)[0], ("middle".to_owned(), Some(5)));
}

async fn a_limiter_of_two_rules_is_charged_once_for_both<S: Store>(world: World<S>) {
    let name = unique("both");
    let limiter = world.limiter(&name);
    let shared = |label: &str| Rule::shared(&name).named(label).or_init(seconds(10));
    let service = world.service([
        shared("one").cost(3),
        shared("two").cost(4),
        seconds(9).by(Constant("all")).named("other"),
    ]);
    let granted = granted(ask(&service, &[]).await.1);
    assert_eq!(granted.receipts().len(), 2);
    assert_eq!(free(&limiter).await, 3);
    // Each of the two alone would have room.
    let refused = refused(ask(&service, &[]).await.1);
    assert_eq!(refused.retry_after(), Some(secs(10)));
    assert_eq!(free(&limiter).await, 3);
    assert_eq!(world.left("all", "other").await, 8);
}

async fn a_missing_key_charges_no_limit<S: Store>(world: World<S>) {
    let service = world.service([
        seconds(5).by(Constant("all")).named("all"),
        seconds(5).by(FromHeader::new("user")).named("user"),
    ]);
    assert_eq!(
        ask(&service, &[("user", "ann")]).await.0,
        StatusCode::OK,
        "makes the limiters"
    );
    let (status, decision) = ask(&service, &[]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let refusal = refused(decision);
    assert_eq!(refusal.kind(), RefusalKind::MissingKey);
    assert_eq!(refusal.missing(), Some("user"));
    assert_eq!(world.left("all", "all").await, 4);
}

async fn a_rule_that_does_not_concern_the_request_is_left_out<S: Store>(world: World<S>) {
    use tower_ratelimit::key::KeyExtractor;
    let service = world.service([
        seconds(5).by(Constant("all")).named("all"),
        seconds(1)
            .by(FromHeader::new("user").or_skip())
            .named("user"),
        seconds(1).by(Constant("free")).named("free").cost_by(|_| 0),
    ]);
    for _ in 0..2 {
        let granted = granted(ask(&service, &[]).await.1);
        assert_eq!(granted.limits().len(), 1);
    }
    let granted = granted(ask(&service, &[("user", "ann")]).await.1);
    assert_eq!(granted.limits().len(), 2);
    assert_eq!(world.left("all", "all").await, 2);
}

async fn an_unset_limit_charges_no_other<S: Store>(world: World<S>) {
    let name = unique("unset");
    let allowed = FailurePolicy::Allow;
    let service = world.service([
        seconds(5)
            .by(Constant("all"))
            .named("all")
            .on_failure(allowed),
        Rule::shared(&name).on_failure(allowed),
    ]);
    let unavailable = async || {
        let (status, decision) = ask(&service, &[]).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let refusal = refused(decision);
        let kind = refusal.error().unwrap().kind();
        assert_eq!(kind, ErrorKind::NotInitialized);
    };
    unavailable().await;
    let unset = world.limiter(&name);
    assert!(unset.try_set_rate(seconds(2)).await.unwrap());
    assert_eq!(ask(&service, &[]).await.0, StatusCode::OK);
    assert_eq!(world.left("all", "all").await, 4);
    assert!(unset.delete().await.unwrap());
    unavailable().await;
    assert_eq!(world.left("all", "all").await, 4);
}

async fn another_rate_type_charges_no_limit<S: Store>(world: World<S>) {
    let service = world.service([
        seconds(5).by(Constant("all")).named("all"),
        seconds(5)
            .by(Constant("all"))
            .named("typed")
            .on_failure(FailurePolicy::Deny),
    ]);
    assert_eq!(ask(&service, &[]).await.0, StatusCode::OK);
    let stored = world.limiter(&world.name("all", "typed"));
    assert!(stored.update_rate(seconds(5).per_client()).await.unwrap());
    let (status, decision) = ask(&service, &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let refusal = refused(decision);
    assert_eq!(refusal.error().unwrap().kind(), ErrorKind::RateTypeDiffers);
    assert_eq!(world.left("all", "all").await, 4);
    assert_eq!(free(&stored).await, 5);
}

/// If the store cannot decide, the strictest of the rules' policies does.
#[tokio::test]
async fn the_strictest_policy_counts() {
    let (allow, deny) = (FailurePolicy::Allow, FailurePolicy::Deny);
    for (policies, status) in [
        ([allow, allow], StatusCode::OK),
        ([allow, deny], StatusCode::SERVICE_UNAVAILABLE),
        ([deny, allow], StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let store = RedisStore::open("redis://127.0.0.1:1/").unwrap();
        let [first, second] = policies;
        let service = service(
            &store,
            [
                seconds(5).by(Constant("all")).named("a").on_failure(first),
                seconds(5).by(Constant("all")).named("b").on_failure(second),
            ],
        );
        let answer = ask(&service, &[]).await;
        assert_eq!(answer.0, status, "{policies:?}");
        assert_eq!(answer.1.source(), Source::FailurePolicy);
    }
}

#[tokio::test]
async fn a_full_store_refuses_the_whole_list() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone()).max_limiters(4);
    let service = service(
        &store,
        // Too large to be counted by an estimate.
        ["a", "b", "c"].map(|name| {
            let rule = seconds(100_000).by(FromHeader::new("user")).named(name);
            rule.cost(50_000)
        }),
    );
    assert_eq!(ask(&service, &[("user", "ann")]).await.0, StatusCode::OK);
    let (status, decision) = ask(&service, &[("user", "bob")]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let refusal = refused(decision);
    assert_eq!(refusal.error().unwrap().kind(), ErrorKind::Full);
    // Who is known is still counted.
    let granted = granted(ask(&service, &[("user", "ann")]).await.1);
    assert_eq!(granted.limits().next().unwrap().remaining(), Some(0));

    // When the known are idle there is room for the newcomers, whichever shards they are in.
    for newcomer in 0..200 {
        clock.advance(secs(10));
        let user = format!("user-{newcomer}");
        let (status, _) = ask(&service, &[("user", &user)]).await;
        assert_eq!(status, StatusCode::OK, "{user}");
        assert!(store.len() <= 4);
    }
}

/// A newcomer may take the place of an idle limiter of its own list, which then finds another.
#[tokio::test]
async fn a_list_makes_room_for_all_of_itself() {
    use tower_ratelimit::key::KeyExtractor;
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone()).max_limiters(3);
    let service = service(
        &store,
        [
            seconds(2).by(FromHeader::new("user")).named("user"),
            seconds(2)
                .by(FromHeader::new("order").or_skip())
                .named("order"),
        ],
    );
    for number in 0..100 {
        let name = format!("number-{number}");
        assert_eq!(ask(&service, &[("user", &name)]).await.0, StatusCode::OK);
        clock.advance(secs(10));
        let (status, _) = ask(&service, &[("user", &name), ("order", &name)]).await;
        assert_eq!(status, StatusCode::OK, "{name}");
        clock.advance(secs(10));
    }
}

async fn a_burst_and_an_hour<S: Store>(world: World<S>) {
    let service = world.service([
        Limit::per_second(10)
            .by(FromHeader::new("user"))
            .named("burst"),
        Limit::per_hour(25)
            .by(FromHeader::new("user"))
            .named("hour"),
    ]);
    let mut granted = Vec::new();
    for _ in 0..4 {
        let mut burst = 0;
        for _ in 0..12 {
            let (status, decision) = ask(&service, &[("user", "ann")]).await;
            match status {
                StatusCode::OK => burst += 1,
                _ => assert_eq!(refused(decision).kind(), RefusalKind::OverLimit),
            }
        }
        granted.push(burst);
        world.advance(1000);
    }
    assert_eq!(granted, [10, 10, 5, 0]);
    assert_eq!(world.left("ann", "burst").await, 10);
    assert_eq!(world.left("ann", "hour").await, 0);
    world.advance(3_600_000 - 4000);
    assert_eq!(world.left("ann", "hour").await, 10);
}

async fn more_than_one_limit_ever_allows<S: Store>(world: World<S>) {
    let service = world.service([
        seconds(5).by(Constant("all")).named("all"),
        seconds(5)
            .by(Constant("all"))
            .named("large")
            .cost_by(|parts| {
                if parts.headers.contains_key("large") {
                    6
                } else {
                    1
                }
            }),
    ]);
    assert_eq!(ask(&service, &[]).await.0, StatusCode::OK);
    let (status, decision) = ask(&service, &[("large", "")]).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let refusal = refused(decision);
    assert_eq!(refusal.kind(), RefusalKind::AboveRate);
    assert_eq!(refusal.retry_after(), None);
    assert_eq!(refused_by(&refusal), [("large".to_owned(), None)]);
    assert_eq!(world.left("all", "all").await, 4);
}
