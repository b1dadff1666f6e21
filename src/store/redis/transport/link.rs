//! A connection as commands see it, whatever its source.

use std::{io, sync::Arc, time::Duration};

use deadpool_redis::PoolError;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::{
    Cmd, ErrorKind, RedisError, RedisFuture, RedisResult, Value, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};
use tokio::task::JoinSet;

/// The time for which the kernel sends bytes again before it gives the connection up. Its default
/// is a quarter of an hour.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection that many callers share.
#[derive(Clone)]
pub(super) enum Link {
    /// With the task that reads and writes for it, if it was made here. That ends with its last
    /// clone, even if the server never answers what was sent
    Multiplexed(
        MultiplexedConnection,
        #[allow(dead_code, reason = "it is held: dropping it ends the connection")]
        Option<Arc<JoinSet<()>>>,
    ),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
    Own(Arc<SendOwn>),
}

/// Sends a command on a connection of the user's, whatever its type.
pub(super) type SendOwn = dyn for<'a> Fn(&'a Cmd) -> RedisFuture<'a, Value> + Send + Sync;

/// The master that a command is for. A single server gets all commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To<'a> {
    Any,
    /// The master of a hash slot
    Slot(u16),
    /// The master of a key's hash slot
    Key(&'a [u8]),
}

/// Returns the error for an answer that did not come in time.
pub(crate) fn silent() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Waits for the first of several attempts that succeeds; the others are dropped.
///
/// # Errors
///
/// The last failure, or `failed` where there is none.
///
/// # Cancel safety
///
/// Dropping it drops all attempts.
pub(super) async fn first_of<T: 'static, E: 'static>(
    mut attempts: JoinSet<Result<T, E>>,
    mut failed: E,
) -> Result<T, E> {
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

/// Returns what a pool has checked out, or the error of redis-rs.
pub(super) fn checked_out<C>(given: Result<C, PoolError>) -> RedisResult<C> {
    given.map_err(|error| match error {
        PoolError::Backend(error) => error,
        error => io_error(&error.to_string()),
    })
}

pub(super) fn io_error(reason: &str) -> RedisError {
    RedisError::from((ErrorKind::Io, "no connection", reason.to_owned()))
}

pub(crate) fn tcp_settings() -> TcpSettings {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    settings
}
