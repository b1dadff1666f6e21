//! One line when a store starts failing, one when it answers again.

use kit::{
    scene::*,
    traffic::{BY_REDIS, HOURLY, ask, by_redis, service_with},
};
use tracing_subscriber::filter::LevelFilter;

use super::log::Log;

/// The lines with these words, at the default level of an operator.
fn lines_with(log: &Log, words: &str) -> Vec<String> {
    let mut lines = log.lines();
    lines.retain(|line| line.contains(words) && !line.contains("DEBUG"));
    lines
}

/// There are so many lines, and the last has these words.
#[track_caller]
fn is_last(lines: &[String], number: usize, words: &str) {
    assert_eq!(lines.len(), number, "{lines:#?}");
    assert!(lines[number - 1].contains(words), "{words}: {lines:#?}");
}

#[tokio::test]
async fn an_outage_is_two_lines_without_a_key() {
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::TRACE);
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let rule = HOURLY.by(Constant("alice-of-the-secret-key"));
    let deny = service_with(&store, rule.clone().on_failure(FailurePolicy::Deny));
    let allow = service_with(&store, rule.on_failure(FailurePolicy::Allow));
    let limiter = RateLimiter::new(&store, &unique("bob-of-the-secret-key")).unwrap();
    assert!(limiter.try_set_rate(HOURLY).await.unwrap());
    let is_well = async || {
        let limiter = limiter.try_acquire().await.is_ok();
        let decided = [ask(&deny).await, ask(&allow).await];
        let well = decided == [BY_REDIS; 2];
        assert_eq!(well, limiter, "{decided:?}");
        well
    };
    assert!(is_well().await);
    assert_eq!(log.lines(), [""; 0]);

    for outage in 1..=2 {
        server.kill();
        for _ in 0..50 {
            assert!(!is_well().await);
        }
        is_last(&log.lines(), 2 * outage - 1, "WARN");

        server.restart();
        until("the limit is there again", async || {
            limiter.try_set_rate(HOURLY).await.is_ok()
        })
        .await;
        // Said when it has been well for a moment.
        until("recovery is noted", async || {
            assert!(is_well().await);
            log.lines().len() > 2 * outage - 1
        })
        .await;
        for _ in 0..50 {
            assert!(is_well().await);
        }
        is_last(&log.lines(), 2 * outage, "INFO");
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
    // So long that a busy machine does not open it before.
    let store = hasty(server.url(), millis(500)).build().unwrap();
    let service = service_with(&store, HOURLY.by(Constant("alice-of-the-secret-key")));
    by_redis([&service]).await;
    assert_eq!(lines_with(&log, "breaker"), [""; 0]);
    server.stop_process();
    // Open for long enough that it was tried and failed.
    until("it is open for a while", async || {
        // The rule has no policy of its own.
        assert_eq!(ask(&service).await.1, Source::Local);
        let health = store.health();
        let node = &health.nodes[0];
        node.breaker != BreakerState::Closed && node.lasts > SECOND
    })
    .await;
    is_last(&lines_with(&log, "breaker"), 1, "WARN");
    is_last(&lines_with(&log, "breaker"), 1, "open");
    server.resume();
    by_redis([&service]).await;
    is_last(&lines_with(&log, "breaker"), 2, "INFO");
    is_last(&lines_with(&log, "breaker"), 2, "closed");
    assert!(!log.text().contains("secret"), "{}", log.text());
}
