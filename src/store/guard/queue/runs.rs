//! Callers that do not wait for permits: one call of a limiter in flight, and the next one for all
//! that came meanwhile.
//!
//! A caller that leaves while it stands behind a call is taken out. A shared call is sent by a
//! task, survives each of its callers, and is dropped with the last. An error is that of each of
//! them; those behind are asked for by the next call.

use std::{
    collections::{VecDeque, hash_map::Entry},
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::{
    Inner, Key, key, lock,
    max_wait::LONGEST_RUN,
    reply::{GivesBack, Reply, of_each},
};
use crate::{decision::Decision, demand::Acquire, error::Error, store::DecideRuns};

/// A limiter that a call is in flight for, or about to be sent.
pub(super) struct Run {
    call: u64,
    since: Duration,
    /// In the order of arrival.
    behind: VecDeque<Member>,
}

struct Member {
    number: u64,
    acquire: Acquire,
    reply: oneshot::Sender<Reply>,
    runtime: Handle,
}

/// Decides by an own call where none is in flight, or else by the next one, which others share.
///
/// # Cancel safety
///
/// As [`acquire`](super::Queued::acquire).
pub(super) async fn acquire<S: DecideRuns>(
    queue: &Arc<Inner<S>>,
    acquire: &Acquire,
) -> Result<Decision, Error> {
    let Ok(runtime) = Handle::try_current() else {
        // There is nothing that could send for it.
        return queue.call_alone(acquire, false).await;
    };
    let key = key(acquire);
    loop {
        match enter(queue, &key, acquire, &runtime) {
            Entered::Alone(call) => {
                let held = Held {
                    queue: Arc::clone(queue),
                    key: key.clone(),
                    call,
                };
                let place = queue.enter(acquire, false).await?;
                // Another call may have been sent while this one waited, unpolled.
                if !place.has_waited || held.begins() {
                    return queue.store.acquire(acquire).await;
                }
            }
            Entered::Behind(number, reply) => {
                let mut place = Place {
                    queue,
                    key: &key,
                    acquire,
                    number,
                    reply,
                };
                return match (&mut place.reply).await {
                    Ok(reply) => reply.read(),
                    // The runtime of the call is gone, or the call has panicked.
                    Err(_) => queue.call_alone(acquire, true).await,
                };
            }
        }
    }
}

enum Entered {
    Alone(u64),
    Behind(u64, oneshot::Receiver<Reply>),
}

fn enter<S: DecideRuns>(
    queue: &Inner<S>,
    key: &Key,
    acquire: &Acquire,
    runtime: &Handle,
) -> Entered {
    let (number, now) = (queue.queues.0.next(), queue.in_flight.now());
    match lock(&queue.queues.0.runs).entry(key.clone()) {
        Entry::Vacant(free) => {
            free.insert(Run {
                call: number,
                since: now,
                behind: VecDeque::new(),
            });
            Entered::Alone(number)
        }
        Entry::Occupied(mut held) => {
            let run = held.get_mut();
            if now >= run.since.saturating_add(queue.in_flight.bounds.deadline) {
                // Nothing holds a limiter for longer. Those behind are asked for after this call.
                (run.call, run.since) = (number, now);
                return Entered::Alone(number);
            }
            let (reply, receiver) = oneshot::channel();
            run.behind.push_back(Member {
                number,
                acquire: acquire.clone(),
                reply,
                runtime: runtime.clone(),
            });
            Entered::Behind(number, receiver)
        }
    }
}

/// A place behind a call. Dropping it gives it up, if the next call is not sent yet.
struct Place<'a, S: DecideRuns> {
    queue: &'a Inner<S>,
    key: &'a Key,
    acquire: &'a Acquire,
    number: u64,
    reply: oneshot::Receiver<Reply>,
}

impl<S: DecideRuns> Drop for Place<'_, S> {
    fn drop(&mut self) {
        // First: one that is put back behind is then either found here, or known to have left.
        self.reply.close();
        let mut runs = lock(&self.queue.queues.0.runs);
        let left = runs.get_mut(self.key).and_then(|run| {
            let at = run
                .behind
                .binary_search_by_key(&self.number, |member| member.number);
            at.ok().and_then(|at| run.behind.remove(at))
        });
        // Not while the table is locked: a runtime may end with its last handle.
        drop(runs);
        if left.is_some() {
            let _ = self.acquire.unsent.set(());
        }
    }
}

/// Holds a limiter for a call. Dropping it sends the next one.
struct Held<S: DecideRuns> {
    queue: Arc<Inner<S>>,
    key: Key,
    call: u64,
}

impl<S: DecideRuns> Held<S> {
    /// Records that the call is sent only now. Returns whether it still holds the limiter.
    fn begins(&self) -> bool {
        let mut runs = lock(&self.queue.queues.0.runs);
        let run = runs.get_mut(&self.key).filter(|run| run.call == self.call);
        run.map(|run| run.since = self.queue.in_flight.now())
            .is_some()
    }
}

