//! The tower contract: readiness, errors and cancellation around real inner services.

mod answers;
mod bans;
mod config;
mod decide_first;
mod extensions;
#[cfg(feature = "test-util")]
mod failing;
mod in_flight;
mod limiters;
mod lists;
mod long_input;
mod preflights;
mod settling;
mod shadow;
mod twice;
mod unlimited;
mod waiting;
#[cfg(feature = "axum")]
mod walks;

use kit::scene::*;
use std::{collections::BTreeMap, future::poll_fn};

use bytes::Bytes;
use http::{HeaderValue, Method, request::Parts};
use http_body::Body;
use http_body_util::BodyExt;
use proptest::prelude::*;
use tokio::sync::Semaphore;
use tower::{BoxError, Service, limit::ConcurrencyLimit};
use tower_ratelimit::{
    Cost, Error, IntoRules, RateLimitLayerBuilder, Requests, Rules, key::FromParts,
};
use tower_test::mock;

/// A service that counts its calls, the moment they are made.
#[derive(Clone, Debug, Default)]
struct Inner {
    calls: Arc<AtomicUsize>,
    /// The number of polls before the response is ready.
    pauses: usize,
}

impl Inner {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<Request<String>> for Inner {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let pauses = self.pauses;
        Box::pin(async move {
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
            Ok(answer_to(&request, "inner"))
        })
    }
}

/// A request of the caller that the rules of these tests know by its `x-key`.
fn request(key: &str) -> Request<String> {
    asking("GET /", &[("x-key", key)])
}

/// A request that lacks the key, and so is refused without the store.
fn anonymous() -> Request<String> {
    asking("GET /", &[])
}

fn redis() -> RedisStoreBuilder {
    patient(RedisServer::shared().url()).prefix(&unique("t"))
}

fn by_key(permits: u64) -> Rule {
    Limit::per_hour(permits).by(FromHeader::new("x-key"))
}

/// Polls a future so many times at most; `None` if it is not ready by then.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The status of one request, sent the way servers send it.
async fn status<S, B>(service: &S, request: Request<String>) -> StatusCode
where
    S: Service<Request<String>, Response = Response<B>> + Clone,
    S::Error: std::fmt::Debug,
{
    service.clone().oneshot(request).await.unwrap().status()
}

/// Calls this very service, when it is ready: it is alive while its answer is made, and after.
async fn call<S: Service<Request<String>>>(
    service: &mut S,
    request: Request<String>,
) -> Result<S::Response, S::Error> {
    service.ready().await?.call(request).await
}

/// An inner service that takes one request at a time, and its place.
fn limited(inner: Inner) -> (ConcurrencyLimit<Inner>, Arc<Semaphore>) {
    let place = Arc::new(Semaphore::new(1));
    let limited = ConcurrencyLimit::with_semaphore(inner, Arc::clone(&place));
    (limited, place)
}

type Answer = Response<RateLimitBody<String>>;

/// The answer of a service behind the layer.
async fn answer(layer: &RateLimitLayer, request: Request<String>) -> Answer {
    let service = layer.layer(Inner::default());
    service.oneshot(request).await.unwrap()
}

async fn code(layer: &RateLimitLayer, request: Request<String>) -> u16 {
    answer(layer, request).await.status().as_u16()
}

fn header_of<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let value = answer.headers().get(name);
    value.map(|value| value.to_str().unwrap())
}

fn refusal(answer: &Answer) -> Refusal {
    refused(decision_of(answer).clone())
}

async fn text(answer: Answer) -> String {
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn problem(answer: Answer) -> serde_json::Value {
    serde_json::from_str(&text(answer).await).unwrap()
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    // A `Mock` panics if it is called without being ready; its clones are not.
    let layer = RateLimitLayer::new(&MemoryStore::new(), by_key(10));
    let (mut service, mut handle) =
        mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    for n in 0..3 {
        handle.allow(1);
        assert!(service.poll_ready().is_ready(), "call {n}");
        let answer = tokio::spawn(service.call(request("a")));
        let (_, respond) = handle.next_request().await.unwrap();
        respond.send_response(Response::new(format!("answer {n}")));
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "call {n}");
    }
}

#[tokio::test]
async fn readiness_and_its_errors_are_those_of_the_inner_service() {
    let layer = RateLimitLayer::new(&MemoryStore::new(), by_key(1));
    let (mut service, mut handle) =
        mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    handle.allow(0);
    assert!(service.poll_ready().is_pending());
    handle.allow(1);
    assert!(service.is_woken());
    assert!(service.poll_ready().is_ready());

    handle.send_error("inner is broken");
    let Poll::Ready(Err(error)) = service.poll_ready() else {
        panic!("it is broken");
    };
    assert_eq!(error.to_string(), "inner is broken");
}

