//! What a verb of this store does to the leases that are out.

use super::*;

/// By the rate that it has, so that nothing else tells of the change.
fn set_rate() -> Op {
    Op::SetRate {
        limit: Limit::new(1000, SECOND).stored(),
        keep: false,
        existing: false,
    }
}

/// It may have been granted before the change was carried out. What nobody heard the end of may have been carried out, too.
#[tokio::test]
async fn a_lease_that_is_taken_during_a_change_ends_with_it() {
    for is_heard in [true, false] {
        let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
        let (ours, op) = (&world.processes[0], set_rate());
        {
            let exit = world.exit(0);
            let mut changing = pin!(Decide::manage(&exit, &world.name, &op));
            let mut context = Context::from_waker(Waker::noop());
            assert!(changing.as_mut().poll(&mut context).is_pending());
            world.warm(0);
            assert!(ours.table.take(&world.acquire(1)).is_some());
            if is_heard {
                poll(changing, 9).unwrap().unwrap();
            }
        }
        assert!(ours.table.take(&world.acquire(1)).is_none(), "{is_heard}");
        assert_eq!(ours.count(), 0, "{is_heard}");
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
        let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
        world.warm(0);
        let ours = &world.processes[0];
        let name = if of_other { &other } else { &world.name };
        poll(Decide::manage(&world.exit(0), name, &op), 9)
            .unwrap()
            .unwrap();
        let lease = ours.table.take(&world.acquire(1));
        assert_eq!(lease.is_some(), lasts, "{op:?} {of_other}");
    }
}
