//! Those who wait for permits: when their turn comes, and who is turned away.

use std::time::Duration;

use super::{
    member::{Member, Wakes},
    state::State,
};
use crate::{
    decision::{Decision, Refusal, RefusalKind},
    demand::{Acquire, MaxWait},
};

impl State {
    /// The refusal of a newcomer whose patience cannot last until its turn, going by what the last call told.
    ///
    /// More than the rate is never free at once: each further rate follows an interval later.
    pub(crate) fn hopeless(
        &self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
    ) -> Option<Refusal> {
        let (deadline, due, refusal) = (deadline?, self.due?, self.refusal.as_ref()?);
        let [limit] = refusal.states() else {
            // Of several limits, the one that refused last need not be the one that refuses next.
            return None;
        };
        if u64::from(acquire.first.permits) > limit.permits() {
            // Refused for ever, which the store says.
            return None;
        }
        let before: u64 = self
            .waiting()
            .map(|member| u64::from(member.acquire.first.permits))
            .sum();
        let needs = before + u64::from(acquire.first.permits);
        let rounds = u32::try_from((needs - 1) / limit.permits().max(1)).unwrap_or(u32::MAX);
        let turn = due.saturating_add(limit.interval().saturating_mul(rounds));
        (turn > deadline).then(|| refusal.later(turn.saturating_sub(now)))
    }

    /// Refuses those who came when enough waited already. Who has a place keeps it, as places only move up.
    ///
    /// Only while the first in line is known to wait: that many ask at once is no reason to refuse.
    pub(crate) fn turn_away(&mut self, now: Duration, wakes: &mut Wakes) {
        let stuck = self.due.filter(|due| *due > now);
        let (Some(due), Some(refusal)) = (stuck, self.refusal.clone()) else {
            return;
        };
        let last = self.waiting().filter_map(|member| member.due).max();
        let last = last.unwrap_or(due);
        let (mut place, mut gap) = (0, false);
        let members = self.members.iter_mut();
        for member in members.filter(|member| member.waits() && member.outcome.is_none()) {
            match member.acquire.patience {
                Some(MaxWait {
                    queue: Some(longest),
                    ..
                }) if place >= longest => {
                    // By then it has room, or those before it have been served.
                    let wait = member.due.unwrap_or(last).saturating_sub(now);
                    let refusal = Refusal {
                        kind: RefusalKind::QueueFull,
                        ..refusal.later(wait)
                    };
                    member.tell(Ok(Decision::Deny(refusal)), wakes);
                    gap = true;
                }
                _ => {
                    place += 1;
                    // Those behind it were told to wait for it, too.
                    self.nudged |= gap;
                }
            }
        }
    }

    /// Tells a caller what the store decided, unless it is to wait for another answer.
    pub(crate) fn hear(
        &mut self,
        ticket: u64,
        decision: Decision,
        now: Duration,
        wakes: &mut Wakes,
    ) {
        let wait = match &decision {
            Decision::Deny(refusal) if refusal.kind() == RefusalKind::OverLimit => {
                refusal.retry_after()
            }
            _ => None,
        };
        let Some(member) = self.member(ticket) else {
            return;
        };
        let (Decision::Deny(refusal), Some(wait), true) = (&decision, wait, member.waits()) else {
            member.tell(Ok(decision), wakes);
            return;
        };
        let due = now.saturating_add(wait);
        let told = refusal.clone();
        member.due = Some(due);
        if member.deadline.is_some_and(|deadline| deadline < due) {
            member.tell(Ok(decision), wakes);
            // Those behind it were told to wait for it, too.
            self.nudged = true;
        } else {
            self.due.get_or_insert(due);
        }
        self.refusal = Some(told);
    }

    /// Refuses those whose patience is at its end, unless their turn comes before. The first ones are `asked_for` all the same.
    pub(crate) fn give_up_late(&mut self, now: Duration, asked_for: usize, wakes: &mut Wakes) {
        let Some(refusal) = self.refusal.clone() else {
            return;
        };
        let mut gave_up = false;
        let waiting = self.members.iter_mut();
        let waiting = waiting.filter(|member| member.waits() && member.outcome.is_none());
        for member in waiting.skip(asked_for) {
            if member.is_doubtful() && member.deadline.is_some_and(|deadline| deadline <= now) {
                let due = member.due.or(self.due).unwrap_or(now);
                let refusal = refusal.later(due.saturating_sub(now));
                member.tell(Ok(Decision::Deny(refusal)), wakes);
                gave_up = true;
            }
        }
        self.nudged |= gave_up;
    }

    /// Whether it is time to ask for those who wait.
    pub(crate) fn asks_for_waiting(&self, now: Duration) -> bool {
        let is_due = self.nudged || self.due.is_none_or(|due| due <= now);
        is_due && self.waiting().next().is_some()
    }

    /// Until when there is nothing to do for those who wait: until the first of them can be served, or gives up.
    pub(crate) fn sleeps_until(&self, now: Duration) -> Duration {
        let doubtful = self.members.iter().filter(|member| member.is_doubtful());
        let first = doubtful.filter_map(|member| member.deadline).min();
        first.into_iter().chain(self.due).min().unwrap_or(now)
    }
}

impl Member {
    /// Whether it waits without knowing that its turn comes in time.
    fn is_doubtful(&self) -> bool {
        let in_time = match (self.due, self.deadline) {
            (Some(due), Some(deadline)) => due <= deadline,
            _ => false,
        };
        self.outcome.is_none() && !in_time
    }
}
