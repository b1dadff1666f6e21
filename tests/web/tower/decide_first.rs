//! Admission before the inner service's capacity is taken.

use crate::scene::*;
use tokio::sync::Semaphore;
use tower::{Service, buffer::Buffer, limit::ConcurrencyLimit, load_shed::LoadShed};
use tower_ratelimit::Requests;
use tower_ratelimit::Rules;
use tower_test::mock;

use super::{Inner, anonymous, by_key, polled, redis, request, status};

fn layer(store: &impl Store, rule: Rule) -> RateLimitLayer {
    let rules = Rules::new().allow(Requests::on("/free")).otherwise(rule);
    let builder = RateLimitLayer::builder(store).rules(rules);
    builder.decide_first(true).build().unwrap()
}

/// The inner service is busy: refusals are answered, and admitted requests wait for a place.
async fn busy(store: impl Store) {
    let semaphore = Arc::new(Semaphore::new(1));
    let inner = Inner::default();
    let limited = ConcurrencyLimit::with_semaphore(inner.clone(), Arc::clone(&semaphore));
    let mut service = layer(&store, by_key(2)).layer(limited);
    assert_eq!(status(&service, request("a")).await, StatusCode::OK);

    let place = Arc::clone(&semaphore).try_acquire_owned().unwrap();
    let mut free = request("a");
    *free.uri_mut() = "/free".parse().unwrap();
    let mut waiting = Vec::new();
    // Of the two of one caller, one is refused, and needs no place for that.
    for sent in [request("a"), request("a"), free] {
        let ready = polled(service.ready(), 1).await.expect("always ready");
        waiting.push(tokio::spawn(ready.unwrap().call(sent)));
    }
    let answer = service
        .ready()
        .await
        .unwrap()
        .call(anonymous())
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    until("one is answered", async || {
        waiting.iter().any(|it| it.is_finished())
    })
    .await;
    let refused = waiting.iter().position(|waiting| waiting.is_finished());
    let refused = waiting.remove(refused.unwrap()).await.unwrap().unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(inner.calls(), 1);
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    drop(place);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_eq!(inner.calls(), 3);
    assert_eq!(semaphore.available_permits(), 1);
}

#[tokio::test]
async fn refusals_are_answered_while_the_inner_service_is_busy() {
    busy(MemoryStore::new()).await;
    busy(redis().build().unwrap()).await;
}

#[tokio::test]
async fn no_place_is_taken_before_the_decision() {
    let semaphore = Arc::new(Semaphore::new(1));
    let limited = ConcurrencyLimit::with_semaphore(Inner::default(), Arc::clone(&semaphore));
    let mut service = layer(&redis().build().unwrap(), by_key(1)).layer(limited);
    for expected in [200, 429] {
        let mut future = service.ready().await.unwrap().call(request("a"));
        assert_eq!(semaphore.available_permits(), 1, "before it is polled");
        assert!(polled(&mut future, 1).await.is_none());
        assert_eq!(semaphore.available_permits(), 1, "while Redis is asked");
        assert_eq!(future.await.unwrap().status().as_u16(), expected);
        assert_eq!(semaphore.available_permits(), 1, "with the service alive");
    }
}

/// A `Mock` panics if it is called without being ready, and its clones are not ready.
#[tokio::test]
async fn the_service_that_gets_ready_is_the_one_that_is_called() {
    let layer = layer(&MemoryStore::new(), by_key(10));
    let (mut service, mut handle) =
        mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    handle.allow(0);
    for path in ["/", "/free", "/"] {
        assert!(service.poll_ready().is_ready(), "always");
        let mut sent = request("a");
        *sent.uri_mut() = path.parse().unwrap();
        let mut call = by_hand(service.call(sent));
        assert!(call.poll().is_pending(), "the inner service is not ready");
        handle.allow(1);
        assert!(call.poll().is_pending(), "it has not answered");
        let (_, respond) = handle.next_request().await.unwrap();
        respond.send_response(Response::new("done".to_owned()));
        assert!(matches!(call.poll(), Poll::Ready(Ok(_))));
    }
}

#[tokio::test]
async fn an_error_of_readiness_is_that_of_the_call() {
    let layer = layer(&MemoryStore::new(), by_key(2));
    let (mut service, mut handle) =
        mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    handle.send_error("inner is broken");
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    let error = service.call(request("a")).await.unwrap_err();
    assert_eq!(error.to_string(), "inner is broken");
}

#[tokio::test]
async fn a_disabled_layer_waits_for_the_inner_service_too() {
    let store = MemoryStore::new();
    let layer = RateLimitLayer::builder(&store).otherwise(by_key(1));
    let layer = layer.decide_first(true).enabled(false).build().unwrap();
    let semaphore = Arc::new(Semaphore::new(1));
    let limited = ConcurrencyLimit::with_semaphore(Inner::default(), Arc::clone(&semaphore));
    let service = layer.layer(limited);
    for _ in 0..3 {
        assert_eq!(status(&service, request("a")).await, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_layer_that_is_met_twice_waits_for_the_inner_service_too() {
    let layer = layer(&MemoryStore::new(), by_key(2));
    let limited = ConcurrencyLimit::new(Inner::default(), 1);
    let service = layer.layer(layer.layer(limited));
    for expected in [200, 200, 429] {
        assert_eq!(status(&service, request("a")).await.as_u16(), expected);
    }
}

#[tokio::test]
async fn around_buffer_and_load_shed() {
    let inner = Inner::default();
    let buffer = Buffer::new(inner.clone(), 1);
    let mut service = layer(&MemoryStore::new(), by_key(2)).layer(buffer.clone());
    for (sent, expected) in [("a", 200), ("a", 200), ("a", 429), ("b", 200), ("", 401)] {
        let ready = service.ready().await.unwrap();
        let answer = ready.call(request(sent)).await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{sent}");
        // Its only place is free again: `service` still lives.
        assert!(polled(buffer.clone().ready(), 1).await.is_some(), "{sent}");
    }
    assert_eq!(inner.calls(), 3);

    let semaphore = Arc::new(Semaphore::new(1));
    let limited = ConcurrencyLimit::with_semaphore(Inner::default(), Arc::clone(&semaphore));
    let service = layer(&MemoryStore::new(), by_key(1)).layer(LoadShed::new(limited));
    let place = semaphore.try_acquire().unwrap();
    let error = service.clone().oneshot(request("a")).await.unwrap_err();
    assert!(error.is::<tower::load_shed::error::Overloaded>(), "{error}");
    drop(place);
    // It was let pass, and stays charged.
    assert_eq!(status(&service, request("a")).await.as_u16(), 429);
}

/// A future that is polled by hand.
struct Task<F>(Pin<Box<F>>);

fn by_hand<F: Future>(future: F) -> Task<F> {
    Task(Box::pin(future))
}

impl<F: Future> Task<F> {
    fn poll(&mut self) -> Poll<F::Output> {
        let mut cx = Context::from_waker(Waker::noop());
        self.0.as_mut().poll(&mut cx)
    }
}
