//! One line when a store starts failing, one when it answers again.

use crate::scene::*;
use tracing_subscriber::filter::LevelFilter;

use super::{
    log::Log,
    proxy::Proxy,
    traffic::{ask, service_with},
    wait::until,
};

const LIMIT: Limit = Limit::per_hour(1_000_000);

/// The lines at the default level of an operator.
fn operator_lines(log: &Log) -> Vec<String> {
    let mut lines = log.lines();
    lines.retain(|line| !line.contains("DEBUG"));
    lines
}

#[tokio::test]
async fn an_outage_is_two_lines_without_a_key() {
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::TRACE);
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let rule = LIMIT.by(Constant("alice-of-the-secret-key"));
    let deny = service_with(&store, rule.clone().on_failure(FailurePolicy::Deny));
    let allow = service_with(&store, rule.on_failure(FailurePolicy::Allow));
    let limiter = RateLimiter::new(&store, &unique("bob-of-the-secret-key")).unwrap();
    assert!(limiter.try_set_rate(LIMIT).await.unwrap());
    let all = async || {
        let (deny, allow) = (ask(&deny).await, ask(&allow).await);
        let error = limiter.try_acquire().await.err();
        (deny, allow, error.map(|error| error.to_string()))
    };
    let healthy = (
        (StatusCode::OK, Source::Store),
        (StatusCode::OK, Source::Store),
        None,
    );
    assert_eq!(all().await, healthy);
    assert_eq!(log.lines(), [""; 0]);

    for outage in 1..=2 {
        server.kill();
        for _ in 0..50 {
            assert_ne!(all().await, healthy);
        }
        let lines = log.lines();
        assert_eq!(lines.len(), 2 * outage - 1, "{lines:#?}");
        assert!(lines[2 * outage - 2].contains("WARN"), "{lines:#?}");

        server.restart();
        until("the limit is there again", || async {
            limiter.try_set_rate(LIMIT).await.is_ok()
        })
        .await;
        // Said when it has been well for a moment.
        until("recovery is noted", || async {
            assert_eq!(all().await, healthy);
            log.lines().len() > 2 * outage - 1
        })
        .await;
        for _ in 0..50 {
            assert_eq!(all().await, healthy);
        }
        let lines = log.lines();
        assert_eq!(lines.len(), 2 * outage, "{lines:#?}");
        assert!(lines[2 * outage - 1].contains("INFO"), "{lines:#?}");
    }
    assert!(!log.text().contains("secret"), "{}", log.text());
    for line in log.lines() {
        println!("{line}");
    }
}

/// Each of its pauses is none of it.
#[tokio::test]
async fn a_breaker_that_opens_and_closes_is_two_lines() {
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::TRACE);
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_millis(100))
        .build()
        .unwrap();
    let service = service_with(&store, LIMIT.by(Constant("alice-of-the-secret-key")));
    until("Redis decides", || async {
        ask(&service).await.1 == Source::Store
    })
    .await;
    let of_breaker = || {
        let lines = log.lines().into_iter();
        let lines = lines.filter(|line| line.contains("breaker"));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(of_breaker(), [""; 0]);
    server.stop_process();
    // Open for long enough that it was tried and failed.
    until("it is open for a while", || async {
        // The rule has no policy of its own.
        assert_eq!(ask(&service).await.1, Source::Local);
        let health = store.health();
        let node = &health.nodes()[0];
        node.breaker() != BreakerState::Closed && node.lasts() > Duration::from_secs(1)
    })
    .await;
    let lines = of_breaker();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(
        lines[0].contains("WARN") && lines[0].contains("opens"),
        "{lines:#?}"
    );
    server.resume();
    until("it is closed", || async {
        ask(&service).await.1 == Source::Store
    })
    .await;
    let lines = of_breaker();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(
        lines[1].contains("INFO") && lines[1].contains("closes"),
        "{lines:#?}"
    );
    assert!(!log.text().contains("secret"), "{}", log.text());
}

/// If every second call fails, the store is neither well nor newly ill each time.
#[tokio::test]
async fn a_store_that_fails_now_and_then_is_reported_once() {
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::TRACE);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = RedisStore::builder(proxy.url())
        .deadline(Duration::from_millis(100))
        .breaker(0)
        .build()
        .unwrap();
    let service = service_with(&store, LIMIT.by(Constant("all")));
    until("Redis decides", || async {
        ask(&service).await.1 == Source::Store
    })
    .await;

    proxy.delay_every_second_reply(Duration::from_millis(200));
    let mut turns = 0;
    let mut last = Source::Store;
    while turns < 20 {
        let (_, source) = ask(&service).await;
        turns += usize::from(source != last);
        last = source;
    }
    let lines = operator_lines(&log);
    assert_eq!(lines.len(), 1, "{turns} turns: {lines:#?}");
}

/// A server that is slow now and then is reported once a minute, however often its breaker opens.
#[tokio::test]
async fn a_breaker_that_keeps_opening_is_reported_once_a_minute() {
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::TRACE);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = RedisStore::builder(proxy.url())
        .deadline(Duration::from_millis(100))
        .breaker(1)
        .build()
        .unwrap();
    let service = service_with(&store, LIMIT.by(Constant("all")));
    let state = || store.health().nodes()[0].breaker();
    let began = Instant::now();
    for opening in 1..=5 {
        proxy.delay_every_reply(Duration::from_millis(200));
        until("it opens", || async {
            ask(&service).await;
            state() == BreakerState::Open
        })
        .await;
        proxy.delay_every_reply(Duration::ZERO);
        until("it closes", || async {
            ask(&service).await;
            state() == BreakerState::Closed
        })
        .await;
        let mut lines = operator_lines(&log);
        lines.retain(|line| line.contains("the breaker opens"));
        let minutes = began.elapsed().as_secs() / 60;
        let most = 1 + usize::try_from(minutes).unwrap();
        assert!(
            (1..=most).contains(&lines.len()),
            "{opening} times in {minutes} minutes: {lines:#?}"
        );
    }
}
