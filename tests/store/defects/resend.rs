//! The same acquire sent twice.

use super::{monitor::Monitor, world::Answer, world::World, world::books};
use crate::scene::*;

/// Takes permits, and returns the bytes that did it.
async fn take_and_tell(world: &World, permits: u32) -> Vec<Vec<u8>> {
    // A server that does not know the script is sent its text once; afterwards one command is
    // enough.
    assert_eq!(world.available().await, 5);
    let _ = world.take(6).await;
    let mut monitor = Monitor::start();
    assert_eq!(world.take(permits).await, Answer::Granted);
    let mut calls = monitor.seen(world.limiter.name());
    calls.retain(|command| !command.by_script);
    assert_eq!(calls.len(), 1, "one round trip: {calls:?}");
    let call = calls.remove(0).arguments();
    assert_eq!(call[0], b"EVALSHA");
    call
}

/// The outcome for the caller: the first of a pair behind the eight numbers of the reply.
fn outcome(reply: &Reply) -> i64 {
    match reply {
        Reply::Bulk(text) => {
            let text = String::from_utf8_lossy(text);
            let numbers: Vec<i64> = text
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect();
            match *numbers {
                [1, .., status, _] => status,
                _ => panic!("not a decision: {text}"),
            }
        }
        Reply::Array(numbers) => match numbers.as_slice() {
            [Reply::Int(1), .., Reply::Int(status), Reply::Int(_)] => *status,
            other => panic!("not a decision: {other:?}"),
        },
        other => panic!("not a decision: {other:?}"),
    }
}

// Section 8.1 and 4.2, #3804, #5687: a retry has the same bytes; Redisson adds one member and takes
// the permits again: rate 5, one acquire sent three times leaves value 2, and so 3 of 5 from then on
// after. The retry of one that took the last permits is refused, although they are its own.
#[tokio::test]
async fn an_acquire_that_is_sent_again_takes_nothing_more() {
    for permits in [1, 5] {
        let world = World::limited(5, 1000).await;
        let call = take_and_tell(&world, permits).await;
        let (taken, left) = (
            world.keys.entries(),
            books(5 - i64::from(permits), &[(0, permits)]),
        );
        assert_eq!(world.books(), left);
        for _ in 0..2 {
            let reply = RedisServer::shared().command(&call);
            assert_eq!(outcome(&reply), 1, "granted: {reply:?}");
            assert_eq!(world.books(), left);
            assert_eq!(world.keys.entries(), taken, "the same member");
        }
        assert_eq!(world.take(6 - permits).await, Answer::Wait(1000));
        world.at(1000);
        assert_eq!(world.available().await, 5);
        assert_eq!(world.take(5).await, Answer::Granted);
    }
}
