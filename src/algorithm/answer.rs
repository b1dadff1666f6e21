//! The result of counting one charge, before it becomes a decision: [`Answer`].

use std::{mem, time::Duration};

use crate::values::{
    charge::{Charge, Settled, Standing, Taken},
    clock::Now,
    decision::{Charges, Decision, Grant, Refusal, Source},
    demand::Demand,
    limit::{ASKS_AGAIN, Algorithm, Counting, Limit, MOST_LIMITS, StoredLimit, at_least_zero},
};

/// The result of counting one charge by its algorithm, in any store, apart from the other charges
/// of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Set if it is of an untracked name, for which a store in memory has no room.
    pub(crate) estimated: bool,
    /// Set if its rule bans the caller: the wait is the longer one, of the ban and of the limit.
    pub(crate) banned: bool,
    /// How each of several limits stands, the longest first, if that was counted.
    pub(crate) each: Option<Box<Each>>,
}

/// How each of several limits stands.
pub(crate) type Each = [OfLimit; MOST_LIMITS];

/// How one of several limits stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfLimit {
    pub(crate) remaining: i64,
    /// Ticks until at least one more permit is free; 0 where it is not known.
    pub(crate) next: i64,
    /// Ticks until the first caller that the call refused has room; 0 if it has some.
    pub(crate) wait: i64,
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
            each: None,
        }
    }

    /// Returns it as that of one of the callers. A refused caller has its `wait` and no
    /// `next`.
    pub(crate) fn for_caller(self, verdict: Verdict, wait: i64) -> Self {
        let is_granted = verdict == Verdict::Granted;
        let next = if is_granted { self.next } else { 0 };
        Self {
            verdict,
            wait,
            next,
            ..self
        }
    }

    /// Returns the mark of a grant that it is the answer to, if it has no entry of its own.
    pub(crate) fn mark(&self, counting: Counting) -> Option<Taken> {
        match counting.algorithm {
            _ if self.estimated => Some(Taken::Estimate),
            Algorithm::SlidingLog => counting.slots.map(|slots| {
                let interval = self.now.ticks(self.interval);
                Taken::Slot(slots.end(self.now.score(), interval))
            }),
            // All permits are free one tick after the window's last.
            Algorithm::FixedWindow => self.taken.or_else(|| {
                let last = self.now.tick.saturating_add(self.reset).saturating_sub(1);
                Some(Taken::Window(last))
            }),
            Algorithm::Gcra | Algorithm::Calendar => self.taken,
        }
    }

    /// Returns how the limit stands after it.
    #[inline]
    pub(crate) fn standing(&self, counted: bool) -> Standing {
        let refused = self.verdict != Verdict::Granted || self.banned;
        let wait = if refused {
            (self.verdict == Verdict::Refused || self.banned).then(|| self.now.until(self.wait))
        } else {
            (counted && self.next > 0).then(|| self.now.until_from_score(self.next))
        };
        Standing {
            permits: at_least_zero(self.rate),
            interval: at_least_zero(self.interval),
            remaining: counted.then_some(at_least_zero(self.remaining)),
            wait,
            reset_after: self.now.until_from_score(self.reset),
            refused,
            banned: self.banned,
            granted: false,
        }
    }
}

