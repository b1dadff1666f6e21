//! Takes one step of a history on the model, and returns what the bare store would have answered.
//!
//! The model is that of `algorithm/sliding_log.rs` and `algorithm/call.rs`, which the scripts are
//! held against. It adds only what L4 allows: a refusal repeated from memory, and one for a caller
//! that waits behind others.

use super::*;
use crate::{
    algorithm::{call, limiter::LimiterState, sliding_log::SlidingLog},
    store::guard::scripted,
    values::clock::Now,
};

type Limiter = LimiterState<SlidingLog>;

/// What is left of a history after some of its steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    limiters: Vec<Limiter>,
    /// When the last step was taken, by the server's clock.
    pub(crate) now: i64,
    refusals: Vec<Refused>,
}

/// A refusal of the store, which may be repeated from memory.
#[derive(Clone, Debug, PartialEq)]
struct Refused {
    /// Which event it was.
    event: usize,
    /// When it was decided.
    at: i64,
    /// In the order of the history, when its process has learned of something of its own that
    /// makes it old.
    old_from: Option<u64>,
}

/// How a step is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Taken {
    /// At a time, by the clock that counts
    At(i64),
    /// Not at all: no caller knows that it was
    Never,
}

impl State {
    pub(crate) fn new(history: &History) -> Self {
        Self {
            limiters: vec![Limiter::default(); history.names.len()],
            now: i64::MIN,
            refusals: Vec::new(),
        }
    }

    /// The state after a step; or why the bare store would not have answered so.
    pub(crate) fn after(
        &self,
        history: &History,
        step: usize,
        taken: Taken,
    ) -> Result<Self, String> {
        let step = &history.steps[step];
        let mut after = self.clone();
        let now = match taken {
            Taken::At(now) => now,
            Taken::Never if step.may_be_skipped => return Ok(after),
            Taken::Never => return Err(String::from("it was carried out")),
        };
        match &step.of {
            Of::Call(callers) => after.call(history, callers, now)?,
            Of::Event(event) => after.event(history, *event, now)?,
        }
        if !matches!(step.of, Of::Event(event) if is_repeated_at_once(&history.events[event])) {
            after.now = after.now.max(now);
        }
        Ok(after)
    }

    fn event(&mut self, history: &History, index: usize, now: i64) -> Result<(), String> {
        let event = &history.events[index];
        match &event.what {
            What::Demand(demand, outcome) => match outcome {
                Outcome::Decision { decision, came } if decision.source() == Source::Cache => {
                    self.repeated(history, event, demand, decision, *came)
                }
                _ => {
                    self.refused_in_line(history, index, demand, now)?;
                    // Of the first in line, whose wait counts no others.
                    if let Outcome::Decision { decision, .. } = outcome
                        && let Decision::Deny(refusal) = decision
                        && decision.source() == Source::Store
                        && !refusal.behind
                    {
                        self.refusals.push(Refused {
                            event: index,
                            at: now,
                            old_from: None,
                        });
                    }
                    Ok(())
                }
            },
            What::Settle(receipt, keep) => {
                let place = history.place(receipt.name());
                let credited =
                    self.limiters[place].settle(receipt, None, *keep, history.clock.at(now));
                if credited.map_err(|kind| format!("{kind:?}"))? > 0 {
                    self.ages(history, event, receipt.name());
                }
                Ok(())
            }
            What::Manage(name, op, outcome) => {
                let place = history.place(name);
                let would = manage(&mut self.limiters[place], op, history.clock.at(now))?;
                if let Some(outcome) = outcome
                    && *outcome != would
                {
                    return Err(format!("{would:?} at {now}"));
                }
                if !op.only_reads() {
                    self.ages(history, event, name);
                }
                Ok(())
            }
        }
    }

