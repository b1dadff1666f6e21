//! Clients that this project did not write back off by what the answers say: curl, and Python's
//! urllib3 and grpcio.
//!
//! A plain `cargo test` leaves them out, and `tests/run.sh` installs what is missing of them. What
//! they did is read from the server's side: how often each came, and that it never came too early.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

#[path = "../../examples/orders/mod.rs"]
mod orders;
mod promtool;
mod scrape;
mod with_grpcio;

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::get,
};
use tokio::{net::TcpListener, process::Command};
use tower_ratelimit::{Decision, HeaderStyle, Limit, RateLimitLayer, Store, key::PeerIp};

use kit::on_both_stores;

/// Longer than what a client waits that goes by its own head: curl begins with one second, urllib3
/// with none.
const INTERVAL: Duration = Duration::from_secs(3);

/// Longer than anything here takes, on the busiest machine.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// One request, as the server saw it.
#[derive(Clone, Copy, Debug)]
struct Visit {
    came: Instant,
    answered: Instant,
    status: u16,
    /// The announced wait, to the millisecond.
    wait: Option<Duration>,
}

type Log = Arc<Mutex<Vec<Visit>>>;

async fn note(State(log): State<Log>, request: Request, next: Next) -> Response {
    let came = Instant::now();
    let answer = next.run(request).await;
    let wait = match answer.extensions().get::<Decision>() {
        Some(Decision::Deny(refusal)) => refusal.retry_after(),
        _ => None,
    };
    log.lock().unwrap().push(Visit {
        came,
        answered: Instant::now(),
        status: answer.status().as_u16(),
        wait,
    });
    answer
}

/// A server that admits one request in an interval, and what it sees.
async fn serve(store: &impl Store) -> (SocketAddr, Log) {
    let legacy = HeaderStyle::LegacyEpoch;
    let layer = RateLimitLayer::builder(store)
        .otherwise(Limit::new(1, INTERVAL).by(PeerIp))
        // All that a client may know of, to be misled by.
        .headers([HeaderStyle::Draft11, legacy])
        .build()
        .unwrap();
    let log = Log::default();
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer)
        .layer(from_fn_with_state(Arc::clone(&log), note));
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    (address, log)
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Runs a client to its end, and returns what it printed. `install` says what brings it.
async fn run(install: &str, program: &str, arguments: &[&str]) -> String {
    let mut client = Command::new(program);
    client
        .args(arguments)
        // The server is here, whatever proxy or settings this machine has.
        .envs([
            ("no_proxy", "*"),
            ("CURL_HOME", "/nowhere"),
            ("HOME", "/nowhere"),
        ])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(TIME_LIMIT, client.output())
        .await
        .unwrap_or_else(|_| panic!("{program} does not end"))
        .unwrap_or_else(|error| panic!("{program} cannot be run ({error}): install {install}"));
    assert!(
        output.status.success(),
        "{program} failed; if something is missing, install {install}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether a client was refused so often; then it was admitted each time when it came again, and
/// came no earlier than announced.
fn backed_off(log: &Log, times: usize) -> bool {
    let log = log.lock().unwrap();
    let refused = |seen: &Visit| seen.status == 429;
    assert!(!refused(log.last().unwrap()), "gave up: {log:#?}");
    for pair in log.windows(2) {
        let [before, after] = pair else { continue };
        if refused(before) {
            assert_eq!(after.status, 200, "{pair:#?}");
            let due = before.answered + before.wait.expect("a wait");
            assert!(after.came >= due, "too early: {pair:#?}");
        }
    }
    log.iter().filter(|seen| refused(seen)).count() >= times
}

on_both_stores!(
    curl_waits_as_long_as_it_is_asked_to,
    urllib3_waits_as_long_as_it_is_asked_to,
);

async fn curl_waits_as_long_as_it_is_asked_to(store: impl Store) {
    let (server, log) = serve(&store).await;
    let url = format!("http://{server}/");
    // A busy machine may start it so late that it is not refused.
    for _ in 0..10 {
        // It retries a 429 by itself, and prints both answers.
        let printed = run("curl", "curl", &["-s", "--retry", "5", &url]).await;
        assert!(printed.ends_with("hello"), "{printed}");
        if backed_off(&log, 2) {
            return;
        }
    }
    panic!("never refused: {log:#?}");
}

async fn urllib3_waits_as_long_as_it_is_asked_to(store: impl Store) {
    let (server, log) = serve(&store).await;
    let url = format!("http://{server}/");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/retry.py");
    // One process for all: as soon as one is answered, the next is asked for.
    let printed = run("python3-urllib3", "python3", &[script, &url, &url, &url]).await;
    assert_eq!(printed, "hello\nhello\nhello\n");
    assert!(backed_off(&log, 1), "never refused: {log:#?}");
}
