//! Limits by key without HTTP, `Keyed`, on both stores: whose limiter a key has, and what holds of
//! a limit in the code.

mod names;

use kit::scene::*;
use tower_ratelimit::{Ban, Keyed, LimiterKey};

const MINUTE: Duration = secs(60);
const DAY: Duration = secs(86_400);

on_both_by_a_clock!(
    a_key_is_counted_as_by_a_rule_of_its_name,
    an_unused_key_is_whole_and_nothing_is_stored,
    permits_are_waited_for_in_order,
    lists_take_of_all_or_of_none_and_wait,
    grants_are_settled_at_what_was_really_used,
    a_key_that_is_refused_too_often_is_banned,
    a_key_of_a_list_is_not_banned_for_another,
    a_new_limit_keeps_what_is_in_use,
    what_would_change_a_limit_in_the_code_is_an_error,
);

/// Returns a limit for each key, whose name no other test uses.
fn keyed(store: &impl Store, limit: Limit) -> Keyed {
    limit.named(&unique("mails")).keyed(store).unwrap()
}

/// Sends a request of this caller, and returns the permits that are left to it.
async fn left_by_rule(layer: &RateLimitLayer, key: &str) -> Option<u64> {
    let request = Request::builder().header("x-key", key).body(()).unwrap();
    let decision = decide(layer, request).await;
    decision.limits().next().unwrap().remaining()
}

async fn a_key_is_counted_as_by_a_rule_of_its_name(store: impl Settles, _: ManualClock) {
    for way in Way::OWN {
        let (name, limit) = (unique("mails"), Limit::new(5, HOUR));
        let rule = way.rule(Rule::new(&name, limit, FromHeader::new("x-key")));
        let layer = layer_of(&store, rule);
        let mails = limit.named(&name).algorithm(way.algorithm());
        let mails = mails.keyed(&store).unwrap();
        let ann = mails.of("a:n{n}");
        assert_eq!(ann.name(), layer.limiter(&name, ["a:n{n}"]).unwrap().name());
        take(&ann, 2).await;
        assert_eq!(left_by_rule(&layer, "a:n{n}").await, Some(2), "{way:?}");
        assert_eq!(free(&ann).await, 2, "{way:?}");
        assert_eq!(left_by_rule(&layer, "bob").await, Some(4), "{way:?}");
        let grant = take(&ann, 2).await;
        let limit = grant.limits().next().unwrap();
        assert_eq!(
            (limit.name(), limit.remaining(), limit.interval()),
            (&*name, Some(0), HOUR)
        );
        assert!(wait(&ann, 1).await.is_some(), "{way:?}");
    }
}

async fn an_unused_key_is_whole_and_nothing_is_stored(store: impl Settles, _: ManualClock) {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let mails = Limit::new(5, HOUR).named(&unique("mails"));
        let ann = mails.algorithm(algorithm).keyed(&store).unwrap().of("ann");
        assert_eq!(free(&ann).await, 5, "{algorithm:?}");
        assert_eq!(ann.release(1).await.unwrap(), 0, "{algorithm:?}");
        assert_eq!(ann.repair().await.unwrap(), 0, "{algorithm:?}");
        assert!(!ann.exists().await.unwrap(), "{algorithm:?}");
        assert!(!ann.delete().await.unwrap(), "{algorithm:?}");
        take(&ann, 5).await;
        let left = ann.time_to_live().await.unwrap();
        assert!(
            matches!(left, TimeToLive::Left(_)),
            "{algorithm:?}: {left:?}"
        );
        assert_eq!(ann.release(2).await.unwrap(), 2, "{algorithm:?}");
        assert_eq!(free(&ann).await, 2, "{algorithm:?}");
        assert!(ann.delete().await.unwrap(), "{algorithm:?}");
        assert_eq!(free(&ann).await, 5, "{algorithm:?}");
    }
}

async fn permits_are_waited_for_in_order(store: impl Settles, clock: ManualClock) {
    let mails = keyed(&store, Limit::new(2, HOUR));
    let ann = mails.of("ann");
    take(&ann, 2).await;
    fails(ann.acquire_many(3).await, ErrorKind::AboveRate);
    let mut first = Box::pin(ann.acquire_many(2));
    crate::limiter::pending(&mut first, &clock).await;
    // Another key, and the same one for too short a time.
    take(&mails.of("bob"), 2).await;
    refused(ann.try_acquire_for(1, SECOND).await.unwrap());
    clock.advance(HOUR);
    first.await.unwrap();
    assert_eq!(free(&mails.of("ann")).await, 0);
}

