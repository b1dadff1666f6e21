//! A server to test limits on: those of `limits.toml`, or of the file in `LIMITS`. Counts in
//! memory, or in Redis at `REDIS_URL`. Listens on port 3000, or on a free one if that is taken;
//! `PORT` sets another. `/_limits` is a page that shows what the limits do. With the feature
//! `prometheus`, `/metrics` is for Prometheus. With `STATE`, what memory has counted is in that
//! file when the server has ended, and the next one begins with it.

#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "an example prints its results"
)]

#[cfg(feature = "prometheus")]
mod prometheus;

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::Request,
    http::{StatusCode, header::HOST, uri::Authority},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tower_ratelimit::{
    ConfigError, Grant, MemoryStore, RateLimitLayer, RedisStore, RulesFile, Store,
    key::Secret,
    observe::{Activity, Metrics},
    page,
};

const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/limits.toml");

/// Each description and its command. They are printed with the server's address in place of `URL`.
const TRY: [(&str, &str); 6] = [
    (
        "five requests in ten seconds for each address",
        "for i in 1 2 3 4 5 6; do curl -sD - -o /dev/null URL/ \
         | grep -iE '^(HTTP|retry-after|ratelimit:)'; done",
    ),
    (
        "two a minute for each API key, and none without one",
        "for key in alice alice alice bob ''; do curl -s -H \"x-api-key: $key\" URL/data; done",
    ),
    (
        "one a minute on the free plan, three on the paid one",
        "for plan in free free paid paid paid paid; do curl -s -H \"x-plan: $plan\" URL/plan; done",
    ),
    (
        "an export takes ten permits of twenty-five a minute",
        "for i in 1 2 3; do curl -s URL/export; done",
    ),
    (
        "one in three seconds: this client waits as long as Retry-After says, and is admitted",
        "for i in 1 2; do curl -s --retry 1 URL/patient; done",
    ),
    (
        "one gRPC call a minute: a refusal is an HTTP 200 with a gRPC status",
        "for i in 1 2; do curl -si -H 'content-type: application/grpc' -d '' \
         URL/shop.v1.Orders/Create | grep -iE '^(HTTP|grpc-(status|message):)'; done",
    ),
];

/// The plan of a customer.
#[derive(Clone)]
struct Plan(String);

/// Stands for a login: finds the caller's plan, outside of the limits.
async fn find_plan(mut request: Request, next: Next) -> Response {
    let plan = request.headers().get("x-plan");
    if let Some(plan) = plan
        .and_then(|plan| plan.to_str().ok())
        .map(|plan| Plan(plan.to_owned()))
    {
        request.extensions_mut().insert(plan);
    }
    next.run(request).await
}

/// Returns what the file of the limits may name: the caller's plan, and a secret that does not
/// belong into a file.
fn file() -> Result<RulesFile, ConfigError> {
    // A real one comes from the store of the service's other secrets.
    let secret = Secret::new("k1", "a secret for an example, and for nothing else")?;
    let file = RulesFile::new().secret(&secret);
    Ok(
        file.tiers("plan", |parts| match parts.extensions.get::<Plan>() {
            Some(Plan(plan)) if plan == "paid" => "paid",
            _ => "free",
        }),
    )
}

/// Returns the layer with the file's limits. The file is watched as long as the layer exists.
fn limits(store: &impl Store, path: String) -> Result<RateLimitLayer, ConfigError> {
    let file = file()?;
    let layer = RateLimitLayer::builder(store)
        .rules(file.load(&path)?)
        .build()?;
    let shown = path.clone();
    let watch = layer
        .watch(file, path)
        .every(Duration::from_secs(1))
        .report(move |applied| {
            if let Err(error) = applied {
                eprintln!("{shown}: {error}; the limits stay as they were");
            }
        });
    tokio::spawn(watch.run());
    Ok(layer)
}

/// Handlers find the grant in the extensions.
async fn what_is_left(Extension(grant): Extension<Grant>) -> String {
    let limit = grant.limits().next();
    let left = limit.and_then(|limit| Some((limit.remaining()?, limit)));
    match left {
        Some((left, limit)) => {
            let (name, of) = (limit.name(), limit.permits());
            format!("{name}: {left} of {of} permits left\n")
        }
        // The store did not answer, and the failure policy let the request pass.
        None => "not counted\n".to_owned(),
    }
}

