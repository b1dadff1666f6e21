//! What has a place in the order of a history: whatever has no call for permits, and each call
//! that asked the store for permits, for all of its callers at once.
//!
//! Which callers shared a call is seen at the server, and is a part of the history as their answers
//! are: they get what the call has left for all of them. So is a call without an answer: one
//! that waits is asked for again and again, and each time what has expired is removed, by the limit
//! that stands then.

use std::ops::RangeInclusive;

use super::*;
use crate::values::decision::RefusalKind;

/// One place in the order.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) of: Of,
    /// Between these it was carried out, by the order that all threads share.
    pub(crate) begun: u64,
    /// None if it is unknown
    pub(crate) ended: Option<u64>,
    /// And between these, by the clock that counts, in ms.
    pub(crate) times: RangeInclusive<i64>,
    /// The steps that are carried out before it, whether or not they are answered: one connection
    /// carries both, in the order in which they were sent.
    pub(crate) before: Vec<usize>,
    /// Whether there is no sign that it was carried out.
    pub(crate) may_be_skipped: bool,
}

#[derive(Debug)]
pub(crate) enum Of {
    /// An event without a call for permits
    Event(usize),
    /// A call, with its callers in the order in which they came
    Call(Vec<Caller>),
}

/// The event that a call was for, and the id by which it asked. A waiter has several ids if it is
/// asked for again while an earlier call may still be answered.
pub(crate) type Asked = (usize, PermitId);

/// One of the callers of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) event: usize,
    pub(crate) id: PermitId,
    pub(crate) answer: Answer,
}

/// What becomes of what a call says to one of its callers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    /// The caller returns it, if it returns any
    Returned,
    /// The caller is asked for again by the same id, or refused: it was not granted
    Refused,
    /// Another id of the caller decides: what this one took is given back
    GivenBack,
}

/// All that has a place. `calls`: the events that each call was for, as far as they were seen, in
/// the order in which they were carried out.
pub(crate) fn steps(events: &[Event], end: Moment, calls: &[Vec<Asked>]) -> Vec<Step> {
    let mut ids = ids_of(events, calls);
    let mut calls: Vec<_> = calls.iter().map(|call| (call.clone(), true)).collect();
    for (event, recorded) in events.iter().enumerate() {
        if is_for_a_call(recorded)
            && let What::Demand(demand, _) = &recorded.what
        {
            let of_event = ids.entry(event).or_default();
            let id = match decides(recorded, of_event) {
                PermitId::NONE => demand.first().id,
                id => id,
            };
            if !of_event.contains(&id) {
                of_event.push(id);
                calls.push((vec![(event, id)], false));
            }
        }
    }
    let mut last_calls = HashMap::new();
    for (place, (call, _)) in calls.iter().enumerate() {
        last_calls.extend(call.iter().map(|(_, id)| (*id, place)));
    }
    let mut steps: Vec<Step> = Vec::new();
    for (place, (call, seen)) in calls.iter().enumerate() {
        let callers = call.iter().map(|(event, id)| Caller {
            event: *event,
            id: *id,
            answer: if decides(&events[*event], &ids[event]) != *id {
                Answer::GivenBack
            } else if last_calls[id] != place || is_refused_in_line(&events[*event]) {
                Answer::Refused
            } else {
                Answer::Returned
            },
        });
        let callers: Vec<_> = callers.collect();
        let of_all: Vec<_> = callers.iter().map(|caller| caller.event).collect();
        let earlier = calls[..place].iter();
        let of_same = |(event, _): &Asked| of_all.contains(event);
        let earlier = earlier.map(|(earlier, _)| earlier.iter().any(of_same));
        let unanswered = call.iter().all(|(event, _)| events[*event].ended.is_none());
        // What is given back may be taken when its caller has returned.
        let waited_for = callers
            .iter()
            .filter(|caller| caller.answer != Answer::GivenBack);
        let waited_for: Vec<_> = waited_for.map(|caller| caller.event).collect();
        steps.push(Step {
            before: (0..)
                .zip(earlier)
                .filter_map(|(place, same)| same.then_some(place))
                .collect(),
            may_be_skipped: unanswered && !seen,
            ..Step::new(Of::Call(callers), &of_all, &waited_for, events, end)
        });
    }
    for (event, recorded) in events.iter().enumerate() {
        let before = match &recorded.what {
            What::Demand(..) if !is_of_no_call(recorded) => continue,
            // Nothing is sent.
            What::Settle(receipt, keep) if *keep == receipt.permits => continue,
            What::Settle(receipt, _) => last_calls.get(&receipt.id),
            What::Demand(..) | What::Manage(..) => None,
        };
        let unanswered = matches!(&recorded.what, What::Manage(_, _, None));
        steps.push(Step {
            before: before.into_iter().copied().collect(),
            may_be_skipped: unanswered,
            ..Step::new(Of::Event(event), &[event], &[event], events, end)
        });
    }
    steps
}

