//! A limit by the calendar as one string, which has the permits used in a window, under its label:
//! the calls and their replies. Pure.
//!
//! A call carries two windows, the present one by the caller's clock and the next, and the server's
//! time chooses. If neither holds that time, the call must be made once more, by that time.

use redis::Value;

use super::{ASKS, Argument, LATEST, MOST, Numbers, SETTLES, WAITS};
use crate::{
    algorithm::answer::{Answer, Changed, Verdict},
    charge::{Charge, PermitId, Taken},
    clock::Now,
    demand::Acquire,
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
/// The most groups of a call: a state knows as many grants again.
const GROUPS: usize = 4;
/// The most callers of a call, which have one byte for their places.
const CALLERS: usize = 64;

/// What a charge counts by.
pub(crate) struct Row {
    pub(crate) rate: i64,
    pub(crate) windows: [Window; 2],
}

/// The reply to callers of one limiter.
pub(crate) struct Reply {
    /// The server's time, in ms
    pub(crate) now: i64,
    /// Of the first callers; `None` if no window holds that time.
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
pub(crate) fn together(run: &[Acquire]) -> &[Acquire] {
    let run = run.get(..CALLERS).unwrap_or(run);
    let waits = |acquire: &Acquire| acquire.max_wait.is_some();
    if run.first().is_some_and(waits) {
        return groups(run, false).next().unwrap_or(run);
    }
    let alike = run.split(waits).next().unwrap_or(run);
    let first = groups(alike, false).take(GROUPS);
    &run[..first.map(<[_]>::len).sum()]
}

/// Returns callers, those together that ask for the same; each by itself if they ask `again`.
fn groups(run: &[Acquire], again: bool) -> impl Iterator<Item = &[Acquire]> {
    let asked = |acquire: &Acquire| (acquire.first().permits, acquire.max_wait.is_some());
    run.chunk_by(move |a, b| asked(a) == asked(b) && !again)
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

    fn begin(&self, id: PermitId) -> Argument {
        let row = Argument::new(id).bytes(&[KIND]).number(self.rate, 7);
        let numbers = self.windows.iter();
        let numbers = numbers.flat_map(|window| [window.label, window.start, window.end]);
        numbers.fold(row, |row, number| row.number(number, 6))
    }

    /// Makes the argument of a call for those [`together`], who may ask `again`: then the limiter
    /// knows what they took before, if no four others have taken since.
    pub(crate) fn ask(&self, run: &[Acquire], again: bool) -> Argument {
        let run = together(run);
        let id = run.first().map_or(PermitId::NONE, |first| first.first().id);
        let mut place = 0;
        groups(run, again).fold(self.begin(id), |argument, group| {
            let first = &group[0];
            let flags = if first.max_wait.is_some() { WAITS } else { 0 };
            let callers = u8::try_from(group.len()).unwrap_or(u8::MAX);
            let by = again.then_some((id, place));
            place += callers;
            argument.request(callers, by, flags, first.first().permits)
        })
    }

    /// Reads the reply to it. Where one that waits is refused, so are those behind it that wait.
    pub(crate) fn read(&self, reply: &Value, run: &[Acquire], again: bool) -> Result<Reply, Error> {
        let (mut numbers, now) = Numbers::of(reply)?;
        let asked = together(run);
        let (mut refused, mut last) = (List::with_capacity(run.len()), None::<Group>);
        for callers in groups(asked, again) {
            let Some(mut group) = self.group(&mut numbers, callers.len())? else {
                return Ok(Reply { now, answers: None });
            };
            refused.extend((0..callers.len()).map(|place| place >= group.granted));
            group.ends = group.ends.or(last.and_then(|before| before.ends));
            last = Some(group);
        }
        numbers.end()?;
        // One that asks for more than the rate holds up no other.
        let waits = |caller: &&Acquire| caller.max_wait.is_some();
        let is_in_line =
            |caller: &Acquire| waits(&caller) && i64::from(caller.first().permits) <= self.rate;
        let mut each = asked.iter().zip(refused.iter());
        if each.any(|(caller, refused)| *refused && is_in_line(caller)) {
            let behind = run[asked.len()..].iter().take_while(waits);
            refused.extend(behind.map(|_| true));
        }
        let answers = last.map(|group| {
            let (answer, mut in_line) = (self.answer(now, &group), 0);
            let callers = run.iter().zip(refused.iter());
            callers
                .map(|(caller, refused)| {
                    let permits = i64::from(caller.first().permits);
                    let mut needs = permits;
                    if *refused && is_in_line(caller) {
                        in_line += permits;
                        needs = in_line;
                    }
                    self.of_caller(answer, permits, refused.then_some(needs))
                })
                .collect()
        });
        Ok(Reply { now, answers })
    }

    /// Makes the argument of a call that asks what is left.
    pub(crate) fn ask_left(&self, id: PermitId) -> Argument {
        self.begin(id).request(1, None, ASKS, 1)
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
        let argument = self.begin(id).request(1, None, SETTLES, keep);
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
            let is_one = self.rate.saturating_mul(unit) <= MOST;
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
        first.end.max(second.end) - first.start.min(second.start)
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

    /// Returns what is answered to all callers.
    fn answer(&self, now: i64, group: &Group) -> Answer {
        let window = self.counted(now, group.ends);
        let limit = StoredLimit {
            rate: self.rate,
            interval: window.length,
            rate_type: RateType::Overall,
            keep_alive: 0,
        };
        let reset = match group.left < self.rate {
            true => window.end - now,
            false => 0,
        };
        Answer {
            remaining: group.left,
            next: reset,
            reset,
            // Without its label, a grant cannot be settled.
            taken: window.label.map(|label| Taken::Date {
                label,
                end: window.end,
            }),
            ..Answer::new(&limit, Changed::Nothing, Now::millis(now))
        }
    }

    /// Returns the answer to a caller. One that is refused `needs` so many free permits.
    fn of_caller(&self, answer: Answer, permits: i64, needs: Option<i64>) -> Answer {
        let Some(needs) = needs else {
            return answer.for_caller(Verdict::Granted, 0);
        };
        if permits > self.rate {
            return answer.for_caller(Verdict::AboveRate, 0);
        }
        // Later windows are assumed to be as long as this one.
        let rounds = (needs - 1).div_euclid(self.rate.max(1));
        let later = rounds.saturating_mul(answer.interval);
        answer.for_caller(Verdict::Refused, answer.reset.saturating_add(later))
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
    Some(argument.call(receipt.name(), 0))
}

/// Makes the call that gives back so many permits of the window with this label, if it is open.
pub(crate) fn release(name: &Name, id: PermitId, label: i64, permits: u32) -> ScriptCall {
    let row = Row::until(LATEST, label, MOST);
    row.settle(id, permits, 0).call(name, 0)
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
    fn run<const N: usize>(permits: [u32; N]) -> [Acquire; N] {
        permits.map(|permits| {
            let limit = LimitSource::Code(Limit::per_hour(100));
            let name = Name::exact("quota").unwrap();
            let of = CompiledLimit::unnamed("rule");
            Acquire::of([Charge::named(name, limit, &of, permits)], false)
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
        for (numbers, callers) in [
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
            let read = ROW.read(&numbers, &run[..callers], false);
            let kind = read.err().map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::Unavailable), "{numbers:?}");
        }
        let foreign = Value::Array(vec![Value::Int(NOW * 1000), Value::Nil]);
        let read = ROW.read(&foreign, &run([1]), false);
        assert_eq!(read.err().unwrap().kind(), ErrorKind::ForeignState);
    }

    /// Not of one that lies between those of the call.
    #[test]
    fn only_a_label_that_the_call_knows_is_settled() {
        let unit = 30_001;
        for (ends, label) in [(4000, Some(1)), (25_000, Some(2)), (9000, None)] {
            let read = ROW.read(&reply([7 * unit + ends]), &run([1]), false);
            let answers = read.unwrap().answers.unwrap();
            let end = NOW + ends;
            let taken = label.map(|label| Taken::Date { label, end });
            assert_eq!((answers[0].taken, answers[0].reset), (taken, ends));
        }
    }

    /// A state knows as many grants again, and a call has so many places.
    #[test]
    fn a_call_takes_no_more_callers_than_are_known_again() {
        assert_eq!(together(&run([1, 2, 2, 3, 4, 5, 6])).len(), 5);
        assert_eq!(together(&run([1; 300])).len(), 64);
    }
}