/// Refuses requests for other hosts than this machine. A website could otherwise read this server
/// in its visitor's browser, by a name of its own that leads to 127.0.0.1.
async fn only_local(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    match host
        .as_ref()
        .or(request.uri().authority())
        .map(Authority::host)
    {
        Some("localhost" | "127.0.0.1" | "[::1]") => next.run(request).await,
        _ => (
            StatusCode::MISDIRECTED_REQUEST,
            "only for localhost, 127.0.0.1 and [::1]\n",
        )
            .into_response(),
    }
}

fn app(limits: RateLimitLayer, activity: &Arc<Activity>) -> Router {
    Router::new()
        .route("/", get(what_is_left))
        .route("/data", get(what_is_left))
        .route("/plan", get(what_is_left))
        .route("/export", get(what_is_left))
        .route("/patient", get(what_is_left))
        .route(
            "/shop.v1.Orders/Create",
            post(async || [("grpc-status", "0")]),
        )
        .layer(limits)
        .layer(from_fn(find_plan))
        // Behind the limits, so not limited itself.
        .nest("/_limits", page(activity))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Begins with what the server before has counted, if there was one.
fn load(store: &MemoryStore, path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => store.load(file).map(drop),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes a file beside it first, so that one that is there is whole.
fn save(store: &MemoryStore, path: &Path) -> io::Result<()> {
    let beside = path.with_extension("new");
    let file = File::create(&beside)?;
    store.save(&file)?;
    file.sync_all()?;
    fs::rename(beside, path)
}

/// Waits for Ctrl-C, or for the signal by which a deploy ends a service.
async fn stopped() {
    let interrupted = async {
        // Without a handler for it, there is no such signal to wait for.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    if let Ok(mut ended) = signal(SignalKind::terminate()) {
        tokio::select! {
            () = interrupted => {}
            _ = ended.recv() => {}
        }
        return;
    }
    interrupted.await;
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::var("LIMITS").unwrap_or_else(|_| LIMITS.to_owned());
    // Before anything is counted.
    #[cfg(feature = "prometheus")]
    let recorded = prometheus::record()?;
    let metrics = Arc::new(Metrics::new());
    let activity = Arc::new(Activity::new());
    let state = env::var_os("STATE").map(PathBuf::from);
    let memory = MemoryStore::builder()
        .observe(metrics.clone())
        .observe(activity.clone())
        .build();
    let (limits, redis) = match env::var("REDIS_URL") {
        Ok(url) => {
            // Not the 50 ms of a service: while a compiler runs, they are over before Redis gets
            // its turn.
            let longest = Duration::from_secs(2);
            let store = RedisStore::builder(url)
                .prefix("example")
                .connect_timeout(2 * longest)
                .response_timeout(longest)
                .deadline(longest)
                .observe(metrics)
                .observe(activity.clone())
                .build()?;
            store.ping().await?;
            (limits(&store, path)?, Some(store))
        }
        Err(_) => {
            if let Some(state) = &state {
                load(&memory, state).map_err(|error| named(state, &error))?;
            }
            (limits(&memory, path)?, None)
        }
    };
    let listener = match env::var("PORT") {
        Ok(port) => TcpListener::bind(("127.0.0.1", port.parse()?)).await?,
        Err(_) => match TcpListener::bind("127.0.0.1:3000").await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                TcpListener::bind("127.0.0.1:0").await?
            }
            listener => listener?,
        },
    };
    let url = format!("http://{}", listener.local_addr()?);
    let place = redis.as_ref().map_or("in memory", |_| "in Redis");
    println!("listening on {url}, counting {place}\nopen {url}/_limits");
    for (what, line) in TRY {
        println!("\n# {what}\n{}", line.replace("URL", &url));
    }

    let app = app(limits, &activity);
    // Behind the limits, too. A service has it on a port of its own.
    #[cfg(feature = "prometheus")]
    let app = app.route("/metrics", get(async move || recorded.render()));
    let app = app.layer(from_fn(only_local));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let stop = async move {
        stopped().await;
        // Open pages would hold the shutdown.
        activity.close();
    };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    match (redis, state) {
        // Gives back what this process took ahead, and waits for its last charges.
        (Some(store), _) => store.close().await,
        (None, Some(state)) => save(&memory, &state).map_err(|error| named(&state, &error))?,
        (None, None) => {}
    }
    println!("\nstopped");
    Ok(())
}
