//! grpcio, gRPC's own client for Python, has a retry policy: by it alone the client does what a
//! refusal asks for. The tests see it on the server's side, in the calls that came.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use tokio::process::Command;
use tonic::{Code, Status, service::Routes};
use tower_ratelimit::{
    FailurePolicy, Limit, RateLimitLayer, Rule, Store,
    key::{Constant, FromHeader},
};

use kit::on_both_stores;

use super::{
    listen,
    orders::{COUNT, OrdersServer},
};

on_both_stores!(
    it_waits_as_long_as_the_pushback_says,
    it_gives_up_what_waiting_does_not_help,
    it_says_at_once_that_the_wait_is_longer_than_the_call,
    it_keeps_to_its_own_backoff_without_a_pushback,
    it_hands_the_details_to_the_caller,
);

/// The client's own backoff is short, so any longer wait comes from the server. (A pushback or
/// backoff of 0 ms becomes a wait without end: grpcio 1.85 loses the call.)
const RETRYING: &str = r#"{"methodConfig": [{"name": [{}], "retryPolicy": {
    "maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "0.05s", "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"]
}}]}"#;
const NOT_RETRYING: &str = "{}";

const HOURLY: &str = "/a.Limit/Hourly";
const COSTLY: &str = "/a.Limit/Below";
const KEYED: &str = "/a.Key/Missing";
const UNKNOWN: &str = "/a.Limit/Unknown";

/// One call as the server saw it.
#[derive(Clone, Debug)]
struct Attempt {
    came: Instant,
    left: Instant,
    /// How often the client says that it has tried before
    before: Option<String>,
    pushback: Option<i64>,
    status: Option<Status>,
}

impl Attempt {
    fn code(&self) -> Code {
        self.status.as_ref().map_or(Code::Ok, Status::code)
    }
}

type Attempts = Arc<Mutex<Vec<Attempt>>>;

async fn note(State(attempts): State<Attempts>, request: Request, next: Next) -> Response {
    let came = Instant::now();
    let before = request.headers().get("grpc-previous-rpc-attempts").cloned();
    let response = next.run(request).await;
    let pushback = response.headers().get("grpc-retry-pushback-ms");
    attempts.lock().unwrap().push(Attempt {
        came,
        left: Instant::now(),
        before: before.map(|number| number.to_str().unwrap().to_owned()),
        pushback: pushback.map(|millis| millis.to_str().unwrap().parse().unwrap()),
        // Absent from the head of an answer that has a body.
        status: Status::from_header_map(response.headers()),
    });
    response
}

async fn serve(store: impl Store) -> (SocketAddr, Attempts) {
    // Long enough for two calls of one program, on a busy machine, too.
    let seconds = Limit::new(1, Duration::from_secs(3));
    let layer = RateLimitLayer::builder(&store)
        .on_grpc(
            "shop.v1.Orders/Count",
            seconds.by(Constant("all")).named("count"),
        )
        .on_grpc(
            "a.Limit/Hourly",
            Limit::per_hour(1).by(Constant("all")).named("hourly"),
        )
        .on_grpc(
            "a.Limit/Below",
            Limit::per_hour(1)
                .by(Constant("all"))
                .named("below")
                .cost_by(|_| 2),
        )
        .on_grpc(
            "a.Key/Missing",
            Limit::per_hour(1).by(FromHeader::new("x-key")).named("key"),
        )
        .on_grpc(
            "a.Limit/Unknown",
            Rule::shared("never-set").on_failure(FailurePolicy::Deny),
        )
        .build()
        .unwrap();
    let attempts = Attempts::default();
    let (listener, address) = listen().await;
    let app: Router = Routes::new(OrdersServer::default())
        .into_axum_router()
        .layer(layer)
        .layer(from_fn_with_state(Arc::clone(&attempts), note));
    tokio::spawn(axum::serve(listener, app).into_future());
    (address, attempts)
}