impl<S: DecideRuns> Drop for Held<S> {
    fn drop(&mut self) {
        let (runtime, call) = {
            let mut runs = lock(&self.queue.queues.0.runs);
            let Some(run) = runs.get_mut(&self.key).filter(|run| run.call == self.call) else {
                return;
            };
            // The last one was polled not long ago, so its runtime is driven.
            let Some(last) = run.behind.back() else {
                runs.remove(&self.key);
                return;
            };
            let runtime = last.runtime.clone();
            (run.call, run.since) = (self.queue.queues.0.next(), self.queue.in_flight.now());
            (runtime, run.call)
        };
        let task = Task {
            runtime: runtime.id(),
            begun: false,
            held: Self {
                queue: Arc::clone(&self.queue),
                key: self.key.clone(),
                call,
            },
        };
        runtime.spawn(task.send());
    }
}

/// A call that is to be sent by a task.
struct Task<S: DecideRuns> {
    runtime: Id,
    begun: bool,
    held: Held<S>,
}

impl<S: DecideRuns> Drop for Task<S> {
    /// If it never began, its runtime is gone, and the callers from there send for themselves.
    fn drop(&mut self) {
        if !self.begun {
            let mut gone = Vec::new();
            if let Some(run) = lock(&self.held.queue.queues.0.runs).get_mut(&self.held.key) {
                let behind = std::mem::take(&mut run.behind);
                let here = |member: &Member| member.runtime.id() == self.runtime;
                let (from_there, others): (Vec<_>, Vec<_>) = behind.into_iter().partition(here);
                (gone, run.behind) = (from_there, others.into());
            }
            drop(gone);
        }
    }
}

impl<S: DecideRuns> Task<S> {
    async fn send(mut self) {
        self.begun = true;
        let Held { queue, key, call } = &self.held;
        let Some((name, ..)) = key.first() else {
            return;
        };
        let place = queue.in_flight.enter(name, false).await;
        let mut sent = Sent::take(queue, key, *call);
        if sent.members.is_empty() {
            return;
        }
        let outcome = match place {
            Ok(_place) => {
                let callers: Vec<_> = sent.callers().cloned().collect();
                let call = queue.store.acquire_run(&callers);
                match sent.wanted(call).await {
                    Some(outcome) => outcome,
                    None => return,
                }
            }
            Err(overload) => Err(overload),
        };
        sent.answer(outcome);
        sent.put_back(key, *call);
    }
}

/// The callers of a call that is in flight.
struct Sent<S: DecideRuns> {
    queue: Arc<Inner<S>>,
    members: VecDeque<Member>,
}

impl<S: DecideRuns> Sent<S> {
    /// Takes the first callers behind.
    fn take(queue: &Arc<Inner<S>>, key: &Key, call: u64) -> Self {
        let mut members = VecDeque::new();
        let mut runs = lock(&queue.queues.0.runs);
        if let Some(run) = runs.get_mut(key).filter(|run| run.call == call) {
            run.since = queue.in_flight.now();
            let count = run.behind.len().min(LONGEST_RUN);
            members = run.behind.drain(..count).collect();
        }
        let sent = Self {
            queue: Arc::clone(queue),
            members,
        };
        // With the table locked: a caller that leaves after that may give back at once.
        queue.queues.0.unanswered.insert(sent.callers());
        sent
    }

    fn callers(&self) -> impl Iterator<Item = &Acquire> {
        self.members.iter().map(|member| &member.acquire)
    }

    /// Waits for the reply to a call, as long as one of its callers does.
    async fn wanted<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let mut call = pin!(call);
        let mut left = 0;
        poll_fn(|cx| {
            if let Poll::Ready(reply) = call.as_mut().poll(cx) {
                return Poll::Ready(Some(reply));
            }
            while let Some(member) = self.members.get_mut(left) {
                if Pin::new(&mut member.reply).poll_closed(cx).is_pending() {
                    return Poll::Pending;
                }
                left += 1;
            }
            Poll::Ready(None)
        })
        .await
    }

    fn answer(&mut self, outcome: Result<Vec<Decision>, Error>) {
        for outcome in of_each(outcome, self.members.len()) {
            let Some(member) = self.members.pop_front() else {
                return;
            };
            let gave_back = self.queue.queues.0.unanswered.remove(&member.acquire);
            let store = Arc::clone(&self.queue.store) as Arc<dyn GivesBack>;
            drop(member.reply.send(Reply::new(outcome, gave_back, store)));
        }
    }

    /// Puts the callers that were not tried in front of those behind.
    fn put_back(&mut self, key: &Key, call: u64) {
        if self.members.is_empty() {
            return;
        }
        let mut untried = std::mem::take(&mut self.members);
        for member in &untried {
            self.queue.queues.0.unanswered.remove(&member.acquire);
        }
        let mut runs = lock(&self.queue.queues.0.runs);
        untried.retain(|member| !member.reply.is_closed());
        // If another call holds the limiter by now, they are dropped, and send for themselves.
        if let Some(run) = runs.get_mut(key).filter(|run| run.call == call) {
            while let Some(member) = untried.pop_back() {
                run.behind.push_front(member);
            }
        }
        drop(runs);
    }
}

impl<S: DecideRuns> Drop for Sent<S> {
    /// Without an answer, what was given back meanwhile may have arrived before the call, which is
    /// not sent again from now on.
    fn drop(&mut self) {
        for member in &self.members {
            if self.queue.queues.0.unanswered.remove(&member.acquire) {
                for receipt in member.acquire.receipts() {
                    self.queue.store.give_back(receipt);
                }
            }
        }
    }
}
