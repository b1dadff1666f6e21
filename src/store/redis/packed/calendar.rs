//! Limits by the calendar, each one string, which has the permits used in a window, under its
//! label: the calls and their replies. Pure.
//!
//! A call carries two windows of each limit, the present one by the caller's clock and the next,
//! and the server's time chooses. If neither holds that time, the call must be made once more, by
//! that time.

use std::{iter, mem};

use redis::Value;

use super::{ASKS, Argument, LATEST, MOST, Numbers, SETTLES, WAITS, byte};
use crate::{
    algorithm::answer::{Answer, Changed, Verdict},
    charge::{Charge, PermitId, Taken},
    clock::Now,
    demand::Demand,
    error::Error,
    limit::{RateType, StoredLimit, calendar::Window},
    list::List,
    name::Name,
    store::redis::wire::{self, script::ScriptCall},
};

/// The kind of a state and of a row.
const KIND: u8 = 5;
/// The first number of a group if neither window holds the server's time.
const NO_WINDOW: i64 = 2 - MOST;
/// How many grants a state knows: each of callers who asked together for the same.
pub(crate) const KNOWN: usize = 4;
/// The most callers of a call, which have one byte for their places.
const CALLERS: usize = 64;

/// What a charge counts by.
pub(crate) struct Row {
    pub(crate) rate: i64,
    pub(crate) windows: [Window; 2],
}

/// The reply to callers of the same limiters.
pub(crate) struct Reply {
    /// The server's time, in ms
    pub(crate) now: i64,
    /// Of the first callers, one for each limiter; `None` if no window holds that time.
    pub(crate) answers: Option<List<Answer>>,
}

/// What the reply says about callers that ask for the same.
struct Group {
    granted: usize,
    /// Permits left after them; below zero after a lowered rate or a debt
    left: i64,
    /// Ms until the window ends; unknown if all ask for more than the rate
    ends: Option<i64>,
}

/// The window that was counted.
#[derive(Clone, Copy)]
struct Counted {
    /// Not of a window that the call does not know
    label: Option<i64>,
    end: i64,
    length: i64,
}

/// Returns the first callers that one call decides for. One that waits must not pass another, so
/// those that wait ask for the same.
pub(crate) fn together(run: &[Demand]) -> &[Demand] {
    let run = run.get(..CALLERS).unwrap_or(run);
    let waits = |demand: &Demand| demand.max_wait.is_some();
    if run.first().is_some_and(waits) {
        return groups(run, false).next().unwrap_or(run);
    }
    run.split(waits).next().unwrap_or(run)
}

/// Returns whether these may ask again after a call that may have been carried out: each of them is
/// found then, if no others have taken meanwhile. Of a list, each limiter would have to say so for
/// itself.
pub(crate) fn may_ask_again(run: &[Demand]) -> bool {
    groups(run, false).count() <= KNOWN && run.iter().all(|demand| !demand.is_list())
}

/// Returns callers, those together that ask for the same of one limiter; each by itself if they ask
/// `again`.
fn groups(run: &[Demand], again: bool) -> impl Iterator<Item = &[Demand]> {
    let asked = |demand: &Demand| (demand.first().permits, demand.max_wait.is_some());
    run.chunk_by(move |a, b| asked(a) == asked(b) && !again && !a.is_list())
}

/// Makes the argument of a call for those [`together`], who may ask `again`: then the limiter knows
/// what they took before, if no others have taken four times since.
pub(crate) fn ask(rows: &[Row], run: &[Demand], again: bool) -> Argument {
    let id = run.first().map_or(PermitId::NONE, |first| first.first().id);
    let argument = rows.iter().fold(Argument::new(id, rows.len()), Row::put);
    let mut callers = 0;
    groups(run, again).fold(argument, |argument, group| {
        let first = &group[0];
        let flags = if first.max_wait.is_some() { WAITS } else { 0 };
        let by = again.then_some((id, byte(callers)));
        callers += group.len();
        let request = argument.request(byte(group.len()), by, rows.len(), flags);
        let charges = first.charges().enumerate();
        charges.fold(request, |argument, (place, charge)| {
            argument.charge(place, charge.shadow, charge.permits)
        })
    })
}

