//! One line when a store starts failing, one when it answers again. Those of a breaker are in its
//! unit tests.

use kit::{
    scene::*,
    traffic::{BY_REDIS, HOURLY, ask, service_with},
};
use tracing_subscriber::filter::LevelFilter;

use super::log::Log;

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
    let limiter = limited(&store, HOURLY).await;
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
