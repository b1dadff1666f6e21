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
