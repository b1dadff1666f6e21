//! The algorithm fixed window: decides in Rust as `lua/packed/window.lua` does in Redis; in
//! Redisson's format, `lua/fixed_window`.
//!
//! In Redisson's format a window is open through the millisecond of its end, because Redis keeps a
//! key until then.

use super::{
    answer::Answer,
    bytes::bytes,
    limiter::{CallContext, Counter, GiveBack, Needs},
};
use crate::values::{
    charge::Taken,
    clock::Now,
    error::ErrorKind,
    limit::{self, StoredLimit},
};

/// By how much the end of one window may seem to differ between two calls, in ms: Redis returns the
/// time and what is left of a key one after the other.
const SLACK: i64 = 10;

/// The window of one limiter: the value, and its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedWindow(pub(crate) Option<StoredWindow>);

bytes!(FixedWindow { 0 });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredWindow {
    /// Permits left; below zero after a lowered rate.
    pub(crate) value: i64,
    /// The last tick; none if it was lost, or if a sliding log was counted here.
    pub(crate) end: Option<i64>,
}

bytes!(StoredWindow { value, end });

/// Returns the last tick of a window of so many milliseconds that begins now, and lasts one more in
/// Redisson's format.
fn last_tick(now: Now, interval: i64) -> i64 {
    now.score() + now.ticks(interval.saturating_add(1)) - 1
}

impl CallContext {
    /// Returns how long a window lasts beyond its interval, in ticks.
    fn lingers(&self) -> i64 {
        if self.in_own_format {
            0
        } else {
            self.now.ticks(1)
        }
    }

    /// Returns the last tick of a window that begins now.
    fn last_tick(&self) -> i64 {
        let now = self.now;
        now.score() + now.ticks(self.limit.interval) + self.lingers() - 1
    }
}

impl Counter for FixedWindow {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::FixedWindow
    }

    fn begin(&mut self, call: &CallContext, _wanted: i64) -> i64 {
        if let (Some(before), Some(window)) = (&call.rewritten, &mut self.0) {
            window.value += call.limit.rate - before.rate;
        }
        self.left(&call.limit, call.now)
    }

    fn end(&mut self, call: &CallContext, _taken: i64, answer: &mut Answer, needs: &mut [Needs]) {
        let (value, now) = (answer.remaining, call.now);
        let StoredLimit { rate, interval, .. } = call.limit;
        let open = self.0.and_then(|window| window.end);
        let end = open.unwrap_or_else(|| call.last_tick());
        // A call that takes nothing opens no window.
        if open.is_some() || value < rate {
            self.0 = Some(StoredWindow {
                value,
                end: Some(end),
            });
        }
        // A window later for each further rate.
        let next = now.ticks(interval) + call.lingers();
        for needs in needs {
            let rounds = needs.rounds.saturating_mul(next);
            needs.wait = (end + 1 - now.tick).saturating_add(rounds);
        }
        // All come back together.
        answer.reset = if value < rate { end + 1 - now.tick } else { 0 };
        answer.next = answer.reset;
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        Ok(self.left(&call.limit, call.now))
    }

    fn release(&mut self, call: &CallContext, wanted: i64) -> Result<i64, ErrorKind> {
        let open = self.open(&call.limit, call.now);
        Ok(open.map_or(0, |window| window.credit(wanted, call.limit.rate)))
    }

    /// Gives back permits of the window that ends at the tick in the receipt, if it is still open.
    fn give_back(&mut self, back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        let (limit, now) = (back.limit.ok_or(ErrorKind::NotInitialized)?, back.now);
        let (Some(window), Some(Taken::Window(end))) = (&mut self.0, back.taken) else {
            return Ok(0);
        };
        let Some(live) = window.end.filter(|live| *live >= now.tick) else {
            return Ok(0);
        };
        let apart = live.abs_diff(end).cast_signed();
        if apart > now.ticks(SLACK) || 2 * apart >= now.ticks(limit.interval) {
            return Ok(0);
        }
        Ok(window.credit(back.permits.into(), limit.rate))
    }

    fn charge(&mut self, call: &CallContext, permits: u32) -> i64 {
        let new = StoredWindow {
            value: call.limit.rate,
            end: Some(call.last_tick()),
        };
        let open = self.open(&call.limit, call.now).copied();
        let window = self.0.insert(open.unwrap_or(new));
        window.value -= i64::from(permits);
        permits.into()
    }

    /// Makes sure that the window ends, and that no more than the rate is left. Returns zero or
    /// less, as it finds no permits that were lost.
    fn repair(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let stored = self.0;
        let both = self.open(&call.limit, call.now).zip(stored);
        Ok(both.map_or(0, |(open, stored)| open.value - stored.value))
    }

    fn change_limit(&mut self, before: Option<&StoredLimit>, limit: &StoredLimit, now: Now) {
        let (Some(before), Some(window)) = (before, &mut self.0) else {
            return self.forget();
        };
        window.value += limit.rate - before.rate;
        self.open(limit, now);
    }

    fn forget(&mut self) {
        self.0 = None;
    }

    fn value(&self, now: Now) -> Option<i64> {
        let open = self
            .0
            .filter(|window| window.end.is_none_or(|end| end >= now.tick));
        open.map(|window| window.value)
    }

    fn resume(&mut self, limit: &StoredLimit, value: i64, now: Now) {
        let end = Some(last_tick(now, limit.interval));
        self.0 = Some(StoredWindow { value, end });
    }

    fn full_at(&self, limit: &StoredLimit) -> Option<i64> {
        let window = self.0.filter(|window| window.value < limit.rate)?;
        Some(window.end.map_or(i64::MAX, |end| end + 1))
    }

    fn end_of_life(&self, limit: &StoredLimit, now: Now) -> i64 {
        last_tick(now, limit.interval) + 1
    }
}

