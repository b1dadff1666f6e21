//! The Lua scripts, and how to call one: EVALSHA, and SCRIPT LOAD first if the server does not know
//! the hash. A call for permits passes the breaker on its way.

use std::{
    borrow::Cow,
    cell::Cell,
    sync::LazyLock,
    time::{Duration, Instant},
};

use redis::{Arg, Cmd, RedisError, Value};
use tracing::{Span, debug_span, field::Empty};

use crate::{
    store::{
        guard::outbox::{breaker::Signal, passes::Pass},
        redis::{
            classify::{self, Class},
            node::{self, Failure},
            transport::{
                connection::{Connection, Failed},
                link::To,
            },
        },
    },
    values::{
        clock::moment,
        demand::Demand,
        error::{Error, ErrorKind},
        observe::StoreCall,
    },
};

/// A script whose hash is computed when it is first needed.
pub(crate) type LazyScript = LazyLock<Script>;

/// Makes a script of a name and the parts of its text: files in `lua/`, and `[SCRIPT]` for the text
/// of another script. The `--- @include` lines of its last file name the same parts, which a test
/// compares: see `lua/README.md`.
macro_rules! lua {
    (@ [$script:expr]) => { $script.text() };
    (@ $file:literal) => { include_str!(concat!("../../../../lua/", $file)) };
    ($name:literal: $($part:tt),+) => {
        LazyScript::new(|| Script::new($name, &[$(lua!(@ $part)),+].concat()))
    };
}
pub(crate) use lua;

#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    /// The EVALSHA command.
    pub(crate) command: Cmd,
    /// Set if it must not be sent twice: a lost connection is an error, because it may have run.
    pub(crate) once: bool,
    /// The number of requests that it decides; 0 if it takes no permits.
    pub(crate) callers: usize,
}

impl ScriptCall {
    /// Sends a call for permits through the breaker of its node, and records what it says about the
    /// server. Verbs and receipts bypass the breakers: no request waits for these.
    ///
    /// # Errors
    ///
    /// Those of the server and its connection, and that the breaker is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the call unsent, or carried out or not.
    pub(super) async fn decide(
        self,
        connection: &Connection,
        runs: &[&[Demand]],
    ) -> Result<Value, Failure> {
        let pass = enter(connection, runs)?;
        // If it must not be sent twice, permits of a lost reply stay in use until they expire.
        let outcome = self.send(connection).await;
        self.recycle();
        match outcome {
            Ok(reply) => {
                pass.ends(Signal::Answered);
                Ok(reply)
            }
            Err(failed) => {
                if failed.unacknowledged && Class::of(&failed.error) == Class::Silent {
                    pass.ends_unanswered();
                } else {
                    pass.ends(node::signal(&failed, connection.source.is_cluster));
                }
                Err(failed.into())
            }
        }
    }

    /// Sends the EVALSHA command. If the server lacks the script, it is sent SCRIPT LOAD and
    /// EVALSHA again; if SCRIPT LOAD is refused, EVAL with the text.
    ///
    /// EVAL comes last because newer servers evict scripts that came by EVAL, once there are 500.
    ///
    /// # Cancel safety
    ///
    /// The script may have run or not if the future is dropped.
    pub(crate) async fn send(&self, connection: &Connection) -> Result<Value, Failed> {
        let report = CallReport::new(connection, self.script.name, self.callers);
        let command = match &connection.dial.header {
            None => Cow::Borrowed(&self.command),
            Some(header) => {
                let sha1 = header.sha1(self.script.text());
                Cow::Owned(with_script("EVALSHA", &sha1, &self.command))
            }
        };
        let mut reply = connection.send(&command, self.once).await;
        if let Err(failed) = &reply
            && is_unknown_script(&failed.error)
        {
            let unacknowledged = failed.unacknowledged;
            // Boxed, so that it does not enlarge the future of the usual call.
            let loaded = Box::pin(self.send_unknown(connection, &command)).await;
            reply = loaded.map_err(|last| last.after(unacknowledged));
        }
        report.ended(reply)
    }

    /// Keeps the memory of its command for the next calls of this thread, unless that ends.
    pub(super) fn recycle(self) {
        let mut command = self.command;
        let _ = SENT.try_with(|sent| {
            let mut commands = sent.take();
            if commands.len() < MOST_SENT && command.args_iter().len() <= MOST_ARGUMENTS {
                command.clear();
                commands.push(command);
            }
            sent.set(commands);
        });
    }

    async fn send_unknown(&self, connection: &Connection, by_hash: &Cmd) -> Result<Value, Failed> {
        let header = connection.dial.header.as_deref();
        let text = header.map_or(Cow::Borrowed(self.script.text()), |header| {
            Cow::Owned(header.before(self.script.text()))
        });
        let mut unacknowledged = false;
        if self.load_into(connection, &text).await {
            match connection.send(by_hash, self.once).await {
                // The script was flushed meanwhile.
                Err(failed) if is_unknown_script(&failed.error) => {
                    unacknowledged = failed.unacknowledged;
                }
                reply => return reply,
            }
        }
        let whole = with_script("EVAL", &text, &self.command);
        let reply = connection.send(&whole, self.once).await;
        reply.map_err(|last| last.after(unacknowledged))
    }

    /// Loads the script on the node of these keys, and returns whether that succeeded.
    async fn load_into(&self, connection: &Connection, text: &str) -> bool {
        // Without a key, redis-rs loads it into every node of a Cluster, and fails if one is down.
        let to = match self.command.args_iter().nth(3) {
            Some(Arg::Simple(key)) => To::Key(key),
            _ => To::Any,
        };
        connection.send_to(to, &load_command(text)).await.is_ok()
    }
}

