//! The callers that do not wait for permits, and the commands that decide for them.
//!
//! A caller that finds nothing in flight that it could have shared sends a command at once, in its
//! own future. Others stand in the line of their limiter, and a task sends a command for as many as
//! have come: of one limiter, or of several that go together. So a limiter has one command for each
//! answer of the store, however many callers there are.
//!
//! A caller that leaves before its command is sent is taken out of its line. A shared command goes
//! on when single callers leave, and is dropped when all have. If it fails, each of its callers
//! gets the error; those behind them are in the next one. Callers whose task is gone send for
//! themselves.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    slice,
    sync::Arc,
    task::Poll,
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::{
    Outbox,
    caller::{Caller, LineKey, Reply, first_of, is_answer},
    flights::{Entered, Flights},
};
use crate::{
    store::{Answered, Calls, guard::late::Late},
    values::{List, decision::Decision, demand::Demand, error::Error},
};

/// A caller that stands in its line. Dropping it leaves the line.
struct InLine<'a, S: Calls> {
    outbox: &'a Arc<Outbox<S>>,
    node: usize,
    key: &'a LineKey,
    demand: &'a Demand,
    number: u64,
    reply: oneshot::Receiver<Reply>,
}

impl<S: Calls> Drop for InLine<'_, S> {
    fn drop(&mut self) {
        if self.reply.is_terminated() {
            return;
        }
        // The channel is closed before the line is searched. A caller that is put back into it
        // meanwhile is then either found below, or recognised by its closed channel.
        self.reply.close();
        if let Ok(reply) = self.reply.try_recv() {
            self.outbox.give_back(reply.unread());
        }
        let leave = |flights: &mut Flights, _| flights.leave(self.key, self.number);
        if let Some((_member, true)) = self.outbox.with_flights(self.node, leave) {
            let _ = self.demand.unsent.set(());
        }
    }
}

/// A command in flight for these limiters, or a call of one caller. Dropping it lets those go that
/// wait for it.
pub(super) struct InFlight<S: Calls> {
    pub(super) outbox: Arc<Outbox<S>>,
    pub(super) node: usize,
    pub(super) number: u64,
    pub(super) keys: List<LineKey>,
    /// Whether a server has answered.
    is_answered: bool,
}

impl<S: Calls> Outbox<S> {
    /// Decides for a caller, by its own call or one that it shares.
    ///
    /// # Errors
    ///
    /// Those of the store, and [`Late::Unsent`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it before its call is sent takes nothing. After that, what was or may yet be taken
    /// for a caller that waits for permits is given back; for one that does not, the caller of this
    /// method decides, by the receipts that it can make.
    pub(crate) async fn acquire(self: &Arc<Self>, demand: &Demand) -> Result<Decision, Error> {
        // What is rare is boxed, so that it does not enlarge the future.
        if let Some(max_wait) = demand.max_wait {
            return Box::pin(self.acquire_waiting(demand, max_wait)).await;
        }
        let runtime = Handle::try_current().ok();
        let Some(runtime) = runtime.filter(|_| self.inner.decides_together(demand)) else {
            // Callers gain nothing by waiting for each other here, or no task can send for them.
            return Box::pin(self.call_alone(demand)).await;
        };
        let (key, joins) = (LineKey(demand.charges.clone()), self.inner.joins(demand));
        let node = self.nodes.index(demand.first().name());
        let entered = self.with_flights(node, |flights, now| {
            flights.enter(&key, joins, demand, runtime, now)
        });
        match entered {
            Entered::Alone(number) => {
                let mut in_flight = self.in_flight(node, number, List::from([key]));
                // Boxed for those that share a command.
                let call = Box::pin(in_flight.acquire_run(slice::from_ref(demand), false));
                call.await.and_then(first_of)
            }
            Entered::Behind(number, reply) => {
                let mut in_line = InLine {
                    outbox: self,
                    node,
                    key: &key,
                    demand,
                    number,
                    reply,
                };
                match (&mut in_line.reply).await {
                    Ok(reply) => reply.outcome,
                    // The runtime of the task is gone, or it has panicked.
                    Err(_) => Box::pin(self.call_again(demand)).await,
                }
            }
            Entered::Overload => Err(Late::Unsent.error()),
        }
    }

