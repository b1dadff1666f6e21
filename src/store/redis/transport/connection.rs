//! The connection to Redis: one for all callers, replaced when it is lost.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    time::{Duration, Instant},
};

#[cfg(feature = "cluster")]
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, RetryMethod, Value};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
};

#[cfg(feature = "cluster")]
use super::cluster;
use super::{
    link::{Link, To, io_error, silent},
    source::{ConnectionSource, Dial},
};
use crate::{
    store::redis::classify::Class,
    sync::{OnDrop, lock},
    values::{
        clock::{NO_TIMER, moment, runtime, within},
        observe::StateChange,
    },
};

/// The first pause after a failed attempt to connect, and the longest: Redis is found again within
/// a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The number of response timeouts for which a connection is kept that this process does not drive.
const UNDRIVEN_FOR: u32 = 10;

/// Sends commands to Redis, and connects again.
///
/// All callers share one multiplexed connection: one round trip for each command, and no queue for
/// a free connection. At most one attempt to connect is in progress at a time, in a task of its
/// own, so that no caller's deadline cancels it.
pub(crate) struct Connection {
    pub(crate) source: ConnectionSource,
    pub(crate) dial: Dial,
    slot: Arc<Mutex<Slot>>,
    /// Wakes those that wait for a reply when a connection has ended.
    ended: Notify,
    /// Carries commands that must not be sent twice, where this one would repeat them. It connects
    /// when it is first needed.
    once: Option<Box<Self>>,
}

/// The state of the connection to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionState {
    /// None, and none was needed since the store was built or the last one was lost
    Idle,
    /// A connection is being opened
    Connecting,
    /// There is one. A connection of the user's maintains itself, and is always in this state
    Connected,
    /// The last attempt to make one failed, or led to a server that cannot be used
    Failing,
}

/// The reason for which a command has no reply, and whether it may still have been carried out.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: RedisError,
    pub(crate) unacknowledged: bool,
}

impl Failed {
    /// Returns the same failure, behind an attempt that may have been carried out or not.
    pub(crate) fn after(self, unacknowledged: bool) -> Self {
        Self {
            unacknowledged: self.unacknowledged || unacknowledged,
            ..self
        }
    }
}

impl From<RedisError> for Failed {
    /// The command was not sent.
    fn from(error: RedisError) -> Self {
        Self {
            error,
            unacknowledged: false,
        }
    }
}

impl From<Failed> for RedisError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// The current connection, or the attempt to open one.
struct Slot {
    state: State,
    /// The time when the connection was made; a call begun later used this connection.
    since: Instant,
    /// The number of attempts to connect. Only the last may report how it ended.
    attempts: u64,
    /// Attempts in a row that failed, or led to an unusable server: until a connection has lasted.
    failures: u32,
    /// True if any command was answered over this connection.
    answered: bool,
    /// Set while no command is answered, and some were given up.
    silence: Option<Silence>,
    /// The runtime that drives the connection, or the attempt to make it.
    runtime: Option<Handle>,
}

/// A time in which no command is answered.
struct Silence {
    since: Instant,
    /// Set once the connection's runtime has run a task since then.
    is_driven: Arc<AtomicBool>,
}

enum State {
    /// Not used yet, or the connection was lost; no attempt before the given time
    Idle {
        not_before: Option<(Instant, RedisError)>,
    },
    /// An attempt is in progress
    Connecting {
        began: Instant,
        attempt: Attempt,
    },
    Connected(Link),
}

/// The outcome of an attempt: the connection, and the instant at which it was made.
type Attempt = watch::Receiver<Option<RedisResult<(Link, Instant)>>>;

impl Connection {
    pub(crate) fn new(source: ConnectionSource, dial: Dial) -> Self {
        let once = source.once.as_deref().cloned();
        let once = once.map(|source| Box::new(Self::new(source, dial.clone())));
        let slot = Slot {
            state: State::Idle { not_before: None },
            since: moment(),
            attempts: 0,
            failures: 0,
            answered: false,
            silence: None,
            runtime: None,
        };
        Self {
            source,
            dial,
            slot: Arc::new(Mutex::new(slot)),
            ended: Notify::new(),
            once,
        }
    }

    /// Sends a command and waits for its reply. After the loss of its connection it is sent once
    /// more over a new one, unless it is to be sent `once`, as it must not be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the command executed or not.
    pub(crate) async fn send(&self, command: &Cmd, once: bool) -> Result<Value, Failed> {
        let this = self.once.as_deref().filter(|_| once).unwrap_or(self);
        let first = match this.attempt(command).await {
            Err(failed) if this.may_send_again(&failed.error, once) => failed,
            reply => return reply,
        };
        let again = this.attempt(command).await;
        again.map_err(|last| last.after(first.unacknowledged && !once))
    }

