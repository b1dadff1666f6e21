//! The rows of a Redis server: all that it does for a decision, from reading the call to its reply.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use http::HeaderValue;
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};
use tower_ratelimit::{Decision, Limit, RateLimitLayer, RedisStore, Source, redis};

use crate::{
    callgrind,
    requests::{by_user, nothing, request, users},
    support::redis_server::{command, free_port},
};

/// In the order of the table.
pub(crate) const ROWS: [&str; 5] = [
    "redis-server, EVALSHA of `return 1`",
    "redis-server, lone, remaining not read",
    "redis-server, lone, log expired",
    "redis-server, 64 at once on a key",
    "redis-server, 64 keys at once, log expired",
];

/// How many users ask one after the other.
const LONE: usize = 500;
const AT_ONCE: usize = 64;
const ROUNDS: usize = 20;

/// Never reached; nothing expires while a row is counted.
const AMPLE: Limit = Limit::new(1 << 40, Duration::from_secs(3600));
/// Never reached; all expires before a row is counted.
const SHORT: Limit = Limit::new(1 << 40, Duration::from_secs(1));

/// Longer than anything takes here, where every instruction is counted.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server under callgrind, which counts from when it is ordered to.
struct Counted {
    port: u16,
    server: Child,
    /// Takes the server along, however this process ends.
    watchdog: Child,
    folder: PathBuf,
    /// How many times it has written down what it counted.
    dumps: usize,
}

/// Counts all rows, in their order. The folder is for the files of callgrind.
pub(crate) fn count(folder: &Path) -> [f64; 5] {
    eprintln!("counting: redis-server");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut counted = Counted::start(folder);
        let store = RedisStore::builder(counted.url())
            .deadline(DEADLINE)
            .response_timeout(DEADLINE)
            .deny_cache(Duration::ZERO)
            .build()
            .unwrap();
        let spare = RateLimitLayer::builder(&store)
            .otherwise(AMPLE.by(by_user()).named("spare"))
            .headers([])
            .count_remaining(false)
            .build()
            .unwrap();
        // It lives on: how soon its end is put off depends on the time, too.
        let short = SHORT.keep_alive(AMPLE.interval()).unwrap();
        let exact = RateLimitLayer::new(&store, short.by(by_user()).named("exact"));
        let hot = RateLimitLayer::new(&store, AMPLE.by(by_user()).named("hot"));
        [
            counted.floor().await,
            counted.lone(&spare, Duration::ZERO).await,
            counted.lone(&exact, SHORT.interval()).await,
            counted
                .at_once(&hot, &vec![users(1)[0].clone(); AT_ONCE], None)
                .await,
            counted
                .at_once(&exact, &users(AT_ONCE), Some(SHORT.interval()))
                .await,
        ]
    })
}

/// Asks once, and is granted a permit by the server.
async fn granted(layer: &RateLimitLayer, user: &HeaderValue) {
    let response = layer.layer(nothing()).oneshot(request(user)).await.unwrap();
    let decision = response.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.source(), Source::Store);
    assert!(decision.is_allowed());
}

impl Counted {
    fn start(folder: &Path) -> Self {
        let server = env::var_os("REDIS_SERVER_BIN").unwrap_or("redis-server".into());
        let port = free_port();
        // Its upkeep comes by the time and not by what is asked: seldom, and it is not counted.
        let server = Command::new("valgrind")
            .args(["--tool=callgrind", "--instr-atstart=no"])
            .args(["--toggle-collect=serverCron", "--collect-atstart=yes"])
            .arg(option("callgrind-out-file", folder, "redis"))
            .arg(option("vgdb-prefix", folder, "vgdb"))
            .arg(server)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--hz", "1", "--dir"])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run `valgrind`");
        let watchdog = Command::new("sh")
            .args(["-c", "read -r _; kill -KILL \"$0\""])
            .arg(server.id().to_string())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("run `sh`");
        let mut counted = Self {
            port,
            server,
            watchdog,
            folder: folder.to_owned(),
            dumps: 0,
        };
        counted.wait_until_up();
        counted.order(&["instrumentation", "on"]);
        counted
    }

    fn wait_until_up(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while command(self.port, &["PING"], DEADLINE).is_err() {
            let ended = self.server.try_wait().expect("ask for its state");
            assert!(ended.is_none(), "redis-server under callgrind: {ended:?}");
            assert!(Instant::now() < deadline, "redis-server does not come up");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Instructions of one of so many decisions.
    async fn during(&mut self, decisions: usize, work: impl Future) -> f64 {
        self.order(&["zero"]);
        work.await;
        self.order(&["dump"]);
        self.dumps += 1;
        let file = self.folder.join(format!("redis.{}", self.dumps));
        callgrind::total(&file).unwrap() as f64 / decisions as f64
    }

    /// A script that only returns, with as many keys and arguments as a decision has.
    async fn floor(&mut self) -> f64 {
        let hash = command(self.port, &["SCRIPT", "LOAD", "return 1"], DEADLINE).unwrap();
        let client = redis::Client::open(self.url()).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.unwrap();
        let mut call = redis::cmd("EVALSHA");
        call.arg(hash.to_string()).arg(5);
        for place in 0..16 {
            call.arg(format!("ratelimit:{{user-0000000}}:spare:{place:02}"));
        }
        let mut calls = async |count: usize| {
            for _ in 0..count {
                let one: i64 = call.query_async(&mut connection).await.unwrap();
                assert_eq!(one, 1);
            }
        };
        calls(10).await;
        self.during(LONE, calls(LONE)).await
    }

    /// One user after the other asks, so long after each has asked before.
    async fn lone(&mut self, layer: &RateLimitLayer, later: Duration) -> f64 {
        let users = users(LONE);
        let all = async || {
            for user in &*users {
                granted(layer, user).await;
            }
        };
        // Twice: afterwards no table of the server's grows any more.
        for _ in 0..2 {
            all().await;
            // Each time until all logs have expired, also by a clock that is a little slower: then
            // they hold the same on a slow machine.
            tokio::time::sleep(later + later / 10).await;
        }
        self.during(LONE, all()).await
    }

    /// These users ask at once, again and again, each time so long after the last.
    async fn at_once(
        &mut self,
        layer: &RateLimitLayer,
        users: &[HeaderValue],
        later: Option<Duration>,
    ) -> f64 {
        let round = async || {
            let mut callers = JoinSet::new();
            for user in users {
                let (layer, user) = (layer.clone(), user.clone());
                callers.spawn(async move { granted(&layer, &user).await });
            }
            callers.join_all().await;
            if let Some(later) = later {
                tokio::time::sleep(later + later / 10).await;
            }
        };
        // Twice, as above.
        round().await;
        round().await;
        let count = if later.is_some() { ROUNDS / 5 } else { ROUNDS };
        let rounds = async {
            for _ in 0..count {
                round().await;
            }
        };
        self.during(users.len() * count, rounds).await
    }

    /// Has callgrind do something. It has done it when this returns.
    fn order(&self, words: &[&str]) {
        let done = Command::new("vgdb")
            .arg(option("vgdb-prefix", &self.folder, "vgdb"))
            .args([&format!("--pid={}", self.server.id()), "-c"])
            .args(words)
            .output()
            .expect("run `vgdb`");
        assert!(done.status.success(), "vgdb {words:?}: {done:?}");
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // The watchdog goes first: afterwards the server's id may be another's.
        for child in [&mut self.watchdog, &mut self.server] {
            // Fails only if it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn option(name: &str, folder: &Path, file: &str) -> String {
    format!("--{name}={}", folder.join(file).display())
}
