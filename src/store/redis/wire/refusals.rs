//! What servers say, without what they were told.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The error without the words of the command, one of which is a key.
///
/// A server, or what stands in front of one, that lacks a command answers `ERR unknown command 'EVALSHA', with args beginning
/// with: ..`. Errors are logged, and a key is somebody's.
pub(crate) fn unquoted(error: RedisError) -> RedisError {
    let quotes = |said: &str| said.contains("args beginning with");
    if !error.detail().is_some_and(quotes) {
        return error;
    }
    let kind = ErrorKind::Server(ServerErrorKind::ResponseError);
    RedisError::from((kind, "the server does not know the command"))
}
