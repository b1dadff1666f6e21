//! Callers of one limiter share a call while another one is in flight: on a real Redis, which is
//! stopped meanwhile.

mod dropped;

use kit::scene::*;

pub(crate) const CROWD: usize = 64;

/// Returns a store that calls Redis each time, and whose decisions a busy machine does not turn
/// into decisions by policy.
fn patient(server: &RedisServer) -> RedisStoreBuilder {
    let store = kit::scene::patient(server.url()).prefix(&unique("queue"));
    store.deny_cache(Duration::ZERO)
}

async fn ask(layer: RateLimitLayer) -> (StatusCode, Decision) {
    let answer = send(&layer, Request::new(())).await;
    (answer.status(), decision_of(&answer).clone())
}

fn remaining(decision: &Decision) -> Option<u64> {
    decision.limits().next().unwrap().remaining()
}

/// Has a crowd ask while the server stands still; their answers, and how many scripts that took.
pub(crate) async fn crowd<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    server: &mut RedisServer,
    ask: impl Fn() -> F,
) -> (Vec<T>, u64) {
    let before = server.scripts_called();
    server.stop_process();
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(ask());
        settle().await;
    }
    server.resume();
    let answers = crowd.join_all().await;
    (answers, server.scripts_called() - before)
}

/// Its turn by what is known would come in an hour. Another process makes room.
#[tokio::test]
async fn a_waiter_learns_within_a_deny_cache_what_another_process_has_changed() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| {
        let store = kit::scene::patient(server.url()).deny_cache(millis(100));
        store.build().unwrap()
    });
    for change in [
        "raises",
        "gives back",
        "releases",
        "deletes",
        "waits for less",
    ] {
        let limiter = limited(&here, Limit::per_hour(1)).await;
        let other = RateLimiter::new(&there, limiter.name()).unwrap();
        let grant = take(&other, 1).await;
        let mut waiting = pin!(limiter.acquire());
        begin(waiting.as_mut()).await;
        until("it has asked", async || {
            limiter.available_permits().await.unwrap() == 0
        })
        .await;
        match change {
            "raises" => other.set_rate(Limit::per_hour(2)).await.unwrap(),
            "gives back" => other.give_back(&grant),
            "releases" => assert_eq!(other.release(1).await.unwrap(), 1),
            "deletes" => assert!(other.delete().await.unwrap()),
            _ => other.set_rate(Limit::new(1, millis(200))).await.unwrap(),
        }
        let served = tokio::time::timeout(LONG, waiting).await;
        let served = served.unwrap_or_else(|_| panic!("it sleeps on: {change}"));
        match change {
            "deletes" => drop(fails(served, ErrorKind::NotInitialized)),
            _ => drop(served.unwrap()),
        }
    }
}

/// The first of them, which is alone, and all others share one that the server knows.
#[tokio::test]
async fn requests_that_come_together_cost_two_scripts() {
    let mut server = RedisServer::start();
    let store = patient(&server).build().unwrap();
    let one = RateLimitLayer::new(&store, Limit::per_hour(80).by(Constant("one")));
    let by = |limit: Limit, name: &str| limit.by(Constant("list")).named(name);
    let rules = [
        by(Limit::per_hour(80), "hourly"),
        by(Limit::per_minute(500), "minutely"),
    ];
    let list = layer_of(&store, rules);
    let window = Limit::per_hour(80).by(Constant("window")).named("window");
    let window = RateLimitLayer::new(&store, window.algorithm(Algorithm::FixedWindow));
    for layer in [one, list, window] {
        // The server learns the scripts.
        let (answers, _) = crowd(&mut server, || ask(layer.clone())).await;
        assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK));
        let (answers, scripts) = crowd(&mut server, || ask(layer.clone())).await;
        assert_eq!(scripts, 2);
        let passed = answers
            .iter()
            .filter(|(status, _)| *status == StatusCode::OK);
        assert_eq!(passed.count(), 80 - CROWD);
        // All but the first get the number after the same call.
        let remaining = answers.iter().map(|(_, decision)| remaining(decision));
        assert_eq!(remaining.filter(|left| *left == Some(0)).count(), CROWD - 1);
    }
    let known = server.figure("memory", "number_of_cached_scripts:");
    assert_eq!(known, Some(1));
}

/// Each caller chooses whether the permits left are counted.
#[tokio::test]
async fn one_that_wants_exact_numbers_gets_them_behind_one_that_does_not() {
    let mut server = RedisServer::start();
    let clock = ManualClock::new();
    let store = patient(&server).client_clock(clock.clone());
    let store = store.build().unwrap();
    let limiter = limited(&store, Limit::per_second(10)).await;
    let rule = Rule::shared(limiter.name());
    let layer = RateLimitLayer::builder(&store).otherwise(rule);
    let layer = layer.count_remaining(false).build().unwrap();
    for (takes, then) in [(5, 500), (4, 600)] {
        for _ in 0..takes {
            limiter.try_acquire().await.unwrap().assert_allowed();
        }
        clock.advance(Duration::from_millis(then));
    }
    // Five have expired, and one was free.
    server.stop_process();
    let requests = [(); 2].map(|()| tokio::spawn(ask(layer.clone())));
    settle().await;
    let mut counting = pin!(limiter.try_acquire());
    begin(counting.as_mut()).await;
    server.resume();
    for request in requests {
        assert_eq!(remaining(&request.await.unwrap().1), None);
    }
    assert_eq!(remaining(&counting.await.unwrap()), Some(3));
}
