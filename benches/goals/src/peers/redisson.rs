//! The real Redisson: its script on our connection, or itself in its own process.

#[path = "../../../shared/redisson.rs"]
mod shared;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tower_ratelimit::{
    Limit,
    redis::{self, Cmd, Value, aio::MultiplexedConnection},
};

pub(crate) use self::shared::{VERSION, script};

/// Of a client, in the keys of limits per client, which none of these is.
const CLIENT: &str = "7d9a1b2c-1111-4222-8333-444455556666";

/// Its acquire script, on a connection of ours.
#[derive(Clone, Debug)]
pub(crate) struct Script(MultiplexedConnection);

impl Script {
    pub(crate) async fn load(mut connection: MultiplexedConnection) -> Self {
        let text = script().unwrap_or_else(|missing| panic!("{missing}"));
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(text)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(hash, shared::HASH);
        Self(connection)
    }

    /// Whether a permit is granted. The name has a tag.
    pub(crate) async fn try_acquire(&self, name: &str) -> bool {
        let reply: Value = try_acquire(name)
            .query_async(&mut self.0.clone())
            .await
            .unwrap();
        match reply {
            Value::Nil => true,
            Value::Int(_) => false,
            other => panic!("not a reply of Redisson: {other:?}"),
        }
    }
}

/// As Redisson calls its script for one permit.
pub(crate) fn try_acquire(name: &str) -> Cmd {
    static CALL: AtomicU64 = AtomicU64::new(1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Sixteen bytes that no other call has.
    let call = CALL.fetch_add(1, Ordering::Relaxed);
    let id = [
        call.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes(),
        call.to_le_bytes(),
    ]
    .concat();
    let mut command = redis::cmd("EVALSHA");
    command.arg(shared::HASH).arg(5).arg(name);
    for suffix in ["value", "permits"] {
        command.arg(companion(name, suffix));
        command.arg(companion(name, &format!("{suffix}:{CLIENT}")));
    }
    command.arg(1).arg(now.as_millis() as u64).arg(id);
    command
}

/// As trySetRate leaves it, with a keep-alive time, or none.
pub(crate) fn set_rate(name: &str, limit: Limit, keep_alive: Duration) -> Cmd {
    let mut command = redis::cmd("HSET");
    command
        .arg(name)
        .arg("rate")
        .arg(limit.permits())
        .arg("interval")
        .arg(limit.interval().as_millis() as u64)
        .arg("type")
        .arg(0)
        .arg("keepAliveTime")
        .arg(keep_alive.as_millis() as u64);
    command
}

/// A key that belongs to a limiter.
pub(crate) fn companion(name: &str, suffix: &str) -> String {
    if name.contains('{') {
        format!("{name}:{suffix}")
    } else {
        format!("{{{name}}}:{suffix}")
    }
}

/// Redisson in its own process, asking as fast as it can: `Flood.java`.
#[derive(Debug)]
pub(crate) struct Flood {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Flood {
    /// For limiters named `PREFIX` and seven digits.
    pub(crate) fn start(port: u16, prefix: &str, keys: usize, in_flight: usize) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("Flood.java");
        let mut process = Command::new("java")
            .arg("-cp")
            .arg(shared::jars().join("*"))
            .arg(source)
            .args([port.to_string(), prefix.to_owned()])
            .args([keys.to_string(), in_flight.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What netty and SLF4J say there is no answer.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut flood = Self {
            process,
            orders,
            answers,
        };
        assert_eq!(flood.line(), VERSION);
        flood
    }

    /// Permits granted a second, in a time. A call that fails, or is refused, ends the run.
    pub(crate) fn run(&mut self, time: Duration) -> f64 {
        writeln!(self.orders, "{}", time.as_millis()).unwrap();
        let answer = self.line();
        let numbers: Option<(f64, f64)> = answer
            .split_once(' ')
            .and_then(|(granted, micros)| Some((granted.parse().ok()?, micros.parse().ok()?)));
        let (granted, micros) = numbers.unwrap_or_else(|| panic!("Redisson failed: {answer}"));
        granted / micros * 1e6
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(
            !line.is_empty(),
            "the process of Redisson has ended: {:?}",
            self.process.wait()
        );
        line.trim_end().to_owned()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
