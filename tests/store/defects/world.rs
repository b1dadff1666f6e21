//! A limiter by a clock that is moved, and its state in Redis, read and written by the description
//! of the format.

use kit::{companion, permits_of, scene::*};
use std::sync::atomic::AtomicU32;

/// When the clock begins, in ms since the epoch; all times in these tests count from here.
pub(crate) const START: i64 = 1_704_153_600_000;

pub(crate) struct Specimen {
    pub(crate) clock: ManualClock,
    pub(crate) limiter: RateLimiter,
    pub(crate) keys: Keys,
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    /// Refused, for so many milliseconds
    Wait(u64),
    AboveRate,
}

impl Specimen {
    /// A limiter without a limit.
    fn empty() -> Self {
        let (name, clock) = (unique("defect"), ManualClock::new());
        let store = store().client_clock(clock.clone()).build().unwrap();
        Self {
            limiter: limiter(&store, &name),
            keys: Keys::of(&name),
            clock,
        }
    }

    /// Creates an unused limiter whose limit was written by a Redisson since 3.38.0.
    pub(crate) fn written_by_java(rate: &str, interval: u64) -> Self {
        let world = Self::empty();
        world.keys.plant_limit(rate, interval, "0");
        world
    }

    /// One whose limit was written by this crate.
    pub(crate) async fn limited(rate: u64, interval: u64) -> Self {
        let world = Self::empty();
        let limit = Limit::new(rate, millis(interval));
        assert!(world.limiter.try_set_rate(limit).await.unwrap());
        world
    }

    pub(crate) fn at(&self, time: u64) {
        let start = u64::try_from(START).unwrap();
        self.clock.set(millis(start + time));
    }

    pub(crate) async fn take(&self, permits: u32) -> Answer {
        take(&self.limiter, permits).await
    }

    pub(crate) async fn available(&self) -> u64 {
        self.limiter.available_permits().await.unwrap()
    }

    pub(crate) fn books(&self) -> Books {
        self.keys.books()
    }
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

pub(crate) fn store() -> RedisStoreBuilder {
    patient(RedisServer::shared().url()).deny_cache(Duration::ZERO)
}

pub(crate) fn limiter(store: &impl Store, name: &str) -> RateLimiter {
    RateLimiter::new(store, name).unwrap()
}

pub(crate) async fn take(limiter: &RateLimiter, permits: u32) -> Answer {
    answer(&limiter.try_acquire_many(permits).await.unwrap())
}

pub(crate) fn answer(decision: &Decision) -> Answer {
    match decision {
        Decision::Allow(_) => Answer::Granted,
        Decision::Deny(refusal) if refusal.kind() == RefusalKind::AboveRate => Answer::AboveRate,
        Decision::Deny(refusal) => {
            let wait = refusal.retry_after().expect("a wait");
            Answer::Wait(u64::try_from(wait.as_millis()).unwrap())
        }
    }
}

pub(crate) fn books(value: i64, log: &[(i64, u32)]) -> Books {
    Books {
        value: Some(value.to_string()),
        log: log.to_vec(),
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
