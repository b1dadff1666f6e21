//! The simulation of several processes that share one limiter.

use std::{cell::Cell, sync::atomic::AtomicU64};

use super::{SECOND, TENTH};
use crate::store::{
    About,
    guard::{lease::Leasing, local::recent::Recent, scripted::*},
    stack::Outermost,
};
use crate::values::compiled_limit::Limiter;

/// The state that all processes share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) limiter: Mutex<LimiterState<SlidingLog>>,
    clock: ManualClock,
    calls: AtomicU64,
    pub(crate) settled: AtomicU64,
    /// Permits that were asked for ahead.
    ahead: Mutex<Vec<u32>>,
}

/// A connection to it.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Server>);

impl Connection {
    fn limiter(&self) -> MutexGuard<'_, LimiterState<SlidingLog>> {
        self.0.limiter.lock().unwrap()
    }

    fn now(&self) -> Now {
        server_time(&self.0.clock)
    }

    fn decide(&self, run: &[Demand]) -> List<Decision> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let ahead = run.iter().filter(|demand| demand.first().lead > 0);
        self.0
            .ahead
            .lock()
            .unwrap()
            .extend(ahead.map(|demand| demand.first().permits));
        decide(&mut self.limiter(), run, self.now())
    }
}

impl Decide for Connection {
    fn decide_at_once(&self, _: &mut Demand) -> Option<Result<Decision, Error>> {
        None
    }

    async fn manage(&self, _: &Limiter, op: &Op) -> Result<OpResult, Error> {
        pause().await;
        if let Op::SetRate { limit, keep, .. } = op {
            self.limiter().set_rate(*limit, *keep, self.now());
        }
        pause().await;
        Ok(OpResult::Changed(true))
    }
}

impl Calls for Connection {
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        pause().await;
        let decisions = self.decide(run);
        pause().await;
        Ok(decisions)
    }

    fn decides_together(&self, demand: &Demand) -> bool {
        !demand.is_list()
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        self.0.settled.fetch_add(1, Ordering::Relaxed);
        let settled = self.limiter().settle(&receipt, None, keep, self.now());
        settled.unwrap();
    }
}

pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) processes: Vec<Arc<Leasing<Connection>>>,
    pub(crate) clock: ManualClock,
    pub(crate) name: Name,
    compiled: Arc<CompiledLimit>,
    ids: Cell<u64>,
}

impl World {
    pub(crate) fn new(limit: Limit, lease: Duration, processes: usize) -> Self {
        let clock = ManualClock::new();
        let server = Arc::new(Server {
            limiter: Mutex::default(),
            clock: clock.clone(),
            calls: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            ahead: Mutex::default(),
        });
        server.limiter.lock().unwrap().try_set_rate(limit.stored());
        let process = || {
            let own: Arc<dyn Clock> = Arc::new(clock.clone());
            let connection = Arc::new(Connection(Arc::clone(&server)));
            let own_clock = Some(Arc::clone(&own));
            let recent = Arc::new(Recent::new(Arc::clone(&own)));
            let queues = Arc::default();
            Arc::new(Leasing::new(connection, own_clock, own, queues, recent))
        };
        Self {
            processes: std::iter::repeat_with(process).take(processes).collect(),
            server,
            clock,
            name: Name::exact("hot").unwrap(),
            compiled: Arc::new(CompiledLimit {
                lease: (!lease.is_zero()).then_some(lease),
                ..CompiledLimit::with_defaults("hot", true, false)
            }),
            ids: Cell::new(0),
        }
    }

    /// Returns one process that leases a thousand a second for a tenth of it.
    pub(crate) fn of_one() -> Self {
        Self::new(Limit::new(1000, SECOND), TENTH, 1)
    }

    pub(crate) fn limiter(&self, name: &Name) -> Limiter {
        let (name, compiled) = (name.clone(), Arc::clone(&self.compiled));
        Limiter { name, compiled }
    }

    pub(crate) fn acquire(&self, permits: u32) -> Demand {
        self.ids.set(self.ids.get() + 1);
        let mut id = [7; 16];
        id[..8].copy_from_slice(&self.ids.get().to_be_bytes());
        asks([Charge {
            id: PermitId(id),
            ..Charge::new(self.limiter(&self.name), permits)
        }])
    }

    /// Asks as a store does, the front first, where callers have no id yet. After so many polls the
    /// caller leaves, and what it may have taken is given back.
    pub(crate) fn ask(&self, process: usize, permits: u32, polls: usize) -> Option<Decision> {
        let leasing = &self.processes[process];
        let mut demand = self.acquire(permits);
        let id = demand.first().id;
        demand.identify(PermitId::NONE);
        if let Some(granted) = leasing.table.take(&mut demand.clone()) {
            return Some(Decision::Allow(granted));
        }
        demand.identify(id);
        let decision = poll(leasing.acquire(&demand), polls);
        if decision.is_none() {
            leasing.settle(demand.first().to_send(), 0);
        }
        decision.map(Result::unwrap)
    }

    /// Carries out a verb in a process, as its stack does: the outermost guard calls the listeners
    /// when it is over.
    pub(crate) async fn manage(
        &self,
        process: usize,
        name: &Name,
        op: &Op,
    ) -> Result<OpResult, Error> {
        let leasing = &self.processes[process];
        let listener: Box<dyn Listener> = Box::new(Arc::downgrade(leasing));
        let outermost = Outermost::new(Listeners::new([listener]), About::default());
        let _changing = outermost.changing(name, op);
        leasing.end_changed(name, op);
        leasing.inner.manage(&self.limiter(name), op).await
    }

    pub(crate) fn takes(&self, process: usize, permits: u32) -> Decision {
        self.ask(process, permits, 9).unwrap()
    }

    /// Takes single permits until one comes out of a lease, and returns how many.
    pub(crate) fn warm(&self, process: usize) -> i64 {
        let mut taken = 1;
        while self.takes(process, 1).source() != Source::Lease {
            taken += 1;
            assert!(taken < 10);
        }
        taken
    }

    /// Takes one out of a lease of the first process, if there is one.
    pub(crate) fn leased(&self) -> Option<Decision> {
        let leased = self.processes[0].table.take(&mut self.acquire(1));
        leased.map(Decision::Allow)
    }

    /// Has the first process decide for callers.
    pub(crate) fn run(&self, run: &[Demand]) -> List<Decision> {
        done(self.processes[0].acquire_run(run, false))
    }

    /// Ends all leases of a process.
    pub(crate) fn end(&self, process: usize) {
        self.processes[process].table.end_first(usize::MAX);
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    pub(crate) fn now(&self) -> u64 {
        millis(&self.clock)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.server.calls.load(Ordering::Relaxed)
    }

    /// Returns the permits that were asked for ahead, by each call that did.
    pub(crate) fn ahead(&self) -> Vec<u32> {
        self.server.ahead.lock().unwrap().clone()
    }

    pub(crate) fn available(&self) -> i64 {
        let mut limiter = self.server.limiter.lock().unwrap();
        let now = server_time(&self.clock);
        limiter.available(now, PermitId::NONE).unwrap()
    }

    /// Has the tasks in the background do what is due.
    pub(crate) async fn settle_down(&self) {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn poll<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
    }
    None
}

/// Returns the result of a call whose caller stays.
pub(crate) fn done<T>(call: impl Future<Output = Result<T, Error>>) -> T {
    poll(call, 9).unwrap().unwrap()
}

pub(crate) fn receipt(decision: &Decision) -> Charge {
    receipts(decision).remove(0)
}
