//! Joins calls of limiters in our own format: those that come while another is in flight are sent
//! as one command, which costs Redis and this process less.
//!
//! This is the second of two queues, and joins calls of different limiters. The first,
//! `guard/queue/runs.rs`, has joined all callers of a limiter in one call.
//!
//! If no call is in flight, a call is sent at once, in its caller's future. Others stand in a queue
//! for their runtime, and a task sends as many as have come. Each request is decided as by a call
//! of its own, and a state that is foreign fails its own request alone. A call that the joint
//! command cannot answer is sent once more, alone: that is safe because its limiters know by ids
//! what they granted just now. It is not where each call would fail so, or where the script may
//! have written in part.
//!
//! Their keys are in different hash slots, so on a Redis Cluster each call is sent alone.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    mem,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use redis::Value;
use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::{
    classify::Class,
    node,
    packed::{
        call::{Call, Joined},
        requests::{Asked, KNOWN, may_ask_again},
    },
    transport::connection::Connection,
    wire::{self, script::ScriptCall},
};
use crate::{
    clock::moment,
    compiled_limit::Limiter,
    demand::Demand,
    error::{Error, ErrorKind},
    store::guard::{
        breaker::{Breakers, Signal},
        queue::{take_out, while_wanted},
    },
    sync::{OnDrop, lock},
};

/// The most calls that go together: some milliseconds of a server's time at the worst.
const MOST_CALLS: usize = 64;
/// The most batches in flight. More are smaller, and cost more.
const MOST_BATCHES: usize = 8;
/// The most refusals before a ban, and the most callers that may be banned, for a call to go with
/// others: its script reads each refusal, and writes each caller's.
const MOST_STRIKES: u32 = 100;
const MOST_BANNED: usize = 8;

/// The calls to a server, past its breakers.
pub(crate) struct Batches {
    pub(super) connection: Arc<Connection>,
    /// Keep decisions away from failing servers. Verbs and receipts are sent past them, because no
    /// request waits for these.
    pub(super) breakers: Breakers,
    /// By runtime, so that one that is not driven delays only its own callers.
    queues: Mutex<HashMap<Id, Queue>>,
    /// The number of the next member. It is drawn with the queues locked, so that each queue is
    /// sorted by it.
    next_number: AtomicU64,
    /// The number of batches that have taken their calls and are not sent yet.
    departing: AtomicUsize,
    /// Set when the server, or what stands in front of it, takes no keys of different hash slots.
    pub(super) no_cross_slot: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// The calls in flight, also that of a task which is about to take its own.
    in_flight: usize,
    /// Set if there is such a task.
    is_sending: bool,
    /// In the order of arrival.
    members: VecDeque<(Member, Call)>,
}

struct Member {
    number: u64,
    limiter: Limiter,
    /// When the first of its callers asked.
    asked_at: Option<Instant>,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// A call that failed.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Set if it may have been carried out all the same.
    pub(super) unacknowledged: bool,
    /// Set if its connection is of no more use.
    pub(super) connection_lost: bool,
    /// Set if every call would fail so, or none of them may be asked again.
    fails_for_all: bool,
}

impl Batches {
    pub(super) fn new(connection: Arc<Connection>, breakers: Breakers) -> Self {
        Self {
            connection,
            breakers,
            queues: Mutex::default(),
            next_number: AtomicU64::new(0),
            departing: AtomicUsize::new(0),
            no_cross_slot: AtomicBool::new(false),
        }
    }

