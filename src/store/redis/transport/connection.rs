//! Who carries a command: one shared connection, replaced when it is lost.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::{
    Cmd, RedisError, RedisFuture, RedisResult, RetryMethod, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{runtime::Handle, sync::watch};

#[cfg(feature = "cluster")]
use super::topology;
use super::{
    source::{Source, io_error},
    stream::Driving,
};
use crate::{
    clock::{NO_TIMER, moment, runtime, within},
    store::{
        guard::breaker::Traffic,
        redis::{
            classify::{Class, Executed},
            health::ConnectionState,
            wire::script::Lacked,
        },
    },
};

/// The first pause after a failed attempt to connect, and the longest: Redis is found again within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// For so many response timeouts a connection is kept that this process does not drive.
const UNDRIVEN_FOR: u32 = 10;

/// A way to Redis that outlives its connections.
///
/// All callers share one multiplexed connection: one round trip for each command, and no queue for a free connection.
/// At most one attempt to connect is under way at a time, in a task of its own, so that no caller's deadline cuts it
/// short.
pub(crate) struct Connection {
    source: Source,
    connect_timeout: Duration,
    response_timeout: Duration,
    /// Where it is recorded that a server answers.
    traffic: Arc<Traffic>,
    slot: Arc<Mutex<Slot>>,
    pub(crate) lacked: Lacked,
    /// Carries what must not be sent twice, where the present connection would. Made when it is first needed.
    once: Option<Box<Self>>,
}

/// Why a command has no reply, and whether it may have been carried out all the same.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: RedisError,
    pub(crate) unheard: bool,
}

impl Failed {
    fn after_sending(error: RedisError) -> Self {
        let unheard = Class::of(&error).executed() == Executed::Perhaps;
        Self { error, unheard }
    }
}

impl From<RedisError> for Failed {
    /// It was not sent.
    fn from(error: RedisError) -> Self {
        Self {
            error,
            unheard: false,
        }
    }
}

impl From<Failed> for RedisError {
    fn from(failed: Failed) -> Self {
        failed.error
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

/// Where commands go at present.
struct Slot {
    state: State,
    /// When the connection was made; a call begun later went down this connection.
    since: Instant,
    /// How many attempts there were to connect. Only the last may say how it ended.
    attempts: u64,
    /// Attempts in a row that failed, or led to a server that could not be used: until a connection has lasted.
    failures: u32,
    /// Whether anything was answered over this connection.
    answered: bool,
    /// Since when no command has been answered while some were given up.
    unanswered_since: Option<Instant>,
}

enum State {
    /// Nobody has asked yet, or the connection was lost; no attempt before the given time
    Idle {
        not_before: Option<(Instant, RedisError)>,
    },
    /// An attempt is under way
    Connecting {
        began: Instant,
        attempt: Attempt,
    },
    Connected(Wire),
}

/// How an attempt ended: the connection, and when it was made.
type Attempt = watch::Receiver<Option<RedisResult<(Wire, Instant)>>>;

/// A connection that many callers share.
#[derive(Clone)]
pub(crate) enum Wire {
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
    fn send_all<'a>(
        &'a self,
        commands: &'a redis::Pipeline,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> OwnConnection for C {
    fn send<'a>(&'a self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(command).await })
    }

    fn send_all<'a>(
        &'a self,
        commands: &'a redis::Pipeline,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_commands(commands, 0, count).await })
    }
}

impl Connection {
    pub(crate) fn new(
        source: Source,
        traffic: Arc<Traffic>,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        let state = match &source {
            Source::Own(own) => State::Connected(Wire::Own(Arc::clone(own))),
            _ => State::Idle { not_before: None },
        };
        let once = source.once().map(|source| {
            let traffic = Arc::clone(&traffic);
            Box::new(Self::new(
                source,
                traffic,
                connect_timeout,
                response_timeout,
            ))
        });
        let slot = Slot {
            state,
            since: moment(),
            attempts: 0,
            failures: 0,
            answered: false,
            unanswered_since: None,
        };
        Self {
            source,
            connect_timeout,
            response_timeout,
            traffic,
            slot: Arc::new(Mutex::new(slot)),
            lacked: Lacked::default(),
            once,
        }
    }

