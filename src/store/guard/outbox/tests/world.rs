//! The simulated callers, runtimes and clock, all moved by the test.

use std::{pin::Pin, sync::atomic::AtomicBool, task::Wake};

use tokio::runtime::{Builder, Runtime};

use super::{
    super::{Nodes, Outbox, Waits},
    server::{Alive, SentCall, Server, id_of, number},
    *,
};
use crate::sync::lock;

pub(super) const LIMIT: Limit = Limit::new(3, Duration::from_millis(200));

pub(super) const BOUNDS: Bounds = Bounds {
    deadline: DEADLINE,
    most: 256,
    least: 16,
    most_callers: 64,
};

pub(super) struct World {
    pub(super) server: Arc<Server>,
    pub(super) outbox: Arc<Outbox<Server>>,
    pub(super) waits: Arc<Waits>,
    pub(super) clock: ManualClock,
    pub(super) runtimes: Vec<Option<Runtime>>,
    last: u64,
}

impl World {
    /// A world of one runtime, and with the bounds of a server.
    pub(super) fn new() -> Self {
        Self::with(1, BOUNDS, true)
    }

    pub(super) fn with(runtimes: usize, bounds: Bounds, together: bool) -> Self {
        Self::looking(runtimes, bounds, together, None)
    }

    /// The same, in which those that wait are asked for again so long after an answer.
    pub(super) fn looking(
        runtimes: usize,
        bounds: Bounds,
        together: bool,
        asks_again_after: Option<Duration>,
    ) -> Self {
        let clock = ManualClock::new();
        let waits = Arc::new(Waits::default());
        let own: Arc<dyn Clock> = Arc::new(clock.clone());
        let nodes = Nodes::with_bounds(1, |_| 0, bounds, Arc::clone(&own));
        let nodes = Arc::new(nodes.with_breakers(5, None, |_, _| ()));
        let server = Arc::new(Server::new(clock.clone(), Arc::clone(&nodes), together));
        server.state().waits = Some(waits.clone());
        let outbox = Outbox::new(
            Arc::clone(&server),
            own,
            waits.clone(),
            nodes,
            asks_again_after,
        );
        Self {
            server,
            outbox,
            waits,
            clock,
            runtimes: std::iter::repeat_with(Self::runtime)
                .take(runtimes)
                .collect(),
            last: 0,
        }
    }

    /// A runtime that polls one task at a time, so that each step is one of the history.
    pub(super) fn runtime() -> Option<Runtime> {
        Builder::new_current_thread().event_interval(1).build().ok()
    }

    pub(super) fn acquire(&mut self, limiter: u64, max_wait: Option<MaxWait>) -> Demand {
        self.last += 1;
        let charge = Charge {
            id: id_of(self.last << 16 | limiter),
            ..charge(&format!("limiter{limiter}"), 1, LimitSource::Code(LIMIT))
        };
        Demand {
            max_wait,
            ..Demand::caller([charge], false)
        }
    }

    /// A caller of a limiter, on a runtime or on none, that has not been polled.
    pub(super) fn caller(&mut self, runtime: Option<usize>, demand: Demand) -> Caller {
        let (outbox, asked) = (Arc::clone(&self.outbox), demand.clone());
        Caller {
            id: self.alive(&demand),
            runtime,
            arrived: self.clock.now(),
            future: Some(Box::pin(async move { outbox.acquire(&asked).await })),
            demand,
            flag: Arc::new(Flag(AtomicBool::new(true))),
            server: Arc::clone(&self.server),
        }
    }

    /// Has a call be sent for a caller, whose number this returns.
    pub(super) fn alive(&self, demand: &Demand) -> u64 {
        let alive = Alive {
            arrived: self.clock.now(),
            waits: demand.max_wait.is_some(),
        };
        let id = number(demand.first().id);
        self.server.state().alive.insert(id, alive);
        id
    }

    /// A caller that does not wait for permits, on the first runtime, polled once.
    pub(super) fn comes(&mut self, limiter: u64) -> Caller {
        self.comes_to(Some(0), limiter, None)
    }

    pub(super) fn waits(&mut self, limiter: u64) -> Caller {
        self.comes_to(Some(0), limiter, Some(MaxWait::ENDLESS))
    }

    pub(super) fn comes_to(
        &mut self,
        runtime: Option<usize>,
        limiter: u64,
        max_wait: Option<MaxWait>,
    ) -> Caller {
        let demand = self.acquire(limiter, max_wait);
        let mut caller = self.caller(runtime, demand);
        assert!(self.poll(&mut caller).is_none());
        caller
    }

