//! What an error means: the table "Errors, one by one" of `src/docs/failure.md`. Nowhere else is one judged.

use redis::{ErrorKind as RedisKind, RedisError};

use crate::{error::ErrorKind, store::guard::breaker::Told};

/// What an error means to those who have to act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) class: Class,
    /// What the caller is told
    pub(crate) kind: ErrorKind,
    /// What somebody has to do about it, if it does not pass by itself
    pub(crate) remedy: Option<&'static str>,
}

/// Errors upon which the same is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server does not have the script: it is sent as text
    UnknownScript,
    /// The slot is another node's, or on the way to one
    Moving,
    /// The server cannot decide anything at present
    Unable,
    /// The server must not write at present. It goes on refusing whom it has to
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
    /// A mistake in the configuration: it is refused until somebody mends that
    Refused,
    /// The same in the midst of a script
    RefusedWithin,
    /// Something else stands under the name
    Foreign,
    /// What no row knows, or no command of ours should meet
    Other,
}

/// Whether a command that ended in an error was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    No,
    /// Scripts are not rolled back
    Partly,
    /// Nobody knows
    Perhaps,
}

impl Class {
    pub(crate) fn of(error: &RedisError) -> Self {
        meaning(error).class
    }

    /// Of a command that was sent.
    pub(crate) fn executed(self) -> Executed {
        match self {
            Self::Lost | Self::Silent => Executed::Perhaps,
            Self::RefusedWithin | Self::Other => Executed::Partly,
            _ => Executed::No,
        }
    }

    /// Whether the connection is of no more use, and a command may be sent once more over another.
    pub(crate) fn ends_connection(self) -> bool {
        matches!(
            self,
            Self::ReadOnly | Self::Unreachable | Self::Lost | Self::Credentials
        )
    }

    /// What the breaker learns of the server, if an answer was heard or nothing was sent.
    pub(crate) fn told(self) -> Told {
        match self {
            Self::Unable => Told::Failed,
            Self::UnknownScript
            | Self::Unwritable
            | Self::Refused
            | Self::RefusedWithin
            | Self::Foreign
            | Self::Other => Told::Answered,
            // The connection has pauses of its own, and the other slots of a node are as they were.
            Self::Moving
            | Self::ReadOnly
            | Self::Unreachable
            | Self::Lost
            | Self::Silent
            | Self::Credentials => Told::Nothing,
        }
    }
}

/// The row of an error.
pub(crate) fn meaning(error: &RedisError) -> Meaning {
    if error.is_timeout() {
        return row(Class::Silent, ErrorKind::Timeout);
    }
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        RedisKind::Server(_) | RedisKind::Extension => {
            said(error.code().unwrap_or_default(), detail)
        }
        RedisKind::AuthenticationFailed => CREDENTIALS,
        // Of the nodes of a Cluster redis-rs tells as text why it could not connect.
        RedisKind::Io if detail.contains("AuthenticationFailed") => CREDENTIALS,
        RedisKind::Io | RedisKind::Parse => row(Class::Lost, ErrorKind::Unavailable),
        RedisKind::MasterNameNotFoundBySentinel => row(Class::Unreachable, ErrorKind::Unavailable)
            .remedy("no sentinel knows a master of this name: compare it with `sentinel monitor`"),
        RedisKind::ClusterConnectionNotFound
        | RedisKind::NoValidReplicasFoundBySentinel
        | RedisKind::EmptySentinelList => row(Class::Unreachable, ErrorKind::Unavailable),
        _ => OTHER,
    }
}

/// The row of what a script was told and hands on: text, before which Redis 6 leaves the code out.
pub(crate) fn meaning_of_text(text: &str) -> Meaning {
    // A code has three letters at least: in `DB index is out of range` there is none.
    let is_code =
        |word: &str| word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let by_code = match text.trim_start_matches('-').split_once(' ') {
        Some((code, rest)) if is_code(code) => said(code, rest),
        _ => UNKNOWN,
    };
    match by_code {
        // The word in capitals was none.
        UNKNOWN => said("ERR", text),
        known => known,
    }
}

/// The row of what a server says.
fn said(code: &str, detail: &str) -> Meaning {
    let code = wrapped(code, detail).unwrap_or(code);
    let says = |(of, words, _): &&(&str, &str, Meaning)| *of == code && detail.contains(words);
    SAYINGS
        .iter()
        .find(says)
        .map_or(UNKNOWN, |(_, _, meaning)| *meaning)
}

/// The code that Redis before 7 puts into words of its own where a script met it, by `pcall` too:
/// `Error running script (call to f_..): @user_script:1: @user_script: 1: -READONLY ..`.
fn wrapped<'a>(code: &str, detail: &'a str) -> Option<&'a str> {
    // Elsewhere a message can quote what a client has sent.
    let of_script = ["Error running script", "@user_script: "];
    if code != "ERR" || !of_script.iter().any(|begin| detail.starts_with(begin)) {
        return None;
    }
    detail.split(": ").skip(1).find_map(|piece| {
        let (word, _) = piece.split_once(' ')?;
        let word = word.strip_prefix('-').unwrap_or(word);
        let is_code = word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        is_code.then_some(word)
    })
}

