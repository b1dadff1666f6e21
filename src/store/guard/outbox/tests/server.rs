//! The simulated node: the pure sliding log, with calls that a test carries out, answers or loses.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    sync::atomic::AtomicBool,
};

use super::{
    super::{Waits, wait_queue::WaitQueue},
    *,
};
use crate::{
    store::{
        Answered, Joins,
        guard::outbox::{
            Nodes,
            breaker::{BreakerState, Signal},
        },
    },
    sync::lock,
    values::compiled_limit::Limiter,
};

pub(super) type Reply = Result<Vec<Decision>, Error>;

/// The time that callers wait for the node.
pub(super) const DEADLINE: Duration = Duration::from_millis(50);

/// A call, from when it is sent until no caller waits for its reply.
pub(super) struct SentCall {
    pub(super) callers: Vec<Demand>,
    pub(super) sent: Duration,
    /// The first call of its command.
    pub(super) command: usize,
    /// The last decision of the node on this call.
    pub(super) decided: Option<Vec<Decision>>,
    reply: Option<Reply>,
    /// Set if its command does not answer it, with whether it may have been carried out.
    apart: Option<bool>,
    pub(super) answered: bool,
    /// Set if no caller waits for it.
    pub(super) over: bool,
    /// Set if it is on the wire when it is dropped, and so still arrives.
    arrives: bool,
    waker: Option<Waker>,
}

impl SentCall {
    pub(super) fn ids(&self) -> Vec<u64> {
        self.callers
            .iter()
            .map(|demand| number(demand.first().id))
            .collect()
    }

    fn name(&self) -> &Name {
        self.callers[0].first().name()
    }
}

/// A caller as the laws see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alive {
    pub(super) arrived: Duration,
    pub(super) waits: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) calls: Vec<SentCall>,
    /// So many of the first calls are answered or over.
    done: usize,
    limiters: BTreeMap<String, LimiterState<SlidingLog>>,
    /// The permits taken: by which caller, by which id, and when.
    pub(super) held: BTreeMap<(u64, PermitId), Duration>,
    /// The callers that are neither decided for nor have left.
    pub(super) alive: BTreeMap<u64, Alive>,
    /// The callers that any call was for.
    pub(super) sent: BTreeSet<u64>,
    /// The callers whose permits the queue gave back, or a caller did through it.
    pub(super) given_back: BTreeSet<u64>,
    /// The most calls in flight at a time that were younger than a deadline, and wanted.
    pub(super) most: usize,
    /// Set if a dropped call still arrives.
    pub(super) arrives: bool,
    /// Set if no runtime is gone, so that no caller has to send its own call.
    pub(super) holds_limiters: bool,
    /// The call that panics when it is polled next.
    pub(super) panics: Option<usize>,
    /// The queues in which waiting callers stand.
    pub(super) waits: Option<Arc<Waits>>,
}