    /// Returns whether a command that failed is to be sent again.
    fn may_send_again(&self, error: &RedisError, once: bool) -> bool {
        if once {
            // Another node must run it, so it did not run. The connection reads where to go before
            // it sends anything else.
            self.source.is_cluster && matches!(error.retry_method(), RetryMethod::MovedRedirect)
        } else {
            is_lost(error)
        }
    }

    /// Sends one command, safe to repeat, to a master.
    pub(crate) async fn send_to(&self, to: To<'_>, command: &Cmd) -> RedisResult<Value> {
        #[cfg(feature = "cluster")]
        if to != To::Any {
            let (link, since) = self.connected().await?;
            if let Link::Cluster(connection) = &link {
                let reply = cluster::send_to(connection, to, command).await;
                self.record(since, reply.as_ref().err());
                return reply;
            }
        }
        self.send(command, false).await.map_err(RedisError::from)
    }

    async fn attempt(&self, command: &Cmd) -> Result<Value, Failed> {
        let (mut link, since) = self.connected().await?;
        // Its caller may leave before it is answered.
        let given_up = OnDrop::new(|| self.record_silence(since));
        let reply = match &mut link {
            Link::Multiplexed(connection, Some(_)) => connection.send_packed_command(command).await,
            // Over TLS and from pools. Boxed, so that it costs others nothing.
            Link::Multiplexed(connection, None) => {
                let sending = connection.send_packed_command(command);
                Box::pin(self.until_ended(since, sending)).await
            }
            #[cfg(feature = "cluster")]
            Link::Cluster(connection) => self.in_time(connection.req_packed_command(command)).await,
            Link::User(send) => self.in_time(send(command)).await,
        };
        // A refusal of the server arrives as a value here.
        let reply = reply.and_then(Value::extract_error);
        given_up.disarm();
        self.record(since, reply.as_ref().err());
        reply.map_err(|error| {
            // The error of redis-rs after a repetition says nothing about the first attempt.
            let repeated =
                self.source.repeats && !matches!(error.retry_method(), RetryMethod::NoRetry);
            Failed {
                unacknowledged: repeated || Class::of(&error).leaves_open(),
                error,
            }
        })
    }