    /// Polls a caller on its runtime. Once it is decided for it is not alive.
    pub(super) fn poll(&self, caller: &mut Caller) -> Option<Result<Decision, Error>> {
        let runtime = caller.runtime.and_then(|at| self.runtimes[at].as_ref());
        let _entered = runtime.map(Runtime::enter);
        caller.flag.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&caller.flag));
        let mut context = Context::from_waker(&waker);
        let polled = caller.future.as_mut()?.as_mut().poll(&mut context);
        let Poll::Ready(outcome) = polled else {
            return None;
        };
        caller.future = None;
        self.server.state().alive.remove(&caller.id);
        Some(outcome)
    }

    /// Drives a runtime so many steps, each of one task at most.
    pub(super) fn drive(&self, at: usize, steps: usize) {
        if let Some(runtime) = &self.runtimes[at] {
            runtime.block_on(async {
                for _ in 0..steps {
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Drives all runtimes until nothing is visibly left to do.
    pub(super) fn settle(&self) {
        for _ in 0..3 {
            (0..self.runtimes.len()).for_each(|at| self.drive(at, 40));
        }
    }

    /// Answers whatever is asked until nothing is.
    pub(super) fn answer_all(&self) {
        self.settle();
        while !self.server.open().is_empty() {
            self.server
                .open()
                .into_iter()
                .for_each(|at| self.server.reply(at));
            self.settle();
        }
    }

    /// Polls callers that are woken until none is, and drives all runtimes. Returns the decisions.
    pub(super) fn run(&self, callers: &mut [&mut Caller]) -> Vec<(u64, Result<Decision, Error>)> {
        let mut decided = Vec::new();
        loop {
            self.settle();
            let mut woken = false;
            for caller in callers.iter_mut().filter(|caller| caller.is_woken()) {
                woken = true;
                decided.extend(self.poll(caller).map(|outcome| (caller.id, outcome)));
            }
            if !woken {
                return decided;
            }
        }
    }

    /// Shuts a runtime down: callers whose call it sent send for themselves.
    pub(super) fn shuts_down(&mut self, at: usize) {
        self.server.state().holds_limiters = false;
        drop(self.runtimes[at].take());
    }

    /// Polls a caller while it is woken, and drives no other runtime.
    pub(super) fn run_on(&self, at: usize, caller: &mut Caller) -> Option<Result<Decision, Error>> {
        for _ in 0..20 {
            self.drive(at, 20);
            if caller.is_woken()
                && let Some(outcome) = self.poll(caller)
            {
                return Some(outcome);
            }
        }
        None
    }

    pub(super) fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// The numbers of the callers of each call, in the order in which calls were sent.
    pub(super) fn calls(&self) -> Vec<Vec<u64>> {
        let state = self.server.state();
        state.calls.iter().map(SentCall::ids).collect()
    }

    /// Has those asked for again that wait for a limiter.
    pub(super) fn nudge(&mut self, limiter: u64) {
        let name = self.acquire(limiter, None).first().name().clone();
        self.waits.room(&name, false);
    }

    /// Asserts that nothing is left of any caller.
    pub(super) fn is_empty(&self) {
        assert!(lock(&self.waits.queues).is_empty());
        assert_eq!(self.waits.waiting.load(Ordering::SeqCst), 0);
        self.outbox.nodes.node(0).flights.is_empty();
    }

    /// The number of commands in flight, and their bound.
    pub(super) fn in_flight(&self) -> (usize, usize) {
        self.outbox.nodes.node(0).flights.in_flight()
    }

    pub(super) fn held(&self) -> Vec<u64> {
        self.server.state().held.keys().map(|(id, _)| *id).collect()
    }
}

type Deciding = Pin<Box<dyn Future<Output = Result<Decision, Error>>>>;

/// A request or a `RateLimiter`, polled by hand.
pub(super) struct Caller {
    pub(super) id: u64,
    pub(super) runtime: Option<usize>,
    pub(super) arrived: Duration,
    future: Option<Deciding>,
    pub(super) demand: Demand,
    flag: Arc<Flag>,
    server: Arc<Server>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Caller {
    pub(super) fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::SeqCst)
    }

    pub(super) fn waits(&self) -> bool {
        self.demand.max_wait.is_some()
    }

    pub(super) fn is_late(&self, now: Duration) -> bool {
        !self.waits() && now >= self.arrived + DEADLINE
    }

    /// Leaves as a `RateLimiter` does, whose receipts were made before.
    pub(super) fn leave_and_give_back(self, world: &World) {
        let receipts = self.demand.to_settle();
        drop(self);
        for receipt in receipts {
            world.outbox.settle(receipt, 0);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.server.state().alive.remove(&self.id);
        self.future = None;
    }
}