    /// Waits until all that a caller who has left may yet take is on its way, so that what gives it
    /// back comes after it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub(super) async fn departed(&self) {
        while self.departing.load(SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Sends the call of these callers of limiters in our own format: alone, by the script for a
    /// lone caller if `tries_lone` and there is one, or joined with others. Returns the reply, and
    /// whether it is that of such a script.
    ///
    /// The reply is nil if the joint command did not answer this call, and may have carried it out
    /// or not. Then the caller asks again, alone. If that fails, the call is still unacknowledged.
    ///
    /// # Errors
    ///
    /// Those of the server and its connection, and that the breaker is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the call unsent, or carried out or not.
    pub(super) async fn send_own(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        run: &[Demand],
        tries_lone: bool,
    ) -> Result<(Value, bool), Failure> {
        // Held until the call has ended.
        let mut _claim = None;
        if !asked.again
            && let Some(runtime) = self.runtime_of(asked, run)
        {
            _claim = self.claim(&runtime);
            if _claim.is_none() {
                let mut place = self.enqueue(&runtime, run, asked.call(run));
                let reply = (&mut place.reply).await.unwrap_or(Ok(Value::Nil));
                return Ok((reply?, false));
            }
        }
        let lone = tries_lone.then(|| asked.lone(run)).flatten();
        let is_lone = lone.is_some();
        let mut call = lone.unwrap_or_else(|| asked.call(run).command());
        // Asked again, each caller is a grant of its own, and a state may know only so many.
        call.once = !asked.again || run.len() > KNOWN;
        Ok((self.send(call, run, asked.again).await?, is_lone))
    }

    /// Sends the call of these callers, alone. They may have sent it before, and ask `again`.
    ///
    /// # Errors
    ///
    /// As [`send_own`](Self::send_own).
    ///
    /// # Cancel safety
    ///
    /// As [`send_own`](Self::send_own).
    pub(super) async fn send(
        &self,
        call: ScriptCall,
        run: &[Demand],
        again: bool,
    ) -> Result<Value, Failure> {
        let Some(first) = run.first() else {
            return Ok(Value::Nil);
        };
        // Boxed, so that callers whose call goes with others have no room for it in their futures.
        let exchange = self.exchange(&call, &first.first().limiter, asked_at(run));
        let outcome = Box::pin(exchange).await;
        call.recycle();
        outcome.map_err(|failure| Failure {
            unacknowledged: failure.unacknowledged || again,
            ..failure
        })
    }

    /// Returns the runtime whose queue a call may stand in; `None` if it must be sent alone.
    ///
    /// Callers that wait for permits have none: they may leave and give back while their call is
    /// queued, and it would take after that. Nor has one with shadow rules beside others: if one of
    /// these fails, it is asked again without them, and nothing that is given back may be under way
    /// then.
    fn runtime_of(&self, asked: &Asked<'_>, run: &[Demand]) -> Option<Handle> {
        let is_short = |demand: &Demand| {
            let mut bans = demand.charges().filter_map(|charge| charge.of().ban);
            bans.all(|ban| ban.after <= MOST_STRIKES && run.len() <= MOST_BANNED)
        };
        let goes = |demand: &Demand| {
            let mut charges = demand.charges();
            demand.max_wait.is_none()
                && is_short(demand)
                && !(demand.is_list() && charges.any(|charge| charge.shadow))
        };
        let together = run.iter().all(goes)
            && !self.connection.source.is_cluster
            && !self.no_cross_slot.load(Relaxed)
            && may_ask_again(asked.rows, run);
        Handle::try_current().ok().filter(|_| together)
    }

    /// Sends a call, and records what it says about the server. All limiters of a call are on one
    /// node.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the call carried out or not.
    async fn exchange(
        &self,
        call: &ScriptCall,
        limiter: &Limiter,
        asked_at: Option<Instant>,
    ) -> Result<Value, Failure> {
        let waited = asked_at.map_or(Duration::ZERO, |asked_at| {
            moment().saturating_duration_since(asked_at)
        });
        let pass = self.breakers.enter(&limiter.name, waited)?;
        // If it must not be sent twice, permits of a lost reply stay in use until they expire.
        match call.send(&self.connection).await {
            Ok(reply) => {
                pass.ends(Signal::Answered);
                Ok(reply)
            }
            Err(failed) => {
                let class = Class::of(&failed.error);
                if class == Class::Silent && failed.unacknowledged {
                    pass.ends_unanswered();
                } else {
                    pass.ends(node::signal(&failed, self.connection.source.is_cluster));
                }
                Err(Failure {
                    unacknowledged: failed.unacknowledged,
                    connection_lost: class.ends_connection(),
                    // A script that is refused a command may have written for the first limiters of
                    // a list: who asked again would be found there, and take nothing of the others.
                    fails_for_all: matches!(
                        class,
                        Class::Unable | Class::Unwritable | Class::Silent | Class::RefusedWithin
                    ),
                    error: wire::failure(failed),
                })
            }
        }
    }

    /// Claims an idle queue for one call, which is then sent alone; `None` if a call is in flight.
    fn claim(self: &Arc<Self>, runtime: &Handle) -> Option<CallInFlight> {
        let mut queues = lock(&self.queues);
        let queue = queues.entry(runtime.id()).or_default();
        if queue.in_flight > 0 {
            return None;
        }
        queue.in_flight = 1;
        Some(CallInFlight {
            batches: Arc::clone(self),
            runtime: runtime.clone(),
            takes_calls: false,
        })
    }

    /// Puts a call into the queue.
    fn enqueue<'a>(
        self: &'a Arc<Self>,
        runtime: &Handle,
        run: &'a [Demand],
        call: Call,
    ) -> BatchPlace<'a> {
        let (sender, reply) = oneshot::channel();
        let limiter = run[0].first().limiter.clone();
        let (number, is_claimed) = {
            let mut queues = lock(&self.queues);
            let queue = queues.entry(runtime.id()).or_default();
            let number = self.next_number.fetch_add(1, Relaxed);
            let member = Member {
                number,
                limiter,
                asked_at: asked_at(run),
                reply: sender,
            };
            queue.members.push_back((member, call));
            (number, queue.claim_batch())
        };
        if is_claimed {
            self.spawn(runtime);
        }
        BatchPlace {
            batches: self,
            queue: runtime.id(),
            number,
            run,
            reply,
        }
    }

    /// Has a task send those that stand in a queue.
    fn spawn(self: &Arc<Self>, runtime: &Handle) {
        let call = CallInFlight {
            batches: Arc::clone(self),
            runtime: runtime.clone(),
            takes_calls: true,
        };
        runtime.spawn(call.send_batch());
    }

    /// Answers each call of a batch. Those that it does not answer go alone.
    fn answer(&self, members: VecDeque<Member>, joined: &Joined, outcome: Result<Value, Failure>) {
        match outcome {
            Ok(reply) => {
                for (member, reply) in members.into_iter().zip(joined.replies(reply)) {
                    if let Some(reply) = reply {
                        let _ = member.reply.send(Ok(reply));
                    }
                }
            }
            Err(failure) if members.len() > 1 && !failure.fails_for_all => {
                // One forbidden key, or keys of different hash slots, has the server refuse all.
                if failure.error.kind() == ErrorKind::OtherSlot {
                    self.no_cross_slot.store(true, Relaxed);
                }
            }
            Err(failure) => {
                for member in members {
                    let _ = member.reply.send(Err(failure.clone()));
                }
            }
        }
    }

    /// Acts on a queue, and removes it if it is idle then.
    fn with_queue<T>(&self, runtime: Id, act: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let mut queues = lock(&self.queues);
        let queue = queues.get_mut(&runtime)?;
        let acted = act(queue);
        if queue.in_flight == 0 {
            queues.remove(&runtime);
        }
        Some(acted)
    }
}

