//! `ratelimit check`: on the files of this repository, and on those that tests refuse.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{file, ratelimit};

/// The files of rules of the repository. The others are tables of tests, or of tools.
pub(crate) const FILES: [&str; 3] = [
    "examples/limits.toml",
    "examples/service.toml",
    "tests/pure/config/good.toml",
];

#[test]
fn every_file_of_rules_is_fine() {
    for path in FILES {
        let ran = ratelimit(&["check", path], b"");
        assert_eq!(ran.status, 0, "{}{}", ran.output, ran.said);
        assert_eq!(ran.output, format!("{path}: no errors\n"));
    }
}

#[test]
fn days_weeks_and_months_are_checked() {
    let rules = |rate: &str, zone: &str| {
        let rule = format!("[rules.api]\nrate = \"{rate}\"\nzone = \"{zone}\"\nby = \"peer\"\n");
        let path = file(
            "calendar.toml",
            (rule + "[otherwise]\nrules = [\"api\"]").as_bytes(),
        );
        ratelimit(&["check", path.to_str().unwrap()], b"")
    };
    assert_eq!(rules("10000/month", "Europe/Berlin").status, 0);
    let wrong = rules("10000/month", "Berlin");
    assert_eq!(wrong.status, 1);
    assert!(
        wrong
            .output
            .contains("line 3, rules.api.zone: \"Berlin\" is not"),
        "{}",
        wrong.output
    );
}

#[test]
fn names_of_the_code_are_assumed_and_listed_unless_it_is_strict() {
    let text = r#"
        [keys.tenant]
        from = "header:x-tenant"
        digest = "k1"

        [rules.api]
        tiers = { free = "10/1m", paid = "100/1m" }
        tier-by = "plan"
        by = "user or tenant or peer"
        cost = "size"
        charge-if = "missed"

        [[on]]
        when = "beta"
        rules = ["api"]

        [otherwise]
        rules = ["api"]
    "#;
    let path = file("assumed.toml", text.as_bytes());
    let path = path.to_str().unwrap();
    let ran = ratelimit(&["check", path], b"");
    assert_eq!(ran.status, 0, "{}{}", ran.output, ran.said);
    let said: Vec<_> = ran.said.lines().collect();
    let assumed = [
        ("key", "user", ""),
        ("choice of a tier", "plan", ", which is the first"),
        ("cost", "size", ", which is 1"),
        ("outcome", "missed", ", which is charged"),
        ("condition", "beta", ", which does not hold"),
        ("secret", "k1", ""),
    ];
    let line = |(what, name, value): (&str, &str, &str)| {
        format!("ratelimit: assumed that the code has the {what} \"{name}\"{value}")
    };
    assert_eq!(said, assumed.map(line));
    let strict = ratelimit(&["check", path, "--strict"], b"");
    assert_eq!(strict.status, 1, "{}{}", strict.output, strict.said);
    assert!(strict.output.contains("line "), "{}", strict.output);
}

/// A change of the good file, as in `tests/pure/config/bad.toml`.
#[derive(Deserialize)]
struct Mistake {
    from: String,
    to: String,
}

#[test]
fn every_bad_file_is_refused_with_its_line() {
    let good = include_str!("../pure/config/good.toml");
    let bad: BTreeMap<String, Vec<Mistake>> =
        toml::from_str(include_str!("../pure/config/bad.toml")).unwrap();
    let mut taken = Vec::new();
    for Mistake { from, to } in &bad["mistake"] {
        let path = file("bad.toml", good.replacen(from, to, 1).as_bytes());
        let path = path.to_str().unwrap();
        let ran = ratelimit(&["check", path], b"");
        match ran.status {
            0 => taken.push(to.as_str()),
            _ => assert_eq!(ran.status, 1, "{to}: {}", ran.said),
        }
        assert!(
            ran.output.starts_with(&format!("{path}: ")),
            "{}",
            ran.output
        );
    }
    // They name what only code defines, and are listed instead.
    let names = [
        "tier-by = \"plans\"",
        "cost = \"row\"",
        "charge-if = \"fail\"",
        "digest = \"k2\"",
        "\"users\"",
        "when = \"bulky\"",
    ];
    assert_eq!(taken, names);
}
