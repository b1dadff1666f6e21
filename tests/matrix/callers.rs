//! Rows 23 and 26: callers that go away, and runtimes that are busy with something else.

use kit::scene::*;
use std::future::poll_fn;
use tower_ratelimit::Error;

use super::{
    batches::HOURLY,
    guards::{BUDGET, LEASE},
    observed::CROWD,
    stage::{EXACT, FROM_ZERO, Scene, set},
};

/// Polls a future this often, each time when it is woken, and then drops it. Returns its output, if
/// any.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = times;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops the future of `begin` at its first await point, its second and so on, until one completes.
/// Returns the number of drops and all outputs.
async fn dropped_everywhere<F: Future>(begin: impl Fn() -> F) -> (usize, Vec<F::Output>) {
    let mut ends = Vec::new();
    let mut dropped = 0;
    for times in 0..40 {
        for _ in 0..3 {
            match polled(begin(), times).await {
                Some(end) => ends.push(end),
                None => dropped += 1,
            }
        }
        // All three of them, twice: there is no later point.
        if ends.len() >= 6 {
            break;
        }
    }
    (dropped, ends)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_callers_that_go_away_at_every_await_point() {
    let scene = Scene::begin("row 23").await;
    // So that there is something to wait for.
    scene.proxy.delay_every_reply(Duration::from_millis(3));
    let store = scene.load.handles[0].clone();

    let shared = RateLimiter::new(&store, &unique("dropped")).unwrap();
    set(&shared, HOURLY).await;
    let own = HOURLY.named(CROWD).single(&store).unwrap();
    let mut left = Vec::new();
    for (limiter, rule) in [(&shared, None), (&own, Some(CROWD))] {
        left.push(HOURLY.permits() - leave(&scene, limiter, rule).await);
    }
    hang_up(&store).await;

    scene.proxy.delay_every_reply(Duration::ZERO);
    for (limiter, left) in [&shared, &own].into_iter().zip(left) {
        until("what was dropped is given back", async || {
            let available = limiter.available_permits().await;
            available.is_ok_and(|available| available == left)
        })
        .await;
    }
    drop((shared, own, store));
    scene.judge(EXACT).await;
}

/// Asks this limiter in each way there is, and drops the callers at each await point. Returns the
/// permits granted to those that stayed.
async fn leave(scene: &Scene, limiter: &RateLimiter, rule: Option<&str>) -> u64 {
    let store = scene.load.handles[0].clone();
    let mut granted = 0;
    let mut dropped = 0;
    let observed = scene.load.observed.clone();
    // O8: also for each that left, except the three that were never polled.
    let report = |left: usize, decisions: &[Result<Decision, Error>]| {
        (3..left).for_each(|_| observed.less(rule, None));
        for decision in decisions {
            observed.less(rule, Some(decision));
        }
        let allowed = decisions.iter().flatten().filter(|it| it.is_allowed());
        allowed.count()
    };
    for _ in 0..3 {
        let (ended, decisions) = dropped_everywhere(|| limiter.try_acquire_many(2)).await;
        dropped += ended;
        granted += 2 * report(ended, &decisions);
        let max_wait = Duration::from_millis(50);
        let (ended, decisions) = dropped_everywhere(|| limiter.try_acquire_for(3, max_wait)).await;
        dropped += ended;
        granted += 3 * report(ended, &decisions);
        let (ended, grants) = dropped_everywhere(|| limiter.acquire()).await;
        dropped += ended;
        let grants = grants.into_iter().map(|it| it.map(Decision::Allow));
        let grants: Vec<_> = grants.collect();
        granted += report(ended, &grants);
        dropped += dropped_everywhere(|| limiter.available_permits()).await.0;
        dropped += dropped_everywhere(|| limiter.limit()).await.0;
        dropped += dropped_everywhere(|| store.ping()).await.0;
        dropped += dropped_everywhere(|| store.close()).await.0;
    }
    println!("row 23: {dropped} futures dropped, {granted} permits granted to others");
    assert!(dropped > 30 && granted > 0);
    granted as u64
}

/// Requests that are dropped while they are decided; whatever they took, the window forgets it.
async fn hang_up(store: &RedisStore) {
    let rule = Limit::new(50, Duration::from_millis(400)).by(Constant("all"));
    let leased = rule.clone().named(&unique("leased")).lease(LEASE);
    for rule in [rule.named(&unique("rule")), leased] {
        let service = RateLimitLayer::new(store, rule).layer(service_fn(serve::<()>));
        let (dropped, answers) =
            dropped_everywhere(|| service.clone().oneshot(Request::new(()))).await;
        assert!(dropped > 0 && !answers.is_empty());
    }
}

/// All threads of the runtime are taken by something that does not yield.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_workers_that_are_kept_busy() {
    let scene = Scene::begin("row 26, starved").await;
    for _ in 0..3 {
        let busy: Vec<_> = (0..4)
            .map(|_| tokio::spawn(async { thread::sleep(Duration::from_millis(200)) }))
            .collect();
        for busy in busy {
            busy.await.unwrap();
        }
        scene.load.decided(3).await;
    }
    scene.judge(EXACT).await;
}

/// Nothing blocks the one thread that there is, and no lock is kept across a wait.
#[tokio::test(flavor = "current_thread")]
async fn row_26_a_runtime_of_one_thread() {
    let mut scene = Scene::begin_with("row 26, one thread", &[], BUDGET).await;
    scene.proxy.delay(Duration::ZERO, millis(20));
    scene.load.decided(5).await;
    scene.server.kill();
    scene.load.met_policy(10).await;
    scene.restart(false);
    scene.judge(FROM_ZERO).await;
}