impl Queue {
    /// Takes the first calls, as many as go in one command.
    fn take(&mut self) -> (VecDeque<Member>, Joined) {
        let (mut members, mut joined) = (VecDeque::new(), Joined::default());
        let fits = |queue: &VecDeque<(Member, Call)>, joined: &Joined| {
            queue.front().is_some_and(|(_, call)| joined.has_room(call))
        };
        while members.len() < MOST_CALLS
            && fits(&self.members, &joined)
            && let Some((member, call)) = self.members.pop_front()
        {
            joined.add(call);
            members.push_back(member);
        }
        (members, joined)
    }

    /// Claims the next batch, unless a task is about to send it, or too many are in flight, or no
    /// call stands here. Returns whether the caller must spawn the task. The batch is in flight
    /// from then on.
    fn claim_batch(&mut self) -> bool {
        let is_claimed =
            !self.is_sending && self.in_flight < MOST_BATCHES && !self.members.is_empty();
        self.is_sending |= is_claimed;
        self.in_flight += usize::from(is_claimed);
        is_claimed
    }
}

/// A call in flight, alone or a batch. Dropping it lets those go that came meanwhile.
struct CallInFlight {
    batches: Arc<Batches>,
    runtime: Handle,
    /// Set for a batch that has yet to take its calls.
    takes_calls: bool,
}