#[tokio::test]
async fn an_error_of_the_inner_call_is_handed_on_as_it_is() {
    #[derive(Debug, PartialEq)]
    struct Broken(u32);

    let broken = service_fn(async |_: Request<String>| Err::<Response<String>, _>(Broken(7)));
    let service = RateLimitLayer::new(&MemoryStore::new(), by_key(1)).layer(broken);
    let error = service.clone().oneshot(request("a")).await.unwrap_err();
    assert_eq!(error, Broken(7));
    // The limit is an answer and no error: the second one is refused.
    assert_eq!(status(&service, request("a")).await, 429);
}

#[tokio::test]
async fn a_refusal_lets_the_inner_services_permit_go() {
    for (what, refused) in [("over limit", request("a")), ("missing key", anonymous())] {
        let inner = Inner::default();
        let (limited, semaphore) = limited(inner.clone());
        // Nor does a hook run while it is held.
        let place = Arc::clone(&semaphore);
        let hook = move |_: &Refusal, _: &Parts, answer: Response<Bytes>| {
            assert_eq!(place.available_permits(), 1, "{what}");
            answer
        };
        let builder = RateLimitLayer::builder(&MemoryStore::new()).otherwise(by_key(1));
        let mut service = builder.on_refusal(hook).build().unwrap().layer(limited);
        assert_eq!(status(&service, request("a")).await, StatusCode::OK);

        // Kept alive, as by a `Buffer` or a pool: an idle service must not hold the only permit
        // either.
        let mut future = service.ready().await.unwrap().call(refused);
        let answer = (&mut future).await.unwrap();
        assert_ne!(answer.status(), StatusCode::OK, "{what}");
        assert_eq!(semaphore.available_permits(), 1, "{what}");
        assert_eq!(inner.calls(), 1, "{what}");

        let mut other = service.clone();
        assert!(polled(other.ready(), 1).await.is_some(), "{what}");
    }
}

#[tokio::test]
async fn a_dropped_future_lets_the_inner_services_permit_go() {
    /// `free`: how many of one permit are free before there is an answer.
    async fn check(layer: RateLimitLayer, free: usize, expected: u16) -> usize {
        let (limited, semaphore) = limited(Inner {
            pauses: 3,
            ..Inner::default()
        });
        let mut service = layer.layer(limited);
        let mut times = 0;
        loop {
            let mut future = service.ready().await.unwrap().call(request("a"));
            let answer = polled(&mut future, times).await;
            if answer.is_none() {
                assert_eq!(semaphore.available_permits(), free, "{times} polls");
            }
            drop(future);
            let after = semaphore.available_permits();
            assert_eq!(after, 1, "dropped after {times} polls");
            if let Some(answer) = answer {
                assert_eq!(answer.unwrap().status(), expected);
                return times;
            }
            times += 1;
        }
    }

    // Ready at once, then pending three times within.
    let memory = RateLimitLayer::new(&MemoryStore::new(), by_key(1000));
    assert_eq!(check(memory, 0, 200).await, 4);
    let asked = RateLimitLayer::new(&redis().build().unwrap(), by_key(1000));
    let polls = check(asked, 0, 200).await;
    assert!(polls > 4, "Redis answers later than at once: {polls} polls");

    // Refusals are dropped at every point too. An immediate refusal releases the permit at once.
    let asked = redis().deny_cache(Duration::ZERO).build().unwrap();
    for (layer, free) in [
        (RateLimitLayer::new(&MemoryStore::new(), by_key(1)), 1),
        (RateLimitLayer::new(&asked, by_key(1)), 0),
    ] {
        assert_eq!(code(&layer, request("a")).await, 200);
        check(layer, free, 429).await;
    }
}

#[tokio::test]
async fn the_inner_service_is_called_when_the_decision_is_made_and_not_before() {
    let inner = Inner::default();
    let layer = RateLimitLayer::new(&redis().build().unwrap(), by_key(1));
    let mut service = layer.layer(inner.clone());

    let mut future = service.call(request("a"));
    assert_eq!(inner.calls(), 0, "before it is polled");
    // The first poll makes the connection, which takes longer.
    assert!(polled(&mut future, 1).await.is_none());
    assert_eq!(inner.calls(), 0, "while Redis is asked");
    assert_eq!(future.await.unwrap().status(), StatusCode::OK);
    assert_eq!(inner.calls(), 1);

    let refused = service.call(request("a")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(service.call(anonymous()).await.unwrap().status(), 401);
    assert_eq!(inner.calls(), 1, "a refusal calls no inner service");
}

#[tokio::test]
async fn the_inner_service_can_be_reached() {
    let inner = Inner::default();
    let mut service = RateLimitLayer::new(&MemoryStore::new(), by_key(1)).layer(inner.clone());
    assert_eq!(status(&service, request("a")).await, StatusCode::OK);
    assert_eq!(service.get_ref().calls(), 1);
    service.get_mut().pauses = 2;
    assert_eq!(service.into_inner().pauses, 2);
}
