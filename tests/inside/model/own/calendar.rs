//! What is read of a window of the calendar, and what is settled in it.

use super::{
    super::pair::{ask, connect, run_script},
    *,
};
use crate::{
    store::redis::packed::{
        self, calendar,
        requests::{Asked, together},
        row::Row,
        verbs::{self, GrantToSettle},
    },
    values::limit::calendar::Window,
};

const fn windows(present: i64) -> Row {
    let [start, end] = [present - 5000, present + 4_000];
    let next = Window {
        label: 2,
        start: end,
        end: end + 21_000,
    };
    let label = 1;
    Row::Calendar(calendar::CalendarRow {
        rate: 7,
        windows: [Window { label, start, end }, next],
    })
}

const NOW: i64 = 5000;
/// A reply has the permits left in these, and the ms until the window ends.
const UNIT: i64 = 30_001;
/// What it says to those who all ask for more than the rate.
const NEVER: i64 = 1 - (1 << 53);

fn quota(name: &str, permits: u32) -> Charge {
    let limit = LimitSource::Code(Limit::monthly(7));
    let of = CompiledLimit::unnamed("quota");
    Charge::named(Name::exact(name).unwrap(), limit, &of, permits)
}

fn asked(rows: &[Row]) -> Asked {
    Asked {
        stamp: stamp(PermitId::NONE, None),
        rows: rows.iter().copied().collect(),
        bans: None,
        again: false,
    }
}

/// What a reply of these numbers says to callers.
fn answers(numbers: &[i64], callers: &[u32], waits: bool) -> Vec<Answer> {
    let callers = callers.iter();
    let run: Vec<_> = callers
        .map(|permits| Demand::caller([quota("quota", *permits)], waits))
        .collect();
    let numbers = [NOW * 1000].into_iter().chain(numbers.iter().copied());
    let reply = Value::Array(numbers.map(Value::Int).collect());
    let read = asked(&[windows(NOW)]).read(&reply, &run).unwrap();
    read.answers.unwrap().to_vec()
}

/// Of a window that the call does not know, the length is that of the present one.
#[test]
fn a_grant_says_when_its_window_ends_and_how_long_that_is() {
    for (left, ends, reset, interval) in [
        (6, 4000, 4000, 9000),
        (6, 25_000, 25_000, 21_000),
        (6, 9000, 9000, 9000),
        (7, 4000, 0, 9000),
    ] {
        let answer = answers(&[left * UNIT + ends], &[1], false).remove(0);
        assert_eq!((answer.remaining, answer.interval), (left, interval));
        assert_eq!((answer.next, answer.reset), (reset, reset));
    }
    // Who asks for more than the rate learns of no end, and leaves what others have learned.
    let both = answers(&[6 * UNIT + 4000, NEVER, 6], &[1, 8], false);
    let said = both.iter().map(|answer| (answer.verdict, answer.reset));
    let expected = [(Verdict::Granted, 4000), (Verdict::AboveRate, 4000)];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

/// Those who wait take all of a window each: later ones are taken for as long as this one.
#[test]
fn a_line_waits_for_windows_that_are_not_begun() {
    let line = answers(&[0, -4000, 3], &[7, 7, 7], true);
    let waits = line.iter().map(|answer| answer.wait);
    assert_eq!(waits.collect::<Vec<_>>(), [4000, 13_000, 22_000]);
}

/// One that waits must not pass another: those who do ask together for the same alone.
#[test]
fn those_who_wait_ask_in_calls_of_their_own() {
    let at_once = |permits| Demand::caller([quota("quota", permits)], false);
    let waits = |permits| Demand::caller([quota("quota", permits)], true);
    for (run, first) in [
        (vec![at_once(3), at_once(1), waits(1), at_once(1)], 2),
        (vec![waits(3), waits(3), waits(1)], 2),
        (vec![waits(3), at_once(3)], 1),
    ] {
        assert_eq!(together(&run).len(), first);
    }
}

#[test]
fn a_grant_of_a_window_that_is_over_is_settled_in_none() {
    let (mut connection, name) = (connect(), unique("quota"));
    let (seconds, _): (i64, i64) = ask(&mut connection, &["TIME"]);
    let now = 1000 * seconds;
    let run = [Demand::caller([quota(&name, 3)], false)];
    // So long that a busy machine does not reach its end.
    let far = 3_600_000;
    let window = |label, start, end| Window { label, start, end };
    let row = Row::Calendar(calendar::CalendarRow {
        rate: 7,
        windows: [
            window(1, now - far, now + far),
            window(2, now + far, now + 2 * far),
        ],
    });
    let call = asked(&[row]).command(&run);
    run_script(&mut connection, call.script, &call.command).unwrap();
    for (end, freed) in [(now - 1, 0), (now + far, 3), (now + far, 0)] {
        let taken = Taken::Date { label: 1, end };
        let receipt = quota(&name, 3).to_send().marked(taken);
        let grant = GrantToSettle::of(&receipt, None, 0).unwrap();
        let call = verbs::settle([(receipt.name(), &grant)]);
        let reply = run_script(&mut connection, call.script, &call.command).unwrap();
        assert_eq!(packed::freed(&reply).unwrap(), freed, "{end}");
    }
}
