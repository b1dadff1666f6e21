//! What the bare store would have answered: one step of a history, taken on the model.
//!
//! The model is that of `store/window.rs` and `store/call.rs`, which the scripts are held against. Only what L4 allows is
//! added to it: a refusal that is told from memory, and one that is told to who waits behind others.

use std::time::Duration;

use super::{
    record::{Event, Told, What},
    recorded::{Counted, History},
};
use crate::{
    decision::{Decision, LimitState, PermitId, Refusal, RefusalKind, Source},
    name::Name,
    store::{
        Acquire, Charge, Op, Outcome,
        call::{self, Ask, Caller, Counts, Take},
        window::Limiter,
    },
};

/// What is left of a history after some of its steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    limiters: Vec<Limiter>,
    /// When the last step was taken, by the server's clock.
    pub(super) now: i64,
    refusals: Vec<Refused>,
}

/// A refusal that the store told, and that may be told again.
#[derive(Clone, Debug, PartialEq)]
struct Refused {
    /// Which event it was.
    event: usize,
    /// When it was decided.
    at: i64,
    /// In the order of the history, when its process has heard of something of its own that makes it old.
    old_from: Option<u64>,
}

/// How a step is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Taken {
    /// At a time, by the clock that counts
    At(i64),
    /// At the first time, after others had removed what was expired by the second: those that wait ask now and then, which
    /// shows where calls are not made in the order of their times
    Swept(i64, i64),
    /// Not at all: nobody has heard that it was
    Never,
}

impl State {
    pub(super) fn new(history: &History) -> Self {
        Self {
            limiters: vec![Limiter::default(); history.names.len()],
            now: i64::MIN,
            refusals: Vec::new(),
        }
    }

    /// The state after a step; or why the bare store would not have answered so.
    pub(super) fn after(
        &self,
        history: &History,
        index: usize,
        taken: Taken,
    ) -> Result<Self, String> {
        let event = &history.events[index];
        if let What::Acquire(acquire, Told::Decision { decision, at_once }) = &event.what
            && decision.source() == Source::Cache
        {
            self.told_again(history, event, acquire, decision, *at_once)?;
            if *at_once {
                return Ok(self.clone());
            }
        }
        let mut after = self.clone();
        let now = match (taken, history.may_be_skipped(index)) {
            (Taken::At(now), _) => now,
            (Taken::Swept(now, by), _) => {
                for limiter in &mut after.limiters {
                    // One without a limit has nothing to remove.
                    let _ = limiter.available(by, PermitId([0; 16]));
                }
                now
            }
            (Taken::Never, true) => return Ok(after),
            (Taken::Never, false) => return Err(String::from("it was answered")),
        };
        match &event.what {
            What::Acquire(acquire, told) => after.acquire(history, index, acquire, told, now)?,
            What::Settle(receipt, keep) => {
                let place = history.place(&receipt.name);
                let credited = after.limiters[place].settle(receipt, *keep, now);
                if credited.map_err(|kind| format!("{kind:?}"))? > 0 {
                    after.ages(history, event, &receipt.name);
                }
            }
            What::Manage(name, op, outcome) => {
                let place = history.place(name);
                let would = manage(&mut after.limiters[place], op, now)?;
                if let Some(outcome) = outcome
                    && *outcome != would
                {
                    return Err(format!("{would:?} at {now}"));
                }
                if !op.only_reads() {
                    after.ages(history, event, name);
                }
            }
        }
        after.now = after.now.max(now);
        Ok(after)
    }

