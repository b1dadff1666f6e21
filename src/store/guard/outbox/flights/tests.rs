//! Tests the bound of a node, and says what must hold of what is in flight at any time.

use std::{collections::BTreeSet, ptr};

use super::*;

impl Flights {
    /// Asserts that what waits to be sent stands in one place, once.
    pub(in crate::store::guard::outbox) fn check(&self) {
        let alone = self.unshared.iter().filter_map(|(_, turn)| match turn {
            UnsharedTurn::Line(key) => Some(key),
            UnsharedTurn::Call(_) => None,
        });
        let joint = self.lanes.all.iter().flat_map(|lane| &lane.waiting);
        let waiting: Vec<_> = alone.chain(joint.map(|(_, key)| key)).collect();
        for key in &waiting {
            let line = &self.lines[*key];
            assert!(line.command.is_none() && !line.behind.is_empty());
        }
        let each: BTreeSet<_> = waiting
            .iter()
            .map(|key| ptr::from_ref(&self.lines[*key]))
            .collect();
        assert_eq!(each.len(), waiting.len());
        let idle = self.lines.values().filter(|line| line.command.is_none());
        assert_eq!(idle.count(), waiting.len());
        assert!(self.late.is_empty());
        let callers = self.commands.sent.iter().map(|it| it.callers);
        assert_eq!(callers.sum::<usize>(), self.commands.in_flight);
    }

    /// Asserts that nothing is left of any caller.
    pub(in crate::store::guard::outbox) fn is_empty(&self) {
        assert!(self.commands.sent.is_empty());
        assert!(self.lines.is_empty() && self.unanswered.is_empty());
        assert!(self.unshared.is_empty());
        let mut lanes = self.lanes.all.iter();
        assert!(lanes.all(|lane| lane.waiting.is_empty() && lane.gathers.is_none()));
    }

    /// Returns how many commands are in flight, and their bound.
    pub(in crate::store::guard::outbox) fn in_flight(&self) -> (usize, usize) {
        (self.commands.sent.len(), self.commands.bound)
    }
}