/// Asks the breaker for a call of these callers, which are all of one node.
fn enter<'a>(connection: &'a Connection, runs: &[&[Demand]]) -> Result<Pass<'a>, Error> {
    let callers = || runs.iter().flat_map(|run| run.iter());
    let first = callers().next().ok_or(Error::new(ErrorKind::Permits))?;
    // Those that wait for permits have time.
    let not_waiting = callers().filter(|demand| demand.max_wait.is_none());
    let asked_at = not_waiting.filter_map(|demand| demand.asked_at).min();
    let waited = asked_at.map_or(Duration::ZERO, |asked_at| {
        moment().saturating_duration_since(asked_at)
    });
    connection.dial.nodes.enter(first.first().name(), waited)
}

/// Reports a call to the observers, and in a span. If it is dropped before the call has ended, the
/// callers have given the call up.
pub(crate) struct CallReport<'a> {
    connection: &'a Connection,
    operation: &'static str,
    callers: usize,
    /// `None` where there are no observers.
    since: Option<Instant>,
    /// A timeout until it has ended.
    result: Result<(), ErrorKind>,
    /// By the conventions of OpenTelemetry for databases. It never holds a key.
    span: Span,
}

impl<'a> CallReport<'a> {
    pub(crate) fn new(connection: &'a Connection, operation: &'static str, callers: usize) -> Self {
        let server = &connection.source.server;
        // Signed: the bridge to OpenTelemetry makes text of an unsigned number.
        let port = server.port.map(i64::from);
        Self {
            connection,
            operation,
            callers,
            since: (!connection.dial.observers.is_empty()).then(moment),
            result: Err(ErrorKind::Timeout),
            span: debug_span!(
                target: "tower_ratelimit",
                "ratelimit.store",
                otel.kind = "client",
                db.system.name = "redis",
                db.namespace = server.database.as_deref(),
                db.operation.name = operation,
                server.address = server.address.as_deref(),
                server.port = port,
                ratelimit.callers = i64::try_from(callers).unwrap_or(i64::MAX),
                db.response.status_code = Empty,
                "error.type" = Empty,
            ),
        }
    }

    /// Reports the end of the call to the observers. Returns the reply.
    pub(crate) fn ended(mut self, reply: Result<Value, Failed>) -> Result<Value, Failed> {
        if let Err(failed) = &reply
            && let Some(code) = classify::code(&failed.error)
        {
            self.span.record("db.response.status_code", code);
        }
        let kind = |failed: &Failed| classify::meaning(&failed.error).kind;
        self.result = reply.as_ref().map(|_| ()).map_err(kind);
        reply
    }
}

impl Drop for CallReport<'_> {
    fn drop(&mut self) {
        if let Err(kind) = self.result {
            self.span.record("error.type", kind.as_str());
        }
        if let Some(since) = self.since {
            self.connection.dial.observers.called(&StoreCall {
                operation: self.operation,
                node: self.connection.source.shown.as_deref(),
                callers: self.callers,
                duration: moment().saturating_duration_since(since),
                result: self.result,
            });
        }
    }
}

thread_local! {
    /// Commands that were sent, kept for their memory. Without them each call allocates twice.
    static SENT: Cell<Vec<Cmd>> = const { Cell::new(Vec::new()) };
}
/// The most commands that a thread keeps, and the most arguments of one that is kept.
const MOST_SENT: usize = 64;
const MOST_ARGUMENTS: usize = 20;

/// The text of a script, as servers keep it, and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    /// The name that observers receive.
    name: &'static str,
    text: String,
    pub(crate) sha1: String,
}

impl Script {
    /// Makes a script of the text of its files. Servers keep it, and may send it to replicas, so it
    /// goes without comments and indentation.
    pub(crate) fn new(name: &'static str, files: &str) -> Self {
        let lines = files.lines().map(str::trim_start);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        Self {
            name,
            sha1: redis::Script::new(&text).get_hash().to_owned(),
            text,
        }
    }

    /// Returns the command that loads it into a server without running it.
    pub(crate) fn load(&self) -> Cmd {
        load_command(&self.text)
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Starts a command that calls it by its hash: the keys follow, then the other arguments.
    pub(crate) fn start(&self, keys: usize, arguments: usize) -> Cmd {
        let length = 3 + keys + arguments;
        let recycled = SENT.try_with(|sent| {
            let mut commands = sent.take();
            let last = commands.pop_if(|_| length <= MOST_ARGUMENTS);
            sent.set(commands);
            last
        });
        let mut command = recycled.ok().flatten().unwrap_or_else(|| {
            let bytes = 64 + KEY_BYTES * keys + ARGUMENT_BYTES * arguments;
            Cmd::with_capacity(length, bytes)
        });
        command.arg("EVALSHA").arg(&self.sha1).arg(keys);
        command
    }

    /// Returns the same command with the script's text.
    pub(crate) fn whole(&self, command: &Cmd) -> Cmd {
        with_script("EVAL", &self.text, command)
    }
}

fn load_command(text: &str) -> Cmd {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(text);
    command
}

/// The usual size of a key and of any other argument.
const KEY_BYTES: usize = 80;
const ARGUMENT_BYTES: usize = 8;

/// Returns a command with the same keys and arguments that calls another script.
pub(crate) fn with_script(verb: &str, script: &str, command: &Cmd) -> Cmd {
    let mut other = redis::cmd(verb);
    other.arg(script);
    for argument in command.args_iter().skip(2) {
        if let Arg::Simple(bytes) = argument {
            other.arg(bytes);
        }
    }
    other
}

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    Class::of(error) == Class::UnknownScript
}
