//! The queue of callers that do not wait for permits: a limiter has one call in flight, and all
//! callers that come meanwhile share the next one.
//!
//! This is the first of two queues, and joins callers of one limiter in a call. The second,
//! `redis/batch.rs`, joins calls of several limiters in a command.
//!
//! A caller that leaves before its call is sent is taken out of the queue. A task sends the shared
//! call, which goes on when single callers leave, and is dropped when all have. If the call fails,
//! each of its callers gets the error; the callers behind them are in the next call.

use std::{
    collections::{VecDeque, hash_map::Entry},
    future::poll_fn,
    mem,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot};

use super::{Key, Queued, in_flight::take_out, key, wait_queue::LONGEST_RUN};
use crate::{
    charge::Charge,
    decision::{Decision, Source},
    demand::Demand,
    error::Error,
    list::List,
    store::Calls,
    sync::lock,
};

/// A limiter with a call in flight or about to be sent, and the callers behind that call.
pub(super) struct Run {
    call: u64,
    since: Duration,
    /// In the order of arrival.
    behind: VecDeque<Member>,
}

struct Member {
    number: u64,
    demand: Demand,
    reply: oneshot::Sender<Reply>,
    runtime: Handle,
}

/// A decision on its way to a caller, who may have left and given back by now.
pub(super) struct Reply {
    pub(super) outcome: Result<Decision, Error>,
    /// Set if it was given back before it was taken.
    pub(super) gave_back: bool,
}

impl Reply {
    /// Returns what to give back for a caller that has left: a grant that it gave back too early,
    /// or a leased one, whose id it does not know. The code that dropped the caller decides
    /// about other grants.
    pub(super) fn unread(self) -> Vec<Charge> {
        match self.outcome {
            Ok(Decision::Allow(grant)) if self.gave_back || grant.source() == Source::Lease => {
                grant.charges().to_vec()
            }
            _ => Vec::new(),
        }
    }
}

/// Decides by a call for this caller alone if none is in flight, otherwise by the next shared one.
///
/// # Cancel safety
///
/// As [`Queued::acquire`](super::Queued::acquire).
pub(super) async fn acquire<S: Calls>(
    queue: &Arc<Queued<S>>,
    demand: &Demand,
) -> Result<Decision, Error> {
    let Ok(runtime) = Handle::try_current() else {
        // Without a runtime, no task can send a shared call.
        return Box::pin(queue.call_alone(demand, false)).await;
    };
    let key = key(demand);
    let (_held, _place) = loop {
        match join(queue, &key, demand, &runtime) {
            Joined::Alone(call) => {
                let held = Held {
                    queue: Arc::clone(queue),
                    key: key.clone(),
                    call,
                };
                let place = queue.take_place(demand, false).await?;
                let begin = |run: &mut Run| run.since = queue.in_flight.clock.now();
                // Another call may have been sent while this one waited, unpolled.
                if !place.has_waited || held.run(begin).is_some() {
                    break (held, place);
                }
            }
            Joined::Behind(number, reply) => {
                let mut place = RunPlace {
                    queue,
                    key: &key,
                    demand,
                    number,
                    reply,
                };
                return match (&mut place.reply).await {
                    Ok(reply) => reply.outcome,
                    // The runtime of the call is gone, or the call has panicked.
                    Err(_) => Box::pin(queue.call_again(demand)).await,
                };
            }
        }
    };
    queue.inner.acquire(demand).await
}

/// A caller's part in the calls of its limiter.
enum Joined {
    /// No call is in flight: the caller sends this one.
    Alone(u64),
    /// The caller has this number in the queue.
    Behind(u64, oneshot::Receiver<Reply>),
}

fn join<S: Calls>(queue: &Queued<S>, key: &Key, demand: &Demand, runtime: &Handle) -> Joined {
    let now = queue.in_flight.clock.now();
    let mut runs = lock(&queue.queues.runs);
    // Under the lock, so that the numbers in a queue ascend: `take_out` relies on it.
    let number = queue.queues.next();
    match runs.entry(key.clone()) {
        Entry::Vacant(free) => {
            free.insert(Run {
                call: number,
                since: now,
                behind: VecDeque::new(),
            });
            Joined::Alone(number)
        }
        Entry::Occupied(mut held) => {
            let run = held.get_mut();
            if now >= run.since.saturating_add(queue.in_flight.bounds.deadline) {
                // A call older than the deadline no longer holds the limiter. The callers behind it
                // follow this call now.
                (run.call, run.since) = (number, now);
                return Joined::Alone(number);
            }
            let (reply, receiver) = oneshot::channel();
            run.behind.push_back(Member {
                number,
                demand: demand.clone(),
                reply,
                runtime: runtime.clone(),
            });
            Joined::Behind(number, receiver)
        }
    }
}

/// A caller's place in the queue behind a call. Dropping it leaves the queue.
struct RunPlace<'a, S: Calls> {
    queue: &'a Queued<S>,
    key: &'a Key,
    demand: &'a Demand,
    number: u64,
    reply: oneshot::Receiver<Reply>,
}

