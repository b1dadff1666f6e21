//! Redisson's format, and the scripts with their arguments and replies.
//!
//! Each algorithm that counts in it has a file of its own here, and a folder of the same name in
//! `lua/`.

pub(crate) mod fixed_window;
pub(crate) mod format;
pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod sliding_log;
pub(crate) mod slots;
pub(crate) mod verbs;

use redis::{RedisError, ServerErrorKind};

use self::script::{Script, Scripts};
pub(crate) use self::{
    format::{acquire_command, is_member_size, keys, permits, tag},
    reply::{count, read_answers, stored_limit, time_to_live, unreadable},
    script::CallSettings,
};
use super::classify;
use crate::{
    demand::Demand,
    error::Error,
    limit::{Algorithm, Counting},
};

/// Returns the scripts that count a limiter; `None` in [our own format](super::packed).
pub(crate) fn scripts(counting: Counting) -> Option<&'static Scripts> {
    if counting.is_own() {
        return None;
    }
    Some(match counting.algorithm {
        Algorithm::SlidingLog if counting.slots.is_some() => &slots::SCRIPTS,
        Algorithm::SlidingLog => &sliding_log::SCRIPTS,
        Algorithm::FixedWindow => &fixed_window::SCRIPTS,
        Algorithm::Gcra | Algorithm::Calendar => return None,
    })
}

/// Returns whether a call for these must not be sent twice: one of the grants has no entry of its
/// own.
pub(crate) fn is_sent_once(acquire: &Demand) -> bool {
    let mut charges = acquire.charges();
    charges.any(|charge| !charge.of().counting.tells_grants_apart())
}

/// Returns every script that a limiter in this format can need.
pub(crate) fn all() -> [&'static Script; 7] {
    [
        &sliding_log::ACQUIRE,
        &sliding_log::ACQUIRE_LIST,
        &sliding_log::VERBS,
        &slots::ACQUIRE_LIST,
        &slots::VERBS,
        &fixed_window::ACQUIRE,
        &fixed_window::VERBS,
    ]
}

/// Returns the error that a failed command means for the caller.
pub(crate) fn failure(error: impl Into<RedisError>) -> Error {
    let error = error.into();
    #[cfg(feature = "tls")]
    if let Some(refusal) = super::transport::tls::refusal(&error) {
        return refusal;
    }
    let meaning = classify::meaning(&error);
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
    let kind = redis::ErrorKind::Server(ServerErrorKind::ResponseError);
    RedisError::from((kind, "the server does not know the command"))
}
