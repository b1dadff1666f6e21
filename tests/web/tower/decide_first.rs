//! Admission before the inner service's capacity is taken.

use super::*;

fn layer(store: &impl Store, rule: Rule) -> RateLimitLayer {
    let rules = Rules::new().allow(Requests::on("/free")).otherwise(rule);
    let builder = RateLimitLayer::builder(store).rules(rules);
    builder.decide_first(true).build().unwrap()
}

/// The inner service is busy: refusals are answered, and admitted requests wait for a place.
async fn busy(store: impl Store) {
    let inner = Inner::default();
    let (limited, semaphore) = limited(inner.clone());
    let mut service = layer(&store, by_key(2)).layer(limited);
    assert_eq!(status(&service, request("a")).await, StatusCode::OK);

    let place = Arc::clone(&semaphore).try_acquire_owned().unwrap();
    let free = asking("GET /free", &[]);
    let mut waiting = Vec::new();
    // Of the two of one caller, one is refused, and needs no place for that.
    for sent in [request("a"), request("a"), free] {
        let ready = polled(service.ready(), 1).await.expect("always ready");
        waiting.push(tokio::spawn(ready.unwrap().call(sent)));
    }
    let answer = call(&mut service, anonymous()).await.unwrap();
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

/// A `Mock` panics if it is called without being ready, and its clones are not ready.
#[tokio::test]
async fn the_service_that_gets_ready_is_the_one_that_is_called() {
    let layer = layer(&MemoryStore::new(), by_key(10));
    let (mut service, mut handle) =
        mock::spawn_layer::<Request<String>, Response<String>, _>(layer);
    handle.allow(0);
    for line in ["GET /", "GET /free", "GET /"] {
        assert!(service.poll_ready().is_ready(), "always");
        let sent = asking(line, &[("x-key", "a")]);
        let mut call = pin!(service.call(sent));
        assert!(
            poll(&mut call).is_pending(),
            "the inner service is not ready"
        );
        handle.allow(1);
        assert!(poll(&mut call).is_pending(), "it has not answered");
        let (_, respond) = handle.next_request().await.unwrap();
        respond.send_response(Response::new("done".to_owned()));
        assert!(matches!(poll(&mut call), Poll::Ready(Ok(_))));
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

/// Also if it counts nothing: it is disabled, or has charged already.
#[tokio::test]
async fn a_layer_waits_for_the_inner_service_whatever_it_decides() {
    let builder = RateLimitLayer::builder(&MemoryStore::new()).otherwise(by_key(1));
    let disabled = builder.decide_first(true).enabled(false).build().unwrap();
    let service = disabled.layer(limited(Inner::default()).0);
    for _ in 0..3 {
        assert_eq!(status(&service, request("a")).await, StatusCode::OK);
    }
    let twice = layer(&MemoryStore::new(), by_key(2));
    let service = twice.layer(twice.layer(limited(Inner::default()).0));
    for expected in [200, 200, 429] {
        assert_eq!(status(&service, request("a")).await, expected);
    }
}
