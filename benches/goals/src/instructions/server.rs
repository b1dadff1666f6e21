//! The rows of a Redis server: all that it does for a decision, from reading the call to its reply.

use std::{
    convert::Infallible,
    env,
    future::ready,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{HeaderValue, Request, Response};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, Grant, Limit, RateLimitLayer, RedisStore, RedisStoreBuilder,
    redis::{self, aio::MultiplexedConnection},
    testing::ManualClock,
};

use crate::{
    callgrind,
    commands::{
        ADMITTED_GCRA, BATCH_OF_12, BATCH_OF_64, BATCH_OF_64_BY_GCRA, Calls, LIST, LONE_EXPIRED,
        LONE_IN_USE, REFUSED_GCRA, RUN, SEVERAL,
    },
    requests::{by_user, one_thread, passes, request, users},
};
use kit::server::{command, free_port};

/// In the order of the table.
pub(crate) const ROWS: [&str; 24] = [
    "redis-server, EVALSHA of `return 1`",
    "redis-server, lone, log in use",
    "redis-server, lone, log expired",
    "redis-server, 64 at once on a key",
    "redis-server, 12 keys at once, log expired",
    "redis-server, 64 keys at once, log expired",
    "redis-server, 64 keys at once, GCRA",
    "redis-server, list of three limits, log expired",
    "redis-server, three limits of a rule, log expired",
    "redis-server, lone, log in use, given back",
    "redis-server, 64 at once on a key, given back",
    "redis-server, 64 keys at once, given back",
    "redis-server, GCRA, refused",
    "redis-server, GCRA, admitted",
    "redis-server, commands alone, lone, log in use",
    "redis-server, commands alone, lone, log expired",
    "redis-server, commands alone, 64 at once on a key",
    "redis-server, commands alone, 12 keys at once, log expired",
    "redis-server, commands alone, 64 keys at once, log expired",
    "redis-server, commands alone, 64 keys at once, GCRA",
    "redis-server, commands alone, list of three limits, log expired",
    "redis-server, commands alone, three limits of a rule, log expired",
    "redis-server, commands alone, GCRA, refused",
    "redis-server, commands alone, GCRA, admitted",
];

/// How many users ask one after the other.
const LONE: usize = 500;
const AT_ONCE: usize = 64;
/// As many as share a call over HTTP
const FEW: usize = 12;
const ROUNDS: usize = 20;
/// In which what was given back has reached the server
const RECEIPTS: Duration = Duration::from_millis(50);

/// Never reached, and a reply is one number, as by any usual limit. Nothing expires while a row is
/// counted, but where a clock moves on.
const AMPLE: Limit = Limit::new(1 << 30, Duration::from_secs(3600));

/// The same beside two shorter ones.
fn several() -> Limit {
    let shorter = [(1, 900), (2, 2500)];
    let shorter = shorter.map(|(part, secs)| Limit::new(part << 20, Duration::from_secs(secs)));
    let longest = Limit::new(3 << 20, AMPLE.interval());
    shorter.into_iter().fold(longest, Limit::and)
}

/// Never reached, and the most that GCRA can tell apart.
const STEADY: Limit = Limit::new(60_000_000, Duration::from_secs(60));

/// Longer than anything takes here, where every instruction is counted.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server under callgrind, which counts from when it is ordered to.
struct Counted {
    port: u16,
    server: Child,
    /// Takes the server along, however this process ends.
    watchdog: Child,
    folder: PathBuf,
    /// Of what is to have expired
    clock: ManualClock,
    /// How many times it has written down what it counted.
    dumps: usize,
}

