//! The result of counting one charge, before it becomes a decision: [`Answer`].

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Now,
    decision::{Decision, Grant, LimitState, Refusal, Source},
    demand::{Acquire, LimiterCharge},
    limit::Counting,
    limit::{Algorithm, StoredLimit, at_least_zero},
    list::List,
    receipt::{Receipt, Settled, Taken},
};

/// The result of counting one charge by its algorithm, in any store, apart from the other charges
/// of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    /// Permits left; below zero after a lowered rate.
    pub(crate) remaining: i64,
    /// Ticks until the permits asked for are free; 0 when granted.
    pub(crate) wait: i64,
    /// Ticks until at least one more permit is free; 0 when refused, and where it is not known.
    pub(crate) next: i64,
    /// Ticks until all permits are free.
    pub(crate) reset: i64,
    /// The time that was used; the epoch where a sliding log in Redis did not return it.
    pub(crate) now: Now,
    pub(crate) rate: i64,
    pub(crate) interval: i64,
    pub(crate) changed: Changed,
    /// Scores that were set back because a wrong clock had made them.
    pub(crate) repaired: i64,
    /// The mark that the receipt of a grant keeps, if the algorithm returns it in the answer.
    pub(crate) taken: Option<Taken>,
    /// Set if it is of an untracked name, for which a store in memory has no place.
    pub(crate) estimated: bool,
    /// Set if its rule bans the caller: the wait is the longer one, of the ban and of the limit.
    pub(crate) banned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Refused,
    /// More was asked for than the rate: refused for ever
    AboveRate,
}

/// The change of the stored limit by an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Nothing,
    Created,
    Rewritten,
}

impl Answer {
    /// Returns the answer of a limiter that nothing was taken from yet.
    pub(crate) fn new(limit: &StoredLimit, changed: Changed, now: Now) -> Self {
        Self {
            verdict: Verdict::Granted,
            remaining: 0,
            wait: 0,
            next: 0,
            reset: 0,
            now,
            rate: limit.rate,
            interval: limit.interval,
            changed,
            repaired: 0,
            taken: None,
            estimated: false,
            banned: false,
        }
    }

    /// Returns the same answer for one of the callers. A refused caller has its `wait` and no
    /// `next`.
    pub(crate) fn for_caller(self, verdict: Verdict, wait: i64) -> Self {
        let next = if verdict == Verdict::Granted {
            self.next
        } else {
            0
        };
        Self {
            verdict,
            wait,
            next,
            ..self
        }
    }

    /// Returns the receipt of a grant by this limiter.
    fn receipt(&self, charge: &LimiterCharge) -> Receipt {
        let Counting {
            algorithm, slots, ..
        } = charge.of().counting;
        let taken = match algorithm {
            _ if self.estimated => Some(Taken::Estimate),
            Algorithm::SlidingLog => slots.map(|slots| {
                let interval = self.now.ticks(self.interval);
                Taken::Slot(slots.end(self.now.score(), interval))
            }),
            // All permits are free one tick after the window's last.
            Algorithm::FixedWindow => {
                let last = self.now.tick.saturating_add(self.reset).saturating_sub(1);
                Some(Taken::Window(last))
            }
            Algorithm::Gcra | Algorithm::Calendar => self.taken,
        };
        Receipt {
            interval: Duration::from_millis(at_least_zero(self.interval)),
            taken: taken.map(|taken| (taken, Settled::default())),
            ..charge.receipt_made(None)
        }
    }

    /// Returns the limit as this answer leaves it.
    pub(crate) fn state(&self, charge: &LimiterCharge, counted: bool) -> LimitState {
        let refused = self.verdict != Verdict::Granted || self.banned;
        let wait = match refused {
            true => {
                (self.verdict == Verdict::Refused || self.banned).then(|| self.now.until(self.wait))
            }
            false => (counted && self.next > 0).then(|| self.now.until_from_score(self.next)),
        };
        LimitState {
            of: Arc::clone(charge.of()),
            limiter: charge.name().text().seeded_hash(),
            permits: at_least_zero(self.rate),
            interval: at_least_zero(self.interval),
            remaining: counted.then_some(at_least_zero(self.remaining)),
            wait,
            reset_after: self.now.until_from_score(self.reset),
            refused,
            shadow: charge.shadow,
            banned: self.banned,
        }
    }
}

impl Acquire {
    /// Returns the decision on a single charge.
    #[inline]
    pub(crate) fn decision_alone(&self, answer: &Answer) -> Decision {
        let charge = &self.first;
        let above_rate = answer.verdict == Verdict::AboveRate && !charge.shadow;
        let counted = self.wants_remaining || answer.verdict == Verdict::Refused;
        let limits = List::from([answer.state(charge, counted && !above_rate)]);
        if answer.verdict == Verdict::Granted {
            let receipts = List::from([answer.receipt(charge)]);
            return Decision::Allow(Grant::new(limits, receipts, Source::Store));
        }
        if charge.shadow {
            return Decision::Allow(Grant::new(limits, List::new(), Source::Store));
        }
        let wait = (!above_rate).then(|| answer.now.until(answer.wait));
        Decision::Deny(Refusal::by_limits(limits, wait, Source::Store))
    }

    /// Returns what the answers to its charges, one for each, come to.
    pub(crate) fn decision(&self, answers: &[Answer]) -> Decision {
        let answered = || self.charges().zip(answers);
        let (mut above_rate, mut refused, mut wait) = (false, false, Duration::ZERO);
        let mut banned = false;
        for (_, answer) in answered().filter(|(charge, _)| !charge.shadow) {
            above_rate |= answer.verdict == Verdict::AboveRate;
            refused |= answer.verdict == Verdict::Refused;
            banned |= answer.banned;
            wait = answer.now.until(answer.wait).max(wait);
        }
        let mut limits = List::with_capacity(answers.len());
        for (charge, answer) in answered() {
            let counted = self.wants_remaining || answer.verdict == Verdict::Refused;
            limits.push(answer.state(charge, counted && !above_rate && !banned));
        }
        if limits.len() > 1 {
            limits.sort_by(LimitState::by_tightness);
        }
        let source = match answers.iter().any(|answer| answer.estimated) {
            true => Source::Estimate,
            false => Source::Store,
        };
        if banned {
            // What else it asks for makes no difference.
            for limit in &mut limits {
                limit.refused &= limit.wait.is_some();
            }
            return Decision::Deny(Refusal::banned(limits, wait, source));
        }
        if !above_rate && !refused {
            let taken = answered().filter(|(_, answer)| answer.verdict == Verdict::Granted);
            let mut receipts = List::with_capacity(answers.len());
            receipts.extend(taken.map(|(charge, answer)| answer.receipt(charge)));
            return Decision::Allow(Grant::new(limits, receipts, source));
        }
        let wait = (!above_rate).then_some(wait);
        Decision::Deny(Refusal::by_limits(limits, wait, source))
    }
}
