//! Classifies errors: the table "Errors, one by one" of `src/docs/failure.md`, and the only place
//! that judges them.

use redis::{ErrorKind as RedisKind, RedisError};

use crate::{error::ErrorKind, store::guard::breaker::Signal};

/// The meaning of an error for those who have to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) class: Class,
    /// The kind that the caller gets
    pub(crate) kind: ErrorKind,
    /// The remedy, if it does not pass by itself
    pub(crate) remedy: Option<&'static str>,
}

/// Errors with the same reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server does not have the script: it is loaded
    UnknownScript,
    /// The hash slot is another node's, or on the way to one
    Moving,
    /// The server cannot decide anything at present
    Unable,
    /// The server must not write at present. It still refuses where it has to
    Unwritable,
    /// The connection leads to a replica
    ReadOnly,
    /// There is no way to a server at present
    Unreachable,
    /// The way to a server was closed, is out of step, or could not be made
    Lost,
    /// No answer in time
    Silent,
    /// The server does not let this user in
    Credentials,
    /// A mistake in the configuration: refused until it is fixed
    Refused,
    /// The same in the middle of a script
    RefusedWithin,
    /// Something else is stored under the name
    Foreign,
    /// No row matches, or no command of ours should cause it
    Other,
}

/// The extent to which a command that ended in an error was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    No,
    /// Scripts are not rolled back
    Partly,
    /// It is unknown
    Perhaps,
}

impl Class {
    pub(crate) fn of(error: &RedisError) -> Self {
        meaning(error).class
    }

    /// Returns whether a command was carried out, if it was sent.
    pub(super) fn executed(self) -> Executed {
        match self {
            Self::Lost | Self::Silent => Executed::Perhaps,
            Self::RefusedWithin | Self::Other => Executed::Partly,
            _ => Executed::No,
        }
    }

    /// Returns whether the connection is unusable, and a command may be sent once more over
    /// another.
    pub(super) fn ends_connection(self) -> bool {
        matches!(
            self,
            Self::ReadOnly | Self::Unreachable | Self::Lost | Self::Credentials
        )
    }

    /// Returns what the breaker learns about the server, from an answer or if nothing was sent.
    pub(crate) fn learnt(self) -> Signal {
        match self {
            Self::Unable => Signal::Failed,
            Self::UnknownScript
            | Self::Unwritable
            | Self::Refused
            | Self::RefusedWithin
            | Self::Foreign
            | Self::Other => Signal::Answered,
            // The connection has pauses of its own, and the other hash slots of a node are not
            // affected.
            Self::Moving
            | Self::ReadOnly
            | Self::Unreachable
            | Self::Lost
            | Self::Silent
            | Self::Credentials => Signal::Nothing,
        }
    }
}

/// Returns the row of an error.
pub(crate) fn meaning(error: &RedisError) -> Meaning {
    if error.is_timeout() {
        return row(Class::Silent);
    }
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        RedisKind::Server(_) | RedisKind::Extension => {
            by_message(error.code().unwrap_or_default(), detail)
        }
        RedisKind::AuthenticationFailed => CREDENTIALS,
        // For the nodes of a Cluster, redis-rs reports only as text why it could not connect.
        RedisKind::Io if detail.contains("AuthenticationFailed") => CREDENTIALS,
        RedisKind::Io | RedisKind::Parse => row(Class::Lost),
        RedisKind::MasterNameNotFoundBySentinel => row(Class::Unreachable)
            .remedy("no sentinel knows a master of this name: compare it with `sentinel monitor`"),
        RedisKind::ClusterConnectionNotFound
        | RedisKind::NoValidReplicasFoundBySentinel
        | RedisKind::EmptySentinelList => row(Class::Unreachable),
        _ => OTHER,
    }
}

/// Returns the row of an error that a script passes on as text, which lacks the code on Redis 6.
#[cfg(any(test, feature = "inspect"))]
pub(crate) fn meaning_of_text(text: &str) -> Meaning {
    // A code has three letters at least: in `DB index is out of range` there is none.
    let is_code =
        |text: &str| text.len() >= 3 && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let by_code = match text.trim_start_matches('-').split_once(' ') {
        Some((code, rest)) if is_code(code) => by_message(code, rest),
        _ => UNKNOWN,
    };
    match by_code {
        // The capital letters were no code.
        UNKNOWN => by_message("ERR", text),
        known => known,
    }
}

