//! A service under load loses its Redis, and gets it back: what its callers saw, on one page.
//!
//! Starts the service, a `redis-server` of its own, and callers; kills the server, and starts it
//! again. Arguments: the number of seconds without Redis (60), and `silent` for a server that stays
//! up and does not answer meanwhile.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::get,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};
use tower_ratelimit::{
    Decision, FailurePolicy, Limit, RateLimitLayer, RedisStore, Source,
    key::{Constant, FromHeader},
};

/// The longest that a decision may take: the default.
const BUDGET: Duration = Duration::from_millis(50);
const CALLERS: usize = 8;
/// The pause between two requests of a caller.
const PAUSE: Duration = Duration::from_millis(10);
const PATHS: [&str; 3] = ["/shop", "/login", "/search"];

type Failure = Box<dyn Error + Send + Sync>;

/// The columns of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Before,
    Without,
    After,
}

/// One answer of the service.
#[derive(Clone, Copy, Debug)]
struct Answered {
    phase: Phase,
    path: &'static str,
    status: u16,
    source: Source,
    took: Duration,
    at: Instant,
}

/// The figures collected so far.
#[derive(Debug)]
struct Watch {
    phase: Mutex<Phase>,
    answered: Mutex<Vec<Answered>>,
    /// The most by which the machine delayed a timer, in each phase
    machine: Mutex<[Duration; 3]>,
    sent: AtomicU64,
    completed: AtomicU64,
    over: AtomicBool,
}

/// The data behind a lock is valid between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Three rules: a limit for all that lets requests pass in an outage, one for each user that does
/// not, and a busy one with leased permits.
fn app(store: &RedisStore, watch: &Arc<Watch>) -> Result<Router, Failure> {
    let user = || FromHeader::new("x-user");
    let shop = Limit::per_second(100)
        .by(Constant("all"))
        .named("shop")
        .on_failure(FailurePolicy::Allow);
    let login = Limit::per_second(5)
        .by(user())
        .named("login")
        .on_failure(FailurePolicy::Deny);
    let search = Limit::per_second(400)
        .by(Constant("all"))
        .named("search")
        .lease(Duration::from_millis(100))
        .on_failure(FailurePolicy::Allow);
    let limits = RateLimitLayer::builder(store)
        .on("GET /shop", shop)
        .on("GET /login", login)
        .on("GET /search", search)
        .decision_in_response()
        .build()?;
    Ok(Router::new()
        .route("/shop", get(async || "tea\n"))
        .route("/login", get(async || "welcome\n"))
        .route("/search", get(async || "cake\n"))
        .layer(limits)
        // Outside of the limits: it measures what they cost.
        .layer(from_fn_with_state(Arc::clone(watch), measure)))
}

async fn measure(State(watch): State<Arc<Watch>>, request: Request, next: Next) -> Response {
    let (phase, began) = (*lock(&watch.phase), Instant::now());
    let path = PATHS.into_iter().find(|path| *path == request.uri().path());
    let answer = next.run(request).await;
    let source = answer.extensions().get::<Decision>().map(Decision::source);
    if let (Some(path), Some(source)) = (path, source) {
        lock(&watch.answered).push(Answered {
            phase,
            path,
            status: answer.status().as_u16(),
            source,
            took: began.elapsed(),
            at: Instant::now(),
        });
    }
    answer
}

/// Measures what a busy machine adds to every wait: an otherwise idle timer.
async fn look_at_machine(watch: Arc<Watch>) {
    while !watch.over.load(Ordering::SeqCst) {
        let began = Instant::now();
        sleep(PAUSE).await;
        let late = began.elapsed().saturating_sub(PAUSE);
        let phase = *lock(&watch.phase) as usize;
        let mut longest = lock(&watch.machine);
        longest[phase] = longest[phase].max(late);
    }
}

/// Sends requests until the end, over one connection.
async fn caller(watch: Arc<Watch>, address: SocketAddr, number: usize) -> Result<(), Failure> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut turn = number;
    while !watch.over.load(Ordering::SeqCst) {
        turn += 1;
        let request = Request::get(PATHS[turn % PATHS.len()])
            .header("host", "shop")
            .header("x-user", format!("user{}", number % 4))
            .body(axum::body::Body::empty())?;
        watch.sent.fetch_add(1, Ordering::SeqCst);
        let answer = sender.send_request(request).await?;
        axum::body::to_bytes(axum::body::Body::new(answer.into_body()), 10_000).await?;
        watch.completed.fetch_add(1, Ordering::SeqCst);
        sleep(PAUSE).await;
    }
    drop(sender);
    connection.await??;
    Ok(())
}

/// A server of our own, which ends when this value is dropped.
struct Redis {
    port: u16,
    process: Child,
}