/// Reads the reply to it. Where one that waits is refused, so are those behind it that wait.
pub(crate) fn read(
    rows: &[Row],
    reply: &Value,
    run: &[Demand],
    again: bool,
) -> Result<Reply, Error> {
    let (mut numbers, now) = Numbers::of(reply)?;
    let asked = together(run);
    let mut counted: List<Group> = List::new();
    // Of each caller and limiter, and of each caller.
    let (mut has_room, mut granted) = (List::new(), List::new());
    for callers in groups(asked, again) {
        let before = mem::take(&mut counted);
        for (place, row) in rows.iter().enumerate() {
            let Some(mut group) = row.group(&mut numbers, callers.len())? else {
                return Ok(Reply { now, answers: None });
            };
            let ends_before = before.get(place).and_then(|before| before.ends);
            group.ends = group.ends.or(ends_before);
            counted.push(group);
        }
        for (number, caller) in callers.iter().enumerate() {
            let each = counted.iter().map(|group| number < group.granted);
            let mut enforced = caller.charges().zip(each.clone());
            granted.push(enforced.all(|(charge, has_room)| charge.shadow || has_room));
            has_room.extend(each);
        }
    }
    numbers.end()?;
    let mut line = Line::new(rows, now, &counted);
    let mut answers = List::new();
    for (number, caller) in run.iter().enumerate() {
        let is_granted = match granted.get(number) {
            Some(granted) => *granted,
            None if line.is_closed && caller.max_wait.is_some() => false,
            None => break,
        };
        let has_room = has_room.iter().skip(number * rows.len());
        line.answer(caller, is_granted, has_room.copied(), &mut answers);
    }
    let answers = Some(answers);
    Ok(Reply { now, answers })
}

/// What is answered to callers, one after the other.
struct Line<'a> {
    rows: &'a [Row],
    /// What is answered to all callers of each limiter, and the ms until its window ends.
    answers: List<(Answer, i64)>,
    /// Permits of the callers that wait and are refused, of each limiter.
    in_line: List<i64>,
    /// Set if there is one.
    is_closed: bool,
}

impl<'a> Line<'a> {
    fn new(rows: &'a [Row], now: i64, counted: &[Group]) -> Self {
        let each = rows.iter().zip(counted);
        Self {
            rows,
            answers: each.map(|(row, group)| row.answer(now, group)).collect(),
            in_line: rows.iter().map(|_| 0).collect(),
            is_closed: false,
        }
    }

    /// Answers a caller, as `algorithm/call.rs` does.
    fn answer(
        &mut self,
        caller: &Demand,
        is_granted: bool,
        has_room: impl Iterator<Item = bool>,
        answers: &mut List<Answer>,
    ) {
        let waits = caller.max_wait.is_some();
        let is_above = |row: &Row, charge: &Charge| i64::from(charge.permits) > row.rate;
        let mut enforced = caller.charges().zip(self.rows);
        let is_hopeless = enforced.any(|(charge, row)| !charge.shadow && is_above(row, charge));
        self.is_closed |= waits && !is_granted && !is_hopeless;
        let has_room = has_room.chain(iter::repeat(false));
        for (place, (charge, has_room)) in caller.charges().zip(has_room).enumerate() {
            let (row, (answer, turn)) = (&self.rows[place], self.answers[place]);
            let mut needs = i64::from(charge.permits);
            answers.push(if is_above(row, charge) {
                answer.for_caller(Verdict::AboveRate, 0)
            } else if is_hopeless || is_granted && has_room {
                answer.for_caller(Verdict::Granted, 0)
            } else {
                if waits && !charge.shadow {
                    // Those that wait before it come first.
                    self.in_line[place] += needs;
                    needs = self.in_line[place];
                }
                row.refuse(answer, turn, needs)
            });
        }
    }
}

impl Row {
    /// Returns that of a call which knows one window, and does nothing once that is over. The
    /// server's clock may be set back, so it has begun always.
    fn until(end: i64, label: i64, rate: i64) -> Self {
        let start = 0;
        Self {
            rate,
            windows: [Window { label, start, end }; 2],
        }
    }

    /// Writes it.
    fn put(argument: Argument, row: &Self) -> Argument {
        let argument = argument.bytes(&[KIND]).number(row.rate, 7);
        let numbers = row.windows.iter();
        let numbers = numbers.flat_map(|window| [window.label, window.start, window.end]);
        numbers.fold(argument, |argument, number| argument.number(number, 6))
    }

    /// Begins the argument of a call for one caller of one limiter.
    fn alone(&self, id: PermitId, flags: u8, permits: u32) -> Argument {
        let argument = Self::put(Argument::new(id, 1), self);
        argument
            .request(1, None, 1, flags)
            .charge(0, false, permits)
    }

    /// Makes the argument of a call that asks what is left.
    pub(crate) fn ask_left(&self, id: PermitId) -> Argument {
        self.alone(id, ASKS, 1)
    }

