//! Limits that are changed while they are in use.

use super::world::{Answer, World, books};
use crate::scene::*;

// Section 4.4: updateRate(keepState) from 10 to 4 with 10 in use: Redisson forgets the excess,
// grants every expired permit again, and under steady load admits 10 in every window for as long as
// it lasts.
#[tokio::test]
async fn a_lowered_rate_holds_under_steady_load() {
    let world = World::limited(10, 10_000).await;
    for second in 0..10 {
        world.at(1000 * second);
        assert_eq!(world.take(1).await, Answer::Granted);
    }
    let log: Vec<_> = (0..10).map(|second| (1000 * second, 1)).collect();
    assert_eq!(world.books(), books(0, &log));
    world.at(9500);
    let lowered = Limit::new(4, secs(10));
    assert!(world.limiter.update_rate(lowered).await.unwrap());
    assert_eq!(world.books(), books(-6, &log));
    // Six have to expire before the first of the four, the rest follow as theirs do.
    let mut granted = Vec::new();
    for now in (9500..60_000).step_by(100) {
        world.at(now);
        if world.take(1).await == Answer::Granted {
            granted.push(now);
        }
    }
    assert_eq!(granted[..4], [16_000, 17_000, 18_000, 19_000]);
    for from in (9500..50_000).step_by(100) {
        let window = from..from + 10_000;
        let count = granted.iter().filter(|at| window.contains(*at)).count();
        assert!(count <= 4, "{count} from {from}");
    }
    assert!(granted.len() >= 16, "{granted:?}");
}