impl Redis {
    /// Starts a server on a free port, or on its former one.
    async fn start(port: Option<u16>) -> Result<Self, Failure> {
        let free = || StdListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr();
        let port = port.map_or_else(|| free().map(|address| address.port()), Ok)?;
        let program = env::var("REDIS_SERVER_BIN");
        let process = Command::new(program.unwrap_or_else(|_| "redis-server".to_owned()))
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()?;
        let redis = Self { port, process };
        let begun = Instant::now();
        let store = RedisStore::open(redis.url())?;
        while let Err(error) = store.ping().await {
            if begun.elapsed() > Duration::from_secs(10) {
                return Err(error.into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(redis)
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Stops or continues the process.
    fn signal(&self, name: &str) -> Result<(), Failure> {
        let number = self.process.id().to_string();
        let status = Command::new("kill").args([name, &number]).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("kill {name}: {status}").into())
        }
    }

    /// Ends it like a crash.
    fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.kill();
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let seconds: f64 = env::args().nth(1).map_or(Ok(60.0), |given| given.parse())?;
    let silent = env::args().nth(2).is_some_and(|how| how == "silent");
    let without = Duration::from_secs_f64(seconds);
    let beside = without.min(Duration::from_secs(5));

    let mut redis = Redis::start(None).await?;
    let store = RedisStore::builder(redis.url())
        .prefix("outage")
        .deadline(BUDGET)
        .build()?;
    let watch = Arc::new(Watch {
        phase: Mutex::new(Phase::Before),
        answered: Mutex::default(),
        machine: Mutex::default(),
        sent: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = app(&store, &watch)?;
    let service = tokio::spawn(async { axum::serve(listener, app).await });
    tokio::spawn(look_at_machine(Arc::clone(&watch)));
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        callers.spawn(caller(Arc::clone(&watch), address, number));
    }

    sleep(beside).await;
    *lock(&watch.phase) = Phase::Without;
    if silent {
        redis.signal("-STOP")?;
    } else {
        redis.kill()?;
    }
    let gone = Instant::now();
    sleep(without).await;
    let redis = if silent {
        redis.signal("-CONT")?;
        redis
    } else {
        Redis::start(Some(redis.port)).await?
    };
    let back = Instant::now();
    *lock(&watch.phase) = Phase::After;
    sleep(beside).await;
    watch.over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    service.abort();

    // The server must live until here.
    drop(redis);
    print!("{}", page(&watch, back.duration_since(gone), back)?);
    Ok(())
}

fn page(watch: &Watch, without: Duration, back: Instant) -> Result<String, Failure> {
    const COLUMNS: [Phase; 3] = [Phase::Before, Phase::Without, Phase::After];
    let answered = lock(&watch.answered);
    let mut page = String::new();
    let mut row = |name: &str, cell: &dyn Fn(Phase) -> String| -> std::fmt::Result {
        let cells = COLUMNS.map(|phase| format!("{:>12}", cell(phase))).concat();
        writeln!(page, "{name:<40}{cells}")
    };
    row(
        &format!("{:.1} s without Redis", without.as_secs_f64()),
        &|phase| format!("{phase:?}").to_lowercase(),
    )?;
    let of = |phase| answered.iter().filter(move |answer| answer.phase == phase);
    row("requests", &|phase| of(phase).count().to_string())?;
    let what = |answer: &Answered| {
        let outcome = match answer.status {
            200 => "admitted",
            429 => "refused",
            503 => "unavailable",
            _ => "otherwise",
        };
        (answer.path, outcome, by(answer.source))
    };
    let mut kinds: BTreeMap<_, [usize; 3]> = BTreeMap::new();
    for answer in answered.iter() {
        kinds.entry(what(answer)).or_default()[answer.phase as usize] += 1;
    }
    for ((path, outcome, by), counts) in kinds {
        row(&format!("  {path} {outcome} by {by}"), &|phase| {
            counts[phase as usize].to_string()
        })?;
    }
    row("later than the budget", &|phase| {
        of(phase)
            .filter(|answer| answer.took > BUDGET)
            .count()
            .to_string()
    })?;
    row("longest in the service, ms", &|phase| {
        let longest = of(phase).map(|answer| answer.took).max();
        format!("{:.1}", longest.unwrap_or_default().as_secs_f64() * 1000.0)
    })?;
    row("99 of 100 within, ms", &|phase| {
        let mut times: Vec<_> = of(phase).map(|answer| answer.took).collect();
        times.sort_unstable();
        let time = times.get(times.len() * 99 / 100).copied();
        format!("{:.1}", time.unwrap_or_default().as_secs_f64() * 1000.0)
    })?;

    row("a timer of this machine late by, ms", &|phase| {
        let late = lock(&watch.machine)[phase as usize];
        format!("{:.1}", late.as_secs_f64() * 1000.0)
    })?;

    let sent = watch.sent.load(Ordering::SeqCst);
    let completed = watch.completed.load(Ordering::SeqCst);
    writeln!(
        page,
        "\n{sent} requests sent, {completed} answered, {} lost",
        sent - completed
    )?;
    let longest = answered.iter().map(|answer| answer.took).max();
    let longest = longest.unwrap_or_default().as_secs_f64() * 1000.0;
    writeln!(
        page,
        "longest wait {longest:.1} ms, budget {} ms",
        BUDGET.as_millis()
    )?;
    let meanwhile = answered.iter().filter(|answer| {
        answer.status == 200
            && answer.source == Source::FailurePolicy
            && answer.phase == Phase::Without
    });
    writeln!(page, "admitted meanwhile by policy: {}", meanwhile.count())?;
    let again = answered
        .iter()
        .filter(|answer| answer.source == Source::Store && answer.at > back)
        .map(|answer| answer.at.duration_since(back))
        .min();
    match again {
        Some(after) => writeln!(
            page,
            "decisions came from Redis again {:.3} s after it was back",
            after.as_secs_f64()
        )?,
        None => writeln!(page, "decisions did not come from Redis again")?,
    }
    Ok(page)
}

fn by(source: Source) -> &'static str {
    match source {
        Source::Store => "Redis",
        Source::Cache => "what Redis said before",
        Source::Lease => "permits in hand",
        _ => "policy",
    }
}
