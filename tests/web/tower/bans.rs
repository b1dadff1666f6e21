//! Bans: what counts, how long they last, and what they leave alone.

use std::time::SystemTime;

use super::*;
use kit::observed::Observed;
use tower_ratelimit::Ban;

on_all_by_a_clock!(
    bans_double_until_they_are_forgotten,
    each_limit_of_a_list_counts_its_own,
    a_banned_list_takes_nothing,
    a_shadow_rule_refuses_no_banned_caller,
    the_longest_wait_is_announced,
    a_waiter_counts_once,
    a_banned_caller_never_waits,
    a_ban_by_hand,
    a_limiter_takes_its_ban_along,
);

const MINUTE: Duration = secs(60);
const DAY: Duration = secs(24 * 3600);

fn ban(after: u32) -> Ban {
    let ban = Ban::after(after).within(MINUTE).lasting(15 * MINUTE);
    ban.doubling_to(HOUR)
}

/// Has one permit in ten seconds.
fn rule() -> Rule {
    let limit = Limit::new(1, secs(10));
    limit.by(FromHeader::new("x-key")).named("api")
}

/// Why a caller is refused and for how long; `None` for one that is not.
type Said = Option<(RefusalKind, Duration)>;

const fn over(wait: Duration) -> Said {
    Some((RefusalKind::OverLimit, wait))
}

const fn banned(wait: Duration) -> Said {
    Some((RefusalKind::Banned, wait))
}

fn said(decision: &Decision) -> Said {
    match decision {
        Decision::Allow(_) => None,
        Decision::Deny(refusal) => {
            let wait = refusal.retry_after().unwrap_or_default();
            Some((refusal.kind(), wait))
        }
    }
}

async fn ask(layer: &RateLimitLayer, key: &str) -> Said {
    said(&decide(layer, request(key)).await)
}

/// Has a caller banned, which was granted before or not.
async fn have_banned(layer: &RateLimitLayer, key: &str) {
    let mut asked = 0;
    while ask(layer, key)
        .await
        .is_none_or(|(kind, _)| kind != RefusalKind::Banned)
    {
        asked += 1;
        assert!(asked < 9, "it is not banned");
    }
}

async fn is_banned_until(limiter: &RateLimiter, until: Duration) {
    let until = SystemTime::UNIX_EPOCH + until;
    let read = limiter.banned_until().await.unwrap().unwrap();
    let apart = read
        .duration_since(until)
        .unwrap_or_else(|it| it.duration());
    assert!(apart <= millis(1), "{apart:?}");
}

async fn bans_double_until_they_are_forgotten(store: impl Settles, clock: ManualClock) {
    let layer = layer_of(&store, rule().ban(ban(1)));
    for lasts in [15, 30, 60, 60] {
        assert_eq!(ask(&layer, "a").await, None);
        assert_eq!(ask(&layer, "a").await, banned(lasts * MINUTE));
        clock.advance(lasts * MINUTE);
    }
    clock.advance(HOUR - millis(1));
    assert_eq!(ask(&layer, "a").await, None);
    assert_eq!(ask(&layer, "a").await, banned(HOUR));
    clock.advance(2 * HOUR);
    assert_eq!(ask(&layer, "a").await, None);
    assert_eq!(ask(&layer, "a").await, banned(15 * MINUTE));
}

/// A list of two limits; the first has this many permits.
fn list(store: &impl Store, permits: u64) -> RateLimitLayer {
    let rules = [by_key(permits).named("first"), by_key(9).named("second")];
    layer_of(store, rules.map(|rule| rule.ban(ban(2))))
}

fn limiter(layer: &RateLimitLayer, rule: &str) -> RateLimiter {
    layer.limiter(rule, ["a"]).unwrap()
}

async fn each_limit_of_a_list_counts_its_own(store: impl Settles, _: ManualClock) {
    let layer = list(&store, 1);
    have_banned(&layer, "a").await;
    let refusal = refused(decide(&layer, request("a")).await);
    assert_eq!(refusal.limits().count(), 2);
    let expected = [("first", 1, true), ("second", 9, false)];
    for (limit, expected) in refusal.limits().zip(expected) {
        let said = (limit.name(), limit.permits(), limit.is_banned());
        assert_eq!(said, expected);
        let until = limiter(&layer, limit.name()).banned_until().await.unwrap();
        assert_eq!(until.is_some(), limit.is_banned(), "{limit:?}");
    }
}

async fn a_banned_list_takes_nothing(store: impl Settles, _: ManualClock) {
    let layer = list(&store, 5);
    assert_eq!(ask(&layer, "a").await, None);
    limiter(&layer, "first").ban_for(MINUTE).await.unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&layer, "a").await, banned(MINUTE));
    }
    assert_eq!(free(&limiter(&layer, "first")).await, 4);
    assert_eq!(free(&limiter(&layer, "second")).await, 8);
}