/// Returns the row of a server's message.
fn by_message(code: &str, detail: &str) -> Meaning {
    let code = wrapped(code, detail).unwrap_or(code);
    let matches = |(of, part, _): &&(&str, &str, Meaning)| *of == code && detail.contains(part);
    MESSAGES
        .iter()
        .find(matches)
        .map_or(UNKNOWN, |(_, _, meaning)| *meaning)
}

/// Returns the code that Redis before 7 wraps in its own message when a script meets an error, also
/// by `pcall`:
/// `Error running script (call to f_..): @user_script:1: @user_script: 1: -READONLY ..`.
fn wrapped<'a>(code: &str, detail: &'a str) -> Option<&'a str> {
    // Elsewhere a message can quote what a client has sent.
    let of_script = ["Error running script", "@user_script: "];
    if code != "ERR" || !of_script.iter().any(|begin| detail.starts_with(begin)) {
        return None;
    }
    detail.split(": ").skip(1).find_map(|piece| {
        let (code, _) = piece.split_once(' ')?;
        let code = code.strip_prefix('-').unwrap_or(code);
        let is_code = code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
        is_code.then_some(code)
    })
}

/// Returns the row of a class, with its usual kind.
const fn row(class: Class) -> Meaning {
    let kind = match class {
        Class::Silent => ErrorKind::Timeout,
        Class::Credentials | Class::Refused | Class::RefusedWithin => ErrorKind::Rejected,
        Class::Foreign => ErrorKind::ForeignState,
        _ => ErrorKind::Unavailable,
    };
    Meaning {
        class,
        kind,
        remedy: None,
    }
}

impl Meaning {
    const fn kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    const fn remedy(self, remedy: &'static str) -> Self {
        Self {
            remedy: Some(remedy),
            ..self
        }
    }
}

const OTHER: Meaning = row(Class::Other);
/// A server that answers is there, whatever the message.
const UNKNOWN: Meaning = row(Class::Other)
    .kind(ErrorKind::Rejected)
    .remedy("this version does not know the message: see the source of this error");
/// It has no Lua.
pub(crate) const NO_LUA: Meaning = row(Class::Refused)
    .remedy("the server runs no Lua: load its module `lua`, or use one that has it");
const LACKING: Meaning = row(Class::Refused)
    .remedy("the server lacks a command, or it is renamed: Redis 6.2 or newer has all of them");
const LACKING_WITHIN: Meaning = Meaning {
    class: Class::RefusedWithin,
    ..LACKING
};
const NO_PASSWORD: &str = "Redis wants a password: put it into the address";
const CREDENTIALS: Meaning = row(Class::Credentials)
    .remedy("the server has no such user and password: compare the address with `ACL LIST`");

const MOVED: Meaning = row(Class::Moving)
    .remedy("the slot is another node's: a Redis Cluster is opened by `RedisStore::cluster`");
const FORBIDDEN: Meaning = row(Class::Refused).remedy(
    "the user lacks a permission: see `RedisStore::verify` (feature `inspect`), and the README for \
     all of them",
);
const FORBIDDEN_WITHIN: Meaning = Meaning {
    class: Class::RefusedWithin,
    ..FORBIDDEN
};
const OTHER_SLOT: Meaning = row(Class::Refused).kind(ErrorKind::OtherSlot);

