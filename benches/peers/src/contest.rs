//! What is compared: contestants that decide, around a service or called directly.

use std::{
    convert::Infallible,
    future::{Ready, poll_fn, ready},
    pin::Pin,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};
use tokio::time::Sleep;
use tower::{
    Layer, Service, ServiceExt, layer::util::Stack, limit::ConcurrencyLimit,
    util::BoxCloneSyncService,
};

pub(crate) type Request = http::Request<Body>;
pub(crate) type Response = http::Response<Body>;
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The field that names who asks.
pub(crate) static USER: HeaderName = HeaderName::from_static("x-user");
/// The field with the cost of a request, where it is not 1.
pub(crate) static COST: HeaderName = HeaderName::from_static("x-cost");

/// The user that the head of a request names.
pub(crate) fn user_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(&USER)?.to_str().ok()
}

/// The cost in the head of a request; 1 where there is none.
pub(crate) fn cost_of<T: FromStr + From<u8>>(headers: &HeaderMap) -> T {
    let cost = headers.get(&COST).and_then(|cost| cost.to_str().ok());
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(1.into())
}

/// So many permits in so many seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) permits: u32,
    pub(crate) seconds: u64,
}

pub(crate) const fn limit(permits: u32, seconds: u64) -> Limit {
    Limit { permits, seconds }
}

impl Limit {
    pub(crate) fn interval(self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// The time after which a token bucket has one permit more.
    pub(crate) fn emission(self) -> Duration {
        self.interval() / self.permits
    }
}

/// A caller, as text and as the header value in a request.
pub(crate) struct User {
    pub(crate) name: String,
    value: HeaderValue,
}

pub(crate) fn users(prefix: &str, count: usize) -> Arc<[User]> {
    let user = |at| {
        let name = format!("{prefix}-{at:07}");
        let value = HeaderValue::try_from(&name).unwrap();
        User { name, value }
    };
    (0..count).map(user).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Admitted,
    /// With the time to wait, where it is said.
    Refused(Option<Duration>),
    /// Neither 200 nor 429, or an error
    Failed,
}

/// A contestant whose calls are compiled into the loops that measure it.
pub(crate) trait Peer: Send + Sync + 'static {
    fn decide(&self, user: &User, cost: u32) -> impl Future<Output = Answer> + Send;

    /// The layer around a service that takes its time, one request at once; none where there is
    /// no layer.
    fn around(&self, _: Guarded) -> Option<Boxed> {
        None
    }
}

/// A service whose answers are read.
pub(crate) type Boxed = BoxCloneSyncService<Request, Answer, Infallible>;

/// The head of an answer, whatever its body is.
pub(crate) trait Head {
    fn answer(&self) -> Answer;
}

impl<B> Head for http::Response<B> {
    fn answer(&self) -> Answer {
        match self.status() {
            StatusCode::OK => Answer::Admitted,
            StatusCode::TOO_MANY_REQUESTS => {
                let wait = self.headers().get(RETRY_AFTER);
                let wait = wait.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
                Answer::Refused(wait.map(Duration::from_secs))
            }
            _ => Answer::Failed,
        }
    }
}

/// A service that answers at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bare;

impl Service<Request> for Bare {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// A service that takes its time and counts its calls.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) calls: Arc<AtomicU64>,
    pub(crate) takes: Duration,
}

pub(crate) type Guarded = ConcurrencyLimit<Slow>;

pub(crate) struct SlowFuture(Pin<Box<Sleep>>);

impl Future for SlowFuture {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let slept = self.0.as_mut().poll(context);
        slept.map(|()| Ok(Response::new(Body::empty())))
    }
}

impl Service<Request> for Slow {
    type Response = Response;
    type Error = Infallible;
    type Future = SlowFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> SlowFuture {
        self.calls.fetch_add(1, Relaxed);
        SlowFuture(Box::pin(tokio::time::sleep(self.takes)))
    }
}

/// A layer that can stand around a service, as axum needs it.
pub(crate) trait Around<S>:
    Layer<
        S,
        Service: Service<Request, Response: Head, Error = Infallible, Future: Send>
                     + Clone
                     + Send
                     + Sync
                     + 'static,
    > + Send
    + Sync
    + 'static
{
}

impl<S, L> Around<S> for L where
    L: Layer<
            S,
            Service: Service<Request, Response: Head, Error = Infallible, Future: Send>
                         + Clone
                         + Send
                         + Sync
                         + 'static,
        > + Send
        + Sync
        + 'static
{
}

/// A layer around the bare service, asked by whole requests.
pub(crate) struct Layered<L: Around<Bare>> {
    layer: L,
    service: <L as Layer<Bare>>::Service,
}

impl<L: Around<Bare>> Layered<L> {
    pub(crate) fn new(layer: L) -> Self {
        let service = layer.layer(Bare);
        Self { layer, service }
    }
}

/// Three layers of a kind, the first of them outermost.
pub(crate) fn stacked<L>(layers: Vec<L>) -> Stack<Stack<L, L>, L> {
    let [first, second, third] = <[L; 3]>::try_from(layers).ok().expect("three limits");
    Stack::new(Stack::new(third, second), first)
}

pub(crate) fn request(user: &User, cost: u32) -> Request {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(&USER, user.value.clone());
    if cost != 1 {
        request.headers_mut().insert(&COST, cost.into());
    }
    request
}

/// As an HTTP server asks: with a clone of the service that is ready.
pub(crate) async fn call<S>(mut service: S, user: &User, cost: u32) -> Answer
where
    S: Service<Request, Response: Head, Error = Infallible>,
{
    let request = request(user, cost);
    let Ok(()) = poll_fn(|context| service.poll_ready(context)).await;
    let Ok(response) = service.call(request).await;
    response.answer()
}

impl<L: Around<Bare> + Around<Guarded>> Peer for Layered<L> {
    fn decide(&self, user: &User, cost: u32) -> impl Future<Output = Answer> + Send {
        call(self.service.clone(), user, cost)
    }

    fn around(&self, inner: Guarded) -> Option<Boxed> {
        let answered = self
            .layer
            .layer(inner)
            .map_response(|response| response.answer());
        Some(BoxCloneSyncService::new(answered))
    }
}