    fn acquire(
        &mut self,
        history: &History,
        index: usize,
        acquire: &Acquire,
        told: &Told,
        now: i64,
    ) -> Result<(), String> {
        let before = self.limiters.clone();
        let would = self.would_answer(history, acquire, now)?;
        let Told::Decision { decision, .. } = told else {
            return Ok(());
        };
        match (decision, &would) {
            _ if decision.source() != Source::Store => Ok(()),
            (Decision::Allow(_), Decision::Allow(_)) => {
                counts_alike(history, index, decision.limits(), would.limits(), now)
            }
            (Decision::Deny(told), _) if is_place_in_line(acquire, told) => {
                if would.is_allowed() {
                    self.may_wait(history, index, acquire, &would, now)?;
                    self.limiters = before;
                }
                Ok(())
            }
            (Decision::Deny(told), Decision::Deny(refusal))
                if told.kind() == refusal.kind() && told.retry_after() == refusal.retry_after() =>
            {
                self.refusals.push(Refused {
                    event: index,
                    at: now,
                    old_from: None,
                });
                counts_alike(history, index, told.limits(), refusal.limits(), now)
            }
            _ => Err(format!("at {now}: {}", shown(&would))),
        }
    }

    /// What the bare store answers now, and does.
    fn would_answer(
        &mut self,
        history: &History,
        acquire: &Acquire,
        now: i64,
    ) -> Result<Decision, String> {
        let takes = acquire.charges().map(|charge| Take {
            permits: charge.permits,
            id: charge.id,
            shadow: charge.shadow,
            lead: charge.lead,
        });
        let caller = Caller {
            waits: acquire.patience.is_some(),
            takes: takes.collect(),
        };
        let mut all: Vec<_> = self.limiters.iter_mut().map(Some).collect();
        let limiters = acquire.charges().filter_map(|charge| {
            let ask = Ask {
                limit: charge.limit,
                rewrite: true,
                exact: acquire.remaining,
                resendable: false,
                own_clock: history.clock == Counted::ByServer,
            };
            let limiter: &mut dyn Counts = all[history.place(&charge.name)].take()?;
            Some((limiter, ask))
        });
        let answers = call::acquire(limiters, &[caller], now);
        let answers = answers.map_err(|kind| format!("{kind:?}"))?;
        Ok(acquire.decision(&answers))
    }

    /// L4: a refusal is told again until there can be room, for the cap at most, and never once its process has heard of
    /// something of its own that made room; and what it tells is never later than what was told first.
    fn told_again(
        &self,
        history: &History,
        event: &Event,
        acquire: &Acquire,
        decision: &Decision,
        at_once: bool,
    ) -> Result<(), String> {
        let Decision::Deny(refusal) = decision else {
            return Err(String::from("only refusals are told again"));
        };
        let cap = i64::try_from(history.cap.as_millis()).unwrap_or(i64::MAX);
        let told_at = event.begun;
        let mut why = String::from("nothing like it was told before");
        for known in &self.refusals {
            let (first, heard) = match &history.events[known.event] {
                Event {
                    handle,
                    what: What::Acquire(first, Told::Decision { decision, .. }),
                    ended: Some(heard),
                    ..
                } if *handle == event.handle && is_same(first, acquire) => (decision, heard),
                _ => continue,
            };
            let Decision::Deny(first) = first else {
                continue;
            };
            let over = first.retry_after().map(|wait| known.at + millis(wait));
            // As it was announced first.
            let latest = first.retry_after().map(|wait| heard.clock + wait);
            let announced = refusal.retry_after();
            let ended = event.ended.unwrap_or(history.end);
            if known.old_from.is_some_and(|old| old <= told_at.order) {
                why = format!("{known:?} was old");
            } else if over.is_some_and(|over| over <= told_at.at()) {
                why = format!("{known:?} was over at {over:?}");
            } else if at_once && told_at.at() > known.at + cap + 1 {
                why = format!("{known:?} was told for longer than {cap} ms");
            } else if refusal.kind() != first.kind() || announced.is_some() != latest.is_some() {
                why = format!("{known:?} was another");
            } else if let (Some(announced), Some(latest)) = (announced, latest)
                && told_at.clock + announced > latest
            {
                why = format!("{known:?} was announced for an earlier time");
            } else if let (Some(announced), Some(over)) = (announced, over)
                && i64::try_from((ended.clock + announced).as_millis()).unwrap_or(0) < over
            {
                why = format!("{known:?} was not over then");
            } else {
                return Ok(());
            }
        }
        Err(why)
    }

