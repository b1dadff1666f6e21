//! What a limiter in our own format must count, the plain way: each grant is kept for ever.

use super::super::*;
use crate::store::redis::packed::{Stamp, gcra::GcraRow, log::LogRow, row::Row, window::WindowRow};

/// A rate and an interval.
pub(super) type Terms = (u64, u64);

/// The row of a limit.
pub(super) fn row(algorithm: Algorithm, (rate, interval): Terms) -> Row {
    let limit = Limit::new(rate, Duration::from_millis(interval));
    let (rate, interval) = (rate.cast_signed(), interval.cast_signed());
    match algorithm {
        Algorithm::FixedWindow => Row::Window(WindowRow { rate, interval }),
        Algorithm::Gcra => {
            let pace = crate::algorithm::gcra::Pace::of(rate, interval).unwrap();
            Row::Gcra(GcraRow(pace))
        }
        _ => Row::Log(LogRow::of(&limit)),
    }
}

pub(super) fn stamp(id: PermitId, now: Option<i64>) -> Stamp {
    let now = now.map(i64::cast_unsigned);
    Stamp { id, now }
}

/// What is in use. GCRA is counted by the algorithm in memory alone.
#[derive(Clone, Debug)]
pub(super) enum Spec {
    Log(Log),
    Window(Window),
    Gcra,
}

/// One caller's permits.
#[derive(Clone, Debug)]
struct Taken {
    id: PermitId,
    permits: i64,
    time: i64,
    /// Set for what a settlement charged.
    is_added: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    taken: Vec<Taken>,
    /// Of each interval: since when a log has counted by it, and the last grant by it
    known: Vec<(i64, i64, i64)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    ends: i64,
    used: i64,
    interval: i64,
}

