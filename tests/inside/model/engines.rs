//! What the scripts may ask of a server: one of Redis 6.2, and one whose Lua is newer than 5.1, in
//! which `tests/run.sh` runs these tests once more.

use super::*;

/// How many arguments each call of a command has in the text.
fn arguments_of(text: &str, command: &str) -> Vec<usize> {
    let quoted = format!("'{command}'");
    let calls = text.match_indices(&quoted).map(|(place, _)| {
        let (mut depth, mut commas) = (0, 0);
        for letter in text[place + quoted.len()..].chars() {
            match letter {
                '(' | '{' => depth += 1,
                ')' | '}' if depth == 0 => break,
                ')' | '}' => depth -= 1,
                ',' if depth == 0 => commas += 1,
                _ => {}
            }
        }
        commas
    });
    calls.collect()
}

// NX, XX, GT and LT came with 7.0.
#[test]
fn no_time_to_live_is_set_with_what_redis_6_lacks() {
    let mut found = 0;
    for script in redisson::all() {
        for arguments in arguments_of(script.text(), "PEXPIRE") {
            assert_eq!(arguments, 2, "{}", script.text());
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}