pub(super) struct Server {
    pub(super) state: Mutex<State>,
    pub(super) clock: ManualClock,
    pub(super) nodes: Arc<Nodes>,
    /// Set if one call decides for several callers.
    pub(super) together: bool,
    /// Set if calls of several limiters share a command.
    pub(super) joins: AtomicBool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Server {
    pub(super) fn new(clock: ManualClock, nodes: Arc<Nodes>, together: bool) -> Self {
        Self {
            state: Mutex::new(State {
                holds_limiters: true,
                ..State::default()
            }),
            nodes,
            clock,
            together,
            joins: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Carries out a call, perhaps once more.
    pub(super) fn carry_out(&self, at: usize) {
        let mut state = self.state();
        state.carry_out(at, server_time(&self.clock), self.clock.now());
    }

    /// Sends the reply to a call.
    pub(super) fn reply(&self, at: usize) {
        if self.state().calls[at].decided.is_none() {
            self.carry_out(at);
        }
        let decided = self.state().calls[at].decided.clone();
        self.answer(at, Ok(decided.expect("it is carried out")));
    }

    /// Sends the reply to a call that tried the first of its callers only.
    pub(super) fn reply_to_some(&self, at: usize, count: usize) {
        self.state().calls[at].callers.truncate(count);
        self.reply(at);
    }

    /// Has a call be granted out of a lease, by ids of its own.
    pub(super) fn lease(&self, at: usize) {
        let callers = self.state().calls[at].callers.clone();
        let leased = callers.into_iter().map(|mut demand| {
            demand.identify(demand.first().id.for_ahead());
            let (id, now) = (demand.first().id, self.clock.now());
            self.state().held.insert((number(id), id), now);
            Decision::Allow(Grant::new(
                demand.to_settle().into_iter().collect(),
                Source::Lease,
            ))
        });
        let leased = leased.collect();
        self.answer(at, Ok(leased));
    }

    /// Has a call fail. The store gives back what it may have taken.
    pub(super) fn fail(&self, at: usize) {
        let receipts: Vec<_> = {
            let state = self.state();
            let callers = state.calls[at].callers.iter();
            callers.flat_map(Demand::to_settle).collect()
        };
        let mut state = self.state();
        for receipt in receipts {
            state.settle(&receipt, 0, millis(&self.clock));
        }
        drop(state);
        self.answer(at, Err(ErrorKind::Unavailable.into()));
    }

    pub(super) fn answer(&self, at: usize, reply: Reply) {
        self.nodes.came_in(0);
        let waker = {
            let mut state = self.state();
            let call = &mut state.calls[at];
            if call.over || call.answered {
                return;
            }
            call.answered = true;
            call.reply = Some(reply);
            call.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns whether the breaker keeps no call away.
    pub(super) fn is_closed(&self) -> bool {
        let breakers = self.nodes.look();
        breakers.iter().all(|it| it.0 == BreakerState::Closed)
    }

    /// Returns the calls that are not answered.
    pub(super) fn open(&self) -> Vec<usize> {
        let mut state = self.state();
        let is_open = |call: &SentCall| !call.over && !call.answered;
        let first = state
            .calls
            .iter()
            .skip(state.done)
            .take_while(|call| !is_open(call))
            .count();
        state.done += first;
        let open = |at: &usize| is_open(&state.calls[*at]);
        (state.done..state.calls.len()).filter(open).collect()
    }

    async fn call(&self, run: &[Demand]) -> Reply {
        let arrived = {
            let state = self.state();
            let hurried = run.iter().filter(|demand| demand.max_wait.is_none());
            let arrived = |demand: &Demand| state.alive.get(&number(demand.first().id)).copied();
            hurried.filter_map(arrived).map(|alive| alive.arrived).min()
        };
        let now = self.clock.now();
        let waited = arrived.map_or(Duration::ZERO, |arrived| now.saturating_sub(arrived));
        let pass = self.nodes.enter(run[0].first().name(), waited)?;
        let command = self.state().calls.len();
        let at = self
            .state()
            .send(run, now, self.decides_together(&run[0]), command);
        let _dropped = Dropped(self, at);
        let reply = self.answered(at).await;
        match &reply {
            Ok(_) => pass.ends(Signal::Answered),
            Err(_) => pass.ends(Signal::Nothing),
        }
        reply
    }
}

impl Server {
    async fn answered(&self, at: usize) -> Reply {
        poll_fn(|cx| {
            let mut state = self.state();
            if state.panics == Some(at) {
                drop(state);
                panic!("as it was to");
            }
            let call = &mut state.calls[at];
            call.waker = Some(cx.waker().clone());
            call.reply.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Has the command of a call end without an answer to any of its calls, which may have been
    /// carried out if it `was_sent`.
    pub(super) fn refuse_joint(&self, at: usize, was_sent: bool) {
        let command = self.state().calls[at].command;
        let is_joint = |call: &SentCall| call.command == command;
        let all: Vec<_> = (command..)
            .take_while(|at| self.state().calls.get(*at).is_some_and(is_joint))
            .collect();
        if all.len() < 2 {
            return self.reply(at);
        }
        for at in all {
            let was_carried_out = self.state().calls[at].decided.is_some();
            self.state().calls[at].apart = Some(was_sent || was_carried_out);
            self.answer(at, Err(ErrorKind::Rejected.into()));
        }
    }
}

impl State {
    /// Sends a call, by the laws. It is one of the command whose first call this is.
    fn send(&mut self, run: &[Demand], now: Duration, together: bool, command: usize) -> usize {
        assert!(
            (1..=64).contains(&run.len()),
            "{} callers in a call",
            run.len()
        );
        for demand in run {
            let id = number(demand.first().id);
            assert!(
                self.alive.contains_key(&id),
                "{id} has left, and a call is sent for it"
            );
            assert_eq!(
                demand.first().limit(),
                run[0].first().limit(),
                "two limits in a call"
            );
            assert_eq!(
                demand.charges.len(),
                run[0].charges.len(),
                "two lists in a call"
            );
        }
        let is_young = |call: &SentCall| !call.over && !call.answered && call.sent + DEADLINE > now;
        let holds = |call: &SentCall| {
            let alive = |id: u64| self.alive.contains_key(&id);
            let waits = |run: &[Demand]| run[0].max_wait.is_some();
            let same = waits(&call.callers) == waits(run)
                && call.callers[0].first().limit() == run[0].first().limit()
                && call.name().as_str() == run[0].first().name().as_str()
                && call.callers[0].charges.len() == run[0].charges.len();
            self.holds_limiters
                && is_young(call)
                && same
                && together
                && call.ids().into_iter().any(alive)
        };
        let held = self.young(now).find(|call| holds(call)).map(SentCall::ids);
        assert_eq!(held, None, "a limiter is held, and a call is sent for it");
        self.calls.push(SentCall {
            callers: run.to_vec(),
            sent: now,
            command,
            apart: None,
            decided: None,
            reply: None,
            answered: false,
            over: false,
            arrives: self.arrives,
            waker: None,
        });
        // One that all have left is dropped, as soon as its runtime is driven.
        let is_wanted = |call: &SentCall| {
            let mut ids = call.ids().into_iter();
            is_young(call) && ids.any(|id| self.alive.contains_key(&id))
        };
        let wanted = self.young(now).filter(|call| is_wanted(call));
        let young: BTreeSet<_> = wanted.map(|call| call.command).collect();
        self.most = self.most.max(young.len());
        let ids = run.iter().map(|demand| number(demand.first().id));
        self.sent.extend(ids);
        self.calls.len() - 1
    }

    /// The calls that are younger than a deadline.
    fn young(&self, now: Duration) -> impl Iterator<Item = &SentCall> {
        let calls = self.calls.iter().rev();
        calls.take_while(move |call| call.sent + DEADLINE > now)
    }

    fn carry_out(&mut self, at: usize, now: Now, time: Duration) {
        let run = self.calls[at].callers.clone();
        let name = run[0].first().name().as_str();
        let limiter = self.limiters.entry(name.into()).or_default();
        let decided = decide(limiter, &run, now);
        for (demand, decision) in run.iter().zip(&decided) {
            if decision.is_allowed() {
                self.grant(demand, time);
            } else {
                // What an earlier copy of the call took is over.
                let id = demand.first().id;
                self.held.remove(&(number(id), id));
            }
        }
        self.calls[at].decided = Some(decided.to_vec());
    }

    /// Records a grant, by the order of arrival.
    fn grant(&mut self, demand: &Demand, time: Duration) {
        let id = number(demand.first().id);
        if demand.max_wait.is_some() && !self.holds(id) && self.stands(id) {
            let overtaken = self.alive.range(..id).find(|(other, alive)| {
                let same = limiter_of(**other) == limiter_of(id);
                alive.waits && same && !self.holds(**other) && self.stands(**other)
            });
            assert_eq!(overtaken, None, "{id} is granted, and has overtaken it");
        }
        self.held.entry((id, demand.first().id)).or_insert(time);
    }

    fn settle(&mut self, receipt: &Charge, keep: u32, now: u64) {
        self.held.remove(&(number(receipt.id), receipt.id));
        if let Some(limiter) = self.limiters.get_mut(receipt.name().as_str()) {
            limiter
                .settle(receipt, None, keep, Now::millis(now.cast_signed()))
                .expect("the limit is there");
        }
    }

    /// Returns whether a caller waits, and is not decided for.
    fn stands(&self, caller: u64) -> bool {
        let Some(waits) = &self.waits else {
            return false;
        };
        let queues = lock(&waits.queues);
        let mut waiters = queues.values().flat_map(WaitQueue::waiting);
        waiters.any(|waiter| number(waiter.demand.first().id) == caller)
    }

    /// Returns whether a caller has taken something, by any of its ids.
    pub(super) fn holds(&self, caller: u64) -> bool {
        self.held.keys().any(|(id, _)| *id == caller)
    }
}

/// A call that is answered, or dropped.
struct Dropped<'a>(&'a Server, usize);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        let arrives = {
            let mut state = self.0.state();
            let call = &mut state.calls[self.1];
            let lost = !call.answered && call.arrives;
            call.over = true;
            lost
        };
        if arrives {
            // It stands on the wire before whatever is given back from now on.
            self.0.carry_out(self.1);
        }
    }
}

impl Decide for Server {
    fn decide_at_once(&self, _: &mut Demand) -> Option<Result<Decision, Error>> {
        None
    }

    async fn manage(&self, _: &Limiter, _: &Op) -> Result<OpResult, Error> {
        Ok(OpResult::Changed(true))
    }
}

impl Calls for Server {
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        self.call(run).await.map(List::from_vec)
    }

    /// As if each run had a call of its own, all of one breaker's pass.
    async fn acquire_joint(&self, runs: &[&[Demand]]) -> List<Answered> {
        let now = self.clock.now();
        let mut callers = 0;
        let command = self.state().calls.len();
        for run in runs {
            callers += run.len();
            let at = self
                .state()
                .send(run, now, self.decides_together(&run[0]), command);
            assert!(self.joins(&run[0]).is_some() && at == self.state().calls.len() - 1);
        }
        assert!(callers <= 64, "{callers} callers in a command");
        let calls = command..command + runs.len();
        let _dropped: Vec<_> = calls.clone().map(|at| Dropped(self, at)).collect();
        let mut answers = List::new();
        for at in calls {
            let reply = self.answered(at).await;
            let apart = self.state().calls[at].apart;
            answers.push(match apart {
                Some(was_sent) => Answered::Apart { was_sent },
                None => Answered::Decided(reply.map(List::from_vec)),
            });
        }
        answers
    }

    fn joins(&self, demand: &Demand) -> Option<Joins> {
        let joins = self.joins.load(Ordering::SeqCst) && self.decides_together(demand);
        joins.then_some(Joins {
            terms: demand.charges.len(),
            callers: 64,
        })
    }

    fn decides_together(&self, demand: &Demand) -> bool {
        self.together && !demand.is_list()
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        let mut state = self.state();
        state.given_back.insert(number(receipt.id));
        state.settle(&receipt, keep, millis(&self.clock));
    }
}

/// The number of a caller, which counts up in the order of arrival. The limiter is in it.
pub(super) fn number(id: PermitId) -> u64 {
    u64::from_be_bytes(id.0[8..].try_into().expect("eight bytes"))
}

pub(super) fn id_of(number: u64) -> PermitId {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    PermitId(bytes)
}

/// The limiter of a caller, by its number.
pub(super) fn limiter_of(number: u64) -> u64 {
    number & 0xffff
}
