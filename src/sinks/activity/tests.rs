//! Tests the numbers of the page against a ledger, and its bounds.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::values::{
    error::{ConfigError, ErrorKind},
    observe::{ObservedRule, Origin, RuleResult},
};

fn rule<'a>(
    name: &'a str,
    result: RuleResult,
    caller: u64,
    observed: &'a ObservedRule,
) -> DecidedRule<'a> {
    DecidedRule {
        rule: Some(name),
        result,
        shadow: false,
        permits: 1,
        limit: Some(crate::Limit::new(5, Duration::from_secs(10))),
        remaining: None,
        key: None,
        key_hash: caller,
        observed,
    }
}

fn decide(activity: &Activity, result: RequestResult, source: Source, rules: &[DecidedRule<'_>]) {
    activity.decided(&Decided {
        result,
        source,
        error: None,
        waited: None,
        rules,
    });
}

fn refuse(activity: &Activity, name: &str, caller: u64, observed: &ObservedRule) {
    let rule = rule(name, RuleResult::Deny, caller, observed);
    decide(activity, RequestResult::Deny, Source::Store, &[rule]);
}

fn call(millis: u64, callers: usize, result: Result<(), ErrorKind>) -> StoreCall<'static> {
    StoreCall {
        operation: "a",
        node: None,
        callers,
        duration: Duration::from_millis(millis),
        result,
    }
}

/// A number in a table of results by source.
fn number(of: &Value, result: &str, source: Source) -> u64 {
    of[result][source.as_str()].as_u64().unwrap_or_default()
}

const SOURCES: [Source; 3] = [Source::Store, Source::Cache, Source::None];

proptest! {
    /// The sums of a page are those of a ledger, whatever happened in which order, also where rules
    /// have a second observer.
    #[test]
    fn sums_are_those_of_a_ledger(
        events in prop::collection::vec(
            (0..2_usize, 0..3_usize, 0..9_usize, 0..11_usize, 0..3_usize), 0..400,
        )
    ) {
        let activities = [Activity::new(), Activity::new()];
        let names = ["a", "b", "c"];
        let observed: [ObservedRule; 3] = Default::default();
        let (mut by_rule, mut by_request) = (HashMap::new(), HashMap::new());
        for (page, at, result, request, source) in events {
            let (result, request) = (RuleResult::ALL[result].0, RequestResult::ALL[request].0);
            let (source, name) = (SOURCES[source], names[at]);
            let rules = [rule(name, result, at as u64, &observed[at])];
            decide(&activities[page], request, source, &rules);
            *by_rule.entry((page, name, result.as_str(), source)).or_insert(0) += 1;
            *by_request.entry((page, request.as_str(), source)).or_insert(0) += 1;
        }
        for (page, activity) in activities.iter().enumerate() {
            let shown = activity.snapshot();
            for source in SOURCES {
                for (name, (_, result)) in names.iter().flat_map(|name| RuleResult::ALL.map(|it| (*name, it))) {
                    let rows = shown["rules"].as_array().unwrap();
                    let row = rows.iter().find(|row| row["name"] == name);
                    let counted = row.map_or(0, |row| number(&row["results"], result, source));
                    let expected = by_rule.get(&(page, name, result, source)).copied();
                    prop_assert_eq!(counted, expected.unwrap_or_default());
                }
                for (_, result) in RequestResult::ALL {
                    let expected = by_request.get(&(page, result, source)).copied();
                    let counted = number(&shown["requests"], result, source);
                    prop_assert_eq!(counted, expected.unwrap_or_default());
                }
            }
        }
    }

    /// A number is never too low, and too high by its error at most; that is at most a 64th of all.
    #[test]
    fn no_number_is_further_off_than_its_error(
        callers in prop::collection::vec(prop_oneof![0..4_u64, 0..500_u64], 1..4_000)
    ) {
        let (mut top, mut ledger) = (TopCallers::default(), HashMap::new());
        for caller in &callers {
            top.add(None, (*caller, None), 1, 0);
            *ledger.entry(format!("{caller:016x}")).or_insert(0_u64) += 1;
        }
        let bound = (callers.len() / callers::FOLLOWED) as u64;
        let shown: Vec<_> = top.top(usize::MAX).iter().map(|row| json!(row)).collect();
        prop_assert!(shown.len() <= callers::FOLLOWED);
        for row in &shown {
            let [refused, error] = ["refused", "error"].map(|name| row[name].as_u64().unwrap());
            let truth = ledger[row["caller"].as_str().unwrap()];
            prop_assert!(error <= bound, "{error} > {bound}");
            prop_assert!((refused - error..=refused).contains(&truth), "{truth}: {row}");
        }
        for (caller, count) in ledger.iter().filter(|(_, count)| **count > bound) {
            let is_shown = shown.iter().any(|row| row["caller"] == caller.as_str());
            prop_assert!(is_shown, "{caller} with {count} of {}", callers.len());
        }
    }
}

/// A handful is shown in full; of a flood a sample, which callers that take turns cannot escape.
#[test]
fn a_sample_stands_for_all() {
    for (refusals, callers) in [(1, 1), (40, 4), (16_000, 16), (50_000, 10), (40_000, 13)] {
        let (activity, observed) = (Activity::new(), ObservedRule::default());
        for refusal in 0..refusals {
            refuse(&activity, "a", 1 + refusal % callers, &observed);
        }
        let shown = activity.snapshot();
        let rows = shown["callers"].as_array().unwrap();
        assert_eq!(rows.len() as u64, callers.min(TOP_CALLERS as u64));
        for row in rows {
            let (shown, truth) = (row["refused"].as_u64().unwrap(), refusals / callers);
            // A handful is exact.
            let off = if refusals <= 256 { 0 } else { truth / 4 };
            assert!(shown.abs_diff(truth) <= off, "{shown}, not {truth}");
        }
    }
}

