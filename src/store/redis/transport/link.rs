//! A connection as commands see it, whatever its source; and those that are made here.
//!
//! redis-rs passes a reply only to the caller that waits for it. In a burst most callers have left
//! by then, so a server that answers as fast as it can would look as silent as one that hangs. The
//! bytes of a connection made here are observed in both directions, and show the difference: see
//! [`Nodes`].

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
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisFuture, RedisResult, Value,
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
    sync::oneshot,
    task::JoinSet,
};

use crate::store::{
    guard::outbox::{HasUnread, Nodes},
    redis::classify::{Class, HUNG_UP},
};

/// The time for which the kernel sends bytes again before it gives the connection up. Its default
/// is a quarter of an hour.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection that many callers share.
#[derive(Clone)]
pub(super) enum Link {
    Multiplexed(
        MultiplexedConnection,
        #[allow(dead_code, reason = "it is held: dropping it ends the connection")] Driver,
    ),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
    User(Arc<UserSend>),
}

/// The task that reads and writes for a connection, if it was made here. It ends with the last
/// clone, even if the server never answers what was sent.
pub(super) type Driver = Option<Arc<JoinSet<()>>>;

/// Sends a command on a connection of the user's, whatever its type.
pub(super) type UserSend = dyn for<'a> Fn(&'a Cmd) -> RedisFuture<'a, Value> + Send + Sync;

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
        PoolError::Backend(error) => hung_up(error),
        error => io_error(&error.to_string()),
    })
}

/// Returns the error of a new connection. One that the server ended is named as such: its own
/// words, if it said any, are lost or were never sent.
fn hung_up(error: RedisError) -> RedisError {
    if error.is_connection_dropped() && !error.is_connection_refusal() && !error.is_timeout() {
        return io_error(&format!("{HUNG_UP}: {error}"));
    }
    error
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
/// A server that refuses a client says why, unasked, and hangs up. Such words are the error of the
/// connection. Over TLS redis-rs makes the socket: there, the server is asked once more for its
/// words, and only replies with a waiting caller are observed.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(super) async fn connect(
    client: &Client,
    config: &AsyncConnectionConfig,
    nodes: Arc<Nodes>,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let info = client.get_connection_info();
    let settings = info.redis_settings();
    let made = match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = connect_to_any(host, *port, info.tcp_settings()).await?;
            let stream = stream.into_std()?;
            let same = stream.try_clone()?;
            // It does not block: that is a setting of the socket, which both share.
            let has_unread = move || same.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
            driven(
                TcpStream::from_std(stream)?,
                has_unread,
                nodes,
                settings,
                config,
            )
            .await
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            // The standard library cannot look ahead here.
            driven(stream, || false, nodes, settings, config).await
        }
        _ => {
            let made = client
                .get_multiplexed_async_connection_with_config(config)
                .await;
            match made.map_err(hung_up) {
                Err(error) if has_hung_up(&error) => {
                    Err(ask_why(info, config).await.unwrap_or(error))
                }
                made => made.map(|connection| (connection, None)),
            }
        }
    };
    made.map_err(hung_up)
}

pub(super) fn has_hung_up(error: &RedisError) -> bool {
    error
        .detail()
        .is_some_and(|detail| detail.starts_with(HUNG_UP))
}

/// Returns the reason that a server gives to a client which it refuses, over TLS.
///
/// redis-rs drops an answer if the connection ends before the last one of its set-up. So this
/// set-up is one command, HELLO without a user.
async fn ask_why(info: &ConnectionInfo, config: &AsyncConnectionConfig) -> Option<RedisError> {
    let hello = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name();
    let client = Client::open(info.clone().set_redis_settings(hello)).ok()?;
    let asking = client.get_multiplexed_async_connection_with_config(config);
    let refused = asking.await.err()?;
    // A server that has let this client in may refuse HELLO itself.
    (is_said(&refused) && Class::of(&refused) != Class::Refused).then_some(refused)
}

/// Returns whether an error is in the server's own words.
pub(super) fn is_said(error: &RedisError) -> bool {
    error.code().is_some()
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
    stream: S,
    has_unread: impl Fn() -> bool + Send + Sync + 'static,
    nodes: Arc<Nodes>,
    settings: &RedisConnectionInfo,
    config: &AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let (keep, mut first_line) = oneshot::channel();
    let seen = WatchedStream {
        stream,
        _has_unread: nodes.watch(has_unread),
        nodes: Arc::clone(&nodes),
        first_line: Some((Vec::new(), keep)),
    };
    let connecting = MultiplexedConnection::new_with_config(settings, seen, config.clone());
    let (connection, driver) = match connecting.await {
        Ok(made) => made,
        Err(error) if error.is_connection_dropped() => {
            // Later answers are missing, and redis-rs drops the first with them.
            let line = first_line.try_recv().unwrap_or_default();
            let said = redis::parse_redis_value(&line).and_then(Value::extract_error);
            return Err(said.err().filter(is_said).unwrap_or(error));
        }
        Err(error) => return Err(error),
    };
    // It is connected.
    nodes.owes_nothing(0);
    let mut driving = JoinSet::new();
    driving.spawn(driver);
    Ok((connection, Some(Arc::new(driving))))
}

/// The longest first line of a server that is kept. The one of protected mode has 1 KiB.
const LONGEST_LINE: usize = 4096;

/// A stream that records when bytes come in and go out, and the first line that comes in.
struct WatchedStream<S> {
    stream: S,
    nodes: Arc<Nodes>,
    /// It is watched for as long as this lasts.
    _has_unread: Arc<HasUnread>,
    /// What has come in of the first line, and where it goes when it is whole.
    first_line: Option<(Vec<u8>, oneshot::Sender<Vec<u8>>)>,
}

impl<S> WatchedStream<S> {
    fn read_first_line(&mut self, bytes: &[u8]) {
        let Some((line, _)) = &mut self.first_line else {
            return;
        };
        line.extend(bytes.iter().take(LONGEST_LINE));
        let end = line.iter().position(|byte| *byte == b'\n');
        if (end.is_some() || line.len() >= LONGEST_LINE)
            && let Some((mut line, keep)) = self.first_line.take()
        {
            line.truncate(end.map_or(0, |end| end + 1));
            let _ = keep.send(line);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, nodes, .. } = &mut *self;
        let before = buffer.filled().len();
        let read = nodes.read(|| {
            let read = Pin::new(stream).poll_read(cx, buffer);
            (read, buffer.filled().len() - before)
        });
        if self.first_line.is_some() {
            self.read_first_line(buffer.filled().get(before..).unwrap_or_default());
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            // The server has hung up. What it said before can still be read, and then the end.
            Poll::Ready(Err(_)) if self.first_line.is_some() => Poll::Ready(Ok(bytes.len())),
            written => {
                if matches!(written, Poll::Ready(Ok(1..))) {
                    self.nodes.sent(0);
                }
                written
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
