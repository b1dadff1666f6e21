//! What the scripts may ask of a server: one of Redis 6.2, and one whose Lua is newer than 5.1.

use super::*;
use crate::store::redis::wire::{script::with_script, sliding_log::ACQUIRE_LIST};

/// Has a script find `unpack` where Lua 5.2 and newer have it, and nowhere else.
const NEWER_LUA: &str = "
    local rawget = function(from, name)
      if from ~= _G or name ~= 'unpack' then
        return rawget(from, name)
      end
    end
    local table = setmetatable({ unpack = unpack }, { __index = table })
    local unpack = nil
";

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
    for script in wire::all() {
        for arguments in arguments_of(script.text(), "PEXPIRE") {
            assert_eq!(arguments, 2, "{}", script.text());
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn a_newer_lua_undoes_what_was_granted_before_a_foreign_entry() {
    let mut pair = Pair::with_rate(5);
    let how = How::STORED;
    pair.acquire(2, how).unwrap();
    let log = pair.log_key();
    pair.command(&["ZADD", &log, &(START - 1).to_string(), "x"]);
    let run = pair.unsent_run([1, 5]);
    let command = pair.run_command(&run, how);
    let before = pair.raw();
    let text = format!("{NEWER_LUA}{}", ACQUIRE_LIST.text());
    let eval = with_script("EVAL", &text, &command);
    let reply: Value = eval.query(pair.connection()).unwrap();
    let kind = wire::reply::second(&reply).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::ForeignState);
    assert_eq!(pair.raw(), before);
}

#[cfg(feature = "inspect")]
#[test]
fn a_newer_lua_tries_all_commands() {
    use crate::inspect::verify::VERIFY;

    let mut pair = Pair::overall();
    let text = format!("{NEWER_LUA}{}", VERIFY.text());
    let mut command = VERIFY.start(pair.keys.len(), 1);
    command.arg(&pair.keys).arg("1");
    let eval = with_script("EVAL", &text, &command);
    let (tried, _): (Vec<(String, String)>, Vec<Value>) = eval.query(pair.connection()).unwrap();
    assert!(tried.iter().any(|(command, _)| command == "ZADD"));
}