async fn a_shadow_rule_refuses_no_banned_caller(store: impl Settles, _: ManualClock) {
    let layer = layer_of(&store, rule().ban(ban(2)).shadow());
    let mut seen = Vec::new();
    for _ in 0..5 {
        let grant = granted(decide(&layer, request("a")).await);
        let limit = grant.limits().next().unwrap();
        seen.push((limit.is_refused(), limit.is_banned()));
    }
    let (over, would_ban) = ((true, false), (true, true));
    assert_eq!(seen[..2], [(false, false), over]);
    assert_eq!(seen[2..], [would_ban; 3]);
    // The same keys as those of the rule once it is enforced.
    let enforced = layer_of(&store, rule().ban(ban(2)));
    assert_eq!(ask(&enforced, "a").await, banned(15 * MINUTE));
}

async fn the_longest_wait_is_announced(store: impl Settles, clock: ManualClock) {
    let layer = layer_of(&store, by_key(1).named("slow").ban(ban(1)));
    assert_eq!(ask(&layer, "a").await, None);
    assert_eq!(ask(&layer, "a").await, banned(HOUR));
    // The ban itself is shorter.
    is_banned_until(&limiter(&layer, "slow"), clock.now() + 15 * MINUTE).await;
    clock.advance(MINUTE);
    assert_eq!(ask(&layer, "a").await, banned(59 * MINUTE));
    clock.advance(14 * MINUTE);
    assert_eq!(ask(&layer, "a").await, banned(45 * MINUTE));
}

async fn a_waiter_counts_once(store: impl Settles, clock: ManualClock) {
    let layer = layer_of(&store, rule().ban(ban(2)).wait(secs(5)));
    assert_eq!(ask(&layer, "a").await, None);
    assert_eq!(ask(&layer, "a").await, over(secs(10)));
    clock.advance(secs(6));
    // It waits for the rest, and is granted in the end.
    let passes = async {
        until("it waits", async || clock.sleepers() > 0).await;
        loop {
            tokio::time::sleep(millis(5)).await;
            clock.advance(millis(100));
        }
    };
    tokio::select! {
        waited = ask(&layer, "a") => assert_eq!(waited, None),
        () = passes => {}
    }
    assert_eq!(limiter(&layer, "api").banned_until().await.unwrap(), None);
    have_banned(&layer, "a").await;
}

async fn a_banned_caller_never_waits(store: impl Settles, _: ManualClock) {
    let layer = layer_of(&store, rule().ban(ban(2)).wait(DAY));
    limiter(&layer, "api").ban_for(MINUTE).await.unwrap();
    assert_eq!(ask(&layer, "a").await, banned(MINUTE));
}

async fn a_ban_by_hand(store: impl Settles, clock: ManualClock) {
    let layer = layer_of(&store, rule().ban(ban(1)));
    let by_hand = limiter(&layer, "api");
    assert!(!by_hand.unban().await.unwrap());
    assert_eq!(by_hand.banned_until().await.unwrap(), None);
    by_hand.ban_for(MINUTE).await.unwrap();
    is_banned_until(&by_hand, clock.now() + MINUTE).await;
    assert_eq!(ask(&layer, "a").await, banned(MINUTE));
    assert!(by_hand.unban().await.unwrap());
    assert_eq!(ask(&layer, "a").await, None);
    // It did not count as one of those that double.
    by_hand.ban_for(MINUTE).await.unwrap();
    clock.advance(MINUTE);
    assert_eq!(ask(&layer, "a").await, None);
    assert_eq!(ask(&layer, "a").await, banned(15 * MINUTE));
    assert!(by_hand.unban().await.unwrap());
    // The level is not forgotten.
    assert_eq!(ask(&layer, "a").await, banned(15 * MINUTE));
}

async fn a_limiter_takes_its_ban_along(store: impl Settles, _: ManualClock) {
    let (name, new_name) = (unique("old{b}"), unique("new{b}"));
    let rule = Rule::shared(&name).or_init(Limit::per_hour(1));
    let layer = layer_of(&store, rule.named("one").ban(ban(1)));
    have_banned(&layer, "a").await;
    let old = RateLimiter::new(&store, &name).unwrap();
    assert!(old.rename(&new_name).await.is_ok());
    let renamed = RateLimiter::new(&store, &new_name).unwrap();
    assert_eq!(old.banned_until().await.unwrap(), None);
    assert!(renamed.banned_until().await.unwrap().is_some());
    assert!(renamed.delete().await.unwrap());
    assert_eq!(renamed.banned_until().await.unwrap(), None);
}