    /// A call answers each of its callers as the bare store answers a call for as many, also those
    /// that get it later.
    fn call(
        &mut self,
        history: &History,
        callers: &[steps::Caller],
        now: i64,
    ) -> Result<(), String> {
        let asked = |caller: &steps::Caller| match &history.events[caller.event].what {
            What::Demand(demand, outcome) => {
                let mut demand = demand.clone();
                demand.identify(caller.id);
                Some((demand, outcome))
            }
            What::Settle(..) | What::Manage(..) => None,
        };
        let asked: Vec<_> = callers.iter().filter_map(asked).collect();
        let demands: Vec<_> = asked.iter().map(|(demand, _)| demand).collect();
        let would = self.would_answer(history, &demands, now)?;
        for ((caller, (_, outcome)), would) in callers.iter().zip(asked).zip(would) {
            if caller.answer == Answer::Refused {
                if would.is_allowed() {
                    return Err(format!("at {now}: granted, and asked for again"));
                }
            } else if caller.answer == Answer::GivenBack {
                // No caller returns it.
            } else if let Outcome::Decision { decision, .. } = outcome
                && decision.source() == Source::Store
            {
                agree(decision, &would).map_err(|why| format!("at {now}: {why}"))?;
                if !decision.is_allowed() {
                    self.refusals.push(Refused {
                        event: caller.event,
                        at: now,
                        old_from: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// What the bare store answers now to callers of one call, and does.
    fn would_answer(
        &mut self,
        history: &History,
        demands: &[&Demand],
        now: i64,
    ) -> Result<Vec<Decision>, String> {
        let Some(first) = demands.first() else {
            return Err(String::from("a call without callers"));
        };
        let run: Vec<_> = demands
            .iter()
            .map(|demand| scripted::sent(demand))
            .collect();
        let mut all: Vec<_> = self.limiters.iter_mut().map(Some).collect();
        let limiters = first.charges().filter_map(|charge| {
            let limiter = all[history.place(charge.name())].take()?;
            Some(limiter as &mut LimiterState)
        });
        let answers = call::acquire(limiters, &run, history.clock.at(now));
        let answers = answers.map_err(|kind| format!("{kind:?}"))?;
        let answers = answers.chunks(first.charges.len());
        let would = demands.iter().zip(answers);
        Ok(would
            .map(|(demand, answers)| demand.decision(answers))
            .collect())
    }

    /// Who waits in line is refused where the bare store refuses it; or, without asking, where
    /// there is no room for it and those who may stand before it, or if another process has made
    /// room since a caller waits, which a queue does not see.
    fn refused_in_line(
        &self,
        history: &History,
        index: usize,
        demand: &Demand,
        now: i64,
    ) -> Result<(), String> {
        let mut after = self.clone();
        // What an earlier id of it took, and what is given back, is in use as that of others.
        let mut demand = demand.clone();
        demand.identify(demand.first().id.for_ahead());
        let would = after.would_answer(history, &[&demand], now)?;
        if !would[0].is_allowed() {
            return Ok(());
        }
        let (before, others_made_room) = history.line_of(index);
        // What it asked for is taken already: would there be room for the others, too?
        let mut lacks_room = |charge: &Charge| {
            let limiter = &mut after.limiters[history.place(charge.name())];
            let left = limiter
                .available(history.clock.at(now), charge.id)
                .unwrap_or(0);
            left < i64::try_from(before).unwrap_or(i64::MAX)
        };
        if others_made_room || demand.charges().any(&mut lacks_room) {
            return Ok(());
        }
        Err(format!(
            "at {now}, with {before} before it: {}",
            shown(&would[0])
        ))
    }

    /// L4: a refusal is repeated until there can be room, for the cap at most while the store is
    /// asked, and never once its process has learned of something of its own that made room; and
    /// what it announces is never later than what was announced first.
    fn repeated(
        &self,
        history: &History,
        event: &Event,
        demand: &Demand,
        decision: &Decision,
        came: Came,
    ) -> Result<(), String> {
        let Decision::Deny(refusal) = decision else {
            return Err(String::from("only refusals are repeated"));
        };
        let cap = millis(history.cap);
        let asked_at = event.begun;
        let mut why = String::from("nothing like it was refused before");
        for known in &self.refusals {
            let (first, ended) = match &history.events[known.event] {
                Event {
                    handle,
                    what: What::Demand(first, Outcome::Decision { decision, .. }),
                    ended: Some(ended),
                    ..
                } if *handle == event.handle && is_same(first, demand) => (decision, ended),
                _ => continue,
            };
            let Decision::Deny(first) = first else {
                continue;
            };
            let over = first.retry_after().map(|wait| known.at + millis(wait));
            // As it was announced first.
            let latest = first.retry_after().map(|wait| ended.clock + wait);
            let announced = refusal.retry_after();
            let ended = event.ended.unwrap_or(history.end);
            if known.old_from.is_some_and(|old| old <= asked_at.order) {
                why = format!("{known:?} was old");
            } else if over.is_some_and(|over| over <= asked_at.at()) {
                why = format!("{known:?} was over at {over:?}");
            } else if came == Came::AtOnce && asked_at.at() > known.at + cap + 1 {
                why = format!("{known:?} was repeated for longer than {cap} ms");
            } else if waits_for(demand, announced) {
                why = format!("it waits as long as {known:?} says");
            } else if refusal.kind() != first.kind() || announced.is_some() != latest.is_some() {
                why = format!("{known:?} was another");
            } else if let (Some(announced), Some(latest)) = (announced, latest)
                && asked_at.clock + announced > latest
            {
                why = format!("{known:?} was announced for an earlier time");
            } else if let (Some(announced), Some(over)) = (announced, over)
                && millis(ended.clock + announced) < over
            {
                why = format!("{known:?} was not over then");
            } else {
                return Ok(());
            }
        }
        Err(why)
    }

    /// A process makes room, and knows of it when its call is over.
    fn ages(&mut self, history: &History, by: &Event, name: &Name) {
        let Some(ended) = by.ended else {
            return;
        };
        for known in &mut self.refusals {
            let event = &history.events[known.event];
            let What::Demand(demand, _) = &event.what else {
                continue;
            };
            if event.handle == by.handle && demand.charges().any(|charge| charge.name() == name) {
                known.old_from = Some(
                    known
                        .old_from
                        .map_or(ended.order, |old| old.min(ended.order)),
                );
            }
        }
    }
}

fn manage(limiter: &mut Limiter, op: &Op, now: Now) -> Result<OpResult, String> {
    Ok(match op {
        Op::TrySetRate(limit) => OpResult::Changed(limiter.try_set_rate(*limit)),
        Op::SetRate {
            limit,
            keep,
            existing,
        } => {
            let applies = !existing || limiter.limit.is_some();
            if applies {
                limiter.set_rate(*limit, *keep, now);
            }
            OpResult::Changed(applies)
        }
        Op::Available => {
            let left = limiter.available(now, PermitId([0; 16]));
            OpResult::Number(left.map_err(|kind| format!("{kind:?}"))?)
        }
        Op::Inspect => OpResult::Limit(limiter.limit),
        other => return Err(format!("{other:?} is not judged")),
    })
}

/// Fails unless the answer is the same as `would`, with all that it shows of each limit.
fn agree(answered: &Decision, would: &Decision) -> Result<(), String> {
    let same_answer = match (answered, would) {
        (Decision::Allow(_), Decision::Allow(_)) => true,
        (Decision::Deny(answered), Decision::Deny(would)) => {
            answered.kind() == would.kind() && answered.retry_after() == would.retry_after()
        }
        _ => false,
    };
    if !same_answer {
        return Err(shown(would));
    }
    let count = |charge: &Charge| (charge.compiled().name.clone(), charge.standing);
    let counts = |decision: &Decision| decision.charges().iter().map(count).collect::<Vec<_>>();
    let (answered, would) = (counts(answered), counts(would));
    if answered == would {
        Ok(())
    } else {
        Err(format!("{answered:?} and not {would:?}"))
    }
}

/// Whether the answer to one is that to the other.
fn is_same(a: &Demand, b: &Demand) -> bool {
    let question = |demand: &Demand| -> Vec<_> {
        let charges = demand.charges();
        let question =
            charges.map(|charge| (charge.name().clone(), *charge.limit(), charge.permits));
        question.collect()
    };
    a.wants_remaining == b.wants_remaining && question(a) == question(b)
}

/// Whether a caller waits as long as a refusal says, and so is not refused by it.
fn waits_for(demand: &Demand, wait: Option<Duration>) -> bool {
    let Some(MaxWait { longest, .. }) = demand.max_wait else {
        return false;
    };
    wait.is_some_and(|wait| longest.is_none_or(|longest| wait <= longest))
}

pub(crate) fn shown(decision: &Decision) -> String {
    match decision {
        Decision::Allow(_) => String::from("granted"),
        Decision::Deny(refusal) => format!("{:?}, {:?}", refusal.kind(), refusal.retry_after()),
    }
}
