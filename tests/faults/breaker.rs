//! A server that can be reached and does not answer is left alone, and asked again by itself.

use kit::{
    proxy::Proxy,
    scene::*,
    traffic::{ALLOWED, DENIED, Http, ask, by_redis, deny_and_allow},
};
use tower_ratelimit::ConnectionState;

const FAILURES: u32 = 5;
/// The shortest pause before a call goes again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn state(store: &RedisStore) -> BreakerState {
    store.health().nodes[0].breaker
}

/// Calls until the breaker is open. Returns how many calls lost their time.
async fn open(store: &RedisStore, service: &Http) -> u32 {
    let mut asked = 0;
    while state(store) == BreakerState::Closed {
        assert_eq!(ask(service).await.1, Source::FailurePolicy);
        asked += 1;
        assert!(asked < 100, "never opens");
    }
    asked
}

async fn heals(store: &RedisStore, services: &[Http]) {
    by_redis(services).await;
    assert_eq!(state(store), BreakerState::Closed);
    assert!(store.health().is_well());
}

/// Returns a store, and two services of it, for which Redis decides.
async fn healthy(store: RedisStoreBuilder) -> (RedisStore, [Http; 2]) {
    let store = store.build().unwrap();
    let services = deny_and_allow(&store);
    by_redis(&services).await;
    (store, services)
}

#[tokio::test]
async fn a_server_that_hangs_costs_few_requests_their_time() {
    let mut server = RedisServer::start();
    let (store, services) = healthy(hasty(server.url(), millis(100))).await;
    let [deny, allow] = &services;
    assert!(store.health().is_well());
    let before = server.scripts_called();

    server.stop_process();
    // Fewer, where a busy machine was late before.
    assert!((1..=FAILURES).contains(&open(&store, deny).await));
    let opened = Instant::now();
    assert!(!store.health().is_well());
    assert_eq!(store.health().connection, ConnectionState::Connected);
    // Whatever answers, a handler finds which server it is about.
    let place = format!("127.0.0.1:{}", server.port());
    until("the open breaker's error names its server", || async {
        let Ok(answer) = deny.clone().oneshot(Request::new(())).await;
        let Decision::Deny(refusal) = decision_of(&answer) else {
            return false;
        };
        let said = refusal.error().map(ToString::to_string).unwrap_or_default();
        said.contains("its breaker is open") && said.contains(&place)
    })
    .await;
    let mut decisions = 0;
    while opened.elapsed() < Duration::from_secs(1) {
        assert_eq!(ask(deny).await, DENIED);
        assert_eq!(ask(allow).await, ALLOWED);
        decisions += 2;
    }
    server.resume();
    heals(&store, &services).await;
    let most = opened.elapsed().as_millis() / SHORTEST_PAUSE.as_millis() + 10;
    let calls = server.scripts_called();
    let probes = calls.saturating_sub(before + u64::from(FAILURES));
    println!("{probes} calls for {decisions} decisions while the server hung");
    assert!(u128::from(probes) <= most, "{probes}, {most}");
}

/// Those who wait for permits, too, and those who stood in line before.
#[tokio::test]
async fn no_caller_waits_for_a_server_that_hangs() {
    let mut server = RedisServer::start();
    let clock = ManualClock::new();
    let spent = limited(
        &by_clock(&server, &clock).build().unwrap(),
        Limit::per_hour(1),
    )
    .await;
    take(&spent, 1).await;
    let store = hasty(server.url(), millis(100));
    let (store, [deny, _]) = healthy(store.client_clock(clock.clone())).await;
    let limiter = RateLimiter::new(&store, spent.name()).unwrap();
    // One of them may be the one that finds out.
    let failed = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    let hangs = Arc::new(AtomicBool::new(false));
    let standing = tokio::spawn({
        let (limiter, hangs) = (limiter.clone(), Arc::clone(&hangs));
        async move {
            loop {
                let kind = limiter.acquire().await.unwrap_err().kind();
                // Before that, on a busy machine.
                if hangs.load(Ordering::Relaxed) {
                    return kind;
                }
                assert!(failed(kind), "{kind:?}");
            }
        }
    });
    // It was refused with a wait before the server hangs.
    until("it stands in line", async || clock.sleepers() > 0).await;

    server.stop_process();
    hangs.store(true, Ordering::Relaxed);
    open(&store, &deny).await;
    for _ in 0..50 {
        let patient = limiter.try_acquire_for(1, Duration::from_secs(60)).await;
        assert!(failed(patient.unwrap_err().kind()));
        assert!(failed(limiter.acquire().await.unwrap_err().kind()));
    }
    // Its turn comes.
    clock.advance(HOUR);
    assert!(failed(standing.await.unwrap()));
    server.resume();
    let waits = until("it waits again", async || limiter.acquire().await.is_ok());
    // Again, where a call is given up that has taken the permit.
    let passes = async {
        loop {
            until("it sleeps", async || clock.sleepers() > 0).await;
            clock.advance(HOUR);
        }
    };
    tokio::select! {
        _ = waits => {}
        () = passes => {}
    }
}

/// Late by more than the five calls that open it: before the first answer, the server is silent.
#[tokio::test]
async fn answers_that_come_too_late_open_it() {
    let (_server, proxy) = Proxy::and_server();
    let (store, services) = healthy(hasty(proxy.url(), millis(200))).await;

    proxy.delay_every_reply(Duration::from_secs(3));
    open(&store, &services[1]).await;
    assert_eq!(proxy.connections(), 1);
    proxy.delay_every_reply(Duration::ZERO);
    heals(&store, &services).await;
    assert_eq!(proxy.connections(), 1);
}

/// The connection has pauses of its own, during which no caller waits: a breaker would only add to
/// them.
#[tokio::test]
async fn a_server_that_is_down_does_not_open_it() {
    let mut server = RedisServer::start();
    let (store, services) = healthy(patient(server.url())).await;
    server.kill();
    for _ in 0..500 {
        assert_eq!(ask(&services[1]).await, ALLOWED);
        assert_eq!(state(&store), BreakerState::Closed);
    }
    let health = store.health();
    assert_eq!(health.connection, ConnectionState::Failing);
    assert!(!health.is_well());
    server.restart();
    heals(&store, &services).await;
}
