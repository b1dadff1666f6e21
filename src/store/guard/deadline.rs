//! Gives up after a time, so that a slow store costs a request no more than its owner allows.

use std::time::Duration;

use crate::{
    clock,
    decision::{Decision, Receipt, Refusal},
    error::{Error, ErrorKind},
    name::Name,
    store::{Acquire, Decide, Op, Outcome, Patience},
};

/// A store whose callers wait no longer than a given time.
#[derive(Debug)]
pub(crate) struct Deadline<S> {
    inner: S,
    patience: Duration,
}

impl<S: Decide> Deadline<S> {
    pub(crate) fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience }
    }

    pub(crate) fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Decide> Decide for Deadline<S> {
    /// # Cancel safety
    ///
    /// Dropping it leaves the outcome open: whoever drops it decides whether to give back.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        clock::check_timer()?;
        // Made before the call: what was taken by a call that nobody waits for any longer is given back unheard.
        let receipts = acquire.receipts();
        let patience = match acquire.patience {
            None => self.patience,
            Some(Patience::For(time) | Patience::Queue(time, _)) => {
                self.patience.saturating_add(time)
            }
            Some(Patience::Endless) => return self.inner.acquire(acquire).await,
        };
        match clock::within(patience, self.inner.acquire(acquire)).await {
            Some(decision) => decision,
            None => {
                for receipt in receipts.iter() {
                    self.inner.give_back(receipt.clone(), 0);
                }
                Err(ErrorKind::Timeout.into())
            }
        }
    }

    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        // Callers have their own deadlines.
        self.inner.acquire_run(run).await
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        clock::check_timer()?;
        // An operator's call is worth waiting for: the connection's own timeouts bound it.
        self.inner.manage(name, op).await
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
        self.inner.give_back(receipt, keep);
    }

    fn decides_together(&self, acquire: &Acquire) -> bool {
        self.inner.decides_together(acquire)
    }

    fn last_known(&self, acquire: &Acquire) -> Option<Refusal> {
        self.inner.last_known(acquire)
    }
}
