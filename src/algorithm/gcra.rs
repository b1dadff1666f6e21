//! The algorithm GCRA, a token bucket: decides in Rust as `lua/gcra` does in Redis.
//!
//! Each permit is in use for one emission interval, one after the other. The theoretical arrival
//! time (TAT) is when all of them are free: its distance from now is the number of permits in use.
//! All times are microseconds, whatever a tick of the clock is.

mod pace;

use self::pace::MOST;
pub(crate) use self::pace::Pace;
use super::{
    answer::Answer,
    limiter::{CallContext, Counter, GiveBack, Needs},
};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::{self, StoredLimit},
    receipt::{Taken, Tat},
};

/// The value at which the sum of what was given back wraps around to zero.
const WRAP: i64 = 1 << 52;

/// The permits of one limiter that are in use, as one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gcra {
    pub(crate) stored: Option<State>,
    /// No TAT that it held is later: until then receipts must find what was given back.
    pub(crate) ends: i64,
    /// When it was last begun with nothing in use, rounded up: what is in use is counted from then,
    /// so that a call within the same microsecond does not find that more than was taken.
    pub(crate) since: i64,
}

/// The number that Redis stores: what is in use, and the limit by which it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tat: Tat,
    pub(crate) rate: i64,
    /// In ms
    pub(crate) interval: i64,
}

impl State {
    /// Returns whether it was counted by this limit.
    fn is_by(&self, pace: &Pace) -> bool {
        (self.rate, self.interval) == (pace.rate, pace.interval)
    }
}

impl Counter for Gcra {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::Gcra
    }

    fn check(&self, limit: &StoredLimit) -> Result<(), ErrorKind> {
        pace(limit).map(drop)
    }

    fn begin(&mut self, call: &CallContext, _wanted: i64) -> i64 {
        // It was checked.
        pace(&call.limit).map_or(0, |pace| pace.left(self.count_by(&pace, call.now)))
    }

    fn end(&mut self, call: &CallContext, answer: &mut Answer, needs: &mut [Needs]) {
        let now = call.now;
        let Ok(pace) = pace(&call.limit) else {
            // Never: it was checked.
            let never = now.ticks_of_micros(MOST);
            return needs.iter_mut().for_each(|needs| needs.wait = never);
        };
        // The call has begun by this limit.
        let from = self.from(now);
        let mut backlog = (self.stored).map_or(0, |state| (state.tat.at - from).max(0));
        let taken = pace.left(backlog) - answer.remaining;
        // A call that takes nothing makes no state.
        if taken > 0 {
            backlog = self.write(&pace, backlog, pace.cost(taken), now);
        }
        // From the tick of now on, as there may be room in the next one.
        let late = self.from(now) - now.micros();
        let next = pace.next_of(backlog, pace.rate - answer.remaining);
        let backlog = backlog + late;
        for needs in needs {
            let in_line = needs.permits + needs.rounds * pace.rate;
            needs.wait = now.ticks_of_micros(pace.wait(backlog, in_line));
        }
        answer.next = match next {
            0 => 0,
            next => now.ticks_of_micros(next + late),
        };
        answer.reset = now.ticks_of_micros(backlog);
        answer.taken = self.stored.map(|state| Taken::Tat(state.tat));
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let pace = pace(&call.limit)?;
        // A call that takes nothing changes no limit.
        let backlog = match self.stored.filter(|state| !state.is_by(&pace)) {
            Some(_) => self.backlog(&pace, call.now),
            None => self.count_by(&pace, call.now),
        };
        Ok(pace.left(backlog))
    }

    fn release(&mut self, call: &CallContext, wanted: i64) -> Result<i64, ErrorKind> {
        let pace = pace(&call.limit)?;
        let backlog = self.backlog(&pace, call.now);
        let released = pace.used(backlog).min(wanted);
        if released > 0 {
            let rest = (backlog - pace.cost(released)).max(0);
            self.write(&pace, rest, 0, call.now);
        }
        Ok(released)
    }

    /// Gives back what still lies ahead of permits that a grant took when it left the TAT in its
    /// receipt.
    fn give_back(&mut self, back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        let limit = back.limit.ok_or(ErrorKind::NotInitialized)?;
        let (pace, now) = (pace(&limit)?, back.now);
        let (Some(state), Some(Taken::Tat(tat))) = (self.stored, back.taken) else {
            return Ok(0);
        };
        let backlog = self.backlog(&pace, now);
        // What was given back since may have been before it, and has brought it forward by as much;
        // so has a greater limit.
        let since = (state.tat.given - tat.given).rem_euclid(WRAP)
            + (state.tat.at - self.from(now) - backlog).max(0);
        let ahead = (tat.at - since - now.micros_up()).min(backlog);
        let moved = pace.cost(back.permits.into()).min(ahead);
        if moved <= 0 {
            return Ok(0);
        }
        self.write(&pace, backlog - moved, 0, now);
        Ok(pace.used(moved))
    }

    fn charge(&mut self, call: &CallContext, permits: u32) -> i64 {
        if let Ok(pace) = pace(&call.limit) {
            let backlog = self.backlog(&pace, call.now);
            self.write(&pace, backlog, pace.cost(permits.into()), call.now);
        }
        permits.into()
    }

    /// Forgets what is in use beyond the whole limit, by any clock.
    fn repair(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let (pace, now) = (pace(&call.limit)?, call.now);
        let backlog = self.ahead(&pace, now, false);
        let from = self.from(now);
        if self.stored.is_some_and(|state| state.tat.at > from) {
            // A wrong clock may have put it far off.
            self.ends = 0;
            self.write(&pace, backlog.min(pace.whole()), 0, now);
        }
        Ok((pace.used(backlog) - pace.rate).max(0))
    }

    fn change_limit(&mut self, _before: Option<&StoredLimit>, limit: &StoredLimit, now: Now) {
        if let Ok(pace) = pace(limit) {
            self.count_by(&pace, now);
        }
    }

    fn forget(&mut self) {
        self.stored = None;
    }

    fn full_at(&self, _limit: &StoredLimit) -> Option<i64> {
        self.stored.map(|_| self.ends)
    }

    fn end_of_life(&self, limit: &StoredLimit, now: Now) -> i64 {
        self.full_at(limit).unwrap_or(now.tick)
    }
}

