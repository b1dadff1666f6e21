//! `ratelimit check`: on the files of this repository, and on those that tests refuse.

use std::{collections::BTreeMap, process::Command};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{assert_documented, contains, file, ratelimit};

/// The files of rules of the repository.
pub(crate) const FILES: [&str; 3] = [
    "examples/server/limits.toml",
    "examples/service.toml",
    "tests/pure/config/good.toml",
];

/// What the others are: a path, the end of one, or the folder of several.
const OTHERS: [(&str, &str); 7] = [
    (".cargo/mutants.toml", "settings of cargo-mutants"),
    ("Cargo.toml", "a manifest of cargo"),
    ("benches/goals/instructions.toml", "a table of a benchmark"),
    ("clippy.toml", "settings of clippy"),
    ("deny.toml", "settings of cargo-deny"),
    ("/Cargo.toml", "a manifest of cargo"),
    ("tests/", "tables of tests, which have rules in texts"),
];

#[test]
fn every_toml_file_is_one_of_rules_or_has_a_reason() {
    let listed = Command::new("git")
        .args(["ls-files", "*.toml"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for path in FILES {
        assert!(listed.lines().any(|it| it == path), "{path}");
    }
    for path in listed.lines() {
        let ran = ratelimit(&["check", path], b"");
        let is_it = |other: &str| match other {
            _ if other.ends_with('/') => path.starts_with(other),
            _ if other.starts_with('/') => path.ends_with(other),
            _ => path == other,
        };
        let reason = OTHERS.iter().find(|(other, _)| is_it(other));
        match reason {
            _ if FILES.contains(&path) => {
                assert_eq!(ran.status, 0, "{}{}", ran.output, ran.said);
                assert_eq!(ran.output, format!("{path}: no errors\n"));
            }
            Some((_, reason)) => assert_eq!(ran.status, 1, "{path}: is it {reason}?"),
            None => panic!("{path} is neither among FILES nor OTHERS"),
        }
    }
}

#[test]
fn days_weeks_and_months_are_checked() {
    let rules = |rate: &str, zone: &str| {
        let rule = format!("[rules.api]\nrate = \"{rate} {zone}\"\nby = \"peer\"\n");
        let text = rule + "[otherwise]\nrules = [\"api\"]";
        let path = file("calendar.toml", text.as_bytes());
        ratelimit(&["check", path.to_str().unwrap()], b"")
    };
    assert_eq!(rules("10000/month", "Europe/Berlin").status, 0);
    let wrong = rules("10000/month", "Berlin");
    assert_eq!(wrong.status, 1);
    contains(&wrong.output, "line 2, rules.api.rate: \"Berlin\" is not");
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
        ("chooser of tiers", "plan", ", which chooses the first"),
        ("condition", "beta", ", which does not hold"),
        ("cost", "size", ", which is 1"),
        ("key", "user", ""),
        ("outcome", "missed", ", which is charged"),
        ("secret", "k1", ""),
    ];
    let line = |(what, name, value): (&str, &str, &str)| {
        format!("ratelimit: assumed that the code has the {what} \"{name}\"{value}")
    };
    assert_eq!(said, assumed.map(line));
    let object = ratelimit(&["check", path, "--json"], b"");
    let object: Value = serde_json::from_str(&object.output).unwrap();
    let code = assumed.map(|(kind, name, _)| json!({ "kind": kind, "name": name }));
    assert_eq!(object, json!({ "schema": 1, "error": null, "code": code }));
    let strict = ratelimit(&["check", path, "--strict"], b"");
    assert_eq!(strict.status, 1, "{}{}", strict.output, strict.said);
    contains(&strict.output, "line ");
}

/// A name that is one letter away from one that is defined is a typing error, unless an option says
/// that the code defines it, too.
#[test]
fn a_misspelt_word_is_not_assumed() {
    let check = |by: &str, charged: &str, options: &[&str]| {
        let text = format!(
            "[keys.client]\nfrom = 'header:x-client'\n[rules.api]\nrate = '1/1m'\nby = '{by}'\n\
             charge-if = '{charged}'\n[otherwise]\nrules = ['api']\n"
        );
        let path = file("misspelt.toml", text.as_bytes());
        let words = [&["check", path.to_str().unwrap()], options].concat();
        ratelimit(&words, b"")
    };
    for (by, charged, near, name) in [
        ("pear", "failure", "peer", "pear"),
        ("pere", "failure", "peer", "pere"),
        ("cleint", "failure", "client", "cleint"),
        ("peer", "failur", "failure", "failur"),
        ("peer", "sucess", "success", "sucess"),
    ] {
        let ran = check(by, charged, &[]);
        assert_eq!(ran.status, 1, "{}{}", ran.output, ran.said);
        contains(&ran.output, &format!("did you mean `{near}`?"));
        contains(&ran.said, &format!("add `--defined {name}`"));
        let defined = check(by, charged, &["--strict", "--defined", name]);
        assert_eq!((defined.status, defined.said.as_str()), (0, ""));
    }
    // `user` is the usual name of a key, though it is near `peer`.
    let assumed = check("user or users", "missed", &[]);
    assert_eq!(assumed.status, 0, "{}{}", assumed.output, assumed.said);
    let unknown = check("peer", "failure", &["--defined", "tenant"]);
    assert_eq!(unknown.status, 2, "{}", unknown.output);
    contains(&unknown.said, "no file names \"tenant\"");
    // A tier is not told by its chooser's name.
    let text = "[rules.api]\ntier-by = 'plan'\ntiers = { free = '1/1m' }\nby = 'peer'\n\
                [otherwise]\nrules = ['api']\n";
    let path = file("chosen.toml", text.as_bytes());
    let path = path.to_str().unwrap();
    let ran = ratelimit(&["check", path, "--strict", "--defined", "plan"], b"");
    assert_eq!(ran.status, 1, "{}", ran.output);
    contains(&ran.said, "add `--tier plan=TIER`");
}

/// A key of the file that stands behind its first use is none of the code.
#[test]
fn a_key_that_is_defined_too_late_is_named() {
    let text = "[keys.a]\nfrom = 'b'\n[keys.b]\nfrom = 'peer'\n[rules.api]\nrate = '1/1m'\n\
                by = 'a'\n[otherwise]\nrules = ['api']\n";
    let path = file("late.toml", text.as_bytes());
    let ran = ratelimit(&["check", path.to_str().unwrap()], b"");
    assert_eq!(ran.status, 1, "{}", ran.said);
    contains(&ran.output, "line 2, keys.a.from: there is no key \"b\"");
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
        let object = ratelimit(&["check", path, "--json"], b"");
        assert_eq!(object.status, ran.status);
        let object: Value = serde_json::from_str(&object.output).unwrap();
        assert_documented(&object);
        if let Some(reason) = object["error"]["reason"].as_str() {
            let place = object["error"]["place"].as_str();
            let place = place.map_or(String::new(), |place| format!("{place}: "));
            assert_eq!(ran.output, format!("{path}: {place}{reason}\n"));
        }
        match ran.status {
            0 => taken.push(to.as_str()),
            _ => assert_eq!(ran.status, 1, "{to}: {}", ran.said),
        }
        let output = ran.output;
        assert!(output.starts_with(&format!("{path}: ")), "{output}");
    }
    // They name what only code defines, and are listed instead.
    let names = [
        r#"tier-by = "plans""#,
        r#"cost = "row""#,
        r#"charge-if = "fail""#,
        r#"digest = "k2""#,
        r#""users""#,
        r#""account-of-the-caller""#,
        r#"when = "bulky""#,
    ];
    assert_eq!(taken, names);
}
