//! Classifies errors by the table of `classify/errors.md`: the only place that judges them.

use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

use crate::{
    store::guard::outbox::breaker::Signal,
    values::error::{Error, ErrorKind},
};

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

impl Class {
    pub(crate) fn of(error: &RedisError) -> Self {
        meaning(error).class
    }

    /// Returns whether it is unknown if a command that was sent was carried out.
    pub(super) fn leaves_open(self) -> bool {
        matches!(self, Self::Lost | Self::Silent)
    }

    /// Returns whether the same command may be carried out later.
    pub(super) fn may_pass(self) -> bool {
        matches!(
            self,
            Self::Unable | Self::Unwritable | Self::Moving | Self::Silent
        ) || self.ends_connection()
    }

    /// Returns whether the connection is unusable, and a command may be sent once more over
    /// another.
    pub(super) fn ends_connection(self) -> bool {
        matches!(
            self,
            Self::ReadOnly | Self::Unreachable | Self::Lost | Self::Credentials
        )
    }

    /// Returns the signal for the breaker, of an answer or if nothing was sent.
    pub(crate) fn signal(self) -> Signal {
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
            _ => Signal::Nothing,
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
        RedisKind::Io if detail.starts_with(HUNG_UP) => row(Class::Lost).remedy(
            "the server hangs up on a new client: it may be at `maxclients`, speak TLS or not, or \
             be a proxy that lacks CLIENT",
        ),
        RedisKind::Io | RedisKind::Parse => row(Class::Lost),
        RedisKind::MasterNameNotFoundBySentinel => row(Class::Unreachable)
            .remedy("no sentinel knows a master of this name: compare it with `sentinel monitor`"),
        RedisKind::ClusterConnectionNotFound
        | RedisKind::NoValidReplicasFoundBySentinel
        | RedisKind::EmptySentinelList => row(Class::Unreachable),
        _ => OTHER,
    }
}

/// The beginning of the error for a connection that the server ended before it could be used.
pub(super) const HUNG_UP: &str = "the server hung up on a new client";

/// Returns the code of an error that the server has answered with, such as `WRONGTYPE`.
pub(crate) fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let code = wrapped(code, error.detail().unwrap_or_default()).unwrap_or(code);
    // A code is all that a span may have of the message.
    is_code(code).then_some(code)
}