impl Gcra {
    /// Counts what is in use by this limit from now on. Returns how far TAT lies ahead.
    ///
    /// Where it lies further ahead than the limit allows it is set back, so that the work of a
    /// wrong clock is over an interval after a call has met it.
    fn count_by(&mut self, pace: &Pace, now: Now) -> i64 {
        let backlog = self.backlog(pace, now);
        let most = self.from(now).saturating_add(backlog);
        if (self.stored).is_some_and(|state| !state.is_by(pace) || state.tat.at > most) {
            self.write(pace, backlog, 0, now);
        }
        backlog
    }

    /// Returns how far TAT lies ahead by this limit: by the store's own clock no further than all
    /// permits take, as more than those was never in use. By a caller's, which may be slow, that
    /// proves nothing.
    fn backlog(&self, pace: &Pace, now: Now) -> i64 {
        self.ahead(pace, now, now.is_own)
    }

    /// The same, `cut` to what all permits take or not. What was counted by another limit is the
    /// same permits at the pace of this one, within what it can hold.
    fn ahead(&self, pace: &Pace, now: Now, cut: bool) -> i64 {
        let Some(state) = self.stored else {
            return 0;
        };
        let ahead = (state.tat.at - self.from(now)).max(0);
        let cut_to = |pace: &Pace, ahead: i64| if cut { ahead.min(pace.whole()) } else { ahead };
        if state.is_by(pace) {
            return cut_to(pace, ahead);
        }
        let Some(old) = Pace::of(state.rate, state.interval) else {
            return cut_to(pace, ahead);
        };
        let used = old.used(cut_to(&old, ahead));
        pace.cost(used).min(pace.whole())
    }

