//! A sliding log as a call counts by its own limits.

use super::{Log, MOST_AHEAD, MOST_SPANS, Record, Span, sum_of};
use crate::twin::{
    Clock, Id, Limit, MOST, MOST_I6,
    call::Ahead,
    reply::Standing,
    state::{ADDED, Callers, State},
};

/// The log, and how it stands by the limits of a call.
#[derive(Clone, Debug)]
pub struct Count {
    log: Log,
    limits: Vec<Limited>,
    /// Set if the state must be written whole.
    whole: bool,
    /// The longest time by which permits were fetched ahead
    lead: i64,
    now: i64,
}

/// How the log stands by one limit.
#[derive(Clone, Copy, Debug)]
struct Limited {
    limit: Limit,
    /// As it is written with the next grant
    span: Span,
    /// Permits left
    left: i64,
}

impl Count {
    /// Counts what is in use by these limits, the longest first.
    pub fn of(stored: Option<&State>, limits: &[Limit], clock: Clock) -> Self {
        let (now, mut log) = (clock.now(), Log::default());
        let is_live = matches!(stored, Some(State::Log(log)) if log.lives(now));
        match stored {
            Some(State::Log(stored)) if is_live => log = stored.clone(),
            Some(State::Log(_)) | None => {}
            Some(state) => {
                let rate = limits.first().map_or(0, |limit| limit.rate);
                let permits = state.in_use(rate, clock).min(MOST_I6);
                // In use from now on
                let slot = Record {
                    permits,
                    time: now,
                    ..Record::default()
                };
                log.records.extend((permits > 0).then_some(slot));
            }
        }
        let mut count = Self {
            log,
            limits: Vec::new(),
            whole: !is_live,
            lead: 0,
            now,
        };
        count.limits = limits.iter().map(|limit| count.by(*limit)).collect();
        count
    }

    /// Counts by one limit: from its own span, or along the records that the longest one has.
    fn by(&self, limit: Limit) -> Limited {
        let Limit { interval, rate } = limit;
        let log = &self.log;
        let of_same = log.spans.iter().find(|span| span.interval == interval);
        let mut span = of_same.copied().unwrap_or_else(|| {
            let start = log.spans.first().map_or(0, |longest| longest.start);
            let records = log.records.get(start..).unwrap_or_default();
            Span {
                interval,
                rate,
                used: sum_of(records).1,
                start,
                seen: 0,
            }
        });
        span.advance(&log.records, self.now);
        (span.rate, span.seen) = (rate, self.now);
        let left = rate - span.used.saturating_add(log.used_ahead(interval, self.now));
        Limited { limit, span, left }
    }

    /// Puts the spans of this call's limits among those of the log. Beyond the most, the shortest
    /// of another call goes.
    fn write_spans(&mut self) {
        let spans = &mut self.log.spans;
        for limited in &self.limits {
            let place = spans.partition_point(|span| span.interval > limited.span.interval);
            match spans.get_mut(place) {
                Some(span) if span.interval == limited.span.interval => *span = limited.span,
                _ => spans.insert(place, limited.span),
            }
        }
        let is_other = |span: &Span| {
            let mut each = self.limits.iter();
            each.all(|limited| limited.span.interval != span.interval)
        };
        while let Some(place) = spans.iter().rposition(is_other)
            && spans.len() > MOST_SPANS
        {
            spans.remove(place);
        }
    }

    /// Takes over the sums that a grant has changed. What was promoted may live again by its new
    /// time, or be dead by a short interval, whose start has not moved past it.
    fn read_spans(&mut self) {
        for place in 0..self.limits.len() {
            let mut limited = self.limits[place];
            let mut each = self.log.spans.iter();
            if let Some(span) = each.find(|span| span.interval == limited.span.interval) {
                limited.span = *span;
            }
            limited.left = limited.limit.rate - sum_of(self.living(&limited)).1;
            self.limits[place] = limited;
        }
    }

