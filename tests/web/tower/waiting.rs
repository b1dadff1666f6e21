//! Requests that are held until there is room, in order, for a time and among so many.

use super::*;
use tokio::task::JoinHandle;

fn rule(permits: u64) -> Rule {
    Limit::new(permits, 10 * SECOND)
        .by(FromHeader::new("x-key"))
        .named("api")
}

on_both_by_a_clock! {
    requests_are_held_and_let_pass_in_order,
    a_queue_holds_no_more_than_it_may,
    only_requests_without_room_are_queued,
}

struct Queued<S> {
    store: S,
    clock: ManualClock,
    inner: Inner,
}

impl Queued<MemoryStore> {
    fn memory() -> Self {
        let (store, clock) = MemoryStore::builder().build_manual();
        Self::new(store, clock)
    }
}

impl<S: Store> Queued<S> {
    fn new(store: S, clock: ManualClock) -> Self {
        let inner = Inner::default();
        Self {
            store,
            clock,
            inner,
        }
    }

    fn builder(&self) -> RateLimitLayerBuilder {
        RateLimitLayer::builder(&self.store)
    }

    fn layer(&self, rule: Rule) -> RateLimitLayer {
        self.builder().otherwise(rule).build().unwrap()
    }

    fn send(&self, layer: &RateLimitLayer, request: Request<String>) -> JoinHandle<Answer> {
        let service = layer.layer(self.inner.clone());
        tokio::spawn(async move {
            let answer = service.oneshot(request).await.unwrap();
            let decision = answer.extensions().get::<Decision>().cloned();
            (answer.status(), decision)
        })
    }

    async fn status(&self, layer: &RateLimitLayer, request: Request<String>) -> StatusCode {
        self.send(layer, request).await.unwrap().0
    }