#[test]
fn memory_is_bounded() {
    let activity = Activity::new();
    let names: Vec<_> = (0..300).map(|number| format!("rule-{number}")).collect();
    let observed: Vec<_> = names.iter().map(|_| ObservedRule::default()).collect();
    for (at, name) in names.iter().enumerate() {
        refuse(&activity, name, at as u64, &observed[at]);
        let node = format!("node-{at}");
        let (node, connected) = (node.as_str(), at % 2 == 0);
        activity.changed(&StateChange::Connection { node, connected });
        activity.changed(&StateChange::Rules {
            refused: None,
            by: Origin::Code,
        });
    }
    let shown = activity.snapshot();
    let rules = shown["rules"].as_array().unwrap();
    // The last row is that of all others.
    assert_eq!(rules.len(), MOST_RULES + 1);
    let others = &rules[MOST_RULES];
    assert_eq!(others["name"], "(other rules)");
    assert_eq!(
        number(&others["results"], "deny", Source::Store),
        300 - MOST_RULES as u64
    );
    assert_eq!(shown["callers"].as_array().unwrap().len(), TOP_CALLERS);
    assert_eq!(shown["nodes"].as_object().unwrap().len(), MOST_NODES);
    assert_eq!(shown["reloads"].as_array().unwrap().len(), MOST_RELOADS);
    // Rules that are gone make room for others.
    drop(observed);
    refuse(&activity, "new", 1, &ObservedRule::default());
    let shown = activity.snapshot();
    assert_eq!(shown["rules"][0]["name"], "new");
}

#[test]
fn a_rule_keeps_its_numbers_over_a_reload() {
    let activity = Activity::new();
    let old = ObservedRule::default();
    refuse(&activity, "a", 1, &old);
    assert_eq!(activity.snapshot()["rules"][0]["met"], true);
    drop(old);
    assert_eq!(activity.snapshot()["rules"][0]["met"], false);
    refuse(&activity, "a", 1, &ObservedRule::default());
    let shown = activity.snapshot();
    assert_eq!(
        number(&shown["rules"][0]["results"], "deny", Source::Store),
        2
    );
}

#[test]
fn a_key_is_shown_where_the_rule_says_so_and_is_cut() {
    let (activity, observed) = (Activity::new(), ObservedRule::default());
    let long = "k".repeat(10_000);
    let [mut shown, hidden] = ["a", "b"].map(|name| rule(name, RuleResult::Deny, 1, &observed));
    shown.key = Some(&long);
    let rules = [shown, hidden];
    decide(&activity, RequestResult::Deny, Source::Store, &rules);
    let callers = &activity.snapshot()["callers"];
    let lengths = [0, 1].map(|row| callers[row]["key"].as_str().map(str::len));
    assert!(
        lengths.contains(&None) && lengths.contains(&Some(160)),
        "{callers}"
    );
}

#[test]
fn calls_are_those_of_the_last_seconds() {
    let mut calls = RecentCalls::default();
    assert_eq!(calls.shown(100), Value::Null);
    calls.add(&call(900, 1, Err(ErrorKind::Timeout)), 3, || 3);
    (0..98).for_each(|_| calls.add(&call(2, 3, Ok(())), 5, || 5));
    calls.add(&call(50, 0, Err(ErrorKind::Unavailable)), 9, || 9);
    let shown = calls.shown(9);
    assert_eq!(shown["calls"], 100);
    assert_eq!(shown["failed"], json!({ "timeout": 1, "unavailable": 1 }));
    let millis = |of: &str| shown[of].as_f64().unwrap();
    assert!((2.0..2.6).contains(&millis("p50_ms")), "{shown}");
    assert!((50.0..64.0).contains(&millis("p99_ms")), "{shown}");
    assert!((2.9..3.0).contains(&millis("callers")), "{shown}");
    assert_eq!(shown["unanswered_since"], 9);
    // A place is used again ten seconds later.
    calls.add(&call(1, 1, Ok(())), 13, || 13);
    assert_eq!(calls.shown(13)["unanswered_since"], Value::Null);
    assert_eq!(calls.shown(13)["calls"], 100);
    assert_eq!(calls.shown(15)["calls"], 2);
    assert_eq!(calls.shown(100)["calls"], 0);
}

#[test]
fn a_server_is_shown_with_when_it_was_lost() {
    let activity = Activity::new();
    for connected in [true, false, false, true] {
        activity.changed(&StateChange::Connection {
            node: "redis:1",
            connected,
        });
        let shown = activity.snapshot();
        assert_eq!(shown["nodes"]["redis:1"]["connected"]["is"], connected);
    }
    activity.changed(&StateChange::Breaker {
        node: "redis:1",
        open: true,
    });
    let shown = activity.snapshot();
    assert_eq!(shown["nodes"].as_object().unwrap().len(), 1);
    assert_eq!(shown["nodes"]["redis:1"]["open"]["is"], true);
}

#[test]
fn a_refused_reload_says_why() {
    let activity = Activity::new();
    let error: ConfigError = "5/1x".parse::<crate::Limit>().unwrap_err();
    activity.changed(&StateChange::Rules {
        refused: None,
        by: Origin::Code,
    });
    activity.changed(&StateChange::Rules {
        refused: Some(&error),
        by: Origin::File,
    });
    let shown = activity.snapshot();
    assert_eq!(shown["reloads"][0]["refused"], error.to_string());
    assert_eq!(shown["reloads"][1]["refused"], Value::Null);
}