    pub(super) fn in_flight(
        self: &Arc<Self>,
        node: usize,
        number: u64,
        keys: List<LineKey>,
    ) -> InFlight<S> {
        InFlight {
            outbox: Arc::clone(self),
            node,
            number,
            keys,
            is_answered: false,
        }
    }
}

impl<S: Calls> InFlight<S> {
    /// Decides for the callers of a limiter, who may ask `again`.
    ///
    /// # Cancel safety
    ///
    /// As [`Calls::acquire_run`]; so is that of the other here.
    pub(super) async fn acquire_run(
        &mut self,
        run: &[Demand],
        again: bool,
    ) -> Result<List<Decision>, Error> {
        let decided = self.outbox.inner.acquire_run(run, again).await;
        self.is_answered = is_answer(decided.as_deref());
        decided
    }

    /// Decides for those of several limiters.
    async fn acquire_joint(&mut self, runs: &[&[Demand]]) -> List<Answered> {
        let answers = self.outbox.inner.acquire_joint(runs).await;
        self.is_answered = answers.iter().any(|answered| match answered {
            Answered::Decided(decided) => is_answer(decided.as_deref()),
            Answered::Apart { .. } => false,
        });
        answers
    }
}

impl<S: Calls> Drop for InFlight<S> {
    fn drop(&mut self) {
        self.outbox.with_flights(self.node, |flights, now| {
            flights.end(
                self.number,
                self.is_answered,
                mem::take(&mut self.keys),
                now,
            );
        });
    }
}

/// A command that a task sends for the first callers of a line, or of all that go together.
pub(super) struct Command<S: Calls> {
    /// What its callers ask, and those that are not answered yet. Dropped before the next command
    /// is sent.
    demands: Vec<Demand>,
    callers: Vec<Caller>,
    line: Option<LineKey>,
    runtime: Id,
    has_begun: bool,
    in_flight: InFlight<S>,
}

impl<S: Calls> Command<S> {
    pub(super) fn new(
        outbox: &Arc<Outbox<S>>,
        (node, number): (usize, u64),
        line: Option<LineKey>,
        runtime: Id,
    ) -> Self {
        Self {
            demands: Vec::new(),
            callers: Vec::new(),
            runtime,
            has_begun: false,
            in_flight: outbox.in_flight(node, number, line.iter().cloned().collect()),
            line,
        }
    }

    pub(super) async fn send(mut self) {
        self.has_begun = true;
        let outbox = Arc::clone(&self.in_flight.outbox);
        if self.line.is_none() {
            // Those that come in the same turn of the runtime go with it.
            tokio::task::yield_now().await;
            outbox.inner.ready().await;
        }
        let counts = self.take();
        let answers = {
            let mut rest = &self.demands[..];
            let runs = counts.iter().map(|(count, _)| {
                let (run, others) = rest.split_at_checked(*count).unwrap_or((rest, &[]));
                rest = others;
                run
            });
            let runs: List<_> = runs.collect();
            let in_flight = &mut self.in_flight;
            let call = async {
                match (&runs[..], &counts[..]) {
                    ([run], [(_, again)]) => {
                        let decided = in_flight.acquire_run(run, *again).await;
                        List::from([Answered::Decided(decided)])
                    }
                    _ => in_flight.acquire_joint(&runs).await,
                }
            };
            while_wanted(pin!(call), &mut self.callers).await
        };
        if let Some(answers) = answers {
            self.answer(counts.iter().map(|(count, _)| *count), answers);
        }
    }