impl FixedWindow {
    /// Returns the permits left.
    fn left(&mut self, limit: &StoredLimit, now: Now) -> i64 {
        let open = self.open(limit, now);
        open.map_or(limit.rate, |window| window.value)
    }

    /// Returns the open window. It ends no later than one interval from now, and has no more than
    /// the rate: what says otherwise was a sliding log, or lost its end, or was changed by hand.
    fn open(&mut self, limit: &StoredLimit, now: Now) -> Option<&mut StoredWindow> {
        if self.0?.end.is_some_and(|end| end < now.tick) {
            self.0 = None;
        }
        let window = self.0.as_mut()?;
        let latest = last_tick(now, limit.interval);
        window.end = Some(window.end.map_or(latest, |end| end.min(latest)));
        window.value = window.value.min(limit.rate);
        Some(window)
    }
}

impl StoredWindow {
    /// Gives back the permits that there is room for. Returns how many.
    fn credit(&mut self, permits: i64, rate: i64) -> i64 {
        let before = self.value;
        self.value = rate.min(before.saturating_add(permits));
        self.value - before
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{
            answer::{Answer, Verdict},
            call::acquire,
            limiter::LimiterState,
        },
        values::{
            List,
            charge::{Charge, PermitId},
            demand::Demand,
            limit::{Limit, LimitSource},
        },
    };

    type Limiter = LimiterState<FixedWindow>;

    const ID: PermitId = PermitId::NONE;
    const START: i64 = 1_700_000_000_000;

    fn at(now: i64) -> Now {
        Now::millis(now)
    }

    fn limit(rate: u64, millis: u64) -> Limit {
        Limit::new(rate, Duration::from_millis(millis))
    }

    fn fresh(rate: u64, millis: u64) -> Limiter {
        Limiter {
            limit: Some(limit(rate, millis).stored()),
            ..Limiter::default()
        }
    }

    /// Creates a limiter with an open window, and this many permits left.
    fn with_window(rate: u64, millis: u64, value: i64, end: Option<i64>) -> Limiter {
        Limiter {
            state: FixedWindow(Some(StoredWindow { value, end })),
            ..fresh(rate, millis)
        }
    }

    /// Settles a grant of this many permits from the window that ends at `end`.
    fn settle(
        limiter: &mut Limiter,
        limit: LimitSource,
        (permits, keep): (u32, u32),
        end: i64,
        now: i64,
    ) -> Result<i64, ErrorKind> {
        let charge = Charge::plain(limit, permits, ID);
        let receipt = charge.counted_by(limit::Algorithm::FixedWindow).to_send();
        limiter.settle(&receipt, Some(Taken::Window(end)), keep, at(now))
    }

    /// Returns the answers to callers that wait in line, each by what it asks.
    fn ask(limiter: &mut Limiter, permits: &[u32], now: i64) -> List<Answer> {
        let charge = |permits: &u32| Charge::plain(LimitSource::Store, *permits, ID);
        let caller = |permits| Demand::caller([charge(permits)], true);
        let callers: Vec<_> = permits.iter().map(caller).collect();
        let limiters = std::iter::once(limiter as &mut LimiterState);
        acquire(limiters, &callers, Now::millis(now)).unwrap()
    }

    fn take(limiter: &mut Limiter, permits: u32, now: i64) -> Answer {
        ask(limiter, &[permits], now).remove(0)
    }

