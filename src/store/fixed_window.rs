//! The fixed window as pure functions of state and now: what `lua/fixed_window` does, in Rust.
//!
//! A [`Limiter`] can lack each of its parts, as the keys in Redis can. A window is open through the millisecond of its end,
//! because Redis keeps a key for as long.

use super::{
    Changed,
    call::{Ask, Counts, End, Needs, Take},
};
use crate::{decision::PermitId, error::ErrorKind, limit::StoredLimit};

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
    /// The last millisecond; none if it was lost, or if a sliding log was counted here.
    pub(crate) end: Option<i64>,
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
        now: i64,
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

    /// Nothing tells one grant from another.
    fn holds(&self, _take: &Take) -> bool {
        false
    }

    fn note(&mut self, _take: &Take, _now: i64) {}

    fn end(&mut self, value: i64, needs: &[Needs], _ask: &Ask, now: i64) -> End {
        let (rate, interval) = self
            .limit
            .map_or((0, 0), |limit| (limit.rate, limit.interval));
        let open = self.window.and_then(|window| window.end);
        let end = open.unwrap_or(now + interval);
        // Nobody opens a window without taking something.
        if open.is_some() || value < rate {
            self.window = Some(Window {
                value,
                end: Some(end),
            });
        }
        // A window later for each further rate.
        let wait = |needs: &Needs| end + 1 - now + needs.rounds * (interval + 1);
        End {
            waits: needs.iter().map(wait).collect(),
            reset: if value < rate { end + 1 - now } else { 0 },
            repaired: 0,
            tat: None,
        }
    }
}

impl Limiter {
    /// Counts the free permits.
    pub(crate) fn available(&mut self, now: i64) -> Result<i64, ErrorKind> {
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
        now: i64,
    ) -> Result<i64, ErrorKind> {
        let given = given.filter(|_| permits < 0);
        let limit = self.limit.or(given).ok_or(ErrorKind::NotInitialized)?;
        self.limit = Some(limit);
        let StoredLimit { rate, interval, .. } = limit;
        if permits < 0 {
            let (value, end) = self
                .open(rate, interval, now)
                .unwrap_or((rate, now + interval));
            self.window = Some(Window {
                value: value + permits,
                end: Some(end),
            });
            return Ok(permits);
        }
        let Some(window) = &mut self.window else {
            return Ok(0);
        };
        let Some(live) = window.end.filter(|live| *live >= now) else {
            return Ok(0);
        };
        let apart = live.abs_diff(end).cast_signed();
        if apart > SLACK || 2 * apart >= interval {
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
    pub(crate) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: i64) {
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
    pub(crate) fn release(&mut self, wanted: i64, now: i64) -> Result<i64, ErrorKind> {
        let StoredLimit { rate, interval, .. } = self.limit.ok_or(ErrorKind::NotInitialized)?;
        self.open(rate, interval, now);
        Ok(self
            .window
            .as_mut()
            .map_or(0, |window| window.credit(wanted, rate)))
    }

    /// Makes sure that the window ends, and that no more than the rate is left; how many permits had been lost: never more
    /// than none.
    pub(crate) fn repair(&mut self, now: i64) -> Result<i64, ErrorKind> {
        let StoredLimit { rate, interval, .. } = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let stored = self.window;
        let open = self.open(rate, interval, now);
        Ok(match (stored, open) {
            (Some(stored), Some((value, _))) => value - stored.value,
            _ => 0,
        })
    }

    /// When all permits are free again, if none is taken meanwhile; `None` if they are.
    pub(crate) fn full_at(&self) -> Option<i64> {
        let rate = self.limit?.rate;
        let window = self.window.filter(|window| window.value < rate)?;
        Some(window.end.map_or(i64::MAX, |end| end + 1))
    }

    /// The permits left in the open window, and its end. It ends no later than one interval from now, and has no more
    /// than the rate: what says otherwise was a sliding log, or lost its end, or was changed by hand.
    fn open(&mut self, rate: i64, interval: i64, now: i64) -> Option<(i64, i64)> {
        let window = self.window.as_mut()?;
        if window.end.is_some_and(|end| end < now) {
            self.window = None;
            return None;
        }
        let latest = now + interval;
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
