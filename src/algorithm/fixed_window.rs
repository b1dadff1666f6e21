//! The fixed window as pure functions of state and now: what `lua/fixed_window` does, in Rust.
//!
//! A [`Limiter`] can lack each of its parts, as the keys in Redis can. A window is open through the millisecond of its end,
//! because Redis keeps a key for as long.

use super::{
    answer::{Answer, Changed},
    call::{Counts, Needs},
};
use crate::{clock::Now, error::ErrorKind, limit::StoredLimit, receipt::PermitId};

/// By how much the end of one window may seem to differ between two calls, in ms: Redis tells the time and what is left
/// of a key one after the other.
const SLACK: i64 = 10;

/// One limiter's state: the hash, and the value with its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limiter {
    pub(crate) limit: Option<StoredLimit>,
    pub(crate) window: Option<Window>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Permits left; below zero after a lowered rate.
    pub(crate) value: i64,
    /// The last tick; none if it was lost, or if a sliding log was counted here.
    pub(crate) end: Option<i64>,
}

/// The last tick of a window of so many milliseconds that begins now: it is open through the
/// millisecond of its end.
pub(crate) fn last_tick(now: Now, interval: i64) -> i64 {
    now.score() + now.ticks(interval.saturating_add(1)) - 1
}

impl Counts for Limiter {
    fn limit(&self) -> Option<StoredLimit> {
        self.limit
    }

    fn begin(
        &mut self,
        limit: StoredLimit,
        changed: Changed,
        _wanted: i64,
        _exact: bool,
        now: Now,
        _id: PermitId,
    ) -> i64 {
        if let (Changed::Rewritten, Some(before), Some(window)) =
            (changed, self.limit, &mut self.window)
        {
            // A lowered rate holds at once.
            window.value += limit.rate - before.rate;
        }
        self.limit = Some(limit);
        let open = self.open(limit.rate, limit.interval, now);
        open.map_or(limit.rate, |(value, _)| value)
    }

    fn end(&mut self, answer: &mut Answer, needs: &mut [Needs], _exact: bool) {
        let (value, now) = (answer.remaining, answer.now);
        let (rate, interval) = self
            .limit
            .map_or((0, 0), |limit| (limit.rate, limit.interval));
        let open = self.window.and_then(|window| window.end);
        let end = open.unwrap_or_else(|| last_tick(now, interval));
        // Nobody opens a window without taking something.
        if open.is_some() || value < rate {
            self.window = Some(Window {
                value,
                end: Some(end),
            });
        }
        // A window later for each further rate.
        let next = now.ticks(interval + 1);
        for needs in needs {
            needs.wait = end + 1 - now.tick + needs.rounds * next;
        }
        // All come back together.
        answer.reset = if value < rate { end + 1 - now.tick } else { 0 };
        answer.next = answer.reset;
    }
}

impl Limiter {
    /// Counts the free permits.
    pub(crate) fn available(&mut self, now: Now) -> Result<i64, ErrorKind> {
        let StoredLimit { rate, interval, .. } = self.limit.ok_or(ErrorKind::NotInitialized)?;
        Ok(self
            .open(rate, interval, now)
            .map_or(rate, |(value, _)| value))
    }

    /// Gives back permits taken from the window that ended, or ends, at `end`, if that is still open; below zero it charges
    /// them, whatever window is, and against the limit `given` where there is none. How many were credited.
    pub(crate) fn settle(
        &mut self,
        permits: i64,
        end: i64,
        given: Option<StoredLimit>,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        let given = given.filter(|_| permits < 0);
        let limit = self.limit.or(given).ok_or(ErrorKind::NotInitialized)?;
        self.limit = Some(limit);
        let StoredLimit { rate, interval, .. } = limit;
        if permits < 0 {
            let (value, end) = self
                .open(rate, interval, now)
                .unwrap_or_else(|| (rate, last_tick(now, interval)));
            self.window = Some(Window {
                value: value + permits,
                end: Some(end),
            });
            return Ok(permits);
        }
        let Some(window) = &mut self.window else {
            return Ok(0);
        };
        let Some(live) = window.end.filter(|live| *live >= now.tick) else {
            return Ok(0);
        };
        let apart = live.abs_diff(end).cast_signed();
        if apart > now.ticks(SLACK) || 2 * apart >= now.ticks(interval) {
            return Ok(0);
        }
        Ok(window.credit(permits, rate))
    }

    /// Stores a limit where there is none.
    pub(crate) fn try_set_rate(&mut self, limit: StoredLimit) -> bool {
        let unset = self.limit.is_none();
        self.limit.get_or_insert(limit);
        unset
    }

