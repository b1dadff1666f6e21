//! Decisions on their way to callers that share a call.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use tokio::sync::oneshot;

use crate::{
    decision::{Decision, Grant, Source},
    demand::Acquire,
    error::{Error, ErrorKind},
    list::List,
    receipt::{PermitId, Receipt},
    store::Calls,
    sync::lock,
};

/// A decision that its caller has not read yet.
///
/// Dropped unread, it gives back what is flagged so: its caller has left, and does not know of the
/// grant, or has given it back before it was taken. For other callers, the code that drops them
/// decides.
pub(super) struct Reply {
    outcome: Option<Result<Decision, Error>>,
    gives_back: bool,
    store: Arc<dyn GivesBack>,
}

impl Reply {
    /// Returns the decision for a caller, who may have left and given back by now.
    pub(super) fn new(
        outcome: Result<Decision, Error>,
        gave_back: bool,
        store: Arc<dyn GivesBack>,
    ) -> Self {
        let leased = matches!(&outcome, Ok(Decision::Allow(grant)) if is_leased(grant));
        Self {
            outcome: Some(outcome),
            gives_back: gave_back || leased,
            store,
        }
    }

    pub(super) fn read(mut self) -> Result<Decision, Error> {
        let outcome = self.outcome.take();
        outcome.unwrap_or_else(|| Err(ErrorKind::Unavailable.into()))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(Ok(Decision::Allow(grant))) = self.outcome.take()
            && self.gives_back
        {
            for receipt in grant.into_receipts() {
                self.store.give_back(receipt);
            }
        }
    }
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

/// Returns whether a grant was taken from permits at hand, by an id that its caller does not know.
fn is_leased(grant: &Grant) -> bool {
    grant.source() == Source::Lease
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

/// A store of any type to which receipts are given back.
pub(super) trait GivesBack: Send + Sync {
    fn give_back(&self, receipt: Receipt);
}

impl<S: Calls> GivesBack for S {
    fn give_back(&self, receipt: Receipt) {
        self.settle(receipt, 0);
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