    /// Reads the reply to it: the server's time in ms, and what is left; `None` if no window holds
    /// that time.
    pub(crate) fn read_left(&self, reply: &Value) -> Result<(i64, Option<i64>), Error> {
        let (mut numbers, now) = Numbers::of(reply)?;
        let group = self.group(&mut numbers, 1)?;
        Ok((now, group.map(|group| group.left)))
    }

    /// Makes the argument of a call that leaves so many of the permits that were taken in its
    /// window.
    fn settle(&self, id: PermitId, took: u32, keep: u32) -> Argument {
        let argument = self.alone(id, SETTLES, keep);
        let label = self.windows[0].label;
        argument
            .number(took.into(), 4)
            .number(label, 7)
            .number(0, 7)
    }

    /// Reads a group; `None` if no window holds the server's time.
    fn group(&self, numbers: &mut Numbers<'_>, callers: usize) -> Result<Option<Group>, Error> {
        let unit = self.span() + 1;
        let mut number = numbers.next()?;
        if number == NO_WINDOW {
            return Ok(None);
        }
        let mut group = Group {
            granted: usize::from(number >= 0),
            left: 0,
            ends: None,
        };
        if callers > 1 {
            let granted = usize::try_from(number).ok();
            let granted = granted.filter(|granted| *granted <= callers);
            group.granted = granted.ok_or_else(wire::unreadable)?;
            number = numbers.next()?;
        }
        if group.granted > 0 {
            let is_one = (self.rate + 1).saturating_mul(unit) <= MOST;
            let (left, ends) = match is_one {
                true => (number.div_euclid(unit), number.rem_euclid(unit)),
                false => (number, numbers.next()?),
            };
            if left < 0 || ends <= 0 {
                return Err(wire::unreadable());
            }
            (group.left, group.ends) = (left, Some(ends));
            if group.granted == callers {
                return Ok(Some(group));
            }
            number = numbers.next()?;
        }
        if number >= 0 {
            return Err(wire::unreadable());
        }
        group.left = numbers.next()?;
        group.ends = (number > -MOST).then_some(-number).or(group.ends);
        Ok(Some(group))
    }

    /// Returns the ms from the first start to the last end. No grant says a longer time.
    fn span(&self) -> i64 {
        let [first, second] = self.windows;
        first.end.max(second.end) - first.start.min(second.start).max(0)
    }

    /// Returns the window that was counted: that which ends so many ms from now. One that the call
    /// does not know is taken for as long as the present one.
    fn counted(&self, now: i64, ends: Option<i64>) -> Counted {
        let mut windows = self.windows.iter();
        let known = match ends {
            Some(ends) => windows.find(|window| window.end == now + ends),
            None => windows.find(|window| window.holds(now)),
        };
        let present = self.windows.iter().find(|window| window.holds(now));
        let window = known.or(present).unwrap_or(&self.windows[1]);
        Counted {
            label: known.map(|known| known.label),
            end: ends.map_or(window.end, |ends| now + ends),
            length: window.end - window.start,
        }
    }

    /// Returns what is answered to all callers, and the ms until the window ends.
    fn answer(&self, now: i64, group: &Group) -> (Answer, i64) {
        let window = self.counted(now, group.ends);
        let limit = StoredLimit {
            rate: self.rate,
            interval: window.length,
            rate_type: RateType::Overall,
            keep_alive: 0,
        };
        let turn = window.end - now;
        let reset = if group.left < self.rate { turn } else { 0 };
        let answer = Answer {
            remaining: group.left,
            next: reset,
            reset,
            // Without its label, a grant cannot be settled.
            taken: window.label.map(|label| Taken::Date {
                label,
                end: window.end,
            }),
            ..Answer::new(&limit, Changed::Nothing, Now::millis(now))
        };
        (answer, turn)
    }

    /// Returns the answer to a caller that needs so many free permits.
    fn refuse(&self, answer: Answer, turn: i64, needs: i64) -> Answer {
        if needs <= answer.remaining {
            return answer.for_caller(Verdict::Granted, 0);
        }
        // Later windows are assumed to be as long as this one.
        let rounds = (needs - 1).div_euclid(self.rate.max(1));
        let later = rounds.saturating_mul(answer.interval);
        answer.for_caller(Verdict::Refused, turn.saturating_add(later))
    }
}

/// Makes the call that settles a receipt at a number of permits.
pub(crate) fn settle(receipt: &Charge, keep: u32) -> Option<ScriptCall> {
    let Some(Taken::Date { label, end }) = receipt.settle() else {
        return None;
    };
    let rate = receipt.limit().given()?.stored().rate;
    let row = Row::until(end, label, rate);
    let argument = row.settle(receipt.id, receipt.permits, keep);
    Some(argument.call(iter::once(receipt.name()), 0))
}

