//! Limits that were written by hand, or by a peer that takes any number, and that cannot be counted
//! with.

use crate::defects::{Keys, unused};
use kit::scene::*;

/// Within no time everything would be granted; the others are no whole milliseconds, or too many.
const INTERVALS: [&str; 12] = [
    "0", "-0", "-1", "-1000", "-inf", "inf", "nan", "0.5", "1.5", "1e300", "soon", "",
];
const FOREIGN: ErrorKind = ErrorKind::ForeignState;
const RATES: [&str; 6] = ["-inf", "inf", "nan", "1e300", "many", ""];

/// A limiter of each kind that looks at the hash, with this in it.
fn limiters(store: &RedisStore, field: &str, value: &str) -> [RateLimiter; 3] {
    Way::STORED.map(|way| {
        let name = unique("none");
        Keys::of(&name).plant_limit("5", 1000, "0");
        RedisServer::shared().command(&["HSET", &name, field, value]);
        way.limiter(RateLimiter::new(store, &name).unwrap())
    })
}

async fn is_an_error(limiter: &RateLimiter, what: &str) {
    println!("{what}");
    let keys = Keys::of(limiter.name());
    let fields = keys.fields();
    for _ in 0..10 {
        fails(limiter.try_acquire().await, FOREIGN);
        fails(limiter.try_acquire_many(5).await, FOREIGN);
        fails(limiter.try_acquire_for(1, millis(20)).await, FOREIGN);
    }
    fails(limiter.available_permits().await, FOREIGN);
    fails(limiter.release(1).await, FOREIGN);
    fails(limiter.repair().await, FOREIGN);
    fails(limiter.limit().await, FOREIGN);
    assert_eq!((keys.fields(), keys.books()), (fields, unused()), "{what}");
    // Setting a limit mends it.
    limiter.set_rate(Limit::per_second(5)).await.unwrap();
    assert_eq!(free(limiter).await, 5);
}

#[tokio::test]
async fn a_stored_limit_that_cannot_be_counted_with_is_an_error() {
    let stores = [
        shared_redis().client_clock(ManualClock::new()),
        shared_redis(),
    ]
    .map(|store| store.build().unwrap());
    let intervals = INTERVALS.iter().map(|value| ("interval", *value));
    let rates = RATES.iter().map(|value| ("rate", *value));
    for (field, value) in intervals.chain(rates) {
        for store in &stores {
            for limiter in limiters(store, field, value) {
                is_an_error(&limiter, &format!("{field} {value:?}: {limiter:?}")).await;
            }
        }
    }
}

/// Nor does it pass where it is one of several limits, where permits are left from before, or where
/// the code has a limit.
#[tokio::test]
async fn nor_is_anything_granted_by_it_in_any_other_way() {
    let store = shared_redis().build().unwrap();
    for value in INTERVALS {
        let [limiter, in_slots, ..] = limiters(&store, "interval", value);
        for limiter in [&limiter, &in_slots] {
            let other = limited(&store, Limit::per_second(5)).await;
            let all = RateLimiter::all([&other, limiter]).unwrap();
            fails(all.try_acquire().await, FOREIGN);
            assert_eq!(free(&other).await, 5);

            Keys::of(limiter.name()).plant_value("3");
            fails(limiter.try_acquire().await, FOREIGN);

            let rule = Rule::shared(limiter.name()).or_init(Limit::per_second(5));
            let rule = rule.on_failure(FailurePolicy::Deny);
            let layer = RateLimitLayer::new(&store, rule);
            let refusal = refused(decide(&layer, Request::new(())).await);
            let kind = refusal.error().map(tower_ratelimit::Error::kind);
            assert_eq!(kind, Some(FOREIGN), "{value:?}");
        }
    }
}