    fn least_left(&self) -> i64 {
        let each = self.limits.iter().map(|limited| limited.left);
        each.min().unwrap_or(0)
    }

    /// Returns the ms until a limit has one more permit.
    fn next(&self, limited: &Limited) -> i64 {
        let interval = limited.limit.interval;
        let oldest = self.living(limited).map(|record| record.time).min();
        oldest.map_or(interval, |time| time + interval - self.now)
    }

    /// Returns the ms until a limit has room; `None` if it never has.
    fn wait_by(&self, limited: &Limited, permits: i64) -> Option<i64> {
        let Limit { interval, rate } = limited.limit;
        let (missing, mut sum) = (permits - limited.left, 0_i64);
        if permits > rate {
            return None;
        }
        let mut living: Vec<_> = self.living(limited).filter(|_| missing > 0).collect();
        living.sort_by_key(|record| record.time);
        let enough = living.iter().find(|record| {
            sum = sum.saturating_add(record.permits);
            sum >= missing
        });
        // With permits that a damaged sum has alone, when all are free.
        let freed = enough.or(living.last());
        Some(freed.map_or(0, |record| record.time + interval - self.now))
    }

    /// Returns what lives by a limit, fetched ahead or not.
    fn living(&self, limited: &Limited) -> impl Iterator<Item = &Record> {
        let records = self.log.records.get(limited.span.start..);
        let each = records.unwrap_or_default().iter().chain(&self.log.ahead);
        let (interval, now) = (limited.limit.interval, self.now);
        each.filter(move |record| record.permits > 0 && record.lives(interval, now))
    }
}

impl crate::twin::count::Count for Count {
    fn room(&self, permits: i64) -> i64 {
        self.least_left().max(0) / permits.max(1)
    }

    fn take(&mut self, callers: &[Id], permits: i64) {
        self.write_spans();
        for id in callers {
            self.log.push(Callers::of(*id, 1), permits, self.now);
        }
        self.read_spans();
    }

    fn owe(&mut self, id: Id, permits: i64) {
        self.write_spans();
        self.log.push(Callers::of(id, ADDED), permits, self.now);
        self.read_spans();
    }

    fn fetch(&mut self, id: Id, ahead: Ahead) -> bool {
        let Ahead { permits, lead } = ahead;
        if self.room(permits) < 1 || self.log.ahead.len() >= MOST_AHEAD {
            return false;
        }
        self.log.ahead.push(Record {
            callers: Callers::of(id, 1),
            permits,
            time: self.now + lead,
        });
        for limited in &mut self.limits {
            limited.left -= permits;
        }
        self.lead = self.lead.max(lead);
        true
    }

    fn standing(&self) -> Standing {
        let left = self.least_left();
        let tight = self.limits.iter().filter(|limited| limited.left == left);
        let next = tight.map(|limited| self.next(limited));
        let next = next.min().unwrap_or(0);
        Standing::Left { left, next }
    }

    fn wait(&self, permits: i64) -> Option<i64> {
        let mut waits = self.limits.iter().map(|it| self.wait_by(it, permits));
        waits.try_fold(0, |longest, wait| Some(longest.max(wait?)))
    }

    fn each(&self, permits: i64) -> [Option<[i64; 3]>; 4] {
        let mut each = [None; 4];
        if self.limits.len() > 1 {
            for (told, by) in each.iter_mut().zip(&self.limits) {
                let wait = self.wait_by(by, permits).unwrap_or(MOST);
                *told = Some([by.left, self.next(by).min(by.limit.interval), wait]);
            }
        }
        each
    }

    fn reset(&self) -> i64 {
        let ahead = self.log.ahead.iter().map(|record| record.time);
        let newest = ahead.fold(self.log.newest(), i64::max);
        let longest = self
            .limits
            .first()
            .map_or(0, |limited| limited.limit.interval);
        (newest + longest - self.now).max(0)
    }

    fn state(&self) -> (State, bool, i64) {
        (State::Log(self.log.clone()), self.whole, self.lead)
    }
}