impl Answer {
    /// Returns how each of several limits stands after it for a charge of so many permits, the
    /// closest to exhaustion first. What was not counted has no number.
    #[cold]
    fn standing_of_each(&self, limit: &Limit, permits: u32, counted: bool) -> Box<[Standing]> {
        let whole = self.standing(counted);
        let each = self.each.as_deref().filter(|_| counted && !self.banned);
        let all = limit.parts().enumerate().map(|(index, part)| {
            let is_possible = u64::from(permits) <= part.permits;
            let of = each.map(|each| each[index]);
            let refused = whole.refused
                && match of {
                    Some(of) => of.remaining < permits.into(),
                    None => self.banned || !is_possible,
                };
            let wait = match of {
                Some(of) if refused && is_possible => {
                    // That of another caller of the call may be longer.
                    let known = if of.wait > 0 { of.wait } else { self.wait };
                    Some(self.now.until(known.min(self.wait)))
                }
                Some(of) if !whole.refused && of.next > 0 => {
                    Some(self.now.until_from_score(of.next))
                }
                None if self.banned => whole.wait,
                _ => None,
            };
            // The longest is the last to be free, and a shorter one is so much sooner.
            let sooner = limit
                .interval()
                .saturating_sub(Duration::from_millis(part.interval));
            Standing {
                permits: part.permits,
                interval: part.interval,
                remaining: of.map(|of| at_least_zero(of.remaining)),
                wait,
                reset_after: whole.reset_after.saturating_sub(sooner),
                refused,
                ..whole
            }
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by(Standing::by_tightness);
        if let Some(first) = all.first_mut()
            && whole.refused
            && self.verdict == Verdict::Refused
        {
            // One may lack only what those take that wait before this caller.
            (first.refused, first.wait) = (true, whole.wait);
        }
        all.into()
    }
}

/// What the answers to the charges of a request come to.
pub(crate) struct Judged {
    source: Source,
    banned: bool,
    /// The wait of a refusal, unless waiting does not help; `None` for a grant.
    refused: Option<Option<Duration>>,
}

impl Demand {
    /// Returns what the answers to its charges, one for each, come to.
    pub(crate) fn decision(&self, answers: &[Answer]) -> Decision {
        let mut charges = self.charges.clone();
        judge(&mut charges, self.wants_remaining, answers.iter()).decision(charges)
    }

    /// Returns the same with its charges themselves, answered in place: it is used up.
    #[inline]
    pub(crate) fn decided<'a>(
        &mut self,
        answers: impl Iterator<Item = &'a Answer> + Clone,
    ) -> Decision {
        let judged = judge(&mut self.charges, self.wants_remaining, answers);
        judged.decision(mem::take(&mut self.charges))
    }
}

impl Judged {
    /// Returns the decision on these charges, which have their answers.
    #[inline]
    pub(crate) fn decision(self, charges: Charges) -> Decision {
        match self.refused {
            None => Decision::Allow(Grant::new(charges, self.source)),
            Some(Some(wait)) if self.banned => {
                Decision::Deny(Refusal::banned(charges, wait, self.source))
            }
            Some(wait) => Decision::Deny(Refusal::by_limits(charges, wait, self.source)),
        }
    }
}

/// Answers charges in place.
#[inline]
fn judge<'a>(
    charges: &mut [Charge],
    wants_remaining: bool,
    answers: impl Iterator<Item = &'a Answer> + Clone,
) -> Judged {
    if let ([charge], Some(answer)) = (&mut *charges, answers.clone().next())
        && !answer.banned
    {
        // One limit is the usual case.
        return charge.judge_alone(answer, wants_remaining);
    }
    let (mut above_rate, mut refused, mut banned) = (false, false, false);
    let (mut wait, mut source) = (Duration::ZERO, Source::Store);
    for (charge, answer) in charges.iter().zip(answers.clone()) {
        if answer.estimated {
            source = Source::Estimate;
        }
        if !charge.shadow {
            above_rate |= answer.verdict == Verdict::AboveRate;
            refused |= answer.verdict == Verdict::Refused;
            banned |= answer.banned;
            wait = charge.soonest(answer.now.until(answer.wait)).max(wait);
        }
    }
    let is_granted = !(above_rate || refused || banned);
    for (charge, answer) in charges.iter_mut().zip(answers) {
        if is_granted && answer.verdict == Verdict::Granted {
            charge.keep_standing(answer, wants_remaining, true);
            continue;
        }
        let counted = wants_remaining || answer.verdict == Verdict::Refused;
        charge.keep_standing(answer, counted && !above_rate && !banned, false);
        // What else a banned caller asks for makes no difference.
        charge.standing.refused &= !banned || charge.standing.wait.is_some();
    }
    if charges.len() > 1 {
        charges.sort_by(Charge::by_tightness);
    }
    let wait = (banned || !above_rate).then_some(wait);
    Judged {
        source,
        banned,
        refused: (!is_granted).then_some(wait),
    }
}

impl Charge {
    /// Keeps the answer to the only charge of a request.
    #[inline]
    pub(crate) fn judge_alone(&mut self, answer: &Answer, wants_remaining: bool) -> Judged {
        let is_granted = answer.verdict == Verdict::Granted;
        let refuses = !is_granted && !self.shadow;
        let counted = answer.verdict == Verdict::Refused || wants_remaining && !refuses;
        self.keep_standing(answer, counted, is_granted);
        let source = if answer.estimated {
            Source::Estimate
        } else {
            Source::Store
        };
        Judged {
            source,
            banned: false,
            refused: refuses.then_some(self.standing.wait),
        }
    }

    /// Keeps how its limit stands and, if it was granted, the mark by which it is settled. A log
    /// does not know when places in flight come back.
    #[inline]
    fn keep_standing(&mut self, answer: &Answer, counted: bool, granted: bool) {
        let mut standing = answer.standing(counted);
        standing.granted = granted;
        if self.compiled().is_in_flight() {
            let wait = standing.wait.filter(|_| standing.refused);
            standing.wait = wait.map(|wait| self.soonest(wait));
        }
        self.standing = standing;
        if let Some(limit) = self.compiled().limit.given()
            && limit.is_several()
        {
            self.each = Some(answer.standing_of_each(limit, self.permits, counted));
        }
        if granted && let Some(mark) = answer.mark(self.compiled().counting) {
            self.taken = Some((mark, Settled::default()));
        }
    }

    /// Returns the wait of a refusal; for places in flight, at most [`ASKS_AGAIN`].
    fn soonest(&self, wait: Duration) -> Duration {
        if self.compiled().is_in_flight() {
            wait.min(ASKS_AGAIN)
        } else {
            wait
        }
    }
}