    /// Sends one command and waits for its reply.
    ///
    /// A command whose connection was lost is sent once more over a new one: whatever is sent here must be safe to
    /// repeat.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the command executed or not.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, Failed> {
        let first = match self.attempt(command).await {
            Err(first) if is_lost(&first.error) => first,
            reply => return reply,
        };
        self.attempt(command).await.map_err(|second| Failed {
            unheard: first.unheard || second.unheard,
            ..second
        })
    }

    /// Sends one command once: for those that must not be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the command executed or not.
    pub(crate) async fn send_once(&self, command: &Cmd) -> Result<Value, Failed> {
        let this = self.once.as_deref().unwrap_or(self);
        match this.attempt(command).await {
            // Another node is to run it, so it did not run. The connection reads where to before it sends anything else.
            Err(failed)
                if this.source.has_nodes()
                    && matches!(failed.error.retry_method(), RetryMethod::MovedRedirect) =>
            {
                this.attempt(command).await
            }
            reply => reply,
        }
    }

    /// Sends one command, safe to repeat, to a master.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(unused_variables, reason = "only a Cluster has several masters")
    )]
    pub(crate) async fn send_to(&self, to: To<'_>, command: &Cmd) -> RedisResult<Value> {
        #[cfg(feature = "cluster")]
        if to != To::Any {
            let (wire, since) = self.connected().await?;
            if let Wire::Cluster(connection) = &wire {
                let reply = topology::send_to(connection, to, command).await;
                self.note(since, reply.as_ref().err());
                return reply;
            }
        }
        self.send(command).await.map_err(RedisError::from)
    }

    async fn attempt(&self, command: &Cmd) -> Result<Value, Failed> {
        let (wire, since) = self.connected().await?;
        let reply = self.send_over(&wire, since, command).await;
        reply.map_err(|error| {
            // What redis-rs says after it has repeated a command tells nothing of the first time.
            let repeated =
                self.source.repeats() && !matches!(error.retry_method(), RetryMethod::NoRetry);
            let failed = Failed::after_sending(error);
            Failed {
                unheard: failed.unheard || repeated,
                ..failed
            }
        })
    }

    /// Sends several commands at once. The replies are those of each; an error is that of all.
    pub(crate) async fn send_all(
        &self,
        commands: &redis::Pipeline,
        count: usize,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let (wire, since) = self.connected().await?;
        let replies = match &wire {
            #[cfg(feature = "cluster")]
            Wire::Cluster(connection) => {
                let replies = topology::send_all(connection, commands, self.response_timeout).await;
                for reply in &replies {
                    self.note(since, reply.as_ref().err());
                }
                return Ok(replies);
            }
            Wire::Multiplexed(connection, _) => {
                connection
                    .clone()
                    .req_packed_commands(commands, 0, count)
                    .await
            }
            Wire::Own(connection) => self.in_time(connection.send_all(commands, count)).await,
        };
        let replies: RedisResult<Vec<_>> =
            replies.map(|replies| replies.into_iter().map(Value::extract_error).collect());
        let lost = replies
            .iter()
            .flatten()
            .find_map(|reply| reply.as_ref().err().filter(|error| is_lost(error)));
        self.note(since, lost.or(replies.as_ref().err()));
        replies
    }

    /// Sends several commands at once, each of them once.
    pub(crate) async fn send_all_once(
        &self,
        commands: &redis::Pipeline,
        count: usize,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let this = self.once.as_deref().unwrap_or(self);
        this.send_all(commands, count).await
    }

    pub(crate) fn state(&self) -> ConnectionState {
        match &self.slot().state {
            State::Idle { not_before: None } => ConnectionState::Idle,
            State::Idle { .. } => ConnectionState::Failing,
            State::Connecting { .. } => ConnectionState::Connecting,
            State::Connected(_) => ConnectionState::Connected,
        }
    }

    /// Whether each node has to be told a script's text by itself.
    pub(crate) fn has_nodes(&self) -> bool {
        self.source.has_nodes()
    }

    /// Whether a call that was begun at `moment` cannot have gone down another connection than the present one.
    pub(crate) fn carried(&self, moment: Instant) -> bool {
        let slot = self.slot();
        // Those to the nodes of a Cluster are replaced unseen.
        self.source.renews()
            && !self.source.has_nodes()
            && matches!(slot.state, State::Connected(_))
            && slot.since <= moment
    }

    /// What a connection of somebody else's making does may take without end.
    async fn in_time<T>(&self, sending: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let sent = within(self.response_timeout, sending).await;
        sent.unwrap_or_else(|| Err(silent()))
    }

    async fn send_over(&self, wire: &Wire, since: Instant, command: &Cmd) -> RedisResult<Value> {
        let mut given_up = GivenUp {
            connection: self,
            since,
            armed: true,
        };
        let reply = match wire {
            Wire::Multiplexed(connection, _) => {
                connection.clone().send_packed_command(command).await
            }
            #[cfg(feature = "cluster")]
            Wire::Cluster(connection) => {
                let mut connection = connection.clone();
                self.in_time(connection.req_packed_command(command)).await
            }
            Wire::Own(connection) => self.in_time(connection.send(command)).await,
        };
        // What the server refuses comes as a value here.
        let reply = reply.and_then(Value::extract_error);
        given_up.armed = false;
        self.note(since, reply.as_ref().err());
        reply
    }

    /// What a reply, or its lack, tells of the connection that was made at `since`.
    fn note(&self, since: Instant, error: Option<&RedisError>) {
        match error {
            // One node is lost, and redis-rs is repairing it. If nothing at all is answered, begin anew.
            Some(error) if is_lost(error) && self.source.has_nodes() => self.note_silence(since),
            Some(error) if is_lost(error) => self.lose(since, Some(error)),
            Some(error) if error.is_timeout() => self.note_silence(since),
            // Any other error is an answer too.
            _ => {
                // Of several nodes, who asks knows which one it was.
                if !self.source.has_nodes() {
                    self.traffic.replied();
                }
                self.note_answer(since);
            }
        }
    }

    /// The connection, made now if there is none, and when it was made.
    async fn connected(&self) -> RedisResult<(Wire, Instant)> {
        // Also where there is a connection: its timer would panic.
        let runtime = runtime().ok_or_else(|| io_error(NO_TIMER))?;
        let mut attempt = {
            let mut slot = self.slot();
            match &slot.state {
                State::Connected(wire) => return Ok((wire.clone(), slot.since)),
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
        let outcome = match attempt.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        outcome.unwrap_or_else(|| Err(io_error("the attempt to connect was dropped")))
    }

    /// Whether an attempt will end: its runtime may have been shut down under it, or nobody may be driving that.
    fn is_alive(&self, began: Instant, attempt: &Attempt) -> bool {
        let longest = self.connect_timeout.saturating_mul(2);
        attempt.has_changed().is_ok() && moment().duration_since(began) < longest
    }

    fn start_connecting(&self, runtime: &Handle, slot: &mut Slot) -> Attempt {
        let (done, attempt) = watch::channel(None);
        slot.attempts += 1;
        slot.state = State::Connecting {
            began: moment(),
            attempt: attempt.clone(),
        };
        let (source, timeout) = (self.source.clone(), self.connect_timeout);
        let (response_timeout, traffic) = (self.response_timeout, Arc::clone(&self.traffic));
        let (slot, number) = (Arc::clone(&self.slot), slot.attempts);
        drop(runtime.spawn(async move {
            let connecting = source.connect(response_timeout, traffic);
            let outcome = match tokio::time::timeout(timeout, connecting).await {
                Ok(outcome) => outcome,
                Err(_) => Err(silent()),
            };
            let outcome = outcome.map(|wire| (wire, moment()));
            lock(&slot).settle(number, &outcome);
            done.send_replace(Some(outcome));
        }));
        attempt
    }

    /// Drops the connection that was made at `since`, so that another is made.
    ///
    /// `error` is what the server said, or that it hung up. It may do so for as long as the address leads to it, a replica
    /// for example: so the first such connection is replaced at once, those after it as failed attempts are.
    fn lose(&self, since: Instant, error: Option<&RedisError>) {
        let mut slot = self.slot();
        if self.source.renews() && slot.since == since && matches!(slot.state, State::Connected(_))
        {
            slot.unanswered_since = None;
            if moment().duration_since(since) >= LONGEST_PAUSE {
                slot.failures = 0;
            }
            let not_before = match error {
                // It worked, and somebody has closed it.
                Some(error) if error.is_connection_dropped() && slot.answered => None,
                Some(error) => slot.pause(error),
                None => None,
            };
            slot.state = State::Idle { not_before };
        }
    }

    fn note_answer(&self, since: Instant) {
        let mut slot = self.slot();
        if slot.since == since {
            slot.unanswered_since = None;
            slot.answered = true;
            // A replica answers whoever is refused, too.
            if slot.failures > 0 && moment().duration_since(since) >= LONGEST_PAUSE {
                slot.failures = 0;
            }
        }
    }

    /// A command was not answered in time. A connection on which nothing is answered for as long as the response timeout
    /// is dead, even if the kernel has not noticed: it would try for a quarter of an hour.
    fn note_silence(&self, since: Instant) {
        let mut slot = self.slot();
        let first = *slot.unanswered_since.get_or_insert_with(moment);
        let silent_for = moment().duration_since(first);
        let silent = slot.since == since
            && silent_for >= self.response_timeout
            && !self.is_late_itself(silent_for);
        drop(slot);
        if silent {
            self.lose(since, None);
        }
    }

    /// Whether this process, and not the server, is late: it has not sent what is waited for, or
    /// not read the replies, or their callers have left. A runtime that is short of processor time
    /// sends and reads in the end; one that is not driven never does.
    fn is_late_itself(&self, silent_for: Duration) -> bool {
        let patience = self.response_timeout.saturating_mul(UNDRIVEN_FOR);
        !self.source.has_nodes()
            && silent_for < patience
            && !self.traffic.is_silent_for(self.response_timeout)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        lock(&self.slot)
    }
}

/// Notes that nobody waits any longer for a command that was not answered.
struct GivenUp<'a> {
    connection: &'a Connection,
    since: Instant,
    armed: bool,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.connection.note_silence(self.since);
        }
    }
}

impl Slot {
    fn settle(&mut self, number: u64, outcome: &RedisResult<(Wire, Instant)>) {
        if self.attempts != number {
            // Given up as dead, and another was begun.
            return;
        }
        self.unanswered_since = None;
        match outcome {
            Ok((wire, made)) => {
                self.state = State::Connected(wire.clone());
                self.since = *made;
                self.answered = false;
            }
            Err(error) => {
                self.failures = self.failures.max(1);
                let not_before = self.pause(error);
                self.state = State::Idle { not_before };
            }
        }
    }

    /// Until when nobody connects, and the error until then; none after the first failure.
    fn pause(&mut self, error: &RedisError) -> Option<(Instant, RedisError)> {
        let earlier = self.failures;
        self.failures = earlier.saturating_add(1);
        let doublings = earlier.checked_sub(1)?.min(10);
        let pause = (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE);
        Some((moment() + pause, error.clone()))
    }
}

/// What it means that nothing was answered in time.
pub(crate) fn silent() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Whether the connection is of no more use: it was dropped, it is out of step, or it leads to a replica.
fn is_lost(error: &RedisError) -> bool {
    Class::of(error).ends_connection()
}

/// What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

// Addresses and passwords stay out of logs.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