const fn row(class: Class, kind: ErrorKind) -> Meaning {
    Meaning {
        class,
        kind,
        remedy: None,
    }
}

impl Meaning {
    const fn remedy(self, remedy: &'static str) -> Self {
        Self {
            remedy: Some(remedy),
            ..self
        }
    }
}

const OTHER: Meaning = row(Class::Other, ErrorKind::Unavailable);
/// A server that answers is there, whatever it says.
const UNKNOWN: Meaning = row(Class::Other, ErrorKind::Rejected)
    .remedy("this version does not know the message: see the source of this error");
/// It has no Lua.
pub(crate) const NO_LUA: Meaning = row(Class::Refused, ErrorKind::Rejected)
    .remedy("the server runs no Lua: load its module `lua`, or use one that has it");
const LACKING: Meaning = row(Class::Refused, ErrorKind::Rejected)
    .remedy("the server lacks a command, or it is renamed: Redis 6.2 or newer has all of them");
const LACKING_WITHIN: Meaning = Meaning {
    class: Class::RefusedWithin,
    ..LACKING
};
const NO_PASSWORD: &str = "Redis wants a password: put it into the address";
const CREDENTIALS: Meaning = row(Class::Credentials, ErrorKind::Rejected)
    .remedy("the server has no such user and password: compare the address with `ACL LIST`");

const MOVED: Meaning = row(Class::Moving, ErrorKind::Unavailable)
    .remedy("the slot is another node's: a Redis Cluster is opened by `RedisStore::cluster`");
const FORBIDDEN: Meaning = row(Class::Refused, ErrorKind::Rejected).remedy(
    "the user lacks a permission: see `RedisStore::verify`, and the README for all of them",
);
const FORBIDDEN_WITHIN: Meaning = Meaning {
    class: Class::RefusedWithin,
    ..FORBIDDEN
};
const OTHER_SLOT: Meaning = row(Class::Refused, ErrorKind::OtherSlot);

