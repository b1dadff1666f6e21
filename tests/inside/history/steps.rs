//! What has a place in the order of a history: whatever was asked or told by itself, and each call that asked the store for
//! permits, for all of its callers at once.
//!
//! Who shared a call is seen at the server, and is a part of the history as what they heard is: they hear what the call has
//! left for all of them. So is a call that told nobody anything: one that waits is asked for again and again, and each time
//! what has expired is removed, by the limit that stands then.

use std::{collections::HashMap, ops::RangeInclusive};

use super::record::{Came, Event, Moment, Told, What};
use crate::{
    decision::{Decision, RefusalKind, Source},
    receipt::PermitId,
};

/// One place in the order.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) of: Of,
    /// Between these it was carried out, by the order that all threads share.
    pub(crate) begun: u64,
    /// None if nobody knows
    pub(crate) ended: Option<u64>,
    /// And between these, by the clock that counts, in ms.
    pub(crate) times: RangeInclusive<i64>,
    /// What is carried out before it, whoever hears of it: one connection carries both, in the order in which they were sent.
    pub(crate) before: Vec<usize>,
    /// Whether nobody has heard or seen that it was carried out.
    pub(crate) may_be_skipped: bool,
}

#[derive(Debug)]
pub(crate) enum Of {
    /// What was asked or told by itself
    Event(usize),
    /// A call, with those whom it was for in the order in which they came
    Call(Vec<Caller>),
}

/// One of those whom a call was for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) event: usize,
    /// Whether it was not asked for again, and heard what this call said, if it heard of any.
    pub(crate) is_answered: bool,
}

/// All that has a place. `calls`: the events that each call was for, as far as they were seen, in the order in which they were
/// carried out.
pub(crate) fn steps(events: &[Event], end: Moment, calls: &[Vec<usize>]) -> Vec<Step> {
    let mut calls: Vec<_> = calls.iter().map(|call| (call.clone(), true)).collect();
    let mut last_calls = HashMap::new();
    for (place, (call, _)) in calls.iter().enumerate() {
        last_calls.extend(call.iter().map(|event| (*event, place)));
    }
    for (event, recorded) in events.iter().enumerate() {
        if is_for_a_call(recorded) && !last_calls.contains_key(&event) {
            last_calls.insert(event, calls.len());
            calls.push((vec![event], false));
        }
    }
    let mut steps: Vec<Step> = Vec::new();
    for (place, (call, seen)) in calls.iter().enumerate() {
        let callers = call.iter().map(|event| Caller {
            event: *event,
            is_answered: last_calls[event] == place && !is_refused_in_line(&events[*event]),
        });
        let earlier = calls[..place].iter();
        let earlier = earlier.map(|(earlier, _)| earlier.iter().any(|event| call.contains(event)));
        let unheard = call.iter().all(|event| events[*event].ended.is_none());
        steps.push(Step {
            before: (0..)
                .zip(earlier)
                .filter_map(|(place, same)| same.then_some(place))
                .collect(),
            may_be_skipped: unheard && !seen,
            ..Step::new(Of::Call(callers.collect()), call, events, end)
        });
    }
    for (event, recorded) in events.iter().enumerate() {
        let before = match &recorded.what {
            What::Acquire(..) if !is_told_by_itself(recorded) => continue,
            // Nothing is sent.
            What::Settle(receipt, keep) if *keep == receipt.permits => continue,
            What::Settle(receipt, _) => asked_by(events, receipt.id),
            What::Acquire(..) | What::Manage(..) => None,
        };
        let before = before.and_then(|before| last_calls.get(&before));
        let unheard = matches!(&recorded.what, What::Manage(_, _, None));
        steps.push(Step {
            before: before.into_iter().copied().collect(),
            may_be_skipped: unheard,
            ..Step::new(Of::Event(event), &[event], events, end)
        });
    }
    steps
}

impl Step {
    /// While all of the events last.
    fn new(of: Of, during: &[usize], events: &[Event], end: Moment) -> Self {
        let during = || during.iter().map(|event| &events[*event]);
        let earliest = during().map(|event| event.begun.at()).max();
        let latest = during().map(|event| event.ended.unwrap_or(end).at()).min();
        Self {
            of,
            begun: during().map(|event| event.begun.order).max().unwrap_or(0),
            ended: during()
                .filter_map(|event| event.ended)
                .map(|ended| ended.order)
                .min(),
            times: earliest.unwrap_or(0)..=latest.unwrap_or(i64::MAX),
            before: Vec::new(),
            may_be_skipped: false,
        }
    }
}

/// Whether the store may have been asked for it, and have said what became of it.
fn is_for_a_call(event: &Event) -> bool {
    match &event.what {
        What::Acquire(..) => event.ended.is_none() || !is_told_by_itself(event),
        What::Settle(..) | What::Manage(..) => false,
    }
}

/// Whether it was told something that is no call's answer to it.
fn is_told_by_itself(event: &Event) -> bool {
    is_told_again(event) || is_refused_in_line(event)
}

fn is_told_again(event: &Event) -> bool {
    matches!(
        &event.what,
        What::Acquire(_, Told::Decision { decision, .. }) if decision.source() == Source::Cache
    )
}

/// Whether it is a refusal from memory, for which nothing was waited for.
pub(crate) fn is_told_at_once(event: &Event) -> bool {
    let awaited =
        |told: &Told| matches!(told, Told::Decision { came, .. } if *came == Came::Awaited);
    matches!(&event.what, What::Acquire(_, told) if !awaited(told)) && is_told_again(event)
}

/// Whether it waited, and was refused: by those before it as well as by the store.
fn is_refused_in_line(event: &Event) -> bool {
    let What::Acquire(
        acquire,
        Told::Decision {
            decision: Decision::Deny(refusal),
            ..
        },
    ) = &event.what
    else {
        return false;
    };
    let of_line = [RefusalKind::OverLimit, RefusalKind::QueueFull].contains(&refusal.kind());
    acquire.patience.is_some() && of_line && event.ended.is_some()
}

/// Which event asked by this id.
fn asked_by(events: &[Event], id: PermitId) -> Option<usize> {
    events.iter().position(
        |event| matches!(&event.what, What::Acquire(acquire, _) if acquire.first.id == id),
    )
}
