//! Tests the table of errors against the page and the messages of servers.

use std::{collections::BTreeSet, io};

use proptest::prelude::*;
use redis::ServerErrorKind;

use super::{page::rows, *};

const NONE: &str = "-";

/// The messages of six servers when a script calls what its user may not, or what the server
/// lacks, and what its `pcall` receives.
#[test]
fn what_scripts_meet_is_known_on_every_server() {
    let forbidden = [
        // Redis 6.2
        "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: \
         The user executing the script can't run this command or subcommand",
        "@user_script: 1: The user executing the script can't run this command or subcommand",
        // 7.0
        "ERR The user executing the script can't run this command or subcommand script: 0a1b, \
         on @user_script:1.",
        // 7.2, 7.4
        "NOPERM ACL failure in script: User u has no permissions to run the 'zadd' command \
         script: 0a1b, on @user_script:1.",
        // 8.2, Valkey 8.1
        "ERR ACL failure in script: User u has no permissions to run the 'zadd' command \
         script: 0a1b, on @user_script:1.",
        "ERR ACL failure in script: No permissions to access a key script: 0a1b, on \
         @user_script:1.",
        // Valkey 9.1
        "ERR ACL failure in script: User u has no permissions to run the 'zadd' command \
         script: on @user_script:1.",
        "ERR ACL failure in script: User u has no permissions to run the 'zadd' command",
    ];
    let lacking = [
        "ERR Error running script (call to f_0a1b): @user_script:1: @user_script: 1: \
         Unknown Redis command called from Lua script",
        "@user_script: 1: Unknown Redis command called from Lua script",
        "ERR Unknown Redis command called from script script: 0a1b, on @user_script:1.",
        "ERR Unknown command called from script script: on @user_script:1.",
        "ERR Unknown command called from script",
    ];
    for (texts, expected) in [
        (&forbidden[..], FORBIDDEN_WITHIN),
        (&lacking[..], LACKING_WITHIN),
    ] {
        for text in texts {
            assert_eq!(meaning_of_text(text), expected, "{text}");
            if !text.starts_with('@') {
                assert_eq!(meaning(&server_says(text)), expected, "{text}");
            }
        }
    }
}

/// Redis 6.2 passes a message with the code in the middle, and a line end, to `pcall`.
#[test]
fn a_code_in_what_a_script_received_is_found() {
    let text = "@user_script: 1: -NOREPLICAS Not enough good replicas to write.\r\n";
    assert_eq!(meaning_of_text(text).class, Class::Unwritable);
}

/// A server that answers is not lost, whatever the message.
#[test]
fn unknown_messages_are_no_lost_connection() {
    for text in [
        "ERR user_script:1: attempt to perform arithmetic on a nil value script: on \
         @user_script:1.",
        "ERR Wrong number of args calling command from script",
        "WHATEVER else",
    ] {
        let unknown = meaning(&server_says(text));
        assert_eq!(unknown, UNKNOWN, "{text}");
        assert_eq!(unknown.kind, ErrorKind::Rejected);
        assert_eq!(unknown.class.signal(), Signal::Answered);
        assert!(!unknown.class.ends_connection());
    }
}

/// Returns the error of a row: a server's message goes through redis-rs' parser.
fn error(says: &str) -> RedisError {
    let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
    let of = |kind: RedisKind| RedisError::from((kind, "of redis-rs' own"));
    match says {
        "the connection is reset" => io(io::ErrorKind::ConnectionReset),
        "the connection is closed" => io(io::ErrorKind::UnexpectedEof),
        "the connection is refused" => io(io::ErrorKind::ConnectionRefused),
        "no answer in time" => io(io::ErrorKind::TimedOut),
        "a node of a Cluster does not let this user in" => RedisError::from((
            RedisKind::Io,
            "Failed to create initial connections",
            "127.0.0.1:6379: WRONGPASS - AuthenticationFailed".to_owned(),
        )),
        "the server hangs up on a new client" => RedisError::from((
            RedisKind::Io,
            "no connection",
            format!("{HUNG_UP}: broken pipe"),
        )),
        "AUTH fails" => of(RedisKind::AuthenticationFailed),
        "no sentinel knows the master" => of(RedisKind::MasterNameNotFoundBySentinel),
        "no node of a Cluster can be reached" => of(RedisKind::ClusterConnectionNotFound),
        "bytes that are no reply" => redis::parse_redis_value(b"?\r\n").expect_err("no reply"),
        says => {
            let text = says.strip_prefix("`-").and_then(|it| it.strip_suffix('`'));
            let text = text.unwrap_or_else(|| panic!("the page has a row of {says}"));
            server_says(text)
        }
    }
}

