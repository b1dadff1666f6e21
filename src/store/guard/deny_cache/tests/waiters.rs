//! Tests when callers that wait for permits are refused from memory, and what their refusals leave
//! there.

use super::*;

fn waiting(ask: &Demand, max_wait: MaxWait) -> Demand {
    Demand {
        max_wait: Some(max_wait),
        ..ask.clone()
    }
}

/// Those before it could only lengthen its wait.
#[test]
fn one_that_gives_up_before_there_is_room_is_told_so() {
    let ask = one("a");
    let queue = |wait| MaxWait {
        queue: Some(1),
        ..MaxWait::at_most(wait)
    };
    for (wait, elapsed, waits) in [
        (1000, 0, 999),
        (1000, 0, 1000),
        (1000, 600, 399),
        (1000, 600, 400),
        (1000, 999, 1),
    ] {
        let world = World::new(CAP);
        world.refused(&ask, wait, || {});
        world.advance(elapsed);
        for max_wait in [MaxWait::at_most, queue] {
            let waits = Duration::from_millis(waits);
            let hopeless = u128::from(wait - elapsed) > waits.as_millis();
            let refused_for = world.repeated(&waiting(&ask, max_wait(waits)));
            let left = u128::from(wait - elapsed);
            assert_eq!(
                refused_for,
                hopeless.then_some(left),
                "{wait} {elapsed} {waits:?}"
            );
        }
        assert_eq!(world.repeated(&waiting(&ask, MaxWait::ENDLESS)), None);
    }
}

/// It would fail for good, and the rate may have been raised.
#[test]
fn one_that_waits_for_more_than_the_rate_asks() {
    let (world, ask) = (World::new(CAP), one("a"));
    let above = Refusal {
        kind: RefusalKind::AboveRate,
        retry_after: None,
        ..for_ms(&ask, 1000)
    };
    world.answers(&ask, Decision::Deny(above), || {});
    let refusals = &world.cache.refusals;
    let (known, elapsed) = refusals.known(&ask).unwrap();
    assert_eq!(known.refusal(elapsed).kind, RefusalKind::AboveRate);
    for max_wait in [MaxWait::at_most(CAP * 60), MaxWait::ENDLESS] {
        assert!(refusals.known(&waiting(&ask, max_wait)).is_none());
    }
}

/// The answer to the first waiter holds for all; the part about those before it holds for it alone.
#[test]
fn waiters_show_what_holds_without_those_before_them() {
    let world = World::new(CAP);
    let ask = one("a");
    let waits = waiting(&ask, MaxWait::at_most(Duration::from_millis(100)));
    let refused = |wait, behind| {
        let refusal = for_ms(&waits, wait);
        let refusal = Decision::Deny(Refusal { behind, ..refusal });
        world.answers(&waits, refusal, || {});
    };
    refused(2000, true);
    assert_eq!(world.repeated(&ask), None);
    refused(1000, false);
    assert_eq!(world.repeated(&ask), Some(1000));
    assert_eq!(world.repeated(&waits), Some(1000));
    // Where no store can be asked, its policy decides.
    assert!(world.cache.refusals.last_known(&waits).is_none());
}

/// A wait that was returned at the end of another one counts from then.
#[test]
fn one_that_has_waited_drops_nothing_that_is_known() {
    let world = World::new(CAP);
    let ask = one("a");
    let waits = waiting(&ask, MaxWait::at_most(Duration::from_secs(3)));
    world.refused(&waits, 1000, || {
        world.advance(3000);
        world.refused(&ask, 1000, || {});
    });
    assert_eq!(world.repeated(&ask), Some(1000));
}
