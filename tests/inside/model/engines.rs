//! What the scripts may ask of a server: one of Redis 6.2, and one whose Lua is newer than 5.1, in
//! which `tests/run.sh` runs these tests once more.

use super::*;
use crate::store::redis::redisson::sliding_log::ACQUIRE_LIST;

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

// By `unpack`, which a newer Lua has elsewhere.
#[test]
fn what_was_granted_before_a_foreign_entry_is_undone() {
    let mut pair = Pair::with_rate(5);
    let how = How::STORED;
    pair.acquire(2, how).unwrap();
    let log = pair.log_key();
    pair.command(&["ZADD", &log, &(START - 1).to_string(), "x"]);
    let run = pair.unsent_run([1, 5]);
    let command = pair.run_command(&run, how);
    let before = pair.raw();
    let reply = pair.call(&ACQUIRE_LIST, &command).unwrap();
    let kind = redisson::reply::second(&reply).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::ForeignState);
    assert_eq!(pair.raw(), before);
}