    /// Until all that were sent have been asked for, and the queue sleeps.
    async fn settle(&self) {
        until("the queue sleeps", async || self.clock.sleepers() > 0).await;
        // What is still on its way takes a few turns of this thread, or an answer of Redis.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

type Answer = (StatusCode, Option<Decision>);

fn refusal(answer: &Answer) -> (RefusalKind, Option<Duration>) {
    match answer {
        (status, Some(Decision::Deny(refusal))) => {
            assert_eq!(*status, StatusCode::TOO_MANY_REQUESTS);
            (refusal.kind(), refusal.retry_after())
        }
        other => panic!("{other:?}"),
    }
}

async fn requests_are_held_and_let_pass_in_order(store: impl Store, clock: ManualClock) {
    let stage = Queued::new(store, clock);
    let layer = stage.layer(rule(1).wait(25 * SECOND));
    assert_eq!(stage.status(&layer, request("a")).await, 200);
    let second = stage.send(&layer, request("a"));
    stage.settle().await;
    let third = stage.send(&layer, request("a"));
    stage.settle().await;
    assert_eq!(stage.inner.calls(), 1, "they wait");
    let fourth = stage.send(&layer, request("a")).await.unwrap();
    let would_wait = Some(30 * SECOND);
    assert_eq!(refusal(&fourth), (RefusalKind::OverLimit, would_wait));
    // Another caller has a queue of its own.
    assert_eq!(stage.status(&layer, request("b")).await, 200);

    stage.clock.advance(10 * SECOND);
    assert_eq!(second.await.unwrap().0, 200);
    assert!(!third.is_finished(), "in order");
    stage.settle().await;
    stage.clock.advance(10 * SECOND);
    assert_eq!(third.await.unwrap().0, 200);
    assert_eq!(stage.inner.calls(), 4);
}

/// Whether they come one after the other or at once, and more than one call decides for.
async fn a_queue_holds_no_more_than_it_may(store: impl Store, clock: ManualClock) {
    let stage = Queued::new(store, clock);
    for (queue, at_once) in [(2, false), (2, true), (100, true)] {
        full(&stage, queue, at_once).await;
    }
}

async fn full(stage: &Queued<impl Store>, queue: usize, at_once: bool) {
    let rule = rule(1).named(&unique("full"));
    let layer = stage.builder().otherwise(rule).wait(HOUR).queue(queue);
    let layer = layer.build().unwrap();
    assert_eq!(stage.status(&layer, request("a")).await, 200);
    let mut waiting = Vec::new();
    for _ in 0..queue + 10 {
        waiting.push(stage.send(&layer, request("a")));
        if !at_once {
            stage.settle().await;
        }
    }
    until("ten are turned away", async || {
        waiting.iter().filter(|it| it.is_finished()).count() >= 10
    })
    .await;
    stage.settle().await;
    let (turned_away, mut waiting): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(JoinHandle::is_finished);
    assert_eq!(turned_away.len(), 10);
    for answer in turned_away {
        let answer = answer.await.unwrap();
        let (kind, wait) = refusal(&answer);
        assert_eq!(kind, RefusalKind::QueueFull);
        assert!(wait.is_some_and(|wait| wait >= 10 * SECOND), "{wait:?}");
    }
    // A place that a waiter leaves is free for the next.
    waiting.pop().unwrap().abort();
    stage.settle().await;
    let next = stage.send(&layer, request("a"));
    stage.settle().await;
    assert!(!next.is_finished());
    let one_more = stage.send(&layer, request("a")).await.unwrap();
    assert_eq!(refusal(&one_more).0, RefusalKind::QueueFull);
}

/// That many come at once is no reason to refuse, while there is room.
async fn only_requests_without_room_are_queued(store: impl Store, clock: ManualClock) {
    let stage = Queued::new(store, clock);
    let layer = stage.layer(rule(200).wait(SECOND).queue(1));
    let sent: Vec<_> = (0..200).map(|_| stage.send(&layer, request("a"))).collect();
    for answer in sent {
        assert_eq!(answer.await.unwrap().0, 200);
    }
}

#[tokio::test]
async fn the_rule_that_waits_least_of_several_counts() {
    let minute = 60 * SECOND;
    let spent = || rule(1).named("a").wait(minute);
    let free = || rule(9).named("b");
    for (rules, waits) in [
        (vec![spent(), free().wait(minute)], true),
        (vec![spent(), free()], false),
        (vec![spent(), free().wait(SECOND)], false),
        (vec![spent(), free().wait(Duration::ZERO)], false),
        (vec![free().wait(SECOND), spent()], false),
        (vec![spent(), rule(1).named("b").shadow()], true),
        (vec![spent().enforce_share(0)], false),
    ] {
        let stage = Queued::memory();
        let layer = stage.builder().otherwise(rules.clone()).build().unwrap();
        assert_eq!(stage.status(&layer, request("a")).await, 200);
        let service = layer.layer(stage.inner.clone());
        let answer = polled(service.oneshot(request("a")), 1).await;
        assert_eq!(answer.is_none(), waits, "{rules:?}");
    }
}

#[tokio::test]
async fn a_rule_goes_before_its_layer() {
    let stage = Queued::memory();
    let impatient = rule(1).wait(Duration::ZERO);
    let layer = stage.builder().otherwise(impatient).wait(60 * SECOND);
    let layer = layer.build().unwrap();
    for expected in [200, 429] {
        assert_eq!(stage.status(&layer, request("a")).await, expected);
    }
}

#[tokio::test]
async fn a_window_is_waited_for_too() {
    let stage = Queued::memory();
    let rule = rule(1).algorithm(Algorithm::FixedWindow).wait(15 * SECOND);
    let layer = stage.layer(rule);
    assert_eq!(stage.status(&layer, request("a")).await, 200);
    let second = stage.send(&layer, request("a"));
    stage.settle().await;
    let late = stage.send(&layer, request("a")).await.unwrap();
    assert_eq!(refusal(&late).0, RefusalKind::OverLimit);
    stage.clock.advance(11 * SECOND);
    assert_eq!(second.await.unwrap().0, 200);
}

/// The place in the inner service is held while a request waits, unless the layer decides first.
#[tokio::test]
async fn a_request_that_waits_holds_its_place_unless_it_is_decided_on_first() {
    for decide_first in [false, true] {
        let stage = Queued::memory();
        let layer = stage.builder().otherwise(rule(1).wait(60 * SECOND));
        let layer = layer.decide_first(decide_first).build().unwrap();
        let (limited, places) = limited(stage.inner.clone());
        let service = layer.layer(limited);
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut waiting = Box::pin(service.clone().oneshot(request("a")));
        assert!(polled(&mut waiting, 1).await.is_none());
        assert_eq!(places.available_permits(), usize::from(decide_first));
        stage.clock.advance(10 * SECOND);
        assert_eq!(waiting.await.unwrap().status(), 200);
    }
}