async fn lists_take_of_all_or_of_none_and_wait(store: impl Settles, clock: ManualClock) {
    let second = keyed(&store, Limit::new(2, SECOND));
    let hour = keyed(&store, Limit::new(5, HOUR));
    let all = limited(&store, Limit::new(9, HOUR)).await;
    let list = RateLimiter::all([&second.of(7), &hour.of(7), &all]).unwrap();
    granted(list.try_acquire_many(2).await.unwrap());
    let refusal = refused(list.try_acquire_many(2).await.unwrap());
    assert_eq!(refusal.retry_after(), Some(SECOND));
    assert_eq!((free(&hour.of(7)).await, free(&all).await), (3, 7));
    // Another key has a list of its own.
    let other = RateLimiter::all([&second.of(8), &hour.of(8), &all]).unwrap();
    granted(other.try_acquire().await.unwrap());
    let mut waiting = Box::pin(list.acquire_many(2));
    crate::limiter::pending(&mut waiting, &clock).await;
    clock.advance(SECOND);
    let grant = waiting.await.unwrap();
    assert_eq!((free(&hour.of(7)).await, free(&all).await), (1, 4));
    list.give_back(&grant);
    store.settled().await;
    assert_eq!((free(&hour.of(7)).await, free(&all).await), (3, 6));
    let twice = RateLimiter::all([&hour.of(7), &hour.of("7")]);
    mistake(
        twice,
        ConfigErrorKind::Rule,
        "permits of these limiters cannot",
    );
}

async fn grants_are_settled_at_what_was_really_used(store: impl Settles, _: ManualClock) {
    let tokens = keyed(&store, Limit::new(100, HOUR));
    let grant = take(&tokens.of("ann"), 20).await;
    // Of another key: no effect.
    tokens.of("bob").settle(&grant, 1);
    // The limiter is made once more for it.
    tokens.of("ann").settle(&grant, 37);
    let more = take(&tokens.of("ann"), 5).await;
    tokens.of("ann").give_back(&more);
    store.settled().await;
    assert_eq!(free(&tokens.of("ann")).await, 63);
    assert_eq!(free(&tokens.of("bob")).await, 100);
}

async fn a_key_that_is_refused_too_often_is_banned(store: impl Settles, clock: ManualClock) {
    let ban = Ban::after(2).within(MINUTE).lasting(15 * MINUTE);
    let (name, limit) = (unique("login"), Limit::new(1, MINUTE));
    let logins = limit.named(&name).ban(ban).keyed(&store).unwrap();
    let ann = logins.of("ann");
    take(&ann, 1).await;
    let said = async || refused(ann.try_acquire().await.unwrap());
    assert_eq!(said().await.kind(), RefusalKind::OverLimit);
    let banned = said().await;
    assert_eq!(banned.kind(), RefusalKind::Banned);
    assert_eq!(banned.retry_after(), Some(15 * MINUTE));
    assert!(ann.banned_until().await.unwrap().is_some());
    // Who waits does not wait for the end of a ban.
    clock.advance(MINUTE);
    fails(ann.acquire().await, ErrorKind::Banned);
    let for_an_hour = ann.try_acquire_for(1, HOUR).await.unwrap();
    assert_eq!(refused(for_an_hour).kind(), RefusalKind::Banned);
    take(&logins.of("bob"), 1).await;
    // The ban is the rule's as well.
    let rule = Rule::new(&name, limit, FromHeader::new("x-key")).ban(ban);
    let request = Request::builder().header("x-key", "ann").body(()).unwrap();
    let decision = decide(&layer_of(&store, rule), request).await;
    assert_eq!(refused(decision).kind(), RefusalKind::Banned);
    assert!(ann.unban().await.unwrap());
    take(&ann, 1).await;
    ann.ban_for(MINUTE).await.unwrap();
    assert_eq!(said().await.kind(), RefusalKind::Banned);
}

async fn a_key_of_a_list_is_not_banned_for_another(store: impl Settles, _: ManualClock) {
    let ban = Ban::after(3).within(MINUTE).lasting(15 * MINUTE);
    let logins = Limit::new(2, MINUTE).named(&unique("login")).ban(ban);
    let logins = logins.keyed(&store).unwrap();
    let [ann, bob] = ["ann", "bob"].map(|key| logins.of(key));
    take(&ann, 2).await;
    take(&bob, 1).await;
    let both = RateLimiter::all([&ann, &bob]).unwrap();
    for _ in 0..3 {
        refused(both.try_acquire_for(1, SECOND).await.unwrap());
    }
    take(&bob, 1).await;
    let banned = refused(ann.try_acquire().await.unwrap());
    assert_eq!(banned.kind(), RefusalKind::Banned);
}

/// As that of a rule, after a deploy.
async fn a_new_limit_keeps_what_is_in_use(store: impl Settles, clock: ManualClock) {
    for algorithm in [Algorithm::SlidingLog, Algorithm::Gcra] {
        let name = unique("mails");
        let of = |permits| {
            let mails = Limit::new(permits, HOUR).named(&name).algorithm(algorithm);
            mails.keyed(&store).unwrap().of("ann")
        };
        take(&of(5), 4).await;
        let larger = of(9);
        take(&larger, 5).await;
        assert!(wait(&larger, 1).await.is_some(), "{algorithm:?}");
        assert_eq!(larger.limit().await.unwrap().unwrap().permits(), 9);
        clock.advance(HOUR);
        assert_eq!(wait(&larger, 9).await, None, "{algorithm:?}");
    }
}