impl<S: Calls> Drop for RunPlace<'_, S> {
    fn drop(&mut self) {
        // The channel is closed before the queue is searched. A caller that `put_back` returns to
        // the queue meanwhile is then either found below, or recognised by its closed channel.
        self.reply.close();
        if let Ok(reply) = self.reply.try_recv() {
            self.queue.give_back(reply.unread());
        }
        let mut runs = lock(&self.queue.queues.runs);
        let run = runs.get_mut(self.key);
        let left = run.and_then(|run| take_out(&mut run.behind, self.number, |it| it.number));
        // The lock is released first: dropping the last handle of a runtime may end the runtime.
        drop(runs);
        if left.is_some() {
            let _ = self.demand.unsent.set(());
        }
    }
}

/// Holds a limiter for a call. Dropping it sends the next one.
struct Held<S: Calls> {
    queue: Arc<Queued<S>>,
    key: Key,
    call: u64,
}

impl<S: Calls> Held<S> {
    /// Acts on the limiter, if the call still holds it.
    fn run<T>(&self, act: impl FnOnce(&mut Run) -> T) -> Option<T> {
        let mut runs = lock(&self.queue.queues.runs);
        runs.get_mut(&self.key)
            .filter(|run| run.call == self.call)
            .map(act)
    }
}

impl<S: Calls> Drop for Held<S> {
    fn drop(&mut self) {
        let (runtime, call) = {
            let mut runs = lock(&self.queue.queues.runs);
            let Some(run) = runs.get_mut(&self.key).filter(|run| run.call == self.call) else {
                return;
            };
            // The last caller was polled most recently, so its runtime is the likeliest to run.
            let Some(last) = run.behind.back() else {
                runs.remove(&self.key);
                return;
            };
            let runtime = last.runtime.clone();
            (run.call, run.since) = (self.queue.queues.next(), self.queue.in_flight.clock.now());
            (runtime, run.call)
        };
        let next = RunCall {
            members: VecDeque::new(),
            has_begun: false,
            held: Self {
                queue: Arc::clone(&self.queue),
                key: self.key.clone(),
                call,
            },
        };
        runtime.spawn(next.send());
    }
}

/// A call that a task sends for the first callers behind.
struct RunCall<S: Calls> {
    /// The callers of this call that are not answered yet. Dropped before the next call is sent.
    members: VecDeque<Member>,
    has_begun: bool,
    held: Held<S>,
}

impl<S: Calls> RunCall<S> {
    async fn send(mut self) {
        self.has_begun = true;
        let queue = Arc::clone(&self.held.queue);
        let Some((limiter, ..)) = self.held.key.first() else {
            return;
        };
        let place = queue.in_flight.take_place(&limiter.name, false).await;
        let callers = self.take_members();
        if callers.is_empty() {
            return;
        }
        let outcome = match place {
            Ok(_place) => {
                let call = queue.inner.acquire_run(&callers);
                let reply = while_wanted(call, &mut self.members, |member| &mut member.reply);
                let Some(outcome) = reply.await else {
                    return;
                };
                outcome
            }
            Err(unsent) => Err(unsent),
        };
        for outcome in of_each(outcome, callers.len()) {
            let Some(member) = self.members.pop_front() else {
                return;
            };
            let gave_back = queue.queues.end_shared(&member.demand);
            let reply = Reply { outcome, gave_back };
            if let Err(reply) = member.reply.send(reply) {
                queue.give_back(reply.unread());
            }
        }
        self.put_back();
    }

    /// Moves the first callers of the queue into this call, and returns their demands.
    fn take_members(&mut self) -> Vec<Demand> {
        let queue = &self.held.queue;
        let taken = self.held.run(|run| {
            run.since = queue.in_flight.clock.now();
            let count = run.behind.len().min(LONGEST_RUN);
            let members: VecDeque<_> = run.behind.drain(..count).collect();
            // Under the lock, because a caller that leaves after that may give back at once.
            let ids = members.iter().map(|member| member.demand.first().id);
            lock(&queue.queues.unanswered).extend(ids.map(|id| (id, false)));
            members
        });
        self.members = taken.unwrap_or_default();
        let members = self.members.iter();
        members.map(|member| member.demand.clone()).collect()
    }

    /// Puts the callers that were not tried back at the front of the queue.
    fn put_back(&mut self) {
        let mut untried = mem::take(&mut self.members);
        for member in &untried {
            self.held.queue.queues.end_shared(&member.demand);
        }
        // If another call holds the limiter by now, these are dropped, and send calls of their own.
        let mut left = Vec::new();
        self.held.run(|run| {
            while let Some(member) = untried.pop_back() {
                if member.reply.is_closed() {
                    left.push(member);
                } else {
                    run.behind.push_front(member);
                }
            }
        });
    }
}

impl<S: Calls> Drop for RunCall<S> {
    fn drop(&mut self) {
        let queue = &self.held.queue;
        // What was given back during the call may have reached the store before it. The call is not
        // sent again from now on, so it is given back once more.
        for member in &self.members {
            if queue.queues.end_shared(&member.demand) {
                queue.give_back(member.demand.to_settle());
            }
        }
        if !self.has_begun {
            // The task never ran, as its runtime is gone. The callers behind send their own calls.
            let behind = self.held.run(|run| mem::take(&mut run.behind));
            drop(behind);
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
