//! `ratelimit diff`: what it calls the same, and what its answer needs.

use crate::{
    contains,
    rules::{START, Sent, combined, path_of},
    run,
};

/// Returns what `diff` prints of two texts, in files of these names.
fn diff(names: [&str; 2], [old, new]: [&str; 2]) -> String {
    let (old, new) = (path_of(names[0], old), path_of(names[1], new));
    let ran = run(&format!("diff '{old}' '{new}'"));
    assert_eq!(ran.status, 0, "{}{}", ran.output, ran.said);
    ran.output
}

/// A waiting request leaves at once in `diff`, so it shows no full queue, and takes no permits.
#[test]
fn a_new_file_in_which_requests_would_wait_is_no_answer() {
    let rules = |rate: &str, more: &str| {
        let text = format!(
            "[rules.all]\nrate = \"{rate}\"\nby = \"peer\"\n{more}[otherwise]\nrules = [\"all\"]\n"
        );
        path_of(&format!("waits{}.toml", text.len()), &text)
    };
    let plain = rules("100/1m", "");
    let waits = rules("10/1m", "wait = \"1m\"\nqueue = 5\n");
    let longer = rules("10/1m", "wait = \"1m\"\nqueue = 50\n");
    let sent: Vec<Sent> = (0..50).map(|at| (START + at, 1, false)).collect();
    let log = path_of("waits.log", &combined(&sent));
    let diff = |old: &str, new: &str| {
        let fails = "--fail-on-newly-refused";
        run(&format!("diff '{old}' '{new}' --log '{log}' {fails}"))
    };
    for old in [&plain, &longer] {
        let ran = diff(old, &waits);
        assert_eq!(ran.status, 1, "{}{}", ran.output, ran.said);
        contains(&ran.output, "Callers newly refused: 0\n");
        contains(&ran.said, "requests would wait in the new file");
    }
    for (old, new) in [(&waits, &plain), (&waits, &waits)] {
        let ran = diff(old, new);
        assert_eq!(ran.status, 0, "{}{}", ran.output, ran.said);
    }
}

#[test]
fn only_spellings_of_one_limit_are_the_same() {
    let diff = |old: &str, new: &str| diff(["spelt.toml", "respelt.toml"], [old, new]);
    let is_same = |old: &str, new: &str| diff(old, new) == "The files mean the same.\n";
    let file = |fields: &str, values: &str| {
        format!(
            "[rules.all]\n{fields}\n[otherwise]\nrules = [\"all\"]\n\
             [[deny]]\nby = \"user\"\nvalues = {values}\n"
        )
    };
    let rate = "by = 'peer'\nrate = '60/1m'";
    for (one, other, expected) in [
        (rate, "by = 'peer'\nrate = '60/60s'", true),
        (rate, "by = ['peer']\nrate = '60/1m'", false),
        (rate, "by = 'peer'\nrate = '60/1m'\ncost = 1", false),
        (
            "shared = '5/s'\ninit = '60/1m'",
            "shared = '5/s'\ninit = '60/60s'",
            true,
        ),
        ("shared = '5/s'", "shared = '5/1s'", false),
        (
            "by = 'peer'\nrate = '60/1m'\ncost = '5'",
            "by = 'peer'\nrate = '60/1m'\ncost = 5",
            false,
        ),
        (
            "by = 'peer'\ntier-by = 'plan'\ntiers = { free = '60/1m' }",
            "by = 'peer'\ntier-by = 'plan'\ntiers = { free = '60/60s' }",
            true,
        ),
    ] {
        let same = is_same(&file(one, "['a']"), &file(other, "['a']"));
        assert_eq!(same, expected, "{one} {other}");
    }
    // A rule may be called as a field is that holds limits.
    let named = |shared: &str| file(&format!("shared = '{shared}'"), "['a']");
    let named = |shared| named(shared).replace("all", "tiers");
    assert!(!is_same(&named("5/s"), &named("5/1s")));
    let shown = diff(
        &file(rate, r#"["a, b", "60/1m"]"#),
        &file(rate, r#"["a", "b", "60/60s"]"#),
    );
    let expected = [
        r#"deny by user, values [a, b, 60/60s]   entry  -        present"#,
        r#"deny by user, values ["a, b", 60/1m]  entry  present  -"#,
    ];
    expected.iter().for_each(|line| contains(&shown, line));
}

/// Texts that look like parts of a list, or like a number or a limit.
const TEXTS: [&str; 13] = [
    "",
    "a",
    "a, b",
    "\"a\"",
    "a\",\"b",
    "[a]",
    "a]",
    "5",
    "true",
    "60/1m",
    "60/60s",
    "\u{202e}",
    "\\u{202e}",
];

#[test]
fn lists_of_different_texts_are_never_the_same() {
    let diff = |old: &str, new: &str| diff(["list.toml", "others.toml"], [old, new]);
    let is_same = |old: &str, new: &str| diff(old, new) == "The files mean the same.\n";
    let file = |values: &[&str]| {
        let values: Vec<_> = values.iter().copied().map(toml::Value::from).collect();
        let values = toml::Value::from(values);
        format!(
            "[rules.all]\nrate = \"1/1m\"\nby = \"peer\"\n[otherwise]\nrules = [\"all\"]\n\
             [[deny]]\nby = \"user\"\nvalues = {values}\n"
        )
    };
    for one in TEXTS {
        for other in TEXTS.into_iter().filter(|other| *other != one) {
            let [both, comma, quotes] = [
                file(&[one, other]),
                file(&[&format!("{one}, {other}")]),
                file(&[&format!("{one}\",\"{other}")]),
            ];
            assert!(
                !is_same(&file(&[one]), &file(&[other])),
                "{one:?} {other:?}"
            );
            assert!(!is_same(&both, &comma), "{one:?} {other:?}");
            assert!(!is_same(&both, &quotes), "{one:?} {other:?}");
        }
    }
}
