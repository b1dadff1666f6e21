//! What is answered to callers that ask in one call, by the reply to it.

use std::iter;

use super::{PackedStanding, Stands, row::Row};
use crate::{
    algorithm::answer::{Answer, Verdict},
    store::guard::deny_cache::bans::BanState,
    values::{List, charge::Charge, clock::Now, demand::Demand},
};

/// What the reply says about one caller.
#[derive(Clone, Default)]
pub(super) struct CallerReply {
    pub(super) is_granted: bool,
    /// Set if a ban refuses it, so nothing is counted.
    pub(super) is_banned: bool,
    /// Of each limiter: whether it has room. Empty if the reply says nothing of the caller.
    pub(super) has_room: List<bool>,
    /// Of each limiter: the ms until it has, if nothing else is taken.
    pub(super) waits: List<i64>,
    /// Of each limiter: its ban after the caller.
    pub(super) found: List<BanState>,
}

/// What is answered to callers, one after the other.
pub(super) struct RunAnswers<'a> {
    rows: &'a [Row],
    now: Now,
    /// What is answered to all callers of each limiter, and how it stands; `None` if it counted for
    /// none of them.
    answers: List<Option<(Answer, PackedStanding)>>,
    /// Of each limiter: whether the call has taken from it.
    is_taken: List<bool>,
    /// Permits of the callers that wait and are refused, of each limiter.
    in_line: List<i64>,
    /// Set once one that waits is refused.
    is_closed: bool,
    /// Of each limiter: the longest wait of those callers, the least of those behind them.
    longest: List<i64>,
}

impl<'a> RunAnswers<'a> {
    /// Begins with how the limiters stand after all of these callers.
    pub(super) fn new(
        rows: &'a [Row],
        micros: i64,
        standings: &[Option<Stands>],
        said: &[CallerReply],
    ) -> Self {
        let each = rows.iter().zip(standings);
        let is_taken = |index: usize| {
            let mut callers = said.iter();
            callers.any(|caller| caller.is_granted && caller.has_room[index])
        };
        let answers = each.map(|(row, standing)| {
            standing.as_ref().map(|(standing, each)| {
                let answer = row.answer(micros, *standing);
                let each = each.clone();
                (Answer { each, ..answer }, *standing)
            })
        });
        Self {
            rows,
            now: Now::millis(micros / 1000),
            answers: answers.collect(),
            is_taken: (0..rows.len()).map(is_taken).collect(),
            in_line: rows.iter().map(|_| 0).collect(),
            is_closed: false,
            longest: rows.iter().map(|_| 0).collect(),
        }
    }

    /// Answers callers: the first by what the reply says of each. Those behind a refused one that
    /// waits, who wait as well, are refused like it.
    pub(super) fn answer_all(mut self, run: &[Demand], said: &[CallerReply]) -> List<Answer> {
        let mut answers = List::with_capacity(run.len() * self.rows.len());
        for (number, demand) in run.iter().enumerate() {
            let behind = || CallerReply {
                is_granted: false,
                has_room: List::new(),
                waits: List::new(),
                ..said.last().cloned().unwrap_or_default()
            };
            match said.get(number) {
                Some(caller) => self.answer(demand, caller, &mut answers),
                None if self.is_closed && demand.max_wait.is_some() => {
                    self.answer(demand, &behind(), &mut answers);
                }
                None => break,
            }
        }
        answers
    }

    /// Answers a caller, as `algorithm/call.rs` does.
    fn answer(&mut self, demand: &Demand, caller: &CallerReply, answers: &mut List<Answer>) {
        let waits = demand.max_wait.is_some();
        let is_above = |row: &Row, charge: &Charge| i64::from(charge.permits) > row.most();
        let mut enforced = demand.charges().zip(self.rows);
        let is_hopeless = enforced.any(|(charge, row)| !charge.shadow && is_above(row, charge));
        self.is_closed |= waits && !caller.is_granted && !is_hopeless;
        let has_room = caller.has_room.iter().copied().chain(iter::repeat(false));
        for (index, (charge, has_room)) in demand.charges().zip(has_room).enumerate() {
            let row = &self.rows[index];
            let mut answer = match self.answers[index].as_ref().filter(|_| !caller.is_banned) {
                None => Answer::of_banned(Some(row.limit()), None, self.now),
                Some((answer, _)) if is_above(row, charge) => {
                    answer.clone().for_caller(Verdict::AboveRate, 0)
                }
                Some((answer, _)) if is_hopeless || caller.is_granted && has_room => {
                    answer.clone().for_caller(Verdict::Granted, 0)
                }
                Some((answer, standing)) => {
                    let mut needs = i64::from(charge.permits);
                    if waits && !charge.shadow {
                        // Those that wait before it come first.
                        self.in_line[index] += needs;
                        needs = self.in_line[index];
                    }
                    // Another limiter, or one that waits before it, may have refused it. What is
                    // fetched ahead has bounds of its own.
                    if needs <= answer.remaining && charge.lead == 0 {
                        answer.clone().for_caller(Verdict::Granted, 0)
                    } else {
                        let wait = row.wait(answer, *standing, needs);
                        let counts = row.has_records() || !self.is_taken[index];
                        let said = caller.waits.get(index).filter(|_| counts);
                        let mut wait = wait.max(said.copied().unwrap_or(0));
                        if waits && !charge.shadow {
                            wait = wait.max(self.longest[index]);
                            self.longest[index] = wait;
                        }
                        answer.clone().for_caller(Verdict::Refused, wait)
                    }
                }
            };
            let found = caller.found.get(index).filter(|found| found.left > 0);
            if let Some(found) = found
                && (charge.shadow || !caller.is_granted)
            {
                answer.ban(found.back);
            }
            answers.push(answer);
        }
    }
}
