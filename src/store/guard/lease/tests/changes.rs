//! Tests what a verb of this store does to leases in use.

use super::*;

/// By the rate that it has, so that nothing else shows the change.
fn set_rate() -> Op {
    Op::SetRate {
        limit: Limit::new(1000, SECOND).stored(),
        keep: false,
        existing: false,
    }
}

/// It may have been granted before the change was carried out. A change whose caller has left may
/// have been carried out, too.
#[tokio::test]
async fn a_lease_that_is_taken_during_a_change_ends_with_it() {
    for stays in [true, false] {
        let world = World::of_one();
        let (ours, op) = (&world.processes[0], set_rate());
        {
            let mut changing = pin!(world.manage(0, &world.name, &op));
            assert!(poll(changing.as_mut(), 1).is_none());
            world.warm(0);
            assert!(world.leased().is_some());
            if stays {
                done(changing);
            }
        }
        assert!(world.leased().is_none(), "{stays}");
        assert_eq!(ours.table.count(), 0, "{stays}");
    }
}

/// Under either name, and only there.
#[tokio::test]
async fn a_lease_ends_by_what_changes_its_limiter_alone() {
    let other = Name::exact("other").unwrap();
    for (op, of_other, lasts) in [
        (Op::Available, false, true),
        (set_rate(), false, false),
        (set_rate(), true, true),
        (Op::Delete, false, false),
        (Op::Rename(other.clone()), false, false),
        (Op::Rename(other.clone()), true, true),
        (Op::Rename(Name::exact("hot").unwrap()), true, false),
    ] {
        let world = World::of_one();
        world.warm(0);
        let name = if of_other { &other } else { &world.name };
        done(world.manage(0, name, &op));
        let lease = world.leased();
        assert_eq!(lease.is_some(), lasts, "{op:?} {of_other}");
    }
}

/// A lease that was asked for before the end of a change is not used after it.
#[tokio::test]
async fn a_lease_that_is_on_its_way_during_a_change_is_given_back() {
    let world = World::of_one();
    world.warm(0);
    while world.ask(0, 1, 0).is_some() {}
    let (ours, demand, op) = (&world.processes[0], world.acquire(1), set_rate());
    {
        let mut asking = pin!(ours.acquire(&demand));
        assert!(poll(asking.as_mut(), 2).is_none());
        assert!(ours.end_changed(&world.name, &op));
        assert!(!ours.end_changed(&world.name, &Op::Available));
        done(ours.inner.manage(&world.limiter(&world.name), &op));
        let _ = done(asking);
    }
    assert!(world.ahead().len() > 1);
    assert!(world.leased().is_none());
    assert_eq!(world.available(), 1000);
}
