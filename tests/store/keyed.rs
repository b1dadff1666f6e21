//! Limits by key without HTTP, `Keyed`, on both stores: whose limiter a key has, and what holds of
//! a limit in the code.

mod names;

use kit::scene::*;
use tower_ratelimit::{Ban, LimiterKey};

const MINUTE: Duration = secs(60);

on_both_by_a_clock!(a_key_of_a_list_is_not_banned_for_another);

on_both_stores!(one_for_all_callers);

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

/// Its key is `all`, as that of a rule made of a limit alone.
async fn one_for_all_callers(store: impl Settles) {
    let (name, limit) = (unique("quota"), Limit::new(5, HOUR));
    let quota = limit.named(&name).single(&store).unwrap();
    let layer = layer_of(&store, Rule::from(limit).named(&name));
    take(&quota, 2).await;
    decide(&layer, Request::new(())).await.assert_remaining(2);
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