/// Calls the methods one after the other; returns how each ended, and what the server saw.
async fn call(
    store: impl Store,
    service_config: &str,
    methods: &[&str],
) -> (Vec<[String; 3]>, Vec<Attempt>) {
    let (server, attempts) = serve(store).await;
    let output = Command::new(python("grpc").await)
        .arg(kit::root().join("tests/grpcio/client.py"))
        .args([&server.to_string(), service_config])
        .args(methods)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ends = String::from_utf8(output.stdout).unwrap();
    let ends = ends.lines().map(|line| {
        let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
        fields.try_into().unwrap()
    });
    let attempts = attempts.lock().unwrap().clone();
    (ends.collect(), attempts)
}

async fn it_waits_as_long_as_the_pushback_says(store: impl Store) {
    let (ends, attempts) = call(store, RETRYING, &[COUNT, COUNT]).await;
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|[code, ..]| code == "OK"), "{ends:?}");
    // Exactly one refusal: a call that comes a millisecond early is refused again.
    let codes: Vec<_> = attempts.iter().map(Attempt::code).collect();
    assert_eq!(codes, [Code::Ok, Code::ResourceExhausted, Code::Ok]);
    let [_, refused, retried] = &attempts[..] else {
        panic!("{attempts:?}");
    };
    assert_eq!(retried.before.as_deref(), Some("1"), "its own retry");
    let announced = u64::try_from(refused.pushback.unwrap()).unwrap();
    let waited = retried.came - refused.left;
    assert!(
        waited >= Duration::from_millis(announced),
        "{waited:?}, not {announced} ms"
    );
}

async fn it_gives_up_what_waiting_does_not_help(store: impl Store) {
    let (ends, attempts) = call(store, RETRYING, &[COSTLY, KEYED]).await;
    assert_eq!(
        ends.iter()
            .map(|[code, message, _]| [&**code, &**message])
            .collect::<Vec<_>>(),
        [
            [
                "RESOURCE_EXHAUSTED",
                "the request costs more than its limit allows"
            ],
            [
                "UNAUTHENTICATED",
                "the request lacks what it is limited by: x-key"
            ],
        ]
    );
    assert_eq!(attempts.len(), 2, "one each: {attempts:?}");
}

async fn it_says_at_once_that_the_wait_is_longer_than_the_call(store: impl Store) {
    let (ends, attempts) = call(store, RETRYING, &[HOURLY, HOURLY]).await;
    // Otherwise it would sleep, and then know of its deadline only.
    let [code, message, details] = &ends[1];
    assert_eq!(
        [&**code, &**message],
        ["RESOURCE_EXHAUSTED", "too many requests"]
    );
    assert!(!details.is_empty(), "the caller may come back by itself");
    assert_eq!(attempts.len(), 2, "one each: {attempts:?}");
}

async fn it_keeps_to_its_own_backoff_without_a_pushback(store: impl Store) {
    let (ends, attempts) = call(store, RETRYING, &[UNKNOWN]).await;
    assert_eq!(ends[0][0], "UNAVAILABLE");
    assert_eq!(attempts.len(), 4, "maxAttempts: {attempts:?}");
    assert!(attempts.iter().all(|attempt| attempt.pushback.is_none()));
}

async fn it_hands_the_details_to_the_caller(store: impl Store) {
    let (ends, attempts) = call(store, NOT_RETRYING, &[COUNT, COUNT]).await;
    let [code, message, details] = &ends[1];
    assert_eq!(
        [&**code, &**message],
        ["RESOURCE_EXHAUSTED", "too many requests"]
    );
    let sent = attempts[1].status.as_ref().unwrap().details();
    let sent: String = sent.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!sent.is_empty());
    assert_eq!(*details, sent);
}

/// A Python that has this package: of the environment that `tests/run.sh` makes, or of this
/// machine.
pub(super) async fn python(package: &str) -> PathBuf {
    let prepared = kit::root().join("target/grpcio");
    for python in [prepared.join("bin/python"), "python3".into()] {
        let mut import = Command::new(&python);
        let import = import
            .args(["-c", &format!("import {package}")])
            .output()
            .await;
        if import.is_ok_and(|output| output.status.success()) {
            return python;
        }
    }
    let prepared = prepared.display();
    panic!("Python's {package} is missing: `tests/grpcio/prepare.sh {prepared}` installs it")
}
