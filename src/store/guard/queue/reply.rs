//! Passes the decisions of a shared call to its callers.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::pin,
    sync::Mutex,
    task::Poll,
};

use tokio::sync::oneshot;

use crate::{
    decision::{Decision, Source},
    demand::Acquire,
    error::Error,
    list::List,
    receipt::{PermitId, Receipt},
    sync::lock,
};

/// A decision on its way to a caller, who may have left and given back by now.
pub(super) struct Reply {
    pub(super) outcome: Result<Decision, Error>,
    /// Set if it was given back before it was taken.
    pub(super) gave_back: bool,
}

impl Reply {
    /// Returns what to give back if its caller has left without reading it: what the caller gave
    /// back too early, or does not know of. For other grants, the code that drops them decides.
    pub(super) fn unread(self) -> List<Receipt> {
        match self.outcome {
            // A lease grants by an id that its caller does not know.
            Ok(Decision::Allow(grant)) if self.gave_back || grant.source() == Source::Lease => {
                grant.into_receipts()
            }
            _ => List::new(),
        }
    }
}

/// Takes the member with this number out of a queue in the order of numbers.
pub(crate) fn take_out<T>(
    queue: &mut VecDeque<T>,
    number: u64,
    number_of: impl FnMut(&T) -> u64,
) -> Option<T> {
    let at = queue.binary_search_by_key(&number, number_of);
    queue.remove(at.ok()?)
}

/// Waits for a call as long as one of its callers waits for a reply.
pub(crate) async fn while_wanted<T, M, R>(
    call: impl Future<Output = T>,
    callers: &mut VecDeque<M>,
    reply: fn(&mut M) -> &mut oneshot::Sender<R>,
) -> Option<T> {
    let mut call = pin!(call);
    let mut left = 0;
    poll_fn(|cx| {
        if let Poll::Ready(outcome) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        while let Some(caller) = callers.get_mut(left) {
            if reply(caller).poll_closed(cx).is_pending() {
                return Poll::Pending;
            }
            left += 1;
        }
        Poll::Ready(None)
    })
    .await
}

/// Returns the decision of each caller of a call. An error is that of each of them.
pub(super) fn of_each(
    outcome: Result<List<Decision>, Error>,
    callers: usize,
) -> Vec<Result<Decision, Error>> {
    match outcome {
        Ok(decisions) => decisions.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error); callers],
    }
}

/// The ids that shared calls in flight are for, each with whether it was given back meanwhile.
///
/// The call may arrive after that receipt, or be sent once more, so its end gives back once more.
#[derive(Default)]
pub(super) struct Unanswered(Mutex<HashMap<PermitId, bool>>);

impl Unanswered {
    pub(super) fn insert<'a>(&self, callers: impl Iterator<Item = &'a Acquire>) {
        lock(&self.0).extend(callers.map(|acquire| (acquire.first.id, false)));
    }

    /// Records that a receipt is given back.
    pub(super) fn gives_back(&self, receipt: &Receipt) {
        if let Some(given_back) = lock(&self.0).get_mut(&receipt.id) {
            *given_back = true;
        }
    }

    /// Ends the call for a caller. Returns whether it was given back meanwhile.
    pub(super) fn remove(&self, acquire: &Acquire) -> bool {
        lock(&self.0).remove(&acquire.first.id) == Some(true)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}
