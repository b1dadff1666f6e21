//! How long a caller is told to wait, and how often one that waits asks.

use super::{
    monitor::Monitor,
    world::{Answer, World},
};
use crate::scene::*;

// Section 4.1: a refused caller is told three milliseconds too much.
#[tokio::test]
async fn a_wait_for_one_has_no_slack() {
    let world = World::limited(1, 2000).await;
    assert_eq!(world.take(1).await, Answer::Granted);
    for now in [0, 1, 1000, 1998, 1999] {
        world.at(now);
        assert_eq!(world.take(1).await, Answer::Wait(2000 - now));
    }
    world.at(2000);
    assert_eq!(world.take(1).await, Answer::Granted);
}

// Section 2 and 4.1: for several permits Redisson looks at the oldest entry only: rate 5, singles 100 ms apart, asking for
// 5 says 503 where 900 is true.
#[tokio::test]
async fn a_wait_for_several_is_exact() {
    let world = World::limited(5, 1000).await;
    for place in 0..5 {
        world.at(100 * place);
        assert_eq!(world.take(1).await, Answer::Granted);
    }
    world.at(500);
    for permits in 1..=5_u32 {
        let wait = 500 + 100 * u64::from(permits - 1);
        assert_eq!(world.take(permits).await, Answer::Wait(wait));
    }
    // Granted at that instant, and not a millisecond before.
    world.at(1399);
    assert_eq!(world.take(5).await, Answer::Wait(1));
    assert_eq!(world.take(4).await, Answer::Granted);
    world.at(1400);
    assert_eq!(world.take(1).await, Answer::Granted);
}

// Section 4.1: entries of several permits: enough is freed by the second, not by the first.
#[tokio::test]
async fn a_wait_counts_the_permits_of_entries() {
    let world = World::limited(10, 1000).await;
    for (now, permits) in [(0, 2), (100, 5), (200, 3)] {
        world.at(now);
        assert_eq!(world.take(permits).await, Answer::Granted);
    }
    for (permits, wait) in [(1, 800), (2, 800), (3, 900), (7, 900), (8, 1000)] {
        assert_eq!(world.take(permits).await, Answer::Wait(wait));
    }
}

// Section 4.1: rate 100, singles every 50 ms, acquire(100) makes 101 round trips in Redisson, one for each entry.
#[tokio::test]
async fn who_waits_for_many_asks_twice() {
    let world = World::limited(100, 10_000).await;
    for place in 0..100 {
        world.at(50 * place);
        assert_eq!(world.take(1).await, Answer::Granted);
    }
    let mut monitor = Monitor::start();
    let mut waiting = pin!(world.limiter.acquire_many(100));
    asleep(&mut waiting, &world.clock).await;
    // Every entry's expiry passes by.
    for now in (5000..14_950).step_by(50) {
        world.at(now);
        asleep(&mut waiting, &world.clock).await;
    }
    assert_eq!(monitor.calls(world.limiter.name()), 1);
    world.at(14_950);
    waiting.await.unwrap();
    assert_eq!(monitor.calls(world.limiter.name()), 1);
    assert_eq!(world.books().log, [(14_950, 100)]);
}

// Section 4.1: every waiter of Redisson's asks again whenever one of them may go: 100 waiters at 10 a second make some 550
// calls. Here a process asks once for all of its waiters.
#[tokio::test]
async fn many_waiters_ask_once_an_interval() {
    let world = World::limited(10, 1000).await;
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

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets a waiter go as far as it can, until its line sleeps.
async fn asleep<F: Future + Unpin>(future: &mut F, clock: &ManualClock) {
    clock.advance(Duration::ZERO);
    until(|| {
        assert!(poll(future).is_pending(), "it should wait");
        clock.sleepers() > 0
    })
    .await;
}

/// Lets all go as far as they can, and those who are granted leave.
async fn settled<F: Future + Unpin>(waiting: &mut Vec<F>, clock: &ManualClock) {
    clock.advance(Duration::ZERO);
    until(|| {
        waiting.retain_mut(|waiter| poll(waiter).is_pending());
        clock.sleepers() > 0 || waiting.is_empty()
    })
    .await;
}

/// Gives the connection its turns until something that takes no time by the clock has happened.
async fn until(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < deadline, "it takes too long");
        tokio::task::yield_now().await;
    }
}