    /// Waits for a reply until the connection made at `since` has ended: redis-rs never answers a
    /// command that comes just as its task ends.
    ///
    /// # Cancel safety
    ///
    /// As that of `sending`.
    async fn until_ended(
        &self,
        since: Instant,
        sending: impl Future<Output = RedisResult<Value>>,
    ) -> RedisResult<Value> {
        let (mut ended, mut sending) = (pin!(self.ended.notified()), pin!(sending));
        let mut is_over = !lock(&self.slot).has(since);
        poll_fn(|cx| {
            // First: a reply may have come before the end.
            if let Poll::Ready(reply) = sending.as_mut().poll(cx) {
                return Poll::Ready(reply);
            }
            while !is_over && ended.as_mut().poll(cx).is_ready() {
                // It may have been an earlier connection.
                ended.set(self.ended.notified());
                is_over = !lock(&self.slot).has(since);
            }
            if is_over {
                Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    pub(crate) fn state(&self) -> ConnectionState {
        match &lock(&self.slot).state {
            _ if !self.source.renews => ConnectionState::Connected,
            State::Idle { not_before: None } => ConnectionState::Idle,
            State::Idle { .. } => ConnectionState::Failing,
            State::Connecting { .. } => ConnectionState::Connecting,
            State::Connected(_) => ConnectionState::Connected,
        }
    }

    /// Returns whether a call begun at `moment` can only have used the present connection.
    pub(crate) fn carried(&self, moment: Instant) -> bool {
        let slot = lock(&self.slot);
        // Connections to the nodes of a Cluster are replaced invisibly.
        self.source.renews
            && !self.source.is_cluster
            && matches!(slot.state, State::Connected(_))
            && slot.since <= moment
    }

    /// Waits no longer than the response timeout: a connection made elsewhere may have none.
    async fn in_time<T>(&self, sending: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let sent = within(self.dial.response_timeout, sending).await;
        sent.unwrap_or_else(|| Err(silent()))
    }

    /// Updates the state of the connection made at `since` after a reply, or a lack of one.
    fn record(&self, since: Instant, error: Option<&RedisError>) {
        match error {
            // One node is lost, and redis-rs is repairing it. If no node answers, the connection is
            // replaced.
            Some(error) if is_lost(error) && self.source.is_cluster => {
                return self.record_silence(since);
            }
            Some(error) if is_lost(error) => return self.lose(since, Some(error)),
            Some(error) if error.is_timeout() => return self.record_silence(since),
            // Any other error is an answer too.
            _ => {}
        }
        // With several nodes, the caller knows which one it was.
        if !self.source.is_cluster {
            self.dial.nodes.replied(0);
        }
        let mut slot = lock(&self.slot);
        if slot.since == since {
            slot.silence = None;
            slot.answered = true;
            // A replica answers refused commands, too.
            if slot.failures > 0 && moment().duration_since(since) >= LONGEST_PAUSE {
                slot.failures = 0;
            }
        }
    }

    /// Waits until there is a connection, or none can be made.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub(crate) async fn ready(&self) {
        let _ = self.connected().await;
    }

    /// Returns the connection, made now if there is none, and when it was made.
    async fn connected(&self) -> RedisResult<(Link, Instant)> {
        // Also where there is a connection: its timer would panic.
        let runtime = runtime().ok_or_else(|| io_error(NO_TIMER))?;
        let mut attempt = {
            let mut slot = lock(&self.slot);
            match &slot.state {
                State::Connected(link) => return Ok((link.clone(), slot.since)),
                State::Connecting { began, attempt } if self.is_alive(*began, attempt) => {
                    attempt.clone()
                }
                State::Idle {
                    not_before: Some((time, error)),
                } if moment() < *time => {
                    return Err(error.clone());
                }
                State::Idle { .. } | State::Connecting { .. } => {
                    self.start_connecting(&runtime, &mut slot)
                }
            }
        };
        match attempt.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err(io_error("the attempt to connect was dropped")),
        }
    }

    /// Returns whether an attempt will end: its runtime may have been shut down, or may not be
    /// driven.
    fn is_alive(&self, began: Instant, attempt: &Attempt) -> bool {
        let longest = self.dial.connect_timeout.saturating_mul(2);
        attempt.has_changed().is_ok() && moment().duration_since(began) < longest
    }

    fn start_connecting(&self, runtime: &Handle, slot: &mut Slot) -> Attempt {
        let (done, attempt) = watch::channel(None);
        slot.attempts += 1;
        slot.runtime = Some(runtime.clone());
        slot.state = State::Connecting {
            began: moment(),
            attempt: attempt.clone(),
        };
        let (source, dial) = (self.source.clone(), self.dial.clone());
        let report = self.connection_reporter();
        let (slot, number) = (Arc::clone(&self.slot), slot.attempts);
        drop(runtime.spawn(async move {
            let longest = dial.connect_timeout;
            let outcome = tokio::time::timeout(longest, source.connect(dial)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(silent()));
            let outcome = outcome.map(|link| (link, moment()));
            // Bound first: the observers are called without the lock.
            let is_last = lock(&slot).end_attempt(number, &outcome);
            if is_last {
                report(outcome.is_ok());
            }
            done.send_replace(Some(outcome));
        }));
        attempt
    }

    /// Drops the connection that was made at `since`, so that another is made.
    ///
    /// `error` is what the server said, or that it hung up. It may do so for as long as the address
    /// leads to it, to a replica for example: so the first such connection is replaced at once, and
    /// the next ones like failed attempts.
    fn lose(&self, since: Instant, error: Option<&RedisError>) {
        let mut slot = lock(&self.slot);
        if self.source.renews && slot.has(since) {
            slot.silence = None;
            if moment().duration_since(since) >= LONGEST_PAUSE {
                slot.failures = 0;
            }
            let not_before = match error {
                // It worked, and was closed from elsewhere, perhaps amid a reply.
                Some(error) if slot.answered && ends_stream(error) => None,
                Some(error) => slot.pause(error),
                None => None,
            };
            slot.state = State::Idle { not_before };
            drop(slot);
            if error.is_some_and(ends_stream) {
                self.ended.notify_waiters();
            }
            self.connection_reporter()(false);
        }
    }

    /// Returns a function that reports to the observers whether there is a connection.
    fn connection_reporter(&self) -> impl Fn(bool) + Send + 'static {
        let (observers, address) = (self.dial.observers.clone(), self.source.shown.clone());
        move |connected| {
            let node = address.as_deref().unwrap_or_default();
            observers.changed(&StateChange::Connection { node, connected });
        }
    }

    /// Records that a command has no answer: in time, or until its caller left. A connection on
    /// which nothing is answered for as long as the response timeout is dead, even if the kernel
    /// has not noticed: it would try for a quarter of an hour.
    fn record_silence(&self, since: Instant) {
        let mut slot = lock(&self.slot);
        // The silence of an earlier connection says nothing of its successor.
        if slot.since != since {
            return;
        }
        let Slot {
            silence, runtime, ..
        } = &mut *slot;
        let silence = silence.get_or_insert_with(|| Silence::begin(runtime.as_ref()));
        let silent_for = moment().duration_since(silence.since);
        // The caller's own runtime is driven, however late it is.
        let here = Handle::try_current().ok().map(|here| here.id());
        let is_driven = here == runtime.as_ref().map(Handle::id) || silence.is_driven.load(Relaxed);
        drop(slot);
        if silent_for >= self.dial.response_timeout
            && !(is_driven && self.is_late_itself(silent_for))
        {
            self.lose(since, None);
        }
    }

    /// Returns whether this process, and not the server, is late: it has not sent the command, or
    /// not read the replies, or their callers have left. A runtime that is short of processor time
    /// sends and reads in the end; one that is driven no longer never does.
    fn is_late_itself(&self, silent_for: Duration) -> bool {
        let max_wait = self.dial.response_timeout.saturating_mul(UNDRIVEN_FOR);
        !self.source.is_cluster
            && silent_for < max_wait
            && !self.dial.nodes.is_silent_for(self.dial.response_timeout)
    }
}

impl Slot {
    /// Returns whether the connection made at `since` is the present one.
    fn has(&self, since: Instant) -> bool {
        self.since == since && matches!(self.state, State::Connected(_))
    }

