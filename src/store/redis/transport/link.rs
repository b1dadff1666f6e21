//! A connection as commands see it, whatever its source; and those that are made here.
//!
//! redis-rs passes a reply only to the caller that waits for it. In a burst most callers have left
//! by then, so a server that answers as fast as it can would look as silent as one that hangs. The
//! bytes of a connection made here are observed in both directions, and show the difference: see
//! [`NodeTraffic`].

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use deadpool_redis::PoolError;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError,
    RedisFuture, RedisResult, Value,
    aio::MultiplexedConnection,
    io::tcp::{
        TcpSettings,
        socket2::{SockRef, TcpKeepalive},
    },
};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
    task::JoinSet,
};

use crate::store::guard::breaker::{HasUnread, NodeTraffic};

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

pub(super) fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    settings
}

/// Connects to the server at a client's address.
///
/// Over TLS redis-rs makes the socket: there, only replies with a waiting caller are observed.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(super) async fn connect(
    client: &Client,
    config: &AsyncConnectionConfig,
    traffic: Arc<NodeTraffic>,
) -> RedisResult<Link> {
    let info = client.get_connection_info();
    let settings = info.redis_settings();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = connect_to_any(host, *port, info.tcp_settings()).await?;
            let stream = stream.into_std()?;
            let same = stream.try_clone()?;
            // It does not block: that is a setting of the socket, which both share.
            let has_unread = move || same.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
            let seen = Seen {
                stream: TcpStream::from_std(stream)?,
                _has_unread: traffic.watch(has_unread),
                traffic,
            };
            driven(seen, settings, config).await
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let seen = Seen {
                stream: UnixStream::connect(path).await?,
                // The standard library cannot look ahead here.
                _has_unread: traffic.watch(|| false),
                traffic,
            };
            driven(seen, settings, config).await
        }
        _ => {
            let connection = client.get_multiplexed_async_connection_with_config(config);
            Ok(Link::Multiplexed(connection.await?, None))
        }
    }
}

/// Connects to the first address of a host that answers; all are tried at once.
async fn connect_to_any(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        attempts.spawn(connect_to(address, settings.clone()));
    }
    first_of(attempts, io::Error::other("no address found for host")).await
}

async fn connect_to(address: SocketAddr, settings: TcpSettings) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

async fn driven<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: Seen<S>,
    settings: &RedisConnectionInfo,
    config: &AsyncConnectionConfig,
) -> RedisResult<Link> {
    let traffic = Arc::clone(&stream.traffic);
    let connecting = MultiplexedConnection::new_with_config(settings, stream, config.clone());
    let (connection, driver) = connecting.await?;
    // It is connected.
    traffic.owes_nothing(0);
    let mut driving = JoinSet::new();
    driving.spawn(driver);
    Ok(Link::Multiplexed(connection, Some(Arc::new(driving))))
}

/// A stream that records when bytes come in and go out.
struct Seen<S> {
    stream: S,
    traffic: Arc<NodeTraffic>,
    /// It is watched for as long as this lasts.
    _has_unread: Arc<HasUnread>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Seen<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream, traffic, ..
        } = &mut *self;
        traffic.read(|| {
            let before = buffer.filled().len();
            let read = Pin::new(stream).poll_read(cx, buffer);
            (read, buffer.filled().len() - before)
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seen<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.traffic.sent(0);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
