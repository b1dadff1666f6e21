//! Limits by key without HTTP, `Keyed`, on both stores: whose limiter a key has, and what holds of
//! a limit in the code.

mod names;

use kit::scene::*;
use tower_ratelimit::{Ban, LimiterKey};

const MINUTE: Duration = secs(60);

on_both_by_a_clock!(
    a_key_is_counted_as_by_a_rule_of_its_name,
    a_key_of_a_list_is_not_banned_for_another,
    a_new_limit_keeps_what_is_in_use,
);

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

on_both_stores!(one_for_all_callers);

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