/// Counts all rows, in their order. The folder is for the files of callgrind.
pub(crate) fn count(folder: &Path) -> [f64; ROWS.len()] {
    eprintln!("counting: redis-server");
    one_thread().block_on(async {
        let mut counted = Counted::start(folder);
        let store = counted.store().build().unwrap();
        // By a clock that is moved, so all has expired and its keys live on, on any machine.
        let moved = counted.store().client_clock(counted.clock.clone());
        let moved = moved.build().unwrap();
        let in_use = RateLimitLayer::new(&store, AMPLE.by(by_user()).named("in-use"));
        let expired = RateLimitLayer::new(&moved, AMPLE.by(by_user()).named("expired"));
        let hot = RateLimitLayer::new(&store, AMPLE.by(by_user()).named("hot"));
        let rules = ["a", "b", "c"].map(|name| AMPLE.by(by_user()).named(name));
        let list = RateLimitLayer::builder(&moved).otherwise(rules).build();
        let several = RateLimitLayer::new(&moved, several().by(by_user()).named("several"));
        let [spent, steady] =
            [("gcra", Limit::per_day(1)), ("steady", STEADY)].map(|(name, limit)| {
                let rule = limit.by(by_user()).algorithm(Algorithm::Gcra);
                RateLimitLayer::new(&store, rule.named(name))
            });
        let back = RateLimitLayer::new(&store, AMPLE.by(by_user()).named("back"));
        let crowds: Vec<_> = users(ROUNDS)
            .iter()
            .flat_map(|user| vec![user.clone(); AT_ONCE])
            .collect();
        let many: Vec<_> = (0..ROUNDS).flat_map(|_| users(AT_ONCE).to_vec()).collect();
        let hot_users = vec![users(1)[0].clone(); AT_ONCE];
        let later = AMPLE.interval();
        let mut line = counted.line().await;
        [
            counted.commands(&mut line, REFUSED_GCRA, true).await,
            counted.lone(&in_use, Duration::ZERO, true).await,
            counted.lone(&expired, later, true).await,
            counted.at_once(&hot, &hot_users, Duration::ZERO).await,
            counted.at_once(&expired, &users(FEW), later).await,
            counted.at_once(&expired, &users(AT_ONCE), later).await,
            counted
                .at_once(&steady, &users(AT_ONCE), Duration::ZERO)
                .await,
            counted.lone(&list.unwrap(), later, true).await,
            counted.lone(&several, later, true).await,
            counted.given_back(&back, &users(LONE), 1).await,
            counted.given_back(&back, &crowds, AT_ONCE).await,
            counted.given_back(&back, &many, AT_ONCE).await,
            counted.lone(&spent, Duration::ZERO, false).await,
            counted.lone(&steady, Duration::ZERO, true).await,
            counted.commands(&mut line, LONE_IN_USE, false).await,
            counted.commands(&mut line, LONE_EXPIRED, false).await,
            // The first goes alone.
            (counted.commands(&mut line, LONE_IN_USE, false).await
                + counted.commands(&mut line, RUN, false).await * RUN.callers as f64)
                / AT_ONCE as f64,
            counted.commands(&mut line, BATCH_OF_12, false).await,
            counted.commands(&mut line, BATCH_OF_64, false).await,
            counted
                .commands(&mut line, BATCH_OF_64_BY_GCRA, false)
                .await,
            counted.commands(&mut line, LIST, false).await,
            counted.commands(&mut line, SEVERAL, false).await,
            counted.commands(&mut line, REFUSED_GCRA, false).await,
            counted.commands(&mut line, ADMITTED_GCRA, false).await,
        ]
    })
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
            clock: ManualClock::new(),
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

    /// It answers slowly under callgrind.
    fn store(&self) -> RedisStoreBuilder {
        RedisStore::builder(self.url())
            .deadline(DEADLINE)
            .connect_timeout(DEADLINE)
            .response_timeout(DEADLINE)
            .deny_cache(Duration::ZERO)
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

    /// A connection of its own.
    async fn line(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        // It answers slowly under callgrind, also when the connection is made.
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(DEADLINE))
            .set_response_timeout(Some(DEADLINE));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        connection.await.unwrap()
    }

    /// Scripts of the commands of a decision, or with the same keys and arguments one that only
    /// returns.
    async fn commands(
        &mut self,
        line: &mut MultiplexedConnection,
        kind: Calls,
        only_returns: bool,
    ) -> f64 {
        let hash = kind.load(line, only_returns).await;
        let count = if kind.callers == 1 { LONE } else { ROUNDS };
        let calls: Vec<_> = (0..count).map(|call| kind.call(&hash, call)).collect();
        let all = async |line: &mut MultiplexedConnection| {
            for call in &calls {
                let _: redis::Value = call.query_async(line).await.unwrap();
            }
        };
        // Twice: afterwards no table of the server's grows any more.
        for _ in 0..2 {
            kind.prepare(line, count).await;
            all(line).await;
        }
        kind.prepare(line, count).await;
        self.during(kind.callers * count, all(line)).await
    }

    /// One user after the other asks, so long after each has asked before.
    async fn lone(&mut self, layer: &RateLimitLayer, later: Duration, granted: bool) -> f64 {
        let users = users(LONE);
        // Twice: afterwards no table of the server's grows any more.
        for _ in 0..2 {
            for user in &*users {
                passes(layer, user).await;
            }
            self.clock.advance(later);
        }
        let all = async {
            for user in &*users {
                assert_eq!(passes(layer, user).await, granted);
            }
        };
        self.during(LONE, all).await
    }

    /// These users ask at once, again and again, each time so long after the last.
    async fn at_once(
        &mut self,
        layer: &RateLimitLayer,
        users: &[HeaderValue],
        later: Duration,
    ) -> f64 {
        let clock = self.clock.clone();
        let round = async || {
            let mut callers = JoinSet::new();
            for user in users {
                let (layer, user) = (layer.clone(), user.clone());
                callers.spawn(async move { assert!(passes(&layer, &user).await) });
            }
            callers.join_all().await;
            clock.advance(later);
        };
        // Twice, as above.
        round().await;
        round().await;
        let rounds = async {
            for _ in 0..ROUNDS {
                round().await;
            }
        };
        self.during(users.len() * ROUNDS, rounds).await
    }

    /// These users ask, so many at once, and what each takes is given back.
    async fn given_back(
        &mut self,
        layer: &RateLimitLayer,
        users: &[HeaderValue],
        at_once: usize,
    ) -> f64 {
        let all = async || {
            for users in users.chunks(at_once) {
                let mut callers = JoinSet::new();
                for user in users {
                    callers.spawn(gives_back(layer.clone(), user.clone()));
                }
                callers.join_all().await;
                // Receipts go behind the answers.
                tokio::time::sleep(RECEIPTS).await;
            }
        };
        all().await;
        self.during(users.len(), all()).await
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

/// Asks, and gives back what that takes.
async fn gives_back(layer: RateLimitLayer, user: HeaderValue) {
    let inner = service_fn(|request: Request<()>| {
        let grant = request.extensions().get::<Grant>().unwrap();
        assert!(grant.set(0));
        ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    layer.layer(inner).oneshot(request(&user)).await.unwrap();
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
