//! Decides for several callers or several limiters in one call.
//!
//! Pure functions on state. `lua/packed/decide.lua` does the same in Redis; in Redisson's format,
//! `lua/sliding_log/acquire_list.lua`.

use super::{
    answer::{Answer, Changed, Verdict},
    limiter::{CallContext, LimiterState, Needs},
};
use crate::values::{List, charge::Charge, clock::Now, demand::Demand, error::ErrorKind};

/// Takes permits for each caller, in the order in which they came, or finds when they will be free.
///
/// Each caller is granted whole, by all limiters, or not at all. One that waits and does not fit
/// holds up those behind it that wait; one that does not wait takes what is left. All go by the
/// limits of the first. There is one answer for each caller and limiter, those of the first caller
/// first, as they were left by the whole call. An error has changed nothing.
pub(crate) fn acquire<'a>(
    limiters: impl Iterator<Item = &'a mut LimiterState>,
    run: &[Demand],
    now: Now,
) -> Result<List<Answer>, ErrorKind> {
    let first = run.iter().flat_map(Demand::charges);
    let exact = run.iter().any(|caller| caller.wants_remaining);
    let mut txns = List::with_capacity(run.first().map_or(0, |caller| caller.charges.len()));
    for (limiter, first) in limiters.zip(first) {
        txns.push(Txn::new(limiter, first, exact, now)?);
    }
    let each = run
        .iter()
        .flat_map(|caller| caller.charges().zip(txns.iter()));
    let mut answers = List::with_capacity(run.len() * txns.len());
    answers.extend(each.map(|(charge, txn)| txn.first_answer(charge)));
    let hopeless = run.iter().map(|caller| is_hopeless(caller, &txns));
    let hopeless: List<bool> = hopeless.collect();
    if hopeless.iter().all(|hopeless| *hopeless) && txns.iter().all(|txn| !txn.has_changed()) {
        return Ok(answers);
    }
    for (index, txn) in txns.iter_mut().enumerate() {
        let hopeful = run.iter().zip(hopeless.iter());
        let hopeful = hopeful.filter(|(_, hopeless)| !**hopeless);
        txn.begin(hopeful.filter_map(|(caller, _)| caller.charges().nth(index)));
    }

    let mut refused = Refused::default();
    let width = txns.len();
    for (number, (caller, hopeless)) in run.iter().zip(hopeless.iter()).enumerate() {
        if *hopeless {
            continue;
        }
        if is_granted(caller, &txns) {
            // The same call came before, and took what it takes.
            for answer in answers.iter_mut().skip(number * width).take(width) {
                answer.verdict = Verdict::Granted;
            }
        } else if !is_above_rate(caller, &txns) {
            refused.serve(caller, &mut txns, number * width);
        }
        // Otherwise its old entry has expired: it stays above the rate.
    }
    for (index, txn) in txns.iter_mut().enumerate() {
        let mut needs = refused.unmet(index, txn);
        let closed = txn.close(&mut needs, width > 1);
        for needs in needs.iter() {
            let answer = &mut answers[needs.answer];
            (answer.verdict, answer.wait) = (Verdict::Refused, needs.wait);
        }
        for answer in answers.iter_mut().skip(index).step_by(width) {
            *answer = closed.clone().for_caller(answer.verdict, answer.wait);
        }
    }
    Ok(answers)
}

