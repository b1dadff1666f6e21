//! The Redis of a row, and its own account of what scripts cost it.

use std::{fs, ops::Sub, sync::OnceLock, time::Duration};

use tower_ratelimit::{
    RedisStore, RedisStoreBuilder,
    redis::{self, aio::MultiplexedConnection},
};

use kit::{RedisServer, Reply};

/// Longer than anything takes that is measured here: nothing is to be decided by a policy.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A server of its own.
#[derive(Debug)]
pub(crate) struct Database {
    server: RedisServer,
    process: OnceLock<u32>,
}

/// Scripts called so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scripts {
    pub(crate) calls: u64,
    /// Microseconds
    pub(crate) cost: u64,
}

impl Database {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more arguments
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::of(RedisServer::start_with(arguments))
    }

    pub(crate) fn of(server: RedisServer) -> Self {
        let process = OnceLock::new();
        Self { server, process }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    /// Builds a store whose every decision is Redis' own.
    pub(crate) fn builder(&self) -> RedisStoreBuilder {
        patient(&self.url()).deny_cache(Duration::ZERO)
    }

    /// A store whose every decision is Redis' own.
    pub(crate) fn store(&self) -> RedisStore {
        self.builder().build().unwrap()
    }

    /// A connection of its own.
    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(TIME_LIMIT));
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap()
    }

    /// The same, for commands one after the other.
    pub(crate) fn line(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_connection().unwrap()
    }

    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        self.server.cli(arguments)
    }

    pub(crate) fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Reply {
        self.server.command(arguments)
    }

    /// What Redis reckons for scripts since it was started.
    pub(crate) fn scripts(&self) -> Scripts {
        let stats = self.cli(&["INFO", "commandstats"]);
        let mut scripts = Scripts { calls: 0, cost: 0 };
        for line in stats.lines() {
            if let Some(fields) = line
                .strip_prefix("cmdstat_evalsha:")
                .or_else(|| line.strip_prefix("cmdstat_eval:"))
            {
                scripts.calls += number(fields, "calls=");
                scripts.cost += number(fields, "usec=");
            }
        }
        scripts
    }

    /// Microseconds of scripts for each of the decisions of a turn, several of which may share a
    /// call.
    pub(crate) fn cost(&self, decisions: usize, turn: impl FnOnce()) -> f64 {
        let before = self.scripts();
        turn();
        (self.scripts() - before).cost as f64 / decisions as f64
    }

    /// Processor time that the server has used.
    pub(crate) fn busy(&self) -> Duration {
        let process = self.process.get_or_init(|| {
            let about = self.cli(&["INFO", "server"]);
            let line = about
                .lines()
                .find_map(|line| line.strip_prefix("process_id:"));
            line.expect("a process id").trim().parse().unwrap()
        });
        busy(*process)
    }

    /// Bytes that all keys take whose names contain this.
    pub(crate) fn weight(&self, name: &str) -> u64 {
        let Reply::Array(keys) = self.command(&["KEYS", &format!("*{name}*")]) else {
            panic!("KEYS names none");
        };
        let weight = |key: &Reply| match self.command(&[
            "MEMORY",
            "USAGE",
            &key.to_string(),
            "SAMPLES",
            "0",
        ]) {
            Reply::Int(bytes) => bytes.unsigned_abs(),
            // Gone since.
            Reply::Nil => 0,
            other => panic!("MEMORY USAGE {key}: {other}"),
        };
        keys.iter().map(weight).sum()
    }
}

/// A store that lets nothing be decided by a policy, with the usual cache of refusals.
pub(crate) fn patient(url: &str) -> RedisStoreBuilder {
    patiently(RedisStore::builder(url))
}

pub(crate) fn patiently(store: RedisStoreBuilder) -> RedisStoreBuilder {
    let store = store.connect_timeout(TIME_LIMIT);
    store.deadline(TIME_LIMIT).response_timeout(TIME_LIMIT)
}

/// Processor time of a process, all threads together; from the scheduler, as the usual figure
/// counts hundredths of a second.
pub(crate) fn busy(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .unwrap_or_else(|error| panic!("processor time is read from /proc, as on Linux: {error}"));
    let nanos = threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .map(|figures| {
            let first = figures.split(' ').next();
            first.and_then(|nanos| nanos.parse::<u64>().ok()).unwrap()
        })
        .sum();
    Duration::from_nanos(nanos)
}

impl Sub for Scripts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            cost: self.cost - earlier.cost,
        }
    }
}

fn number(fields: &str, name: &str) -> u64 {
    fields
        .split(',')
        .find_map(|field| field.strip_prefix(name)?.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {fields}"))
}
