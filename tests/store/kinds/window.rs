//! Fixed-window limiters: names of rules, and the state in Redis.

mod state;

use super::*;

#[test]
fn rules_of_one_name_count_in_one_way() {
    let store = MemoryStore::new();
    let rule = || Limit::per_second(1).by(Constant("all")).named("one");
    let layer = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let first = layer(rule()).unwrap();
    let second = layer(rule().algorithm(Algorithm::FixedWindow));
    let error = second.unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Duplicate);
    assert!(error.to_string().contains("named \"one\""), "{error}");
    drop(first);
    assert!(layer(rule().algorithm(Algorithm::FixedWindow)).is_ok());
}
