//! A connection as commands see it, whoever made it.

use std::{io, sync::Arc, time::Duration};

use deadpool_redis::PoolError;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::{
    Cmd, ErrorKind, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    io::tcp::TcpSettings,
};
use tokio::task::AbortHandle;

/// How long the kernel tries to get bytes through before it calls the connection dead; unset, a quarter of an hour.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection that many callers share.
#[derive(Clone)]
pub(crate) enum Link {
    /// With what drives it, where it was made here
    Multiplexed(
        MultiplexedConnection,
        #[allow(dead_code, reason = "it is held: dropping it ends the connection")]
        Option<Arc<Driving>>,
    ),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
    Own(Arc<dyn OwnConnection>),
}

/// A connection of the user's, whatever its type.
pub(crate) trait OwnConnection: Send + Sync {
    fn send<'a>(&'a self, command: &'a Cmd) -> RedisFuture<'a, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> OwnConnection for C {
    fn send<'a>(&'a self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(command).await })
    }
}

/// The task that reads and writes for a connection. It ends with the last who holds the connection,
/// also where the server never answers what was sent.
pub(crate) struct Driving(pub(crate) AbortHandle);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Which master a command is for. Where there is one, it is for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "cluster", feature = "inspect")),
    allow(
        dead_code,
        reason = "only a Cluster has several masters, and only `verify` names slots"
    )
)]
pub(crate) enum To<'a> {
    Any,
    /// That of a slot
    Slot(u16),
    /// That of a key's slot
    Key(&'a [u8]),
}

/// What it means that nothing was answered in time.
pub(crate) fn silent() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// What a pool has given, or why it has not.
pub(crate) fn checked_out<C>(given: Result<C, PoolError>) -> RedisResult<C> {
    given.map_err(|error| match error {
        PoolError::Backend(error) => error,
        error => io_error(&error.to_string()),
    })
}

pub(crate) fn io_error(reason: &str) -> RedisError {
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
