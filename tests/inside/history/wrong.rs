//! Legal and illegal histories: shows that the check itself can fail.

use super::{
    tale::{RATE, Tale, spent},
    *,
};
use crate::values::decision::Grant;

#[test]
fn grants() {
    let (mut tale, _) = spent();
    tale.ask(1, 1000, 1).granted(1);
    tale.passes();
    let (mut tale, _) = spent();
    tale.ask(1, 999, 1).granted(0);
    tale.fails("OverLimit");

    // What was given back is free.
    let (mut tale, last) = spent();
    tale.give_back(0, 20, last);
    tale.ask(1, 20, 1).granted(0);
    tale.passes();
    // Not before, nor twice.
    let (mut tale, last) = spent();
    tale.ask(1, 20, 1).granted(0);
    tale.give_back(0, 20, last);
    tale.fails("OverLimit");
    let (mut tale, last) = spent();
    tale.give_back(0, 20, last);
    tale.give_back(1, 20, last);
    tale.ask(1, 20, 1).granted(0);
    tale.ask(1, 20, 1).granted(0);
    tale.fails("OverLimit");
}

#[test]
fn what_happens_at_the_same_time_has_any_order() {
    let (mut tale, last) = spent();
    tale.ask(1, 20, 1).granted(0);
    let back = tale.give_back(0, 20, last);
    tale.overlap(back);
    tale.passes();
}

#[test]
fn refusals() {
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    tale.ask(0, 0, 1).refused(1000, 1, 1000);
    tale.fails("granted");

    for (wait, is_legal) in [(989, false), (990, true), (991, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 2).granted(0);
        tale.ask(0, 10, 1).refused(wait, 0, 990);
        tale.is(is_legal, "OverLimit, Some(990ms)");
    }

    // L3: it has taken something.
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    tale.ask(0, 0, 2).refused(1000, 1, 1000);
    tale.count(0, 0);
    tale.fails("Number(1)");
}

#[test]
fn what_an_answer_shows_of_each_limit() {
    for left in [0, 2] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(left);
        tale.fails("and not");
    }
    for (left, reset, is_legal) in [(1, 1000, true), (0, 1000, false), (1, 999, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(0, 0, 2).refused(1000, left, reset);
        tale.is(is_legal, "and not");
    }
}