    /// Stores a limit, whatever was stored; `keep` goes on counting what is in use.
    pub(crate) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: Now) {
        let stored = self.limit.replace(limit);
        match (stored, &mut self.window) {
            (Some(stored), Some(window)) if keep && stored.rate_type == limit.rate_type => {
                window.value += limit.rate - stored.rate;
                self.open(limit.rate, limit.interval, now);
            }
            _ => self.window = None,
        }
    }

    /// Gives back up to `wanted` permits of the open window, and tells how many.
    pub(crate) fn release(&mut self, wanted: i64, now: Now) -> Result<i64, ErrorKind> {
        let StoredLimit { rate, interval, .. } = self.limit.ok_or(ErrorKind::NotInitialized)?;
        self.open(rate, interval, now);
        Ok(self
            .window
            .as_mut()
            .map_or(0, |window| window.credit(wanted, rate)))
    }

    /// Makes sure that the window ends, and that no more than the rate is left; how many permits had been lost: never more
    /// than none.
    pub(crate) fn repair(&mut self, now: Now) -> Result<i64, ErrorKind> {
        let StoredLimit { rate, interval, .. } = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let stored = self.window;
        let open = self.open(rate, interval, now);
        Ok(match (stored, open) {
            (Some(stored), Some((value, _))) => value - stored.value,
            _ => 0,
        })
    }

    /// The tick from which all permits are free again, if none is taken meanwhile; `None` if they
    /// are.
    pub(crate) fn full_at(&self) -> Option<i64> {
        let rate = self.limit?.rate;
        let window = self.window.filter(|window| window.value < rate)?;
        Some(window.end.map_or(i64::MAX, |end| end + 1))
    }

    /// The permits left in the open window, and its end. It ends no later than one interval from now, and has no more
    /// than the rate: what says otherwise was a sliding log, or lost its end, or was changed by hand.
    fn open(&mut self, rate: i64, interval: i64, now: Now) -> Option<(i64, i64)> {
        let window = self.window.as_mut()?;
        if window.end.is_some_and(|end| end < now.tick) {
            self.window = None;
            return None;
        }
        let latest = last_tick(now, interval);
        let end = window.end.map_or(latest, |end| end.min(latest));
        window.end = Some(end);
        window.value = window.value.min(rate);
        Some((window.value, end))
    }
}