/// Some time, and as many milliseconds.
fn at(after: u64) -> Duration {
    millis(1000 + after)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn flights(bound: usize) -> Flights {
    let mut flights = Flights::new(Bounds {
        deadline: Duration::from_millis(100),
        most: 4,
        least: 1,
        most_callers: 64,
    });
    flights.commands.bound = bound;
    flights
}

/// A command of one round trip.
fn sends(flights: &mut Flights, now: Duration) -> u64 {
    assert!(flights.commands.has_room());
    flights.commands.send(now, None, true)
}

#[test]
fn a_command_that_takes_longer_than_half_a_deadline_halves_the_bound() {
    for (is_answered, took, bound) in [(true, 50, 4), (true, 51, 2), (false, 51, 2)] {
        let mut flights = flights(4);
        let [first, second] = [sends(&mut flights, at(0)), sends(&mut flights, at(0))];
        flights.end(first, true, List::new(), at(0));
        flights.end(second, is_answered, List::new(), at(took));
        assert_eq!(flights.commands.bound, bound);
    }
}

/// Whatever part of the deadline the way takes, up to two thirds of it.
#[test]
fn a_node_that_is_far_away_is_not_overloaded() {
    for way in [1, 33, 34, 51, 66] {
        let mut flights = flights(1);
        for round in 0..20 {
            let now = at(1000 * round);
            let full: Vec<_> = (0..flights.commands.bound)
                .map(|_| sends(&mut flights, now))
                .collect();
            for number in full {
                flights.end(number, true, List::new(), now + millis(way));
            }
            assert!(!flights.commands.is_late(now, now), "{way}");
        }
        assert_eq!(flights.commands.bound, 4, "{way}");
    }
}

/// A node is as far away as before if a command once finds a shorter way to it, or takes several.
#[test]
fn the_way_is_that_of_most_commands() {
    let mut flights = flights(4);
    let [first, quick] = [sends(&mut flights, at(0)), sends(&mut flights, at(40))];
    flights.end(first, true, List::new(), at(48));
    let third = sends(&mut flights, at(50));
    flights.end(quick, true, List::new(), at(64));
    flights.end(third, true, List::new(), at(115));
    assert_eq!(flights.commands.bound, 4);
    let Some(Ok(in_parts)) = flights.enter_alone(false, at(4000)) else {
        panic!("there is room");
    };
    flights.end(in_parts, true, List::new(), at(4010));
    assert!(!flights.commands.is_late(at(0), at(74)));
    let single = sends(&mut flights, at(5000));
    flights.end(single, true, List::new(), at(5010));
    assert!(flights.commands.is_late(at(0), at(73)));
}

/// Others may overload it as well, so what it takes for one caller is not all way.
#[test]
fn a_node_that_is_overloaded_by_others_gets_less() {
    let mut flights = flights(4);
    for round in 0..4 {
        let now = at(1000 * round);
        let number = sends(&mut flights, now);
        flights.end(number, true, List::new(), now + millis(76));
    }
    assert_eq!(flights.commands.bound, 1);
}

#[test]
fn a_call_that_failed_or_was_left_early_says_nothing_of_the_node() {
    let mut flights = flights(2);
    let number = sends(&mut flights, at(0));
    flights.end(number, true, List::new(), at(40));
    for round in 1..10 {
        let left = [
            sends(&mut flights, at(round)),
            sends(&mut flights, at(round)),
        ];
        for number in left {
            flights.end(number, false, List::new(), at(round));
        }
    }
    assert_eq!(flights.commands.bound, 2);
    // It took 40 then, and the way is a third at most: 47 and 40 leave no fifth of the rest.
    assert!(!flights.commands.is_late(at(0), at(46)));
    assert!(flights.commands.is_late(at(0), at(47)));
}

#[test]
fn the_bound_grows_by_as_many_commands_in_time_as_it_lets_through_while_it_is_reached() {
    let mut flights = flights(2);
    let alone = sends(&mut flights, at(0));
    flights.end(alone, true, List::new(), at(1));
    for bound in [2, 3] {
        let both = [sends(&mut flights, at(2)), sends(&mut flights, at(2))];
        for number in both {
            // When the second leaves, there is room.
            flights.end(number, true, List::new(), at(3));
        }
        assert_eq!(flights.commands.bound, bound);
    }
}

#[test]
fn one_more_call_waits_until_the_first_would_be_late() {
    for (is_patient, after, is_overload) in
        [(false, 80, false), (false, 81, true), (true, 81, false)]
    {
        let mut flights = flights(2);
        for _ in 0..2 {
            sends(&mut flights, at(0));
        }
        let first = flights.enter_alone(false, at(10));
        let next = flights.enter_alone(is_patient, at(10 + after));
        assert!(matches!(first, Some(Err(_))));
        assert_eq!(next.is_none(), is_overload, "{after}");
    }
}

/// Whether a caller behind a command is late depends on when that is answered, and on how many
/// stand between.
#[test]
fn a_caller_behind_a_command_is_late_by_when_it_would_be_answered() {
    // The bound is two by then.
    for (took, others, now, is_late) in [
        (60, 0, 33, true),
        (60, 0, 34, false),
        // It takes longer than the last one, and may end now.
        (10, 0, 99, false),
        (10, 15, 9, false),
        (10, 16, 9, true),
    ] {
        let mut flights = flights(1);
        let number = sends(&mut flights, at(0));
        flights.end(number, true, List::new(), at(took));
        let is = flights.commands.is_late_behind(at(0), others, at(now));
        assert_eq!(is, is_late, "{took}, {others}, {now}");
    }
}

/// As a list of several calls does: a limiter's own command takes one round trip.
#[test]
fn a_call_of_several_round_trips_says_nothing_of_a_command() {
    let mut flights = flights(1);
    let number = sends(&mut flights, at(0));
    flights.end(number, true, List::new(), at(10));
    let Some(Ok(number)) = flights.enter_alone(false, at(10)) else {
        panic!("there is room");
    };
    flights.end(number, true, List::new(), at(70));
    assert!(!flights.commands.is_late_behind(at(70), 0, at(71)));
}