async fn what_would_change_a_limit_in_the_code_is_an_error(store: impl Settles, _: ManualClock) {
    let limit = Limit::new(5, HOUR);
    let ann = keyed(&store, limit).of("ann");
    take(&ann, 2).await;
    let other = Limit::per_minute(1);
    let said = fails(ann.try_set_rate(other).await, ErrorKind::Limit).to_string();
    assert!(
        said.contains("it is in the code alone: `Limit::named("),
        "{said}"
    );
    fails(ann.set_rate(other).await, ErrorKind::Limit);
    fails(ann.set_or_update_rate(other).await, ErrorKind::Limit);
    fails(ann.update_rate(other).await, ErrorKind::Limit);
    fails(ann.reset_rate(other).await, ErrorKind::Limit);
    fails(ann.expire(SECOND).await, ErrorKind::Limit);
    fails(ann.clear_expire().await, ErrorKind::Limit);
    fails(ann.rename("ann").await, ErrorKind::Limit);
    fails(ann.try_acquire_many(0).await, ErrorKind::Permits);
    let kept = ann.limit().await.unwrap().unwrap();
    assert_eq!((kept.permits(), kept.interval()), (5, HOUR));
    // An algorithm belongs to the name, which has one.
    assert_eq!(free(&ann.algorithm(Algorithm::Gcra)).await, 3);
}

on_both_stores!(a_quota_by_the_calendar, one_for_all_callers);

async fn a_quota_by_the_calendar(store: impl Settles) {
    let limit: Limit = "9/month".parse().unwrap();
    let quota = keyed(&store, limit);
    let grant = take(&quota.of("ann"), 5).await;
    assert!(wait(&quota.of("ann"), 5).await.unwrap() <= 31 * DAY);
    assert_eq!(free(&quota.of("bob")).await, 9);
    quota.of("ann").settle(&grant, 1);
    store.settled().await;
    assert_eq!(free(&quota.of("ann")).await, 8);
    let limited = RateLimiter::all([&quota.of("ann"), &quota.of("bob")]).unwrap();
    refused(limited.try_acquire_many(9).await.unwrap());
    until("it is given back", async || {
        free(&quota.of("bob")).await == 9
    })
    .await;
}

async fn one_for_all_callers(store: impl Settles) {
    let (name, limit) = (unique("quota"), Limit::new(5, HOUR));
    let quota = limit.named(&name).single(&store).unwrap();
    let layer = layer_of(&store, Rule::from(limit).named(&name));
    take(&quota, 2).await;
    assert_eq!(left_by_rule(&layer, "ann").await, Some(2));
    let same = limit.named(&name).keyed(&store).unwrap();
    assert_eq!(free(&same.of("all")).await, 2);
}

/// Three keys: whose turn it is, what it asks for, and how many milliseconds later.
type Step = (usize, u32, u64);

/// All that a decision says: whether it is a grant, the wait and what is left.
fn said(decision: &Decision) -> (Option<RefusalKind>, Option<Duration>, Option<u64>) {
    let left = decision.limits().next().unwrap().remaining();
    match decision {
        Decision::Allow(_) => (None, None, left),
        Decision::Deny(refusal) => (Some(refusal.kind()), refusal.retry_after(), left),
    }
}

/// Without HTTP as with it: every verdict, wait and rest.
#[test]
fn a_key_decides_as_its_rule() {
    let runtime = runtime();
    let step = (0usize..3, 1u32..6, 0u64..400);
    check(
        60,
        &proptest::collection::vec(step, 1..40),
        |steps: Vec<Step>| {
            for algorithm in [
                Algorithm::SlidingLog,
                Algorithm::FixedWindow,
                Algorithm::Gcra,
            ] {
                for ban in [None, Some(Ban::after(2).within(SECOND).lasting(SECOND))] {
                    runtime.block_on(decides_the_same(&steps, algorithm, ban));
                }
            }
        },
    );
}

async fn decides_the_same(steps: &[Step], algorithm: Algorithm, ban: Option<Ban>) {
    let clock = ManualClock::new();
    let stores = [0; 2].map(|_| MemoryStore::builder().clock(clock.clone()).build());
    let limit = Limit::new(4, SECOND);
    let cost = |parts: &http::request::Parts| parts.uri.path()[1..].parse().unwrap();
    let rule = limit.by(FromHeader::new("x-key")).named("mails");
    let rule = rule.algorithm(algorithm).cost_by(cost);
    let mails = limit.named("mails").algorithm(algorithm);
    let (rule, mails) = match ban {
        None => (rule, mails),
        Some(ban) => (rule.ban(ban), mails.ban(ban)),
    };
    let (layer, mails) = (layer_of(&stores[0], rule), mails.keyed(&stores[1]).unwrap());
    for (key, permits, later) in steps {
        let key = ["ann", "b{b}", "%"][*key];
        clock.advance(millis(*later));
        let request = Request::get(format!("/{permits}")).header("x-key", key);
        let by_rule = decide(&layer, request.body(()).unwrap()).await;
        let by_key = mails.of(key).try_acquire_many(*permits).await.unwrap();
        assert_eq!(
            said(&by_key),
            said(&by_rule),
            "{key} {permits} {algorithm:?}"
        );
    }
}