    /// Who waits in line is refused if there is no room for it and those who may stand before it; or if another process
    /// has made room since somebody waits, of which a line does not hear.
    fn may_wait(
        &self,
        history: &History,
        index: usize,
        acquire: &Acquire,
        would: &Decision,
        now: i64,
    ) -> Result<(), String> {
        let (before, others_made_room) = history.line_of(index);
        // What it asked for is taken already: would there be room for the others, too?
        let lacks_room = |charge: &Charge| {
            let mut limiter = self.limiters[history.place(&charge.name)].clone();
            let left = limiter.available(now, charge.id).unwrap_or(0);
            left < i64::try_from(before).unwrap_or(i64::MAX)
        };
        if others_made_room || acquire.charges().any(lacks_room) {
            return Ok(());
        }
        Err(format!(
            "at {now}, with {before} before it: {}",
            shown(would)
        ))
    }

    /// A process makes room, and knows of it when it has heard the end of it.
    fn ages(&mut self, history: &History, by: &Event, name: &Name) {
        let Some(heard) = by.ended else {
            return;
        };
        for known in &mut self.refusals {
            let event = &history.events[known.event];
            let What::Acquire(acquire, _) = &event.what else {
                continue;
            };
            if event.handle == by.handle && acquire.charges().any(|charge| charge.name == *name) {
                known.old_from = Some(
                    known
                        .old_from
                        .map_or(heard.order, |old| old.min(heard.order)),
                );
            }
        }
    }
}

fn manage(limiter: &mut Limiter, op: &Op, now: i64) -> Result<Outcome, String> {
    Ok(match op {
        Op::TrySetRate(limit) => Outcome::Changed(limiter.try_set_rate(*limit)),
        Op::SetRate {
            limit,
            keep,
            existing,
        } => {
            let applies = !existing || limiter.limit().is_some();
            if applies {
                limiter.set_rate(*limit, *keep, now);
            }
            Outcome::Changed(applies)
        }
        Op::Available => {
            let left = limiter.available(now, PermitId([0; 16]));
            Outcome::Permits(left.map_err(|kind| format!("{kind:?}"))?)
        }
        Op::Inspect => Outcome::Limit(limiter.limit()),
        other => return Err(format!("{other:?} is not judged")),
    })
}

/// What is told of each limit. Of callers that shared a call, no more than is left.
fn counts_alike(
    history: &History,
    index: usize,
    told: &[LimitState],
    would: &[LimitState],
    now: i64,
) -> Result<(), String> {
    let alone = history.alone[index];
    // Which of them is the tightest may change with what is left.
    let alike = told.len() == would.len()
        && told.iter().all(|told| {
            would.iter().any(|would| {
                let same = told.name() == would.name()
                    && told.permits == would.permits
                    && told.interval == would.interval
                    && told.refused == would.refused
                    && told.remaining.is_some() == would.remaining.is_some();
                let left = if alone {
                    told.remaining == would.remaining && told.reset_after == would.reset_after
                } else {
                    told.remaining <= would.remaining
                };
                same && left
            })
        });
    if alike {
        Ok(())
    } else {
        Err(format!(
            "at {now}, alone {alone}: {told:?} and not {would:?}"
        ))
    }
}

/// Whether it is a refusal of one that stood in line.
fn is_place_in_line(acquire: &Acquire, told: &Refusal) -> bool {
    let of_line = matches!(told.kind(), RefusalKind::OverLimit | RefusalKind::QueueFull);
    acquire.patience.is_some() && of_line
}

/// Whether the answer to one is that to the other.
fn is_same(a: &Acquire, b: &Acquire) -> bool {
    let question = |acquire: &Acquire| -> Vec<_> {
        let charges = acquire.charges();
        let question = charges.map(|charge| (charge.name.clone(), charge.limit, charge.permits));
        question.collect()
    };
    let wait = a.patience.is_some() || b.patience.is_some();
    !wait && a.remaining == b.remaining && question(a) == question(b)
}

pub(super) fn shown(decision: &Decision) -> String {
    match decision {
        Decision::Allow(_) => String::from("granted"),
        Decision::Deny(refusal) => format!("{:?}, {:?}", refusal.kind(), refusal.retry_after()),
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
