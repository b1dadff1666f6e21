//! Ends leases in time when nobody asks any more: one task for each store, and only while leases are out.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Poll,
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle};

use super::account::Account;
use crate::{clock::Clock, store::Decide};

/// Knows all leases of a store.
pub(crate) struct Keeper<S> {
    inner: Arc<S>,
    clock: Arc<dyn Clock>,
    watched: Mutex<Watched>,
    /// Wakes the task before its time.
    earlier: Arc<Notify>,
}

#[derive(Default)]
struct Watched {
    ends: BTreeMap<End, Arc<Account>>,
    last_number: u64,
    task: Option<JoinHandle<()>>,
}

/// When a lease ends, by the keeper's clock, and a number that no other has.
pub(crate) type End = (Duration, u64);

impl<S: Decide> Keeper<S> {
    pub(crate) fn new(inner: Arc<S>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            clock,
            watched: Mutex::default(),
            earlier: Arc::default(),
        }
    }

    /// Ends a lease when `left` is over, unless it was ended before.
    pub(crate) fn watch(self: &Arc<Self>, account: Arc<Account>, left: Duration) -> End {
        let mut watched = self.watched();
        watched.last_number += 1;
        let end = (self.clock.now().saturating_add(left), watched.last_number);
        watched.ends.insert(end, account);
        // That of a runtime that was shut down is finished, too.
        if watched.task.as_ref().is_none_or(JoinHandle::is_finished) {
            // Without a timer it expires by itself.
            let runtime = tokio::runtime::Handle::try_current().ok();
            let runtime = runtime.filter(|_| self.clock.can_sleep());
            let (keeper, earlier) = (Arc::downgrade(self), Arc::clone(&self.earlier));
            let clock = Arc::clone(&self.clock);
            watched.task = runtime.map(|runtime| runtime.spawn(keep(keeper, earlier, clock)));
        } else if watched
            .ends
            .first_key_value()
            .is_some_and(|(first, _)| *first == end)
        {
            self.earlier.notify_one();
        }
        end
    }

    /// Ends a lease now.
    pub(crate) fn end(&self, end: End, account: &Account) {
        self.watched().ends.remove(&end);
        self.close(account);
    }

    /// How many leases are out.
    pub(crate) fn count(&self) -> usize {
        self.watched().ends.len()
    }

    /// Ends so many leases now, those first that end first.
    pub(crate) fn end_first(&self, most: usize) {
        for _ in 0..most {
            let first = self.watched().ends.pop_first();
            let Some((_, account)) = first else { return };
            self.close(&account);
        }
    }

    /// Ends all leases now.
    pub(crate) fn end_all(&self) {
        let ends = std::mem::take(&mut self.watched().ends);
        ends.values().for_each(|account| self.close(account));
    }

    /// Ends those whose time is over, and tells when the next one's is. Without one there is nothing left to do for the
    /// task.
    fn end_due(&self) -> Option<Duration> {
        let now = self.clock.now();
        loop {
            let account = {
                let mut watched = self.watched();
                match watched.ends.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    Some(first) => return Some(first.key().0),
                    None => {
                        watched.task = None;
                        return None;
                    }
                }
            };
            self.close(&account);
        }
    }

    fn close(&self, account: &Account) {
        account.close(|receipt, keep| self.inner.settle(receipt, keep));
    }
}

impl<S> Keeper<S> {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        // What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Drop for Keeper<S> {
    fn drop(&mut self) {
        // The task finds that it is gone.
        self.earlier.notify_one();
    }
}

/// Ends when no lease is out, or when the store is gone. It does not keep the store alive.
async fn keep<S: Decide>(keeper: Weak<Keeper<S>>, earlier: Arc<Notify>, clock: Arc<dyn Clock>) {
    loop {
        // Not held while it sleeps.
        let Some(next) = keeper.upgrade().and_then(|keeper| keeper.end_due()) else {
            return;
        };
        let mut timer = clock.sleep_until(next);
        let mut earlier = pin!(earlier.notified());
        poll_fn(|cx| {
            if earlier.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            timer.as_mut().poll(cx)
        })
        .await;
    }
}

impl<S> fmt::Debug for Keeper<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("leases", &self.watched().ends.len())
            .finish_non_exhaustive()
    }
}
