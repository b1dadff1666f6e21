//! Invalid settings are refused when a limiter is built.

use super::*;

fn built(rule: Rule) -> Result<(), ConfigError> {
    let store = MemoryStore::new();
    let layer = RateLimitLayer::builder(&store).otherwise(rule).build();
    layer.map(drop)
}

fn per_minute() -> Rule {
    Limit::per_minute(100_000).by(Constant("all")).named("feed")
}

/// The number in the error, and that it names whose it is.
#[track_caller]
fn refused(rule: Rule) -> u32 {
    let error = built(rule).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Limit);
    let slots = error.reason().strip_prefix("\"feed\" cannot have ");
    let slots = slots.and_then(|rest| rest.split_once(" slots: "));
    slots.expect("the rule and the number").0.parse().unwrap()
}

#[test]
fn slots_that_no_interval_has_are_refused() {
    for slots in [0, 1, 9, 10_001, u32::MAX] {
        assert_eq!(refused(per_minute().slots(slots)), slots);
        let limiter = RateLimiter::new(&MemoryStore::new(), "feed").unwrap();
        let error = limiter.slots(slots).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("\"feed\" cannot have {slots} slots"))
        );
    }
    for slots in [10, 10_000] {
        built(per_minute().slots(slots)).unwrap();
    }
}

#[test]
fn slots_shorter_than_a_millisecond_are_refused_where_the_interval_is_known() {
    let short = Limit::new(5, millis(999));
    for rule in known(short) {
        let rule = rule.named("feed");
        assert_eq!(refused(rule.clone().slots(1000)), 1000);
        built(rule.slots(999)).unwrap();
    }
    // Elsewhere it is not known: there is a slot for each millisecond then.
    built(Rule::new("feed", limit_by(move |_| short), Constant("all")).slots(1000)).unwrap();
    built(Rule::shared("feed").slots(10_000)).unwrap();
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

#[test]
fn only_a_log_has_slots() {
    let windowed = || per_minute().algorithm(Algorithm::FixedWindow);
    assert_eq!(refused(windowed().slots(100)), 100);
    built(windowed()).unwrap();
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