#[test]
fn terms_that_make_no_sense_do_not_build() {
    let refuses = |rule: Rule, said: &str| {
        let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise(rule);
        let said = format!("rule \"api\" {said}");
        mistake(layer.build(), ConfigErrorKind::Rule, &said);
    };
    let (ban, uneven) = (ban(3), Duration::from_micros(1500));
    for (terms, said) in [
        (Ban::after(0), "bans after 1 to 10000 refusals, not 0"),
        (
            Ban::after(10_001),
            "bans after 1 to 10000 refusals, not 10001",
        ),
        (
            ban.within(Duration::ZERO),
            "counts refusals for whole milliseconds",
        ),
        (ban.lasting(Duration::ZERO), "bans for whole milliseconds"),
        (ban.lasting(uneven), "bans for whole milliseconds"),
        (
            ban.doubling_to(Duration::ZERO),
            "doubles bans for whole milliseconds",
        ),
        (ban.doubling_to(MINUTE), "doubles bans of 900s up to 60s"),
        (
            ban.status(200),
            "answers a banned request with a status from 400 to 499",
        ),
    ] {
        refuses(rule().ban(terms), said);
    }
    let named = |limit: Limit| limit.by(Constant("all")).named("api");
    let leased = named(Limit::per_second(100)).lease(millis(50));
    refuses(leased.ban(ban), "leases permits and bans callers");
}

#[tokio::test]
async fn a_banned_request_is_answered_as_its_rule_says() {
    for (status, terms) in [(429, ban(1)), (403, ban(1).status(403))] {
        let layer = layer_of(&MemoryStore::new(), rule().ban(terms));
        have_banned(&layer, "a").await;
        let refused = answer(&layer, request("a")).await;
        assert_eq!(refused.status(), status);
        let wait: u64 = header_of(&refused, "retry-after").unwrap().parse().unwrap();
        assert!((890..=901).contains(&wait), "{wait}");
        assert_eq!(header_of(&refused, "cache-control"), Some("no-store"));
        let body = text(refused).await;
        for part in [
            "too many requests were refused: retry after",
            "#abnormal-usage-detected",
        ] {
            assert!(body.contains(part), "{body}");
        }
        let grpc = [
            ("x-key", "a"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let refused = answer(&layer, asking("POST /shop.v1.Orders/Create", &grpc)).await;
        assert_eq!(refused.status(), 200);
        // RESOURCE_EXHAUSTED, and not to be tried again.
        assert_eq!(header_of(&refused, "grpc-status"), Some("8"));
        let pushback = header_of(&refused, "grpc-retry-pushback-ms");
        assert_eq!(pushback, Some("-1"));
    }
}

#[tokio::test]
async fn observers_learn_of_bans() {
    let seen = Observed::by(|it| [it.result.as_str(), it.rules[0].result.as_str()]);
    let store = MemoryStore::builder().observe(seen.clone()).build();
    for rule in [rule().ban(ban(2)).shadow(), rule().ban(ban(2))] {
        let layer = layer_of(&store, rule);
        for _ in 0..3 {
            ask(&layer, "a").await;
        }
    }
    let expected = [
        ["allow", "taken"],
        ["allow", "shadow_deny"],
        ["allow", "shadow_banned"],
        ["banned", "banned"],
        ["banned", "banned"],
        ["banned", "banned"],
    ];
    assert_eq!(seen.take(), expected);
}

/// What is counted by an estimate may be others' refusals.
#[tokio::test]
async fn strangers_of_a_full_store_are_not_banned() {
    let store = MemoryStore::builder().max_limiters(1).build();
    let layer = layer_of(&store, rule().ban(ban(2)));
    assert_eq!(ask(&layer, "first").await, None);
    assert_eq!(ask(&layer, "stranger").await, None);
    for _ in 0..5 {
        let (kind, _) = ask(&layer, "stranger").await.unwrap();
        assert_eq!(kind, RefusalKind::OverLimit);
    }
    have_banned(&layer, "first").await;
}

/// A full store bans one more caller all the same, and forgets what ends first.
#[tokio::test]
async fn of_too_many_refusals_and_bans_those_give_way_that_end_first() {
    let (store, clock) = MemoryStore::builder().max_limiters(4).build_manual();
    let layer = layer_of(&store, rule().ban(ban(3)));
    let callers = ["first", "second", "third", "fourth", "fifth"];
    let limiters = callers.map(|key| layer.limiter("api", [key]).unwrap());
    let banned = async || {
        let mut banned = Vec::new();
        for (key, limiter) in callers.iter().zip(&limiters) {
            if limiter.banned_until().await.unwrap().is_some() {
                banned.push(*key);
            }
        }
        banned
    };
    for key in callers {
        have_banned(&layer, key).await;
        // Its limit has room again, so its limiter may go.
        clock.advance(secs(20));
    }
    assert_eq!(banned().await, callers[1..]);
    // So does one by hand.
    limiters[0].ban_for(HOUR).await.unwrap();
    assert_eq!(banned().await, ["first", "third", "fourth", "fifth"]);
    clock.advance(14 * MINUTE);
    assert_eq!(banned().await, ["first", "fourth", "fifth"]);
    let (kind, _) = ask(&layer, "fifth").await.unwrap();
    assert_eq!(kind, RefusalKind::Banned);
}