/// The ids by which each event was asked for, the latest last.
fn ids_of(events: &[Event], calls: &[Vec<Asked>]) -> HashMap<usize, Vec<PermitId>> {
    let mut ids: HashMap<usize, Vec<PermitId>> = HashMap::new();
    for (event, id) in calls.iter().flatten() {
        let of_event = ids.entry(*event).or_default();
        if !of_event.contains(id) {
            of_event.push(*id);
        }
    }
    for (event, ids) in &mut ids {
        if let What::Demand(demand, _) = &events[*event].what {
            let first = demand.first().id.0[0];
            ids.sort_by_key(|id| id.0[0].wrapping_sub(first));
        }
    }
    ids
}

/// The id by which it is decided what an event returns: that of its grant, or the last one.
fn decides(event: &Event, ids: &[PermitId]) -> PermitId {
    if let What::Demand(_, Outcome::Decision { decision, .. }) = &event.what
        && let Decision::Allow(grant) = decision
        && let Some(receipt) = grant.taken().next()
    {
        return receipt.id;
    }
    ids.last().copied().unwrap_or(PermitId::NONE)
}

/// What the store gives back by itself of the ids that do not decide, until its handle is closed.
pub(crate) fn given_back(
    events: &[Event],
    calls: &[Vec<Asked>],
    closed: &HashMap<usize, Moment>,
) -> Vec<Event> {
    let ids = ids_of(events, calls);
    let mut all = Vec::new();
    for (event, recorded) in events.iter().enumerate() {
        let (What::Demand(demand, _), Some(ids)) = (&recorded.what, ids.get(&event)) else {
            continue;
        };
        // If it is open, its first id is given back by a step of its own.
        let own = if recorded.ended.is_none() {
            demand.first().id
        } else {
            decides(recorded, ids)
        };
        for id in ids.iter().filter(|id| **id != own) {
            let receipts = demand.to_settle();
            all.extend(receipts.iter().map(|receipt| Event {
                handle: recorded.handle,
                what: What::Settle(
                    Charge {
                        id: *id,
                        ..receipt.clone()
                    },
                    0,
                ),
                begun: recorded.begun,
                ended: closed.get(&recorded.handle).copied(),
            }));
        }
    }
    all
}

impl Step {
    /// After all of the events `of_all` have begun, and while those `waited_for` last.
    fn new(of: Of, of_all: &[usize], waited_for: &[usize], events: &[Event], end: Moment) -> Self {
        let begun = || of_all.iter().map(|event| &events[*event].begun);
        let during = || waited_for.iter().map(|event| &events[*event]);
        let earliest = begun().map(Moment::at).max();
        let latest = during().map(|event| event.ended.unwrap_or(end).at()).min();
        Self {
            of,
            begun: begun().map(|begun| begun.order).max().unwrap_or(0),
            ended: during()
                .filter_map(|event| event.ended)
                .map(|ended| ended.order)
                .min(),
            times: earliest.unwrap_or(0)..=latest.unwrap_or(end.at()),
            before: Vec::new(),
            may_be_skipped: false,
        }
    }
}

/// Whether the store may have been asked for it, and have said what became of it.
fn is_for_a_call(event: &Event) -> bool {
    match &event.what {
        What::Demand(..) => event.ended.is_none() || !is_of_no_call(event),
        What::Settle(..) | What::Manage(..) => false,
    }
}

/// Whether its answer is that of no call.
fn is_of_no_call(event: &Event) -> bool {
    is_repeated(event) || is_refused_in_line(event)
}

fn is_repeated(event: &Event) -> bool {
    matches!(
        &event.what,
        What::Demand(_, Outcome::Decision { decision, .. }) if decision.source() == Source::Cache
    )
}

/// Whether it is a refusal from memory, for which nothing was waited for.
pub(crate) fn is_repeated_at_once(event: &Event) -> bool {
    let awaited = |outcome: &Outcome| matches!(outcome, Outcome::Decision { came, .. } if *came == Came::Awaited);
    matches!(&event.what, What::Demand(_, outcome) if !awaited(outcome)) && is_repeated(event)
}

/// Whether it waited, and was refused: by those before it as well as by the store.
fn is_refused_in_line(event: &Event) -> bool {
    let What::Demand(
        demand,
        Outcome::Decision {
            decision: Decision::Deny(refusal),
            ..
        },
    ) = &event.what
    else {
        return false;
    };
    let of_line = [RefusalKind::OverLimit, RefusalKind::QueueFull].contains(&refusal.kind());
    demand.max_wait.is_some() && of_line && event.ended.is_some()
}