    /// Takes the callers of this command. Returns how many each limiter has, and whether they ask
    /// again.
    fn take(&mut self) -> List<(usize, bool)> {
        let in_flight = &mut self.in_flight;
        let (number, line) = (in_flight.number, self.line.take());
        let taken = in_flight
            .outbox
            .with_flights(in_flight.node, |flights, now| {
                flights.take(number, line, now)
            });
        let Some(taken) = taken else {
            return List::new();
        };
        (in_flight.number, in_flight.keys) = (taken.number, taken.keys);
        (self.demands, self.callers) = (taken.demands, taken.callers);
        taken.counts
    }

    /// Answers the callers, so many of each limiter.
    fn answer(&mut self, counts: impl Iterator<Item = usize>, answers: List<Answered>) {
        let gave_back = self.end_shared();
        let demands = mem::take(&mut self.demands);
        let mut members = demands
            .into_iter()
            .zip(mem::take(&mut self.callers))
            .zip(gave_back);
        let InFlight {
            outbox,
            node,
            number,
            keys,
            ..
        } = &self.in_flight;
        let reply = |caller: Caller, outcome, gave_back| {
            if let Err(reply) = caller.reply.send(Reply { outcome, gave_back }) {
                outbox.give_back(reply.unread());
            }
        };
        for ((key, count), answered) in keys.iter().zip(counts).zip(answers) {
            let mut of_run = members.by_ref().take(count);
            let mut apart = None;
            match answered {
                Answered::Decided(Ok(decisions)) => {
                    for (decision, ((_, caller), gave_back)) in
                        decisions.into_iter().zip(of_run.by_ref())
                    {
                        reply(caller, Ok(decision), gave_back);
                    }
                }
                Answered::Decided(Err(error)) => {
                    for ((_, caller), gave_back) in of_run.by_ref() {
                        reply(caller, Err(error.clone()), gave_back);
                    }
                }
                Answered::Apart { was_sent } => apart = Some(was_sent),
            }
            let others = of_run.map(|(member, gave_back)| {
                if gave_back && apart == Some(true) {
                    outbox.give_back(member.0.to_settle());
                }
                member
            });
            let others: Vec<_> = others.collect();
            if !others.is_empty() {
                // If another command holds the limiter by now, these are dropped, and send calls of
                // their own.
                drop(outbox.with_flights(*node, |flights, _| {
                    flights.put_back(key, *number, others, apart)
                }));
            }
        }
    }

    /// Notes that what the callers give back is not awaited any longer. Returns which of them have
    /// given back meanwhile.
    fn end_shared(&self) -> Vec<bool> {
        let ids = self.demands.iter().map(|demand| demand.first().id);
        let in_flight = &self.in_flight;
        in_flight.outbox.with_flights(in_flight.node, |flights, _| {
            ids.map(|id| flights.end_shared(id)).collect()
        })
    }
}

impl<S: Calls> Drop for Command<S> {
    fn drop(&mut self) {
        let (outbox, node) = (&self.in_flight.outbox, self.in_flight.node);
        // What was given back during the command may have reached the store before it. It is not
        // sent again from now on, so it is given back once more.
        if !self.demands.is_empty() {
            for (demand, gave_back) in self.demands.iter().zip(self.end_shared()) {
                if gave_back {
                    outbox.give_back(demand.to_settle());
                }
            }
        }
        if !self.has_begun {
            // The task never ran, as its runtime is gone. Callers of this runtime send their own
            // calls.
            let (runtime, line) = (self.runtime, self.line.as_ref());
            drop(outbox.with_flights(node, |flights, _| flights.abandon(runtime, line)));
        }
    }
}

/// Waits for a call as long as one of its callers waits for a reply.
async fn while_wanted<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    callers: &mut [Caller],
) -> Option<T> {
    let mut left = 0;
    poll_fn(|cx| {
        if callers.is_empty() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(outcome) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        while let Some(caller) = callers.get_mut(left) {
            if caller.reply.poll_closed(cx).is_pending() {
                return Poll::Pending;
            }
            left += 1;
        }
        Poll::Ready(None)
    })
    .await
}