#[test]
fn callers_of_one_call_get_what_it_has_left_for_all() {
    for (first, second, is_shared, is_legal) in [
        (0, 0, true, true),
        (1, 0, true, false),
        (0, 1, true, false),
        (0, 0, false, false),
        (1, 0, false, true),
        (0, 1, false, true),
    ] {
        let mut tale = Tale::new();
        let one = tale.ask(0, 0, 1).granted(first);
        let other = tale.ask(0, 0, 1).granted(second);
        tale.overlap(other);
        if is_shared {
            tale.call(&[one, other]);
        }
        tale.is(is_legal, "and not");
    }
    // A caller that waits closes the queue to those behind it that wait, too, and to no others.
    for (waits, is_legal) in [(false, true), (true, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        let large = tale.ask(0, 0, 2).waits().dropped();
        let small = tale.ask(0, 0, 1);
        let small = if waits { small.waits() } else { small };
        let small = small.granted(0);
        tale.overlap(small);
        tale.call(&[large, small]);
        tale.is(is_legal, "OverLimit");
    }
    // In the order in which they came.
    for (order, is_legal) in [([0, 1], true), ([1, 0], false)] {
        let mut tale = Tale::new();
        let granted = tale.ask(0, 0, 1).granted(1);
        let refused = tale.ask(0, 0, 2).refused(1000, 1, 1000);
        tale.overlap(refused);
        let callers = [granted, refused];
        tale.call(&order.map(|place| callers[place]));
        tale.is(is_legal, "granted");
    }
    // Only those who are there.
    let mut tale = Tale::new();
    let one = tale.ask(0, 0, 1).granted(0);
    let other = tale.ask(0, 0, 1).granted(0);
    tale.call(&[one, other]);
    tale.fails("1 of 2 taken");
}

#[test]
fn refusals_that_are_repeated() {
    let again = |at, wait| {
        let (mut tale, _) = spent();
        tale.ask(0, at, 1).repeated(wait);
        tale
    };
    again(10, 990).passes();
    again(110, 890).passes();
    // First seen at 10, so it never points beyond 1000, when it is over.
    again(50, 951).fails("announced for an earlier time");
    again(50, 949).fails("was not over then");
    again(112, 888).fails("for longer than 100 ms");

    // While the store is not asked, until it is over.
    let in_an_outage = |at, wait| {
        let (mut tale, _) = spent();
        tale.ask(0, at, 1).repeated_in_an_outage(wait);
        tale
    };
    in_an_outage(112, 888).passes();
    in_an_outage(1001, 1).fails("was over");

    // At 950 for 50 ms more.
    let late = |at| {
        let (mut tale, _) = spent();
        tale.ask(0, 950, 1).refused(50, 0, 50);
        tale.ask(0, at, 1).repeated(1000 - at);
        tale
    };
    late(999).passes();
    late(1000).fails("was over at");

    // To a caller that waits, if it gives up before there is room.
    for (longest, is_legal) in [(1, true), (979, true), (980, false), (5000, false)] {
        let (mut tale, _) = spent();
        let longest = Duration::from_millis(longest);
        tale.ask(0, 20, 1).waits_for(longest).repeated(980);
        tale.is(is_legal, "it waits as long as");
    }

    // Of another question, or to another process.
    for (handle, permits) in [(0, 2), (1, 1)] {
        let (mut tale, _) = spent();
        tale.ask(handle, 20, permits).repeated(980);
        tale.fails("nothing like it");
    }
}

#[test]
fn a_process_knows_of_its_own() {
    for (by, is_legal) in [(0, false), (1, true)] {
        let (mut tale, last) = spent();
        tale.give_back(by, 20, last);
        tale.ask(0, 30, 1).repeated(970);
        tale.is(is_legal, "was old");

        let (mut tale, _) = spent();
        let limit = Limit::new(9, Duration::from_secs(1));
        tale.set_rate(by, 20, limit, false);
        tale.ask(0, 30, 1).repeated(970);
        tale.is(is_legal, "was old");
    }
    // Not yet while it is on its way.
    let (mut tale, last) = spent();
    let back = tale.give_back(0, 20, last);
    tale.events[back].ended = None;
    tale.ask(0, 30, 1).repeated(970);
    tale.passes();
    // It was refused while that was on its way, and is repeated when it has arrived.
    let (mut tale, last) = spent();
    let back = tale.give_back(0, 20, last);
    let refused = tale.ask(0, 20, 2).refused(980, 0, 980);
    tale.events[back].ended = tale.events[refused].ended;
    tale.overlap(refused);
    tale.ask(0, 30, 2).repeated(970);
    tale.fails("was old");
}

/// The bare store repeats nothing from memory.
#[test]
fn a_grant_is_never_repeated() {
    let mut tale = Tale::new();
    let asked = tale.ask(0, 0, 1);
    let grant = Grant::new(Charges::default(), Source::Cache);
    asked.answered(Decision::Allow(grant), Came::AtOnce);
    tale.fails("only refusals");
}

#[test]
fn who_dropped_its_call_may_have_taken_or_not() {
    for left in [0, 1] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(1, 0, 1).dropped();
        tale.count(0, left);
        tale.passes();
    }
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    tale.ask(1, 0, 1).dropped();
    tale.count(0, 0);
    // It is there until it expires, or is given back.
    tale.count(500, 1);
    tale.fails("Number(0)");
    let mut tale = Tale::new();
    tale.ask(0, 0, 1).granted(1);
    let dropped = tale.ask(1, 0, 1).dropped();
    tale.count(0, 0);
    tale.give_back(1, 100, dropped);
    tale.count(500, 1);
    tale.passes();
}

#[test]
fn who_waits_is_refused_where_others_wait_before_it() {
    let alone = |waits_beside: bool| {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(0, 0, 1).waits().refused(1000, 1, 1000);
        if waits_beside {
            let first = tale.ask(0, 0, 2).waits().refused(1000, 1, 1000);
            tale.overlap(first);
        }
        tale
    };
    alone(true).passes();
    alone(false).fails("with 0 before it");
}

