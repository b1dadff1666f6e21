//! The page that shows what the limits of this process do: [`page`].

#[cfg(test)]
mod tests;

use std::{
    collections::hash_map::RandomState,
    convert::Infallible,
    hash::BuildHasher,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{
    HeaderName, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use tokio::{
    sync::Semaphore,
    time::{self, Instant, MissedTickBehavior},
};

use crate::{
    sinks::activity::Activity,
    sync::lock,
    values::clock::{NO_TIMER, runtime},
};

/// The streams that may be open at a time.
const STREAMS: usize = 8;
/// A stream ends after this time, so that a proxy that keeps it open without a browser does not
/// keep its place.
const LASTS: Duration = Duration::from_secs(5 * 60);
/// The time between two snapshots.
const EVERY: Duration = Duration::from_secs(1);
/// The least age of a snapshot before a stream takes another: less than a second, so that a stream
/// that wakes a moment early does not send the same twice.
const FRESH: Duration = Duration::from_millis(900);
/// The fields of each answer.
const HEADERS: [(HeaderName, &str); 3] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
];

/// Returns the routes of a page that shows what limits do in this process.
///
/// It shows what each rule allowed and refused and why, the callers that were refused most, the
/// state of Redis, and the newest reloads. It changes nothing, and everybody who can open it sees
/// the traffic: **mount it on an admin listener or behind your own auth layer**, and outside of the
/// limits. A router with a state of its own takes it by `nest_service`.
///
/// # Streams
///
/// The page is one file that loads nothing from elsewhere. It is updated once a second by
/// server-sent events, from `events` below it. At most 8 streams are open at a time, and a 9th is
/// answered with 503 Service Unavailable. Each ends after 5 minutes, and the browser opens another.
/// The first stream that is due takes a snapshot, and the others send the same one: one a second
/// at most, and none while no page is open. No task runs.
///
/// An open page holds a graceful shutdown for up to 5 minutes, unless [`Activity::close`] is called
/// when it begins.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp, observe::Activity, page};
///
/// let activity = Arc::new(Activity::new());
/// let store = MemoryStore::builder().observe(activity.clone()).build();
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(RateLimitLayer::new(&store, Limit::per_second(5).by(PeerIp)));
/// let admin: Router = Router::new().nest("/_limits", page(&activity));
/// ```
#[must_use = "it is to be mounted"]
pub fn page(activity: &Arc<Activity>) -> Router {
    let page = Arc::new(Page {
        activity: Arc::clone(activity),
        newest: Mutex::default(),
        streams: Arc::new(Semaphore::new(STREAMS)),
    });
    Router::new()
        .route("/", get(document))
        .route("/events", get(events))
        .with_state(page)
}

struct Page {
    activity: Arc<Activity>,
    /// The newest snapshot as an event, which all streams share.
    newest: Mutex<Option<(Instant, Bytes)>>,
    streams: Arc<Semaphore>,
}

impl Page {
    /// Returns the newest snapshot, and takes another if that is a second old.
    fn event(&self, now: Instant) -> Bytes {
        let mut newest = lock(&self.newest);
        if let Some((taken, event)) = &*newest
            && now < *taken + FRESH
        {
            return event.clone();
        }
        // JSON has no line end, so it is one line of data.
        let event = format!("retry: 500\ndata: {}\n\n", self.activity.snapshot());
        let event = Bytes::from(event);
        *newest = Some((now, event.clone()));
        event
    }
}

async fn document() -> impl IntoResponse {
    // Each is a hash under a secret of its own.
    let nonce = [(); 2].map(|()| RandomState::new().hash_one(()));
    let nonce = format!("{:016x}{:016x}", nonce[0], nonce[1]);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let text = include_str!("page.html").replace("NONCE", &nonce);
    let kind = [(CONTENT_TYPE, "text/html; charset=utf-8")];
    (HEADERS, kind, [(CONTENT_SECURITY_POLICY, policy)], text)
}

/// Answers with a snapshot now, and then one a second.
async fn events(State(page): State<Arc<Page>>) -> Response {
    let refused = |reason| (StatusCode::SERVICE_UNAVAILABLE, HEADERS, reason).into_response();
    if runtime().is_none() {
        return refused(NO_TIMER);
    }
    let mut closed = page.activity.closed();
    if *closed.borrow() {
        return refused("This process is stopping.");
    }
    let Ok(place) = Arc::clone(&page.streams).try_acquire_owned() else {
        return refused("Eight of these pages are open already. Close one of them.");
    };
    let mut ticks = time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The place is held until the stream is dropped.
    let events = stream::unfold((ticks, page, place), async |(mut ticks, page, place)| {
        let now = ticks.tick().await;
        Some((Ok::<_, Infallible>(page.event(now)), (ticks, page, place)))
    });
    let end = Box::pin(async move {
        let _ = time::timeout(LASTS, closed.wait_for(|closed| *closed)).await;
    });
    let kind = [(CONTENT_TYPE, "text/event-stream")];
    (HEADERS, kind, Body::from_stream(events.take_until(end))).into_response()
}
