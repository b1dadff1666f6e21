//! A sliding log that counts by several limits, as `lua/packed/log.lua` does in Redis: the longest
//! interval says what is in the log, and each shorter one counts the newest part of it.

use super::{Entry, SlidingLog};
use crate::{
    algorithm::{
        answer::{Answer, Each, OfLimit},
        limiter::{CallContext, Needs},
    },
    values::{
        clock::Now,
        limit::{MOST_LIMITS, Shorter},
    },
};

/// One of the limits; times are in ticks.
#[derive(Clone, Copy, Debug)]
struct ByLimit {
    rate: i64,
    interval: i64,
    remaining: i64,
}

impl SlidingLog {
    /// Returns the fewest permits left by any limit, if `value` are left by the longest.
    pub(super) fn least(&self, shorter: Shorter, now: Now, value: i64) -> i64 {
        let each = self.by_shorter(shorter, now);
        each.map(|by| by.remaining).fold(value, i64::min)
    }

    fn by_shorter(&self, shorter: Shorter, now: Now) -> impl Iterator<Item = ByLimit> {
        shorter.iter().map(move |part| {
            let (rate, interval) = (
                part.permits.cast_signed(),
                now.ticks(part.interval.cast_signed()),
            );
            ByLimit {
                rate,
                interval,
                remaining: rate - self.log.permits_after(now.tick - interval),
            }
        })
    }

    /// Ends a call: `value` are left by the longest limit. Says how each limit stands, gives
    /// `needs` the longest of their waits, and the answer what the tightest says.
    pub(super) fn end_each(
        &self,
        shorter: Shorter,
        call: &CallContext,
        value: i64,
        answer: &mut Answer,
        needs: &mut [Needs],
    ) {
        let now = call.now;
        let longest = ByLimit {
            rate: call.limit.rate,
            interval: call.interval(),
            remaining: value,
        };
        let all: Vec<ByLimit> = [longest]
            .into_iter()
            .chain(self.by_shorter(shorter, now))
            .collect();
        let mut each: Each = [OfLimit::default(); MOST_LIMITS];
        let first = needs.first().map(|it| self.permits_of(it, call));
        for (of, by) in each.iter_mut().zip(&all) {
            *of = OfLimit {
                remaining: by.remaining,
                next: if by.remaining < by.rate {
                    self.time_until(by, by.remaining.saturating_add(1), now)
                } else {
                    0
                },
                wait: first.map_or(0, |permits| self.time_until(by, permits, now)),
            };
        }
        for needs in needs {
            let permits = self.permits_of(needs, call);
            let waits = all.iter().map(|by| self.time_until(by, permits, now));
            needs.wait = waits.max().unwrap_or(0);
        }
        let each_of = each.iter().take(all.len());
        if let Some(tightest) = each_of.min_by_key(|of| (of.remaining, of.next)) {
            answer.remaining = tightest.remaining;
            answer.next = tightest.next;
        }
        answer.each = Some(Box::new(each));
    }

    /// Returns what must be free, with those that wait before: the rounds are of the least limit.
    fn permits_of(&self, needs: &Needs, call: &CallContext) -> i64 {
        let round = self.most(call);
        needs.permits + needs.rounds.saturating_mul(round)
    }

    /// Returns the ticks until so many permits are free by a limit: 0 for now. More than its rate
    /// is never free at once, so each further rate takes an interval more.
    fn time_until(&self, by: &ByLimit, permits: i64, now: Now) -> i64 {
        let rounds = (permits - 1).max(0) / by.rate.max(1);
        let missing = permits - rounds * by.rate - by.remaining;
        let mut freed = 0;
        let mut living = self.log.after(now.tick - by.interval);
        let last = living.find(|entry| {
            freed += i64::from(entry.permits);
            freed >= missing
        });
        let frees = |entry: &Entry| entry.score + by.interval - now.tick;
        let wait = last.filter(|_| missing > 0).map_or(0, frees);
        wait.saturating_add(rounds.saturating_mul(by.interval))
    }
}