/// Returns whether the caller asks for more than a limit ever allows, and was not granted that
/// before the limit was lowered.
fn is_hopeless(caller: &Demand, txns: &[Txn<'_>]) -> bool {
    is_above_rate(caller, txns) && !is_granted(caller, txns)
}

fn is_above_rate(caller: &Demand, txns: &[Txn<'_>]) -> bool {
    let mut each = caller.charges().zip(txns);
    each.any(|(charge, txn)| !charge.shadow && !txn.is_possible(charge))
}

fn is_granted(caller: &Demand, txns: &[Txn<'_>]) -> bool {
    let mut each = caller.charges().zip(txns);
    each.any(|(charge, txn)| txn.holds(charge))
}

/// The callers of a call that were not granted, and what they need.
#[derive(Default)]
struct Refused {
    /// Set if one that waits was refused: none behind it that waits is granted.
    is_closed: bool,
    unmet: List<Unmet>,
}

/// The permits of one limiter that a refused caller needs. Another limiter of its list may have
/// refused it.
struct Unmet {
    /// The index of the limiter.
    limiter: usize,
    permits: i64,
    /// The index of the answer.
    answer: usize,
}

impl Refused {
    /// Takes what a caller asks for, if all of it fits. Its answers begin at an index.
    fn serve(&mut self, caller: &Demand, txns: &mut [Txn<'_>], answers_begin: usize) {
        let waits = caller.max_wait.is_some();
        let mut each = caller.charges().zip(txns.iter());
        let fits = each.all(|(charge, txn)| charge.shadow || txn.has_room(charge))
            && !(self.is_closed && waits);
        for (index, (charge, txn)) in caller.charges().zip(txns).enumerate() {
            if fits && txn.has_room(charge) {
                txn.take(charge);
            } else if txn.is_possible(charge) {
                let mut needs = i64::from(charge.permits);
                if waits && !charge.shadow {
                    needs += txn.in_line;
                    txn.in_line = needs;
                }
                self.unmet.push(Unmet {
                    limiter: index,
                    permits: needs,
                    answer: answers_begin + index,
                });
            }
        }
        self.is_closed |= !fits && waits;
    }

    /// The needs that a limiter has no room for in the end: after all grants, as a caller that
    /// another limiter refused has left its room to those behind it.
    fn unmet(&self, index: usize, txn: &Txn<'_>) -> List<Needs> {
        let without_room = self
            .unmet
            .iter()
            .filter(|unmet| unmet.limiter == index && unmet.permits > txn.answer.remaining);
        let mut needs: List<_> = without_room
            .map(|unmet| Needs::new(unmet.permits, txn.most, unmet.answer))
            .collect();
        needs.sort_unstable();
        needs
    }
}

/// One limiter during a call of several callers or limiters.
struct Txn<'a> {
    limiter: &'a mut LimiterState,
    call: CallContext,
    /// The most permits that a request can take
    most: i64,
    /// As the call leaves the limiter up to now.
    answer: Answer,
    /// The permits that were taken, up to now.
    taken: i64,
    /// Permits of the callers that wait, up to now.
    in_line: i64,
}

impl<'a> Txn<'a> {
    /// Finds the limit in force; changes nothing.
    fn new(
        limiter: &'a mut LimiterState,
        first: &Charge,
        exact: bool,
        now: Now,
    ) -> Result<Self, ErrorKind> {
        let (mut call, changed) = CallContext::new(limiter.limit, first, exact, now)?;
        Ok(Self {
            most: limiter.state.prepare(&mut call)?,
            limiter,
            call,
            answer: Answer::new(&call.limit, changed, now),
            taken: 0,
            in_line: 0,
        })
    }

    fn has_changed(&self) -> bool {
        self.answer.changed != Changed::Nothing
    }

    fn first_answer(&self, charge: &Charge) -> Answer {
        let verdict = if self.is_possible(charge) {
            Verdict::Granted
        } else {
            Verdict::AboveRate
        };
        self.answer.clone().for_caller(verdict, 0)
    }

    /// Puts the limit in force and counts what is left, exactly enough for these charges.
    fn begin<'c>(&mut self, charges: impl Iterator<Item = &'c Charge>) {
        let wanted = charges
            .filter(|charge| self.is_possible(charge) || self.holds(charge))
            .map(|charge| i64::from(charge.permits))
            .sum();
        self.limiter.limit = Some(self.call.limit);
        self.answer.remaining = self.limiter.state.begin(&self.call, wanted);
    }

    fn is_possible(&self, charge: &Charge) -> bool {
        i64::from(charge.permits) <= self.most
    }

    fn has_room(&self, charge: &Charge) -> bool {
        self.answer.remaining >= i64::from(charge.permits)
    }

    fn holds(&self, charge: &Charge) -> bool {
        charge.may_have_come() && self.limiter.state.holds(charge)
    }

    fn take(&mut self, charge: &Charge) {
        self.limiter.state.take(&self.call, charge);
        self.taken += i64::from(charge.permits);
        self.answer.remaining -= i64::from(charge.permits);
    }

    /// Stores what is left. Returns the answer to all callers, and gives `needs` their waits.
    fn close(&mut self, needs: &mut [Needs], is_of_several: bool) -> Answer {
        // A caller that another limiter refuses makes nothing here.
        let is_unmade = is_of_several
            && self.answer.changed == Changed::Created
            && self.answer.remaining == self.most
            && self.limiter.state.is_unused();
        let state = &mut self.limiter.state;
        state.end(&self.call, self.taken, &mut self.answer, needs);
        if is_unmade {
            self.limiter.limit = None;
            self.limiter.state.forget();
            self.answer.changed = Changed::Nothing;
        }
        self.answer.clone()
    }
}

#[cfg(test)]
mod tests;