/// What has expired under the old limit is in use again under the new one, unless a caller came in
/// between, if only in vain.
#[test]
fn a_call_in_vain_removes_what_has_expired() {
    for (is_called, left, is_legal) in [
        (false, 0, true),
        (false, 1, false),
        (true, 0, true),
        (true, 1, true),
        (true, 2, false),
    ] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        tale.ask(0, 900, 1).granted(0);
        let waits = tale.ask(1, 998, 2).waits().refused(902, 0, 902);
        let limit = Limit::new(RATE, Duration::from_secs(10));
        tale.set_rate(0, 1002, limit, true);
        tale.events[waits].ended = Some(tale.moment(1004));
        tale.count(1006, left);
        if is_called {
            tale.call(&[waits]);
        }
        tale.is(is_legal, "Number(");
    }
}

#[test]
fn who_was_granted_is_not_asked_for_again() {
    let mut tale = Tale::new();
    let waits = tale.ask(0, 0, 1).waits().granted(1);
    tale.call(&[waits]);
    tale.call(&[waits]);
    tale.fails("asked for again");
}

/// Who is refused in line was not granted by the last call for it.
#[test]
fn who_was_granted_is_not_refused() {
    let mut tale = Tale::new();
    let waits = tale.ask(0, 0, 1).waits().refused(1000, 1, 1000);
    tale.call(&[waits]);
    tale.fails("granted");
}

/// A waiter is asked for again, by another id, while the first call may still be answered.
#[test]
fn what_another_id_took_is_given_back() {
    // Both take a permit, and the waiter returns one: at the end one is in use.
    for (later, left, is_legal) in [
        (0, 1, true),
        (1, 1, true),
        (0, 0, false),
        (1, 0, false),
        (0, 2, false),
        (1, 2, false),
    ] {
        let mut tale = Tale::new();
        let waits = tale
            .ask(0, 0, 1)
            .waits()
            .granted_by(later, u64::from(1 - later));
        tale.call(&[waits]);
        tale.call_again(&[waits], 1);
        tale.count_at_the_end(left);
        tale.is(is_legal, "Number(1)");
    }
    // The first one may be carried out when its caller has returned.
    let mut tale = Tale::new();
    let waits = tale.ask(0, 0, 1).waits().granted_by(1, 1);
    let counted = tale.count(0, 1);
    tale.call_again(&[waits], 1);
    tale.call(&[waits]);
    tale.overlap(counted);
    tale.count_at_the_end(1);
    tale.passes();
}

#[test]
fn a_grant_is_of_the_id_that_took_it() {
    // A call for another id is not the one that it was granted by.
    for (left, is_legal) in [(1, true), (2, false)] {
        let mut tale = Tale::new();
        let waits = tale.ask(0, 0, 1).waits().granted_by(1, 1);
        tale.call(&[waits]);
        tale.count_at_the_end(left);
        tale.is(is_legal, "Number(1)");
    }
    // Asked for again by the id that it was granted by.
    for (later, again, is_legal) in [(0, 0, false), (1, 1, false), (0, 1, true)] {
        let mut tale = Tale::new();
        let waits = tale.ask(0, 0, 1).waits();
        let waits = waits.granted_by(later, u64::from(1 - later));
        tale.call(&[waits]);
        tale.call_again(&[waits], 1);
        tale.call_again(&[waits], again);
        tale.count_at_the_end(1);
        tale.is(is_legal, "asked for again");
    }
    // Refused, as its first id has the last permit; or though the call by its last id was granted.
    for (first, is_legal) in [(0, true), (1, false)] {
        let mut tale = Tale::new();
        tale.ask(0, 0, 1).granted(1);
        let waits = tale.ask(0, 0, 1).waits().refused(1000, 0, 1000);
        tale.call_again(&[waits], first);
        tale.call_again(&[waits], 1 - first);
        tale.ask(1, 0, 1).granted(0);
        tale.count_at_the_end(0);
        tale.is(is_legal, "granted");
    }
}