/// Messages of servers: the code, a part of the rest, and the meaning. The first match counts.
const MESSAGES: &[(&str, &str, Meaning)] = &[
    // Before all others of its code, as it quotes what was sent.
    ("ERR", "unknown command", LACKING),
    ("NOSCRIPT", "", row(Class::UnknownScript)),
    (
        "READONLY",
        "",
        row(Class::ReadOnly)
            .remedy("it is a replica: unless a failover is under way, give the master's address"),
    ),
    ("MOVED", "", MOVED),
    ("ASK", "", MOVED),
    ("TRYAGAIN", "", row(Class::Moving)),
    ("LOADING", "", row(Class::Unable)),
    (
        "BUSY",
        "FUNCTION KILL",
        row(Class::Unable)
            .remedy("a function does not end: `FUNCTION KILL` stops one that has not written"),
    ),
    (
        "BUSY",
        "",
        row(Class::Unable)
            .remedy("a script does not end: `SCRIPT KILL` stops one that has not written"),
    ),
    ("MASTERDOWN", "", row(Class::Unable)),
    (
        "CLUSTERDOWN",
        "",
        row(Class::Unable).remedy("slots of the Cluster have no master: see `CLUSTER INFO`"),
    ),
    (
        "OOM",
        "",
        row(Class::Unwritable)
            .remedy("the memory is used up: raise `maxmemory`, or find what fills it"),
    ),
    (
        "MISCONF",
        "",
        row(Class::Unwritable).remedy("Redis cannot save to its disk: see its log"),
    ),
    (
        "NOREPLICAS",
        "",
        row(Class::Unwritable).remedy("fewer replicas follow than `min-replicas-to-write` wants"),
    ),
    ("NOPERM", "ACL failure in script", FORBIDDEN_WITHIN),
    ("NOPERM", "", FORBIDDEN),
    // Valkey, and Redis 8.
    ("ERR", "ACL failure in script", FORBIDDEN_WITHIN),
    (
        "ERR",
        "The user executing the script can't",
        FORBIDDEN_WITHIN,
    ),
    ("NOAUTH", "", row(Class::Refused).remedy(NO_PASSWORD)),
    // To a command that is longer than it reads before authentication; then it hangs up.
    (
        "ERR",
        "Protocol error: unauthenticated",
        row(Class::Credentials).remedy(NO_PASSWORD),
    ),
    ("WRONGPASS", "", CREDENTIALS),
    ("WRONGTYPE", "", row(Class::Foreign)),
    (
        "ERR",
        "DB index is out of range",
        row(Class::Credentials).remedy(
            "the server has no database of this number: compare the address with \
             `CONFIG GET databases`",
        ),
    ),
    ("CROSSSLOT", "", OTHER_SLOT),
    ("ERR", "do not hash to the same slot", OTHER_SLOT),
    (
        "ERR",
        "undeclared key",
        row(Class::RefusedWithin)
            .remedy("the server wants all keys declared, and a script has not: please report it"),
    ),
    // "Unknown Redis command called from script", "from Lua script"; Valkey leaves "Redis" out.
    ("ERR", "command called from", LACKING_WITHIN),
    ("ERR", "Could not find scripting engine", NO_LUA),
    // Then it hangs up.
    (
        "ERR",
        "max number of clients reached",
        row(Class::Unreachable).remedy("the server takes no more clients: raise `maxclients`"),
    ),
    // Only a script that has not written can be killed.
    ("ERR", "Script killed by user", row(Class::Unable)),
];

#[cfg(test)]
#[allow(
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "it is the page as the tests of faults read it"
)]
mod page;

#[cfg(test)]
mod tests {
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
            assert_eq!(unknown.class.learnt(), Signal::Answered);
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
                match class.executed() {
                    Executed::No => "no",
                    Executed::Partly => "a part, perhaps",
                    Executed::Perhaps => "perhaps",
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
                match class.learnt() {
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
            let is_there = rows().iter().zip(&seen).any(|(row, seen)| {
                row[0].contains(code) && row[0].contains(part) && seen == meaning
            });
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
            place in 0..MESSAGES.len(),
            dash in any::<bool>(),
            capitals_before in any::<bool>(),
            line in 1..500u16,
        ) {
            let (code, part, expected) = MESSAGES[place];
            prop_assume!(code != "ERR");
            let dash = if dash { "-" } else { "" };
            let before = if capitals_before { "I see: IO of Lua: " } else { "" };
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
            place in 0..MESSAGES.len(),
            dash in any::<bool>(),
        ) {
            let (code, part, expected) = MESSAGES[place];
            let dash = if dash { "-" } else { "" };
            prop_assert_eq!(meaning_of_text(&format!("{dash}{code} {part} in it")), expected);
            if code == "ERR" {
                prop_assert_eq!(meaning_of_text(&format!("{part} in it")), expected);
            }
        }

        /// Any message belongs to one of the rows.
        #[test]
        fn any_text_has_a_meaning(text in "[ -~]{0,80}") {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            let meaning = meaning(&error);
            let is_row = MESSAGES.iter().any(|(_, _, known)| *known == meaning);
            prop_assert!(is_row || meaning == UNKNOWN);
        }
    }
}