impl CallInFlight {
    /// Sends the first that stand in the queue.
    async fn send_batch(mut self) {
        let batches = Arc::clone(&self.batches);
        // Those that come in the same turn of the runtime go with it.
        tokio::task::yield_now().await;
        batches.connection.ready().await;
        // Until the first poll that sends the calls is over.
        batches.departing.fetch_add(1, SeqCst);
        let departing = OnDrop::new(|| {
            batches.departing.fetch_sub(1, SeqCst);
        });
        let taken = batches.with_queue(self.runtime.id(), |queue| {
            queue.is_sending = false;
            (queue.take(), queue.claim_batch())
        });
        self.takes_calls = false;
        let Some(((mut members, joined), is_claimed)) = taken else {
            return;
        };
        if is_claimed {
            batches.spawn(&self.runtime);
        }
        let limiter = members.front().map(|member| member.limiter.clone());
        let (Some(call), Some(limiter)) = (joined.command(), limiter) else {
            return;
        };
        let asked_at = members.iter().filter_map(|member| member.asked_at).min();
        let mut exchange = pin!(batches.exchange(&call, &limiter, asked_at));
        let mut departing = Some(departing);
        let sending = poll_fn(|cx| {
            let outcome = exchange.as_mut().poll(cx);
            departing = None;
            outcome
        });
        // The reply is of all, also of those that leave meanwhile.
        let outcome = while_wanted(sending, &mut members, |member| &mut member.reply).await;
        if let Some(outcome) = outcome {
            batches.answer(members, &joined, outcome);
        }
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        let mut left = VecDeque::new();
        let is_claimed = self.batches.with_queue(self.runtime.id(), |queue| {
            queue.in_flight = queue.in_flight.saturating_sub(1);
            if self.takes_calls {
                // Its runtime has ended: they go alone.
                queue.is_sending = false;
                left = mem::take(&mut queue.members);
            }
            queue.claim_batch()
        });
        // Not while the queues are locked: it wakes them.
        drop(left);
        if is_claimed == Some(true) {
            self.batches.spawn(&self.runtime);
        }
    }
}

impl Failure {
    /// Returns that of a call whose reply is an error, and which may have been carried out before.
    pub(super) fn read(error: Error, again: bool) -> Self {
        Self {
            unacknowledged: again,
            ..Self::from(error)
        }
    }
}

impl From<Error> for Failure {
    /// The call was not sent, or was answered.
    fn from(error: Error) -> Self {
        Self {
            error,
            unacknowledged: false,
            connection_lost: false,
            fails_for_all: true,
        }
    }
}

/// Returns when the first of those asked that do not wait for permits: the others have time.
fn asked_at(run: &[Demand]) -> Option<Instant> {
    let not_waiting = run.iter().filter(|demand| demand.max_wait.is_none());
    not_waiting.filter_map(|demand| demand.asked_at).min()
}

/// A place in a queue, of a call for these callers. Dropping it gives it up, if it is not sent yet.
struct BatchPlace<'a> {
    batches: &'a Batches,
    queue: Id,
    number: u64,
    run: &'a [Demand],
    reply: oneshot::Receiver<Result<Value, Failure>>,
}

impl Drop for BatchPlace<'_> {
    fn drop(&mut self) {
        if self.reply.is_terminated() {
            return;
        }
        let left = self.batches.with_queue(self.queue, |queue| {
            take_out(&mut queue.members, self.number, |(it, _)| it.number)
        });
        if left.flatten().is_some() {
            for demand in self.run {
                let _ = demand.unsent.set(());
            }
        }
    }
}