    proptest! {
        // L2, also for those whose turn is some windows later: all but the first want a whole one.
        #[test]
        fn there_is_room_when_the_wait_is_over_and_none_before(
            rate in 1u32..6,
            interval in 1u64..50,
            first in 0u32..5,
            others in 0usize..4,
            pause in 0i64..50,
        ) {
            let mut callers = vec![first % rate + 1];
            callers.resize(1 + others, rate);
            let mut limiter = fresh(rate.into(), interval);
            take(&mut limiter, rate, START);
            let now = START + pause.min(interval.cast_signed());
            let answers = ask(&mut limiter, &callers, now);
            for (answer, permits) in answers.iter().zip(callers) {
                prop_assert_eq!(answer.verdict, Verdict::Refused);
                prop_assert_eq!(answer.reset, answers[0].wait);
                let at = now + answer.wait;
                let early = take(&mut limiter, permits, at - 1);
                prop_assert_eq!((early.verdict, early.wait), (Verdict::Refused, 1));
                prop_assert_eq!(take(&mut limiter, permits, at).verdict, Verdict::Granted);
            }
        }
    }

    #[test]
    fn a_receipt_gives_back_in_its_window() {
        let end = START + 1000;
        let open = with_window(5, 1000, 1, Some(end));
        // Where windows are so short, the end may be that of another one.
        let short = with_window(5, 18, 1, Some(end));
        for (limiter, of_receipt, now, credited) in [
            (&open, end, START, 2),
            (&open, end, end, 2),
            (&open, end, end + 1, 0),
            // Its end is read from two clocks, one after the other.
            (&open, end - 11, START, 0),
            (&open, end - 10, START, 2),
            (&open, end + 10, START, 2),
            (&open, end + 11, START, 0),
            (&short, end - 9, START, 0),
            (&short, end - 8, START, 2),
            (&short, end + 8, START, 2),
            (&short, end + 9, START, 0),
            // No more than there is room for.
            (&with_window(5, 1000, 4, Some(end)), end, START, 1),
            // A window that lost its end may end at any time.
            (&with_window(5, 1000, 1, None), end, START, 0),
            (&fresh(5, 1000), end, START, 0),
        ] {
            let row = format!(
                "{:?}, {} at {}",
                limiter.state,
                of_receipt - end,
                now - START
            );
            let mut settled = limiter.clone();
            let given_back = settle(&mut settled, LimitSource::Store, (2, 0), of_receipt, now);
            assert_eq!(given_back, Ok(credited), "{row}");
            let value = |limiter: &Limiter| limiter.state.0.map_or(0, |window| window.value);
            assert_eq!(value(&settled), value(limiter) + credited, "{row}");
        }
    }

    #[test]
    fn a_charge_counts_in_the_open_window_or_a_new_one() {
        let given = LimitSource::Code(limit(5, 1000));
        let mut limiter = Limiter::default();
        for (source, more, now, value, end) in [
            (given, 7, START, -2, START + 1000),
            (LimitSource::Store, 1, START + 1000, -3, START + 1000),
            (LimitSource::Store, 1, START + 1001, 4, START + 2001),
        ] {
            let charged = settle(&mut limiter, source, (0, more), START, now);
            assert_eq!(charged, Ok(-i64::from(more)));
            assert_eq!(limiter, with_window(5, 1000, value, Some(end)));
        }
    }

    /// The verbs are held against the scripts: `tests/inside/model`. They forget nothing that can
    /// still be asked for.
    #[test]
    fn it_is_full_when_its_window_is_over() {
        assert_eq!(fresh(5, 1000).full_at(), None);
        for (value, end, full_at) in [
            (4, Some(START), Some(START + 1)),
            (5, Some(START), None),
            // It is not known when it is over, only that it is not.
            (4, None, Some(i64::MAX)),
            (5, None, None),
        ] {
            let limiter = with_window(5, 1000, value, end);
            assert_eq!(limiter.full_at(), full_at, "{value} until {end:?}");
        }
    }

    #[test]
    fn what_is_left_goes_from_one_algorithm_to_the_next() {
        let stored = limit(5, 1000).stored();
        for (window, value) in [
            (with_window(5, 1000, 3, Some(START)), Some(3)),
            (with_window(5, 1000, 3, Some(START - 1)), None),
            (with_window(5, 1000, 3, None), Some(3)),
            (fresh(5, 1000), None),
        ] {
            assert_eq!(window.state.value(at(START)), value, "{:?}", window.state);
        }
        let mut limiter = fresh(5, 1000);
        limiter.state.resume(&stored, 3, at(START));
        assert_eq!(limiter, with_window(5, 1000, 3, Some(START + 1000)));
        // All of its windows are over then.
        let over = limiter.state.end_of_life(&stored, at(START));
        assert_eq!(over, START + 1001);
    }
}
