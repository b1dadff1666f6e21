//! `ratelimit diff`: what it calls the same, and what its answer needs.

use crate::{
    contains,
    rules::{START, Sent, combined, path_of},
    run,
};

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
