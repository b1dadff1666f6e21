//! The page that shows what the limits of this process do: [`page`].

mod events;
#[cfg(test)]
mod tests;

use std::{collections::hash_map::RandomState, hash::BuildHasher, sync::Arc};

use axum::{Router, extract::State, response::Response, routing::get};
use http::{HeaderValue, StatusCode, header};
use tokio::sync::{Semaphore, TryAcquireError};

use self::events::{Events, Snapshots};
use crate::{
    clock::{NO_TIMER, runtime},
    observe::Activity,
};

/// The streams that may be open at a time.
const STREAMS: usize = 8;

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
/// let store = MemoryStore::new().observe(activity.clone());
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(RateLimitLayer::new(&store, Limit::per_second(5).by(PeerIp)));
/// let admin: Router = Router::new().nest("/_limits", page(&activity));
/// ```
#[must_use = "it is to be mounted"]
pub fn page(activity: &Arc<Activity>) -> Router {
    let page = Arc::new(Page {
        snapshots: Arc::new(Snapshots::of(activity)),
        streams: Arc::new(Semaphore::new(STREAMS)),
    });
    Router::new()
        .route("/", get(document))
        .route("/events", get(open))
        .with_state(page)
}

struct Page {
    snapshots: Arc<Snapshots>,
    streams: Arc<Semaphore>,
}

async fn document() -> Response {
    // Each is a hash under a secret that is drawn anew.
    let nonce = [(); 2].map(|()| RandomState::new().hash_one(()));
    let nonce = format!("{:016x}{:016x}", nonce[0], nonce[1]);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let text = include_str!("page.html").replace("NONCE", &nonce);
    let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", text);
    if let Ok(policy) = HeaderValue::try_from(policy) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

async fn open(State(page): State<Arc<Page>>) -> Response {
    let refused = |reason: &'static str| {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        answer(status, "text/plain; charset=utf-8", reason)
    };
    if runtime().is_none() {
        return refused(NO_TIMER);
    }
    if page.snapshots.is_closed() {
        return refused("This process is stopping.");
    }
    match Arc::clone(&page.streams).try_acquire_owned() {
        Ok(place) => {
            let events = Events::new(&page.snapshots, place);
            let events = axum::body::Body::new(events);
            answer(StatusCode::OK, "text/event-stream", events)
        }
        Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
            refused("Eight of these pages are open already. Close one of them.")
        }
    }
}

fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<axum::body::Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let fields = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fields {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
