//! None of Redisson's defects: each one known of its RRateLimiter up to 4.7.0 has a test, on a real
//! Redis.
//!
//! `cases.toml` is played by `cases`: a case provokes the defect, or writes the state that a
//! Redisson client leaves behind, and compares Redis' state before and after with the description
//! of the format, by which this file reads and writes it. Its comment describes Redisson's
//! behaviour; `#n` is a thread of redisson/redisson, the rest was measured on 4.7.0.
//!
//! That keys of single users vanish is held by `hostile`, what several processes take in a window
//! by `fleet`, that a call sent twice takes once by `tests/faults/delivery.rs`, how often waiters
//! ask by `queue` and unit tests of the outbox. Members of any generation or of none, and scores
//! from the future, are those of `tests/inside/model`; whose clock counts is in
//! `tests/laws/jumps.rs`. Names whose keys a Cluster would put apart are tried on a real one, in
//! `tests/topologies/cluster.rs`.

use kit::{companion, permits_of, scene::*};
use std::sync::atomic::AtomicU32;

/// When the clock begins, in ms since the epoch; all times in these tests count from here.
pub(crate) const START: i64 = 1_704_153_600_000;

/// The keys of one limiter, or of one client's part of it.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) hash: String,
    pub(crate) value: String,
    pub(crate) log: String,
}

/// Permits left, and times and permits of the log: by time, then by permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) value: Option<String>,
    pub(crate) log: Vec<(i64, u32)>,
}

impl Keys {
    pub(crate) fn of(name: &str) -> Self {
        Self {
            hash: name.to_owned(),
            value: companion(name, "value"),
            log: companion(name, "permits"),
        }
    }

    pub(crate) fn of_client(name: &str, client: &str) -> Self {
        let shared = Self::of(name);
        Self {
            hash: shared.hash,
            value: format!("{}:{client}", shared.value),
            log: format!("{}:{client}", shared.log),
        }
    }

    pub(crate) fn plant_limit(&self, rate: &str, interval: u64, rate_type: &str) {
        let fields = format!("interval {interval} keepAliveTime 0 type {rate_type}");
        let set = ["HSET", &self.hash, "rate", rate].into_iter();
        redis(&set.chain(fields.split(' ')).collect::<Vec<_>>());
    }

    /// A command whose words may be `{hash}`, `{value}` and `{log}`.
    pub(crate) fn run(&self, command: &[String]) {
        let command = command.iter().map(|word| match &**word {
            "{hash}" => &self.hash,
            "{value}" => &self.value,
            "{log}" => &self.log,
            word => word,
        });
        redis(&command.collect::<Vec<_>>());
    }

    pub(crate) fn plant_value(&self, value: &str) {
        redis(&["SET", &self.value, value]);
    }

    /// One grant of Redisson's since 3.21.0.
    pub(crate) fn plant(&self, time: i64, permits: u32) {
        self.plant_member(time, &member(permits));
    }

    pub(crate) fn plant_member(&self, time: i64, member: &[u8]) {
        let score = (START + time).to_string();
        let added = RedisServer::shared().command(&[
            b"ZADD",
            self.log.as_bytes(),
            score.as_bytes(),
            member,
        ]);
        assert_eq!(added, Reply::Int(1));
    }

    pub(crate) fn books(&self) -> Books {
        let value = match RedisServer::shared().command(&["GET", &self.value]) {
            Reply::Nil => None,
            reply => Some(reply.to_string()),
        };
        let mut log: Vec<_> = self
            .entries()
            .into_iter()
            .map(|(time, member)| (time, permits_of(&member)))
            .collect();
        log.sort_unstable();
        Books { value, log }
    }

    /// The log as it stands: times, and members in bytes.
    pub(crate) fn entries(&self) -> Vec<(i64, Vec<u8>)> {
        let mut entries = RedisServer::shared().entries(&self.log);
        entries.iter_mut().for_each(|(score, _)| *score -= START);
        entries
    }

    pub(crate) fn fields(&self) -> String {
        redis(&["HGETALL", &self.hash])
    }

    /// Milliseconds that hash, value and log have left; -1 for no end, -2 for no key.
    pub(crate) fn lives(&self) -> [i64; 3] {
        [&self.hash, &self.value, &self.log].map(|key| redis(&["PTTL", key]).parse().unwrap())
    }
}

/// Returns the state of an unused limiter.
pub(crate) fn unused() -> Books {
    Books {
        value: None,
        log: Vec::new(),
    }
}

/// A member as Redisson packs it since 3.21.0: `Bc0I`, little-endian.
pub(crate) fn member(permits: u32) -> Vec<u8> {
    member_with(&[16], &[0x5a; 12], permits)
}

/// Returns a member: the bytes before the id, the id without its last four bytes, which differ from
/// call to call, and the permits.
pub(crate) fn member_with(before: &[u8], id: &[u8], permits: u32) -> Vec<u8> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    [before, id, &own, &permits.to_le_bytes()].concat()
}

/// One command on the shared server; the reply as `redis-cli` prints it.
pub(crate) fn redis(command: &[&str]) -> String {
    let reply = RedisServer::shared().cli(command);
    assert!(!reply.starts_with("(error)"), "{command:?}: {reply}");
    reply
}