    /// Returns the time from which what is in use counts, in us: now, rounded down; in the
    /// microsecond in which the first of it was taken, the time of that.
    fn from(&self, now: Now) -> i64 {
        if self.since == now.micros_up() {
            self.since
        } else {
            now.micros()
        }
    }

    /// Stores how much lies ahead of now: what is `kept` of what did, and what is `added`, up to
    /// the whole limit: a debt lasts no longer. For receipts, what is not kept was given back.
    /// Returns how much it is.
    fn write(&mut self, pace: &Pace, kept: i64, added: i64, now: Now) -> i64 {
        if kept == 0 {
            // Rounded up, as any grant is.
            self.since = now.micros_up();
        }
        let from = self.from(now);
        let given = self.stored.map_or(0, |State { tat, .. }| {
            (tat.given + (tat.at - from - kept).max(0)).rem_euclid(WRAP)
        });
        let most = pace.whole().max(kept).min(MOST - from);
        let backlog = kept.saturating_add(added).min(most);
        let at = from + backlog;
        self.ends = self.ends.max(at);
        self.stored = Some(State {
            tat: Tat { at, given },
            rate: pace.rate,
            interval: pace.interval,
        });
        backlog
    }
}

fn pace(limit: &StoredLimit) -> Result<Pace, ErrorKind> {
    Pace::of(limit.rate, limit.interval).ok_or(ErrorKind::ForeignState)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{
            answer::Verdict,
            limiter::{LimiterState, Terms},
        },
        clock::ManualClock,
        demand::LimiterCharge,
        limit::{Limit, LimitSource},
        receipt::PermitId,
    };

    /// In us
    const START: i64 = 1_700_000_000_000_000;
    const NOW: Now = Now::at(START);

    const ID: PermitId = PermitId::NONE;

    type Limiter = LimiterState<Gcra>;

    fn fresh(rate: u64, millis: u64) -> Limiter {
        Limiter {
            limit: Some(Limit::new(rate, Duration::from_millis(millis)).stored()),
            ..Limiter::default()
        }
    }

    /// Settles a grant of this many permits.
    fn settle(
        limiter: &mut Limiter,
        (permits, keep): (u32, u32),
        tat: Tat,
    ) -> Result<i64, ErrorKind> {
        let charge = LimiterCharge::plain(LimitSource::Store, permits, ID);
        let receipt = charge.counted_by(limit::Algorithm::Gcra).receipt();
        limiter.settle(&receipt, Some(Taken::Tat(tat)), keep, NOW)
    }

    /// Asks for one permit by the store's limit.
    fn acquire(limiter: &mut Limiter, clock: &ManualClock) -> Answer {
        let charge = LimiterCharge::plain(LimitSource::Store, 1, ID);
        let answer = limiter.acquire_one(&charge, Terms::HERE, true, Now::by(clock));
        answer.unwrap()
    }

    fn give_back(limiter: &mut Limiter, permits: u32, tat: Tat) -> Result<i64, ErrorKind> {
        settle(limiter, (permits, 0), tat)
    }

    /// Takes permits as a charge does, whatever is left.
    fn take(limiter: &mut Limiter, permits: u32, now: i64) -> Tat {
        let limit = limiter.limit.unwrap();
        let call = CallContext::of_verb(limit, Now::at(now), ID);
        let charged = limiter.state.charge(&call, permits);
        assert_eq!(charged, i64::from(permits));
        limiter.state.stored.unwrap().tat
    }

    #[test]
    fn a_call_that_takes_nothing_makes_no_state() {
        let (mut limiter, clock) = (Limiter::default(), ManualClock::new());
        let limit = LimitSource::Code(Limit::new(5, Duration::from_secs(1)));
        let charge = LimiterCharge::plain(limit, 6, ID);
        let answer = limiter.acquire_one(&charge, Terms::HERE, true, Now::by(&clock));
        assert_eq!(answer.unwrap().verdict, Verdict::AboveRate);
        assert!(limiter.limit.is_some() && limiter.state.stored.is_none());
    }

    /// Without a TAT, its receipt was settled before.
    #[test]
    fn a_settled_receipt_and_one_of_another_algorithm_change_nothing() {
        let mut limiter = fresh(5, 1000);
        let tat = take(&mut limiter, 1, START);
        for (algorithm, taken) in [
            (limit::Algorithm::Gcra, None),
            (limit::Algorithm::SlidingLog, Some(Taken::Tat(tat))),
        ] {
            let charge = LimiterCharge::plain(LimitSource::Store, 1, ID);
            let receipt = charge.counted_by(algorithm).receipt();
            for keep in [0, 3] {
                assert_eq!(limiter.settle(&receipt, taken, keep, NOW), Ok(0));
            }
        }
        assert_eq!(limiter.state.stored.unwrap().tat, tat);
    }

    proptest! {
        // L2, whatever is in use.
        #[test]
        fn there_is_room_when_the_wait_is_over_and_none_before(
            rate in 1i64..5000,
            interval in prop::sample::select(vec![5i64, 7, 1000, 60_000]),
            used in 1u32..6000,
            wanted in 0i64..5000,
            pause in 0i64..10_000_000,
        ) {
            let wanted = wanted % rate + 1;
            let pace = Pace::of(rate, interval).unwrap();
            let mut limiter = fresh(rate.unsigned_abs(), interval.unsigned_abs());
            take(&mut limiter, used, START);
            let now = START + pause;
            let backlog = limiter.state.backlog(&pace, Now::at(now));
            // A debt, too.
            prop_assert!(backlog <= pace.whole());
            let wait = pace.wait(backlog, wanted);
            let mut left = |now| limiter.available(Now::at(now), ID).unwrap();
            if left(now) >= wanted {
                prop_assert!(wait <= 0);
            } else {
                prop_assert!(left(now + wait) >= wanted);
                prop_assert!(left(now + wait - 1) < wanted);
            }
            // All of them are free after that time, and not before.
            prop_assert_eq!(left(now + backlog), rate);
            if backlog > 0 {
                prop_assert!(left(now + backlog - 1) < rate);
            }
        }
    }

    #[test]
    fn a_stored_limit_that_cannot_be_counted_by_is_an_error_that_changes_nothing() {
        let foreign = StoredLimit {
            rate: 3001,
            ..Limit::new(3000, Duration::from_millis(3)).stored()
        };
        let mut limiter = Limiter {
            limit: Some(foreign),
            ..Limiter::default()
        };
        let charge = LimiterCharge::plain(LimitSource::Store, 1, ID);
        let answer = limiter.acquire_one(&charge, Terms::HERE, false, NOW);
        assert_eq!(answer, Err(ErrorKind::ForeignState));
        let given = Tat { at: 0, given: 0 };
        for settled in [(1, 0), (1, 2)] {
            let settled = settle(&mut limiter, settled, given);
            assert_eq!(settled, Err(ErrorKind::ForeignState));
        }
        assert_eq!(limiter.available(NOW, ID), Err(ErrorKind::ForeignState));
        assert_eq!((limiter.limit, limiter.state.stored), (Some(foreign), None));
    }

    #[test]
    fn it_is_kept_until_no_receipt_can_give_back_any_more() {
        let mut limiter = fresh(10, 1000);
        assert_eq!(limiter.full_at(), None);
        let tat = take(&mut limiter, 4, START);
        let until = START + 400_000;
        assert_eq!(limiter.full_at(), Some(until));
        assert_eq!(give_back(&mut limiter, 4, tat), Ok(4));
        assert_eq!(limiter.available(NOW, ID), Ok(10));
        assert_eq!(limiter.repair(NOW), Ok(0));
        assert_eq!(limiter.full_at(), Some(until));
        // What is charged beyond the whole limit is forgotten at once.
        take(&mut limiter, 50, START);
        assert_eq!(limiter.full_at(), Some(START + 1_000_000));
        assert_eq!(limiter.available(NOW, ID), Ok(0));
        assert_eq!(limiter.repair(NOW), Ok(0));
    }

    // A clock that was wrong, and is set right: who asks first finds no more in use than the limit,
    // and an interval later nothing is.
    #[test]
    fn what_a_wrong_clock_has_made_is_over_an_interval_after_it_was_met() {
        const HOUR: i64 = 3_600_000_000;
        let fast = |permits| {
            let mut limiter = fresh(10, 1000);
            take(&mut limiter, permits, START + HOUR);
            limiter
        };
        for permits in [1, 10, 50] {
            let mut limiter = fast(permits);
            assert_eq!(limiter.available(NOW, ID), Ok(0));
            assert_eq!(limiter.available(Now::at(START + 300_000), ID), Ok(3));
            assert_eq!(limiter.available(Now::at(START + 1_000_000), ID), Ok(10));
        }
        // The lost permits are those in use beyond the limit: the whole hour's.
        assert_eq!(fast(1).repair(NOW), Ok(10 * 3600 + 1 - 10));
        // Nor is it more by another limit, which takes over what is in use.
        let mut limiter = fast(10);
        let faster = fresh(20, 1000).limit.unwrap();
        limiter.set_rate(faster, true, NOW);
        assert_eq!(limiter.available(NOW, ID), Ok(10));
    }

    #[test]
    fn no_tat_is_later_than_a_script_can_count() {
        let mut limiter = fresh(1, 60_000);
        for _ in 0..2 {
            let tat = take(&mut limiter, u32::MAX, MOST - 1000);
            assert_eq!(tat.at, MOST);
        }
        // Nor is it by another limit.
        let mut limiter = fresh(1, 60_000);
        take(&mut limiter, 1, MOST - 1000);
        limiter.limit = fresh(1, 120_000).limit;
        let call = CallContext::of_verb(limiter.limit.unwrap(), Now::at(MOST - 1000), ID);
        limiter.state.begin(&call, 1);
        assert_eq!(limiter.state.stored.unwrap().tat.at, MOST);
    }

    // L2 and the whole limit at once, by a clock that is finer than what is counted in.
    #[test]
    fn all_permits_are_there_within_one_microsecond() {
        let clock = ManualClock::new();
        let mut limiter = fresh(10, 1);
        for _ in 0..2 {
            clock.advance(Duration::from_nanos(2_000_300));
            for left in (0..10).rev() {
                clock.advance(Duration::from_nanos(10));
                let answer = acquire(&mut limiter, &clock);
                let found = (answer.verdict, answer.remaining, answer.next, answer.reset);
                // From the tick of now, which is rounded down.
                let taken = 10 - left;
                assert_eq!(found, (Verdict::Granted, left, 101, taken * 100 + 1));
            }
            let answer = acquire(&mut limiter, &clock);
            assert_eq!((answer.verdict, answer.wait), (Verdict::Refused, 101));
        }
    }

    #[test]
    fn it_lives_until_nothing_is_in_use() {
        let mut limiter = fresh(10, 1000);
        let limit = limiter.limit.unwrap();
        assert_eq!(limiter.state.end_of_life(&limit, NOW), START);
        take(&mut limiter, 4, START);
        assert_eq!(limiter.state.end_of_life(&limit, NOW), START + 400_000);
    }

    #[test]
    fn the_sum_of_what_was_given_back_wraps_around() {
        let mut limiter = fresh(10, 1000);
        let first = take(&mut limiter, 1, START);
        let given = WRAP - 150_000;
        let state = limiter.state.stored.unwrap();
        limiter.state.stored = Some(State {
            tat: Tat { given, ..first },
            ..state
        });
        let early = Tat { given, ..first };
        let [second, third] = [3, 2].map(|permits| take(&mut limiter, permits, START));
        assert_eq!((second.given, third.given), (given, given));
        assert_eq!(give_back(&mut limiter, 3, second), Ok(3));
        assert_eq!(limiter.state.stored.unwrap().tat.given, 150_000);
        // What was given back since counts, also beyond the end of the sum: a late receipt takes no
        // more than its own.
        assert_eq!(give_back(&mut limiter, 1, early), Ok(0));
        assert_eq!(give_back(&mut limiter, 2, third), Ok(2));
        assert_eq!(limiter.available(NOW, ID), Ok(9));
    }
}
