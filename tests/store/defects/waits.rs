//! The wait that is announced to a caller, and the number of calls of a waiter.

use super::{
    monitor::Monitor,
    world::{Answer, Specimen},
};
use crate::limiter::pending;
use kit::scene::*;

// Section 4.1: rate 100, singles every 50 ms, acquire(100) makes 101 round trips in Redisson, one
// for each entry. Here it makes one a second, as other processes may make room, and the last.
#[tokio::test]
async fn a_waiter_for_many_permits_calls_once_a_second() {
    let world = Specimen::limited(100, 10_000).await;
    for place in 0..100 {
        world.at(50 * place);
        assert_eq!(world.take(1).await, Answer::Granted);
    }
    let mut monitor = Monitor::start();
    let mut waiting = pin!(world.limiter.acquire_many(100));
    pending(&mut waiting, &world.clock).await;
    // Every entry's expiry passes by.
    for now in (5000..14_950).step_by(50) {
        world.at(now);
        pending(&mut waiting, &world.clock).await;
    }
    assert_eq!(monitor.calls(world.limiter.name()), 10);
    world.at(14_950);
    waiting.await.unwrap();
    assert_eq!(monitor.calls(world.limiter.name()), 1);
    assert_eq!(world.books().log, [(14_950, 100)]);
}

// Section 4.1: every waiter of Redisson's calls again whenever one of them may go: 100 waiters at
// 10 a second make some 550 calls. Here a process makes one call for all of its waiters.
#[tokio::test]
async fn many_waiters_ask_once_an_interval() {
    let world = Specimen::limited(10, 1000).await;
    assert_eq!(world.take(10).await, Answer::Granted);
    let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(world.limiter.acquire())).collect();
    let mut monitor = Monitor::start();
    let mut calls = Vec::new();
    for second in 1..=6 {
        settled(&mut waiting, &world.clock).await;
        calls.push(monitor.calls(world.limiter.name()));
        assert_eq!(waiting.len(), 60 - 10 * second);
        world.at(1000 * second as u64);
    }
    // The first may ask alone, before the others have come.
    assert!(calls[0] <= 2, "{calls:?}");
    assert!(calls[1..].iter().all(|calls| *calls <= 2), "{calls:?}");
    assert!(calls.iter().sum::<usize>() <= 8, "{calls:?}");
}

/// Polls all waiters until they make no progress, and removes those that are granted.
async fn settled<F: Future + Unpin>(waiting: &mut Vec<F>, clock: &ManualClock) {
    clock.advance(Duration::ZERO);
    until("it sleeps", async || {
        waiting.retain_mut(|waiter| poll(waiter).is_pending());
        clock.sleepers() > 0 || waiting.is_empty()
    })
    .await;
}