fn server_says(text: &str) -> RedisError {
    let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
    value.extract_error().unwrap_err()
}

fn kind(error: &RedisError) -> String {
    match error.kind() {
        RedisKind::Server(kind) => format!("{kind:?}"),
        kind => format!("{kind:?}"),
    }
}

#[test]
fn the_table_of_the_page_is_the_code() {
    for row in rows() {
        let error = error(row[0]);
        let Meaning {
            class,
            kind: returned,
            remedy,
        } = meaning(&error);
        let code = [
            row[0].to_owned(),
            kind(&error),
            match class {
                _ if class.leaves_open() => "perhaps",
                // Scripts are not rolled back.
                Class::RefusedWithin | Class::Other => "a part, perhaps",
                _ => "no",
            }
            .to_owned(),
            format!("{class:?}"),
            format!("`{returned:?}`"),
            if class.ends_connection() {
                "replaced"
            } else {
                "kept"
            }
            .to_owned(),
            match class.signal() {
                Signal::Answered => "answer",
                Signal::Failed => "failure",
                Signal::Nothing => "nothing",
            }
            .to_owned(),
            remedy.unwrap_or(NONE).to_owned(),
        ];
        assert_eq!(row.map(str::to_owned), code);
    }
}

#[test]
fn the_page_leaves_nothing_out() {
    let seen: Vec<_> = rows().iter().map(|row| meaning(&error(row[0]))).collect();
    for (code, part, meaning) in MESSAGES {
        let is_there = rows()
            .iter()
            .zip(&seen)
            .any(|(row, seen)| row[0].contains(code) && row[0].contains(part) && seen == meaning);
        assert!(is_there, "the page lacks {code} {part}");
    }
    let classes: BTreeSet<_> = seen.iter().map(|it| format!("{:?}", it.class)).collect();
    // All classes occur.
    assert_eq!(classes.len(), 13, "{classes:?}");
}

/// A code in what a server quotes from a client is ignored.
#[test]
fn what_a_server_quotes_means_nothing() {
    for quoted in [
        "unknown command 'EVALSHA', with args beginning with: 'x' '-READONLY ' '",
        "unknown command 'EVALSHA', with args beginning with: 'x: -READONLY ' 'undeclared key'",
    ] {
        let meaning = meaning(&server_says(&format!("ERR {quoted}")));
        assert_eq!(meaning.class, Class::Refused, "{quoted}");
    }
    let other = meaning(&server_says("ERR something: -READONLY to a client"));
    assert_eq!(other, UNKNOWN);
}

proptest! {
    /// Redis before 7 wraps the message, which keeps its meaning. Capital letters may come
    /// before it: a code has at least three.
    #[test]
    fn a_wrapped_message_means_the_same(
        index in 0..MESSAGES.len(),
        dash in prop::sample::select(&["", "-"][..]),
        before in prop::sample::select(&["", "I see: IO of Lua: "][..]),
        line in 1..500u16,
    ) {
        let (code, part, expected) = MESSAGES[index];
        prop_assume!(code != "ERR");
        let around = format!(
            "ERR Error running script (call to f_0a1b): @user_script:{line}: \
             @user_script: {line}: "
        );
        let wrapped = server_says(&format!("{around}{before}{dash}{code} in it, {part}"));
        prop_assert_eq!(wrapped.kind(), RedisKind::Server(ServerErrorKind::ResponseError));
        prop_assert_eq!(meaning(&wrapped), expected);
    }

    /// A message that a script passes on as text keeps its meaning, with the code or without.
    #[test]
    fn what_a_script_passes_on_means_the_same(
        index in 0..MESSAGES.len(),
        dash in prop::sample::select(&["", "-"][..]),
    ) {
        let (code, part, expected) = MESSAGES[index];
        prop_assert_eq!(meaning_of_text(&format!("{dash}{code} {part} in it")), expected);
        if code == "ERR" {
            prop_assert_eq!(meaning_of_text(&format!("{part} in it")), expected);
        }
    }

    /// Any message belongs to one of the rows.
    #[test]
    fn any_text_has_a_meaning(text in "[ -~]{0,80}") {
        let meaning = meaning(&server_says(&text));
        let is_row = MESSAGES.iter().any(|(_, _, known)| *known == meaning);
        prop_assert!(is_row || meaning == UNKNOWN);
    }
}
