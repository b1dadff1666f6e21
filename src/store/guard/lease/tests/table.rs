//! Tests which callers a lease serves, what ends it, and how many permits the next one has.

use super::*;

/// Whether a lease taken by one limit serves a caller with another one.
fn serves(leased_by: LimitSource, asked_by: LimitSource) -> bool {
    let world = World::of_one();
    let lease = &world.processes[0];
    let by = |limit| {
        let mut demand = world.acquire(1);
        demand.charges[0] = demand.first().clone().by(limit);
        demand
    };
    for _ in 0..2 {
        let _ = done(lease.acquire(&by(leased_by)));
    }
    assert_eq!(world.ahead(), [4], "{leased_by:?}");
    assert!(lease.table.take(&mut by(leased_by)).is_some());
    lease.table.take(&mut by(asked_by)).is_some()
}

/// The stored one is one for all, whatever they would have stored; one from code is its own, also
/// where the same is stored.
#[tokio::test]
async fn a_lease_serves_those_who_go_by_its_limit() {
    let [this, other] = [1000, 500].map(|rate| Limit::new(rate, SECOND));
    let code = [this, other].map(LimitSource::Code);
    let stored = [
        LimitSource::Store,
        LimitSource::StoreOrInit(this),
        LimitSource::StoreOrInit(other),
    ];
    for by in stored {
        for asked_by in stored {
            assert!(serves(by, asked_by), "{asked_by:?} of {by:?}");
        }
        for asked_by in code {
            assert!(!serves(by, asked_by), "{asked_by:?} of {by:?}");
            assert!(!serves(asked_by, by), "{by:?} of {asked_by:?}");
        }
    }
    assert!(serves(code[0], code[0]));
    assert!(!serves(code[0], code[1]));
}

/// A list is granted together or not at all, shadow rules take nothing, and what has no entry of
/// its own has no score.
#[test]
fn only_what_has_one_entry_of_its_own_is_leased() {
    let world = World::of_one();
    let mut plain = world.acquire(1);
    assert_eq!(lead_of(&plain), Some(TENTH));
    let list = Demand {
        charges: [&plain, &world.acquire(1)]
            .map(|it| it.first().clone())
            .into_iter()
            .collect(),
        ..plain.clone()
    };
    assert_eq!(lead_of(&list), None);
    let decided = [&plain, &list].map(|demand| world.processes[0].decides_together(demand));
    assert_eq!(decided, [true, false], "as without a lease");
    let with = |change: fn(&mut Charge)| {
        let mut demand = plain.clone();
        change(&mut demand.charges[0]);
        lead_of(&demand)
    };
    assert_eq!(with(|charge| charge.shadow = true), None);
    for algorithm in [Algorithm::FixedWindow, Algorithm::Gcra] {
        let mut demand = plain.clone();
        demand.charges[0] = demand.first().clone().counted_by(algorithm);
        assert_eq!(lead_of(&demand), None, "{algorithm:?}");
    }
    let asks_for_none = |of: &mut CompiledLimit| of.lease = None;
    plain.charges[0] = plain.first().clone().counted(asks_for_none);
    assert_eq!(lead_of(&plain), None);
}

/// Whether the permits or the interval differ.
#[tokio::test]
async fn a_reply_ends_a_lease_only_if_the_limit_in_it_differs() {
    for (permits, interval, lasts) in [
        (1000, SECOND, true),
        (999, SECOND, false),
        (1000, 2 * SECOND, false),
    ] {
        let world = World::of_one();
        let taken = world.warm(0);
        let stored = Limit::new(permits, interval).stored();
        let now = server_time(&world.clock);
        let mut limiter = world.server.limiter.lock().unwrap();
        limiter.set_rate(stored, true, now);
        drop(limiter);
        // More than the lease has: so that the store is asked.
        assert_eq!(world.takes(0, 100).source(), Source::Store);
        let row = format!("{permits} in {interval:?}");
        assert_eq!(world.leased().is_some(), lasts, "{row}");
        world.end(0);
        let left = i64::try_from(permits).unwrap() - 100 - taken - i64::from(lasts);
        assert_eq!(world.available(), left, "{row}");
    }
}

/// Neither the refusal of a caller that does not wait nor a grant to a waiter ends it.
#[tokio::test]
async fn a_lease_ends_only_for_a_waiter_that_is_refused() {
    for (waits, permits, lasts) in [
        (false, 100, true),
        (false, 999, true),
        (true, 100, true),
        (true, 999, false),
    ] {
        let world = World::of_one();
        let taken = world.warm(0);
        let mut demand = world.acquire(permits);
        demand.max_wait = waits.then_some(MaxWait::ENDLESS);
        let decision = poll(world.processes[0].acquire(&demand), 9);
        assert_eq!(decision.unwrap().unwrap().is_allowed(), permits == 100);
        let has_ended = world.available() == 1000 - taken;
        assert_eq!(has_ended, !lasts, "{waits} {permits}");
        assert_eq!(world.leased().is_some(), lasts, "{waits} {permits}");
    }
}

/// Demand that is counted while too little is left counts for the first lease that has room.
#[tokio::test]
async fn calls_are_counted_until_they_have_a_lease() {
    let world = World::of_one();
    let most = receipt(&world.takes(0, 990));
    let _ = world.takes(0, 1);
    world.processes[0].settle(most, 0);
    // Before this one, the room was not known of.
    let _ = world.takes(0, 1);
    assert!(world.ahead().is_empty());
    // By itself it would be too seldom: one in the last 60 ms.
    world.advance(60);
    let _ = world.takes(0, 1);
    assert_eq!(world.ahead(), [4]);
}

/// Five calls in 50 ms are ten in the time of a lease; those that had the first one asked for are
/// not among them.
#[tokio::test]
async fn calls_are_counted_for_one_lease() {
    let world = World::of_one();
    let _ = world.takes(0, 1);
    let _ = world.takes(0, 1);
    assert_eq!(world.ahead(), [4]);
    for _ in 0..4 {
        assert_eq!(world.takes(0, 1).source(), Source::Lease);
    }
    world.advance(50);
    let _ = world.takes(0, 1);
    assert_eq!(world.ahead(), [4, 10]);
}

/// Another process took what was reported as left.
#[tokio::test]
async fn half_as_much_is_asked_for_after_there_was_no_room() {
    let world = World::new(Limit::new(1_000_000, SECOND), TENTH, 2);
    while world.ahead().len() < 2 {
        let _ = world.takes(0, 1);
    }
    while world.leased().is_some() {}
    let others = u32::try_from(world.available()).unwrap() - 10;
    let others = receipt(&world.takes(1, others));
    let _ = world.takes(0, 1);
    assert_eq!(world.ahead(), [4, 16, 64]);
    world.processes[1].settle(others, 0);
    // The first one hears that there is room again.
    let _ = world.takes(0, 1);
    let _ = world.takes(0, 1);
    assert_eq!(world.ahead(), [4, 16, 64, 32]);
}