impl Spec {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::Window(Window::default()),
            Algorithm::Gcra => Self::Gcra,
            _ => Self::Log(Log::default()),
        }
    }

    /// Returns the permits left, at least and at most: a log does not know what was taken long ago
    /// by shorter limits alone.
    pub(super) fn left(&self, now: i64, (rate, interval): Terms) -> [i64; 2] {
        let [rate, interval] = [rate, interval].map(u64::cast_signed);
        match self {
            Self::Log(log) => {
                let used = |from: i64| -> i64 {
                    let each = log.taken.iter().filter(|it| it.time > from);
                    each.map(|it| it.permits).sum()
                };
                let surely = log.surely_since(now, interval);
                let all = now - interval;
                [rate - used(all), rate - used(all.max(surely))]
            }
            Self::Window(window) => {
                let used = if now < window.ends { window.used } else { 0 };
                [rate - used; 2]
            }
            Self::Gcra => [rate; 2],
        }
    }

    /// Returns whether an open window ends later than one of this limit can.
    pub(super) fn is_longer(&self, now: i64, (_, interval): Terms) -> bool {
        matches!(self, Self::Window(window) if window.ends > now + interval.cast_signed())
    }

    /// Returns whether an open window is of a shorter limit.
    pub(super) fn is_shorter(&self, now: i64, (_, interval): Terms) -> bool {
        let is_open = |window: &Window| now < window.ends;
        matches!(self, Self::Window(it) if is_open(it) && it.interval < interval.cast_signed())
    }

    /// Returns how long what was just granted is known.
    pub(super) fn lasts(&self, now: i64, (_, interval): Terms) -> i64 {
        match self {
            Self::Window(window) if now < window.ends => window.ends - now,
            Self::Log(_) => interval.cast_signed(),
            _ => i64::MAX / 2,
        }
    }

    /// Returns by how much the last permits lie ahead.
    pub(super) fn lead(&self, now: i64) -> i64 {
        match self {
            Self::Log(log) => {
                let last = log.taken.iter().map(|it| it.time).max();
                (last.unwrap_or(now) - now).max(0)
            }
            Self::Window(_) | Self::Gcra => 0,
        }
    }

    /// Returns whether a grant that was given back whole lives still.
    pub(super) fn has_empty(&self, now: i64, (_, interval): Terms) -> bool {
        let is_empty = |it: &Taken| it.permits == 0 && it.time > now - interval.cast_signed();
        matches!(self, Self::Log(log) if log.taken.iter().any(is_empty))
    }

    /// Takes permits for a caller, perhaps so far ahead, or charges them by a settlement.
    pub(super) fn take(
        &mut self,
        now: i64,
        terms: Terms,
        (id, permits, lead): (PermitId, i64, i64),
        is_added: bool,
    ) {
        let interval = terms.1.cast_signed();
        match self {
            Self::Log(log) => {
                log.taken.push(Taken {
                    id,
                    permits,
                    time: now + lead,
                    is_added,
                });
                if lead == 0 && !is_added {
                    log.count_by(now, interval);
                }
            }
            Self::Window(window) if now < window.ends => {
                window.used += permits;
                // A longer window stays, a shorter one grows.
                window.ends += (interval - window.interval).max(0);
                window.interval = window.interval.max(interval);
            }
            Self::Window(window) => {
                *window = Window {
                    ends: now + interval,
                    used: permits,
                    interval,
                };
            }
            Self::Gcra => {}
        }
    }

    /// Settles a grant. Returns how many permits are free again, if that is certain.
    pub(super) fn settle(
        &mut self,
        now: i64,
        terms: Terms,
        (id, was, keep): (PermitId, i64, i64),
        label: i64,
    ) -> Option<i64> {
        match self {
            Self::Log(log) => {
                let mut grants = log.taken.iter_mut().filter(|it| it.id == id);
                let has_added = grants.any(|it| it.is_added);
                let mut grants = log.taken.iter_mut().filter(|it| it.id == id);
                let grant = grants.find(|it| !it.is_added);
                let lives = |it: &Taken| it.time > now - terms.1.cast_signed();
                let is_certain = grant.as_ref().is_none_or(|it| lives(it));
                let has = grant.as_ref().map(|it| it.permits);
                if let Some(grant) = grant {
                    grant.permits = grant.permits.min(keep);
                }
                let owed = keep - has.unwrap_or(was);
                if owed > 0 && !has_added {
                    self.take(now, terms, (id, owed, 0), true);
                }
                let freed = has.map_or(0, |has| (has - keep).max(0)) - owed.max(0);
                (is_certain && !has_added).then_some(freed)
            }
            Self::Window(window) if now < window.ends && window.ends == label => {
                let used = (window.used + keep - was).max(0);
                let freed = window.used - used;
                window.used = used;
                Some(freed)
            }
            Self::Window(_) if keep > was => {
                self.take(now, terms, (id, keep - was, 0), true);
                Some(was - keep)
            }
            Self::Window(_) => Some(0),
            Self::Gcra => None,
        }
    }

    /// Releases permits, the oldest in use. Returns how many.
    pub(super) fn release(&mut self, now: i64, terms: Terms, permits: i64) -> Option<i64> {
        let mut left = permits;
        match self {
            Self::Log(log) => {
                // What lies ahead goes last, in any order.
                log.taken.sort_by_key(|it| it.time);
                for it in &mut log.taken {
                    if it.time > now - terms.1.cast_signed() {
                        let freed = it.permits.min(left);
                        it.permits -= freed;
                        left -= freed;
                    }
                }
            }
            Self::Window(window) if now < window.ends => {
                let freed = window.used.min(left);
                window.used -= freed;
                left -= freed;
            }
            Self::Window(_) => {}
            Self::Gcra => return None,
        }
        Some(permits - left)
    }
}

impl Log {
    /// Returns from when on all grants count by an interval. A window by which nothing was granted
    /// for its interval may be gone, and with it what lives by no other.
    fn surely_since(&self, now: i64, interval: i64) -> i64 {
        let live = |(of, _, seen): &&(i64, i64, i64)| *of >= interval && *seen > now - *of;
        let since = self.known.iter().filter(live).map(|(_, since, _)| *since);
        let shortest = self.known.iter().map(|(of, ..)| *of).min().unwrap_or(0);
        since.min().unwrap_or(now) - shortest.min(interval)
    }

    /// Notes a grant by an interval.
    fn count_by(&mut self, now: i64, interval: i64) {
        match self.known.iter_mut().find(|(of, ..)| *of == interval) {
            Some((_, since, seen)) => {
                if *seen <= now - interval {
                    *since = now;
                }
                *seen = now;
            }
            None => self.known.push((interval, now, now)),
        }
    }
}

pub(super) fn instant(now: i64) -> Now {
    Now::millis(now).by_caller(true)
}