/// What a server says: the code, words of the rest, and what it means. The first that fits.
const SAYINGS: &[(&str, &str, Meaning)] = &[
    // Before all others of its code, as it quotes what was sent.
    ("ERR", "unknown command", LACKING),
    (
        "NOSCRIPT",
        "",
        row(Class::UnknownScript, ErrorKind::Unavailable),
    ),
    (
        "READONLY",
        "",
        row(Class::ReadOnly, ErrorKind::Unavailable)
            .remedy("it is a replica: unless a failover is under way, give the master's address"),
    ),
    ("MOVED", "", MOVED),
    ("ASK", "", MOVED),
    ("TRYAGAIN", "", row(Class::Moving, ErrorKind::Unavailable)),
    ("LOADING", "", row(Class::Unable, ErrorKind::Unavailable)),
    (
        "BUSY",
        "FUNCTION KILL",
        row(Class::Unable, ErrorKind::Unavailable).remedy(
            "a function does not end: `FUNCTION KILL` stops one that has not written",
        ),
    ),
    (
        "BUSY",
        "",
        row(Class::Unable, ErrorKind::Unavailable)
            .remedy("a script does not end: `SCRIPT KILL` stops one that has not written"),
    ),
    ("MASTERDOWN", "", row(Class::Unable, ErrorKind::Unavailable)),
    (
        "CLUSTERDOWN",
        "",
        row(Class::Unable, ErrorKind::Unavailable)
            .remedy("slots of the Cluster have no master: see `CLUSTER INFO`"),
    ),
    (
        "OOM",
        "",
        row(Class::Unwritable, ErrorKind::Unavailable)
            .remedy("the memory is used up: raise `maxmemory`, or find what fills it"),
    ),
    (
        "MISCONF",
        "",
        row(Class::Unwritable, ErrorKind::Unavailable)
            .remedy("Redis cannot save to its disk: see its log"),
    ),
    (
        "NOREPLICAS",
        "",
        row(Class::Unwritable, ErrorKind::Unavailable)
            .remedy("fewer replicas follow than `min-replicas-to-write` wants"),
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
    (
        "NOAUTH",
        "",
        row(Class::Refused, ErrorKind::Rejected).remedy(NO_PASSWORD),
    ),
    // Of a command that is longer than it reads from strangers, before it hangs up.
    (
        "ERR",
        "Protocol error: unauthenticated",
        row(Class::Credentials, ErrorKind::Rejected).remedy(NO_PASSWORD),
    ),
    ("WRONGPASS", "", CREDENTIALS),
    (
        "WRONGTYPE",
        "",
        row(Class::Foreign, ErrorKind::ForeignState),
    ),
    (
        "ERR",
        "DB index is out of range",
        row(Class::Credentials, ErrorKind::Rejected).remedy(
            "the server has no database of this number: compare the address with `CONFIG GET databases`",
        ),
    ),
    ("CROSSSLOT", "", OTHER_SLOT),
    ("ERR", "do not hash to the same slot", OTHER_SLOT),
    (
        "ERR",
        "undeclared key",
        row(Class::RefusedWithin, ErrorKind::Rejected)
            .remedy("the server wants all keys declared, and a script has not: please report it"),
    ),
    // "Unknown Redis command called from script", "from Lua script"; Valkey leaves "Redis" out.
    ("ERR", "command called from", LACKING_WITHIN),
    ("ERR", "Could not find scripting engine", NO_LUA),
    // It hangs up then.
    (
        "ERR",
        "max number of clients reached",
        row(Class::Unreachable, ErrorKind::Unavailable)
            .remedy("the server takes no more clients: raise `maxclients`"),
    ),
    // Only one that has not written can be.
    (
        "ERR",
        "Script killed by user",
        row(Class::Unable, ErrorKind::Unavailable),
    ),
];

#[cfg(test)]
#[path = "../../../tests/faults/page.rs"]
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

    /// The words of six servers where a script calls what its user may not, or the server does not
    /// have, and what they hand to its `pcall`.
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

    /// What Redis 6.2 hands to `pcall` has its code in the midst, and a line's end.
    #[test]
    fn a_code_in_what_a_script_was_handed_is_found() {
        let text = "@user_script: 1: -NOREPLICAS Not enough good replicas to write.\r\n";
        assert_eq!(meaning_of_text(text).class, Class::Unwritable);
    }

    /// A server that answers is no server that is gone, whatever it says.
    #[test]
    fn unknown_words_are_no_lost_connection() {
        for text in [
            "ERR user_script:1: attempt to perform arithmetic on a nil value script: on \
             @user_script:1.",
            "ERR Wrong number of args calling command from script",
            "WHATEVER else",
        ] {
            let unknown = meaning(&server_says(text));
            assert_eq!(unknown, UNKNOWN, "{text}");
            assert_eq!(unknown.kind, ErrorKind::Rejected);
            assert_eq!(unknown.class.told(), Told::Answered);
            assert!(!unknown.class.ends_connection());
        }
    }

    /// The error of a row: what a server says goes through redis-rs' parser.
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
                kind: told,
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
                format!("`{told:?}`"),
                if class.ends_connection() {
                    "replaced"
                } else {
                    "kept"
                }
                .to_owned(),
                match class.told() {
                    Told::Answered => "answer",
                    Told::Failed => "failure",
                    Told::Nothing => "nothing",
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
        for (code, words, meaning) in SAYINGS {
            let told = rows().iter().zip(&seen).any(|(row, seen)| {
                row[0].contains(code) && row[0].contains(words) && seen == meaning
            });
            assert!(told, "the page lacks {code} {words}");
        }
        let classes: BTreeSet<_> = seen.iter().map(|it| format!("{:?}", it.class)).collect();
        // All that there are.
        assert_eq!(classes.len(), 13, "{classes:?}");
    }

    /// What a client has sent, and a server quotes, is no code.
    #[test]
    fn what_a_server_quotes_means_nothing() {
        for quoted in [
            "unknown command 'EVALSHA', with args beginning with: 'x' '-READONLY ' '",
            "unknown command 'EVALSHA', with args beginning with: 'x: -READONLY ' 'undeclared key'",
        ] {
            let meaning = meaning(&server_says(&format!("ERR {quoted}")));
            assert_eq!(meaning.class, Class::Refused, "{quoted}");
        }
        let other = meaning(&server_says("ERR something: -READONLY to nobody"));
        assert_eq!(other, UNKNOWN);
    }

    proptest! {
        /// Redis before 7 puts its words around, and means the same. Words in capitals may stand before it: a code has three
        /// letters at least.
        #[test]
        fn what_is_wrapped_means_the_same(
            place in 0..SAYINGS.len(), dash in any::<bool>(), words_before in any::<bool>(), line in 1..500u16,
        ) {
            let (code, words, expected) = SAYINGS[place];
            prop_assume!(code != "ERR");
            let dash = if dash { "-" } else { "" };
            let before = if words_before { "I see: IO of Lua: " } else { "" };
            let around = format!("ERR Error running script (call to f_0a1b): @user_script:{line}: @user_script: {line}: ");
            let wrapped = server_says(&format!("{around}{before}{dash}{code} in words, {words}"));
            prop_assert_eq!(wrapped.kind(), RedisKind::Server(ServerErrorKind::ResponseError));
            prop_assert_eq!(meaning(&wrapped), expected);
        }

        /// What a script hands on as text means what it meant to the script, with the code or without.
        #[test]
        fn what_is_handed_on_means_the_same(place in 0..SAYINGS.len(), dash in any::<bool>()) {
            let (code, words, expected) = SAYINGS[place];
            let dash = if dash { "-" } else { "" };
            prop_assert_eq!(meaning_of_text(&format!("{dash}{code} {words} in words")), expected);
            if code == "ERR" {
                prop_assert_eq!(meaning_of_text(&format!("{words} in words")), expected);
            }
        }

        /// No text of a server makes it do more than one of these.
        #[test]
        fn any_text_has_a_meaning(text in "[ -~]{0,80}") {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            let meaning = meaning(&error);
            let is_row = SAYINGS.iter().any(|(_, _, known)| *known == meaning);
            prop_assert!(is_row || meaning == UNKNOWN);
        }
    }
}