/// Returns whether a word can be a code: in `DB index is out of range` there is none.
fn is_code(word: &str) -> bool {
    word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Returns the row of an error that a script passes on as text, which lacks the code on Redis 6.
pub(crate) fn meaning_of_text(text: &str) -> Meaning {
    let by_code = match text.trim_start_matches('-').split_once(' ') {
        Some((code, rest)) => by_message(code, rest),
        None => UNKNOWN,
    };
    match by_code {
        // The first word was no code.
        UNKNOWN => by_message("ERR", text),
        known => known,
    }
}

/// Returns the row of a server's message.
fn by_message(code: &str, detail: &str) -> Meaning {
    let code = wrapped(code, detail).unwrap_or(code);
    let matches = |(of, part, _): &&(&str, &str, Meaning)| *of == code && detail.contains(part);
    let found = MESSAGES.iter().find(matches);
    found.map_or(UNKNOWN, |(_, _, meaning)| *meaning)
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
        is_code(code).then_some(code)
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
    /// Returns the same for an error in the middle of a script.
    const fn within(self) -> Self {
        let class = Class::RefusedWithin;
        Self { class, ..self }
    }

    const fn kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    const fn remedy(self, remedy: &'static str) -> Self {
        let remedy = Some(remedy);
        Self { remedy, ..self }
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
const LACKING_WITHIN: Meaning = LACKING.within();
const NO_PASSWORD: &str = "Redis wants a password: put it into the address";
const CREDENTIALS: Meaning = row(Class::Credentials)
    .remedy("the server has no such user and password: compare the address with `ACL LIST`");

const MOVED: Meaning = row(Class::Moving)
    .remedy("the hash slot is another node's: a Redis Cluster is opened by `RedisStore::cluster`");
const FORBIDDEN: Meaning = row(Class::Refused).remedy(
    "the user lacks a permission: see `RedisStore::verify` (feature `inspect`), and the guide for \
     all of them",
);
const FORBIDDEN_WITHIN: Meaning = FORBIDDEN.within();
const OTHER_SLOT: Meaning = row(Class::Refused).kind(ErrorKind::OtherSlot);

/// Messages of servers: the code, a part of the rest, and the meaning. The first match counts.
#[rustfmt::skip]
const MESSAGES: &[(&str, &str, Meaning)] = &[
    // Before all others of its code, as it quotes what was sent.
    ("ERR", "unknown command", LACKING),
    ("NOSCRIPT", "", row(Class::UnknownScript)),
    ("READONLY", "", row(Class::ReadOnly)
        .remedy("it is a replica: unless a failover is under way, give the master's address")),
    ("MOVED", "", MOVED),
    ("ASK", "", MOVED),
    ("TRYAGAIN", "", row(Class::Moving)),
    ("LOADING", "", row(Class::Unable)),
    ("BUSY", "FUNCTION KILL", row(Class::Unable)
        .remedy("a function does not end: `FUNCTION KILL` stops one that has not written")),
    ("BUSY", "", row(Class::Unable)
        .remedy("a script does not end: `SCRIPT KILL` stops one that has not written")),
    ("MASTERDOWN", "", row(Class::Unable)),
    ("CLUSTERDOWN", "", row(Class::Unable)
        .remedy("hash slots of the Cluster have no master: see `CLUSTER INFO`")),
    ("OOM", "", row(Class::Unwritable)
        .remedy("the memory is used up: raise `maxmemory`, or find what fills it")),
    ("MISCONF", "", row(Class::Unwritable).remedy("Redis cannot save to its disk: see its log")),
    ("NOREPLICAS", "", row(Class::Unwritable)
        .remedy("fewer replicas follow than `min-replicas-to-write` wants")),
    ("NOPERM", "ACL failure in script", FORBIDDEN_WITHIN),
    ("NOPERM", "", FORBIDDEN),
    // Valkey, and Redis 8.
    ("ERR", "ACL failure in script", FORBIDDEN_WITHIN),
    ("ERR", "The user executing the script can't", FORBIDDEN_WITHIN),
    ("NOAUTH", "", row(Class::Refused).remedy(NO_PASSWORD)),
    // To a command that is longer than it reads before authentication; then it hangs up.
    ("ERR", "Protocol error: unauthenticated", row(Class::Credentials).remedy(NO_PASSWORD)),
    ("WRONGPASS", "", CREDENTIALS),
    ("WRONGTYPE", "", row(Class::Foreign)),
    ("ERR", "DB index is out of range", row(Class::Credentials)
        .remedy("the server has no database of this number: compare the address with \
            `CONFIG GET databases`")),
    ("CROSSSLOT", "", OTHER_SLOT),
    ("ERR", "do not hash to the same slot", OTHER_SLOT),
    ("ERR", "undeclared key", row(Class::RefusedWithin)
        .remedy("the server wants all keys declared, and a script has not: please report it")),
    // "Unknown Redis command called from script", "from Lua script"; Valkey leaves "Redis" out.
    ("ERR", "command called from", LACKING_WITHIN),
    ("ERR", "Could not find scripting engine", NO_LUA),
    ("ERR", "in script shebang", row(Class::Refused)
        .remedy("the server does not know the line of `RedisStoreBuilder::script_header`")),
    // Then it hangs up. A node of a Cluster counts its own connections, and says so.
    ("ERR", "max number of clients", row(Class::Unreachable)
        .remedy("the server takes no more clients: raise `maxclients`")),
    ("DENIED", "", row(Class::Credentials)
        .remedy("the server is in protected mode: give its default user a password, or set \
            `protected-mode no` where only its clients reach it")),
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

/// Returns the error that a failed command means for the caller.
pub(crate) fn failure(error: impl Into<RedisError>) -> Error {
    let error = error.into();
    #[cfg(feature = "tls")]
    if let Some(refusal) = super::transport::tls::refusal(&error) {
        return refusal;
    }
    let meaning = meaning(&error);
    let error_of_kind = Error::new(meaning.kind);
    match meaning.remedy {
        Some(remedy) => error_of_kind.detail(remedy),
        None => error_of_kind,
    }
    .caused_by(unquoted(error))
}

/// Returns the error without the arguments of the command: one of them is a key.
///
/// A server, or what stands in front of one, that lacks a command answers `ERR unknown command
/// 'EVALSHA', with args beginning with: ..`. Errors are logged, and a key may name a person.
fn unquoted(error: RedisError) -> RedisError {
    let quotes = |said: &str| said.contains("args beginning with");
    if !error.detail().is_some_and(quotes) {
        return error;
    }
    let kind = RedisKind::Server(ServerErrorKind::ResponseError);
    RedisError::from((kind, "the server does not know the command"))
}

#[cfg(test)]
mod tests;