    /// Stores the outcome of an attempt, unless another has begun meanwhile. Returns whether it
    /// did.
    fn end_attempt(&mut self, number: u64, outcome: &RedisResult<(Link, Instant)>) -> bool {
        if self.attempts != number {
            return false;
        }
        self.silence = None;
        match outcome {
            Ok((link, made)) => {
                self.state = State::Connected(link.clone());
                self.since = *made;
                self.answered = false;
            }
            Err(error) => {
                self.failures = self.failures.max(1);
                let not_before = self.pause(error);
                self.state = State::Idle { not_before };
            }
        }
        true
    }

    /// Returns the time until which no attempt is made, and the error until then; none after the
    /// first failure.
    fn pause(&mut self, error: &RedisError) -> Option<(Instant, RedisError)> {
        let earlier = self.failures;
        self.failures = earlier.saturating_add(1);
        let doublings = earlier.checked_sub(1)?.min(10);
        let pause = (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE);
        Some((moment() + pause, error.clone()))
    }
}

impl Silence {
    /// Begins now, with a task that shows whether the runtime is driven. One that is shut down
    /// drops it.
    fn begin(runtime: Option<&Handle>) -> Self {
        let is_driven = Arc::new(AtomicBool::new(false));
        if let Some(runtime) = runtime {
            let seen = Arc::clone(&is_driven);
            drop(runtime.spawn(async move { seen.store(true, Relaxed) }));
        }
        Self {
            since: moment(),
            is_driven,
        }
    }
}

/// Returns whether the bytes of a connection have ended, or make no sense any more.
fn ends_stream(error: &RedisError) -> bool {
    error.is_connection_dropped() || error.kind() == ErrorKind::Parse
}

/// Returns whether the connection is of no more use: it was dropped, it is out of step, or it leads
/// to a replica.
fn is_lost(error: &RedisError) -> bool {
    Class::of(error).ends_connection()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::{
        store::guard::{outbox::Nodes, scripted},
        values::{clock::SteadyClock, observe::Observers},
    };

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_command_that_is_never_answered_ends_with_its_connection() {
        let never = || Link::User(Arc::new(|_| Box::pin(pending())));
        let source = ConnectionSource::new(move |_| ready(Ok(never())));
        let nodes = Nodes::new(1, |_| 0, SECOND, Arc::new(SteadyClock::new()));
        let connection = Connection::new(
            source,
            Dial {
                connect_timeout: SECOND,
                response_timeout: SECOND,
                nodes: Arc::new(nodes),
                observers: Observers::default(),
                header: None,
                #[cfg(feature = "tls")]
                certificates: None,
            },
        );
        for error in [io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof] {
            let (_, since) = connection.connected().await.unwrap();
            let waits = connection.until_ended(since, pending());
            let ends = async { connection.lose(since, Some(&io::Error::from(error).into())) };
            let both = async { tokio::join!(waits, ends).0 };
            let reply = tokio::time::timeout(60 * SECOND, both).await;
            assert!(ends_stream(&reply.unwrap().unwrap_err()));
            // One that comes too late waits for nothing.
            let late = connection.until_ended(since, pending());
            assert!(ends_stream(&scripted::ready(late).unwrap_err()));
        }
    }
}