/// Makes the call that gives back so many permits of the window with this label, if it is open.
pub(crate) fn release(name: &Name, id: PermitId, label: i64, permits: u32) -> ScriptCall {
    let row = Row::until(LATEST, label, MOST);
    row.settle(id, permits, 0).call(iter::once(name), 0)
}

/// Reads the reply to a call that settles or releases: the permits that are free again.
pub(crate) fn freed(reply: &Value) -> Result<i64, Error> {
    let (mut numbers, _) = Numbers::of(reply)?;
    let freed = numbers.next()?;
    numbers.end()?;
    // Neither if the window is over.
    Ok(if freed == NO_WINDOW { 0 } else { freed })
}

/// What a state says.
pub(crate) struct State {
    pub(crate) label: i64,
    pub(crate) used: i64,
}

impl State {
    /// Reads a state; `None` if it is another one.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let is_ours = bytes.len() == 74 && bytes.ends_with(&[16 + KIND, 183]);
        let number = |from: usize, width: usize| {
            let mut number = [0; 8];
            number[..width].copy_from_slice(&bytes[from..from + width]);
            i64::from_le_bytes(number)
        };
        is_ours.then(|| Self {
            label: number(0, 6),
            used: number(12, 7),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compiled_limit::CompiledLimit, error::ErrorKind, limit::Limit, limit::LimitSource,
    };

    const NOW: i64 = 5000;
    const ROW: Row = Row {
        rate: 100,
        windows: [window(1, 0, 9000), window(2, 9000, 30_000)],
    };

    const fn window(label: i64, start: i64, end: i64) -> Window {
        Window { label, start, end }
    }

    /// Callers of so many permits each.
    fn run<const N: usize>(permits: [u32; N]) -> [Demand; N] {
        permits.map(|permits| {
            let limit = LimitSource::Code(Limit::per_hour(100));
            let name = Name::exact("quota").unwrap();
            let of = CompiledLimit::unnamed("rule");
            Demand::of([Charge::named(name, limit, &of, permits)], false)
        })
    }

    fn reply<const N: usize>(numbers: [i64; N]) -> Value {
        let time = Value::Int(NOW * 1000);
        let numbers = numbers.map(Value::Int);
        Value::Array([time].into_iter().chain(numbers).collect())
    }

    #[test]
    fn replies_that_are_not_ours_are_errors() {
        let unit = 30_001;
        for (reply, callers) in [
            (reply([]), 1),
            (reply([7 * unit]), 1),
            (reply([7 * unit + 4000, 1]), 1),
            (reply([-4000]), 1),
            (reply([-4000, i64::MIN]), 1),
            (reply([3, 7 * unit + 4000]), 2),
            (reply([-1, 7 * unit + 4000]), 2),
            (reply([0, 5, 3]), 2),
            (Value::Nil, 1),
            (Value::Array(vec![]), 1),
            (Value::Array(vec![Value::Nil, Value::Int(-4000)]), 1),
            (Value::Array(vec![Value::Int(-1), Value::Int(4000)]), 1),
        ] {
            let run = run([1, 1]);
            let read = read(&[ROW], &reply, &run[..callers], false);
            let kind = read.err().map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::Unavailable), "{reply:?}");
        }
        let foreign = Value::Array(vec![Value::Int(NOW * 1000), Value::Nil]);
        let read = read(&[ROW], &foreign, &run([1]), false);
        assert_eq!(read.err().unwrap().kind(), ErrorKind::ForeignState);
    }

    /// Not of one that lies between those of the call.
    #[test]
    fn only_a_label_that_the_call_knows_is_settled() {
        let unit = 30_001;
        for (ends, label) in [(4000, Some(1)), (25_000, Some(2)), (9000, None)] {
            let read = read(&[ROW], &reply([7 * unit + ends]), &run([1]), false);
            let answers = read.unwrap().answers.unwrap();
            let end = NOW + ends;
            let taken = label.map(|label| Taken::Date { label, end });
            assert_eq!((answers[0].taken, answers[0].reset), (taken, ends));
        }
    }

    /// A call has so many places, and a state knows as many grants again.
    #[test]
    fn so_many_callers_ask_and_so_many_ask_again() {
        assert_eq!(together(&run([1; 300])).len(), 64);
        assert!(may_ask_again(&run([1, 2, 2, 3, 4])));
        assert!(!may_ask_again(&run([1, 2, 1, 2, 1])));
    }
}
