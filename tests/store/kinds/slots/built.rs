//! Limiters and rules that are built: `tests/web/tower/config.rs` has what is refused then.

use super::*;

fn per_minute() -> Rule {
    Limit::per_minute(100_000).by(Constant("all")).named("feed")
}

#[tokio::test]
async fn a_stored_interval_may_be_as_short() {
    for interval in [1, 5, 10, 999] {
        let clock = ManualClock::new();
        let store = MemoryStore::new().clock(clock.clone());
        let limiter = RateLimiter::new(&store, "feed").unwrap();
        let limiter = limiter.slots(10_000).unwrap();
        let limit = Limit::new(5, millis(interval));
        limiter.try_set_rate(limit).await.unwrap();
        take(&limiter, 5).await;
        // A slot is a millisecond: it ends when it begins.
        assert_eq!(wait(&limiter, 1).await, interval.into());
        clock.advance(millis(interval));
        assert_eq!(wait(&limiter, 5).await, 0);
    }
}

/// They are of who notes, and not of the limiter.
#[test]
fn rules_of_one_name_may_note_otherwise() {
    let store = MemoryStore::new();
    let layer = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let (first, second) = (layer(per_minute()), layer(per_minute().slots(100)));
    assert!(first.is_ok() && second.is_ok());
    // But not two that are charged together.
    let rules = [
        Rule::shared("orders").named("one").slots(10),
        Rule::shared("orders").named("other").slots(20),
    ];
    let together = RateLimitLayer::builder(&store).otherwise(rules).build();
    let said = "rules \"one\" and \"other\" of one entry charge the same limiter: ";
    mistake(together, ConfigErrorKind::Rule, said);
}