impl Window {
    /// How many permits there was room for.
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
            call::{Terms, acquire},
        },
        demand::{Acquire, Charge},
        limit::{Limit, LimitSource},
        list::List,
    };

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
            window: None,
        }
    }

    /// With a window in which so many permits are left.
    fn with_window(rate: u64, millis: u64, value: i64, end: Option<i64>) -> Limiter {
        Limiter {
            window: Some(Window { value, end }),
            ..fresh(rate, millis)
        }
    }

    /// What callers that wait in line are answered, each by what it asks.
    fn ask(limiter: &mut Limiter, limit: LimitSource, permits: &[u32], now: i64) -> List<Answer> {
        let terms = Terms {
            rewrite: false,
            ..Terms::HERE
        };
        let charge = |permits: &u32| Charge::plain(limit, *permits, PermitId::NONE);
        let callers = permits
            .iter()
            .map(|permits| Acquire::of([charge(permits)], true));
        let callers: Vec<_> = callers.collect();
        let limiters = std::iter::once((limiter as &mut dyn Counts, terms));
        acquire(limiters, &callers, Now::millis(now)).unwrap()
    }

    fn take(limiter: &mut Limiter, permits: u32, now: i64) -> Answer {
        ask(limiter, LimitSource::Store, &[permits], now)[0]
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
            let answers = ask(&mut limiter, LimitSource::Store, &callers, now);
            for (answer, permits) in answers.iter().zip(callers) {
                prop_assert_eq!((answer.verdict, answer.reset), (Verdict::Refused, answers[0].wait));
                let at = now + answer.wait;
                let early = take(&mut limiter, permits, at - 1);
                prop_assert_eq!((early.verdict, early.wait), (Verdict::Refused, 1));
                prop_assert_eq!(take(&mut limiter, permits, at).verdict, Verdict::Granted);
            }
        }
    }

    #[test]
    fn a_window_is_open_through_its_last_millisecond() {
        let mut limiter = fresh(5, 1000);
        let first = take(&mut limiter, 3, START);
        assert_eq!((first.remaining, first.reset), (2, 1001));
        let last = take(&mut limiter, 1, START + 1000);
        assert_eq!((last.remaining, last.reset), (1, 1));
        assert_eq!(limiter.available(at(START + 1000)), Ok(1));
        assert_eq!(limiter.full_at(), Some(START + 1001));
        assert_eq!(limiter.available(at(START + 1001)), Ok(5));
        assert_eq!(limiter.full_at(), None);
    }

    #[test]
    fn who_takes_nothing_opens_no_window() {
        let mut limiter = Limiter::default();
        let init = LimitSource::StoreOrInit(limit(5, 1000));
        let answer = ask(&mut limiter, init, &[6], START)[0];
        assert_eq!((answer.verdict, answer.reset), (Verdict::AboveRate, 0));
        assert_eq!(limiter, fresh(5, 1000));
    }

    #[test]
    fn a_receipt_gives_back_in_its_window() {
        let end = START + 1000;
        let given_back = |limiter: &Limiter, ends, now| {
            let mut limiter = limiter.clone();
            let credited = limiter.settle(2, ends, None, at(now)).unwrap();
            let value = |limiter: &Limiter| limiter.window.map_or(0, |window| window.value);
            (credited, value(&limiter))
        };
        let limiter = with_window(5, 1000, 1, Some(end));
        assert_eq!(given_back(&limiter, end, START), (2, 3));
        assert_eq!(given_back(&limiter, end, end), (2, 3));
        assert_eq!(given_back(&limiter, end, end + 1), (0, 1));
        // Its end is told by two clocks, one after the other.
        for (apart, credited) in [(-11, 0), (-10, 2), (10, 2), (11, 0)] {
            assert_eq!(
                given_back(&limiter, end + apart, START).0,
                credited,
                "{apart}"
            );
        }
        // Where windows are so short, it would be that of another one.
        let short = with_window(5, 18, 1, Some(end));
        for (apart, credited) in [(-9, 0), (-8, 2), (8, 2), (9, 0)] {
            assert_eq!(
                given_back(&short, end + apart, START).0,
                credited,
                "{apart}"
            );
        }
        // No more than there is room for.
        assert_eq!(
            given_back(&with_window(5, 1000, 4, Some(end)), end, START),
            (1, 5)
        );
        // One that lost its end ends who knows when.
        assert_eq!(
            given_back(&with_window(5, 1000, 1, None), end, START),
            (0, 1)
        );
        assert_eq!(given_back(&fresh(5, 1000), end, START), (0, 0));
    }

    #[test]
    fn only_a_charge_makes_a_limiter() {
        let given = Some(limit(5, 1000).stored());
        let mut limiter = Limiter::default();
        assert_eq!(
            limiter.settle(1, START, given, at(START)),
            Err(ErrorKind::NotInitialized)
        );
        assert_eq!(
            limiter.settle(-1, START, None, at(START)),
            Err(ErrorKind::NotInitialized)
        );
        assert_eq!(limiter, Limiter::default());
        let nothing = limiter.settle(0, START, given, at(START));
        assert_eq!(nothing, Err(ErrorKind::NotInitialized));
        assert_eq!(limiter, Limiter::default());
        let mut unused = fresh(5, 1000);
        assert_eq!(unused.settle(0, START, None, at(START)), Ok(0));
        assert_eq!(unused, fresh(5, 1000));
        assert_eq!(limiter.settle(-7, START, given, at(START)), Ok(-7));
        assert_eq!(limiter, with_window(5, 1000, -2, Some(START + 1000)));
        assert_eq!(limiter.settle(-1, START, None, at(START + 1000)), Ok(-1));
        assert_eq!(limiter, with_window(5, 1000, -3, Some(START + 1000)));
        assert_eq!(limiter.settle(-1, START, None, at(START + 1001)), Ok(-1));
        assert_eq!(limiter, with_window(5, 1000, 4, Some(START + 2001)));
    }

    #[test]
    fn what_is_in_use_stays_in_use_where_that_is_wanted() {
        let end = START + 500;
        let set = |new: Limit, keep| {
            let mut limiter = with_window(5, 1000, 2, Some(end));
            limiter.set_rate(new.stored(), keep, at(START));
            assert_eq!(limiter.limit, Some(new.stored()));
            limiter.window
        };
        let window = |value, end| {
            Some(Window {
                value,
                end: Some(end),
            })
        };
        assert_eq!(set(limit(9, 1000), true), window(6, end));
        assert_eq!(set(limit(1, 1000), true), window(-2, end));
        assert_eq!(set(limit(5, 100), true), window(2, START + 100));
        assert_eq!(set(limit(9, 1000), false), None);
        assert_eq!(set(limit(9, 1000).per_client(), true), None);
    }

    #[test]
    fn no_more_is_given_back_than_is_in_use() {
        let mut limiter = with_window(5, 1000, 1, Some(START));
        assert_eq!(limiter.release(3, at(START)), Ok(3));
        assert_eq!(limiter.release(3, at(START)), Ok(1));
        assert_eq!(limiter.full_at(), None);
        assert_eq!(limiter.release(3, at(START + 1)), Ok(0));
        assert_eq!(
            Limiter::default().release(3, at(START)),
            Err(ErrorKind::NotInitialized)
        );
    }

    #[test]
    fn a_repaired_window_ends_and_has_no_more_than_the_rate() {
        for (value, lost) in [(3, 0), (5, 0), (8, -3), (-4, 0)] {
            for end in [None, Some(START + 5000)] {
                let mut limiter = with_window(5, 1000, value, end);
                assert_eq!(limiter.repair(at(START)), Ok(lost));
                assert_eq!(
                    limiter,
                    with_window(5, 1000, value.min(5), Some(START + 1000))
                );
            }
        }
        assert_eq!(fresh(5, 1000).repair(at(START)), Ok(0));
        // Nobody knows when it is over, but that it is not.
        assert_eq!(with_window(5, 1000, 4, None).full_at(), Some(i64::MAX));
        assert_eq!(with_window(5, 1000, 5, None).full_at(), None);
    }
}
