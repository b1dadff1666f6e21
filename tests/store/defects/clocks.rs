//! Callers whose clock is wrong, and the server's clock.

use super::{
    monitor::Monitor, world::Answer, world::Keys, world::START, world::Specimen, world::books,
    world::limiter, world::store, world::take,
};
use kit::scene::*;

const HOUR: u64 = 3_600_000;

/// The server's clock, in ms since the start of these tests' clock.
fn server_time() -> i64 {
    RedisServer::shared().micros() / 1000 - START
}

// Section 4.7: Redisson counts by each caller's clock. One that is 5 s ahead takes the permits of
// the others, twice the rate in a window, and starves them. By default no caller's clock is even
// sent.
#[tokio::test]
async fn no_callers_clock_is_sent() {
    let name = unique("clocks");
    let ours = limiter(&store().build().unwrap(), &name);
    ours.try_set_rate(Limit::per_hour(5)).await.unwrap();
    let _ = take(&ours, 6).await;
    let mut monitor = Monitor::start();
    let earliest = server_time();
    assert_eq!(take(&ours, 2).await, Answer::Granted);
    let latest = server_time();
    let mut calls = monitor.seen(&name);
    calls.retain(|command| !command.by_script);
    let [call] = calls.as_slice() else {
        panic!("not one call: {calls:?}");
    };
    // The hash of the script, five keys and how many they are, whose limit counts, the member; a
    // time would follow.
    assert_eq!(call.words[8], "redis", "{call:?}");
    assert_eq!(call.words.get(10), None, "{call:?}");
    let [(score, _)] = Keys::of(&name).books().log[..] else {
        panic!("not one grant");
    };
    assert!((earliest..=latest).contains(&score), "{score}");
}

// Section 4.7: by choice one can count by callers' clocks, as Java does. A caller that is an hour
// ahead then takes all permits in use, once; its entries are no error to the others, and no permit
// is lost. A slow clock proves nothing, so no score is set back: the others wait until then, as
// announced.
#[tokio::test]
async fn a_client_clock_an_hour_ahead_is_no_error_and_no_loss() {
    let honest = Specimen::limited(5, 1000).await;
    let wrong = ManualClock::new();
    let fast = store().client_clock(wrong.clone()).build().unwrap();
    let fast = limiter(&fast, honest.limiter.name());
    let ahead = i64::try_from(HOUR).unwrap();
    assert_eq!(honest.take(3).await, Answer::Granted);
    assert_eq!(honest.books(), books(2, &[(0, 3)]));
    wrong.advance(millis(HOUR));
    assert_eq!(take(&fast, 5).await, Answer::Granted);
    assert_eq!(honest.books(), books(0, &[(ahead, 5)]));

    honest.at(500);
    assert_eq!(honest.take(1).await, Answer::Wait(HOUR + 500));
    assert_eq!(honest.available().await, 0);
    assert_eq!(honest.books(), books(0, &[(ahead, 5)]));
    honest.at(HOUR + 1000);
    assert_eq!(honest.take(5).await, Answer::Granted);
}
