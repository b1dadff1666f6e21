//! The store, its callers, and what they are polled by.

use std::{
    collections::BTreeSet,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

use crate::{
    clock::{Clock, ManualClock},
    decision::{Decision, Grant, LimitState, Refusal, RefusalKind, Source},
    demand::{Acquire, Charge, Labels, MaxWait},
    error::{Error, ErrorKind},
    limit::LimitSource,
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
    store::{
        Decide, DecideRuns, Listener, Listeners, Op, Outcome,
        guard::line::{Line, Lines, lock},
        stack::{About, Exit},
    },
};

/// What a call was answered.
type Reply = Result<Vec<Decision>, Error>;

#[derive(Debug, Default)]
struct Calls {
    calls: Vec<Call>,
    /// The ids that have what they asked for, and those that ever had.
    held: BTreeSet<u64>,
    granted: BTreeSet<u64>,
}

#[derive(Debug)]
struct Call {
    /// Whether it was made for many.
    run: bool,
    callers: Vec<Acquire>,
    carried_out: bool,
    reply: Option<Reply>,
    /// Whether it is answered out of a lease, and not by a call: whoever hears it has what it tells.
    leased: bool,
    panics: bool,
    over: bool,
    waker: Option<Waker>,
}

impl Call {
    fn ids(&self) -> Vec<u64> {
        let ids = self.callers.iter().map(|caller| number(caller.first.id));
        ids.collect()
    }
}

#[derive(Debug)]
struct ByHand {
    together: bool,
    calls: Mutex<Calls>,
}

/// Notes that nobody waits any longer for a call: it is not carried out then.
struct InFlight<'a>(&'a ByHand, usize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        lock(&self.0.calls).calls[self.1].over = true;
    }
}

impl ByHand {
    async fn call(&self, run: bool, callers: &[Acquire]) -> Reply {
        let at = {
            let mut calls = lock(&self.calls);
            calls.calls.push(Call {
                run,
                callers: callers.to_vec(),
                carried_out: false,
                reply: None,
                leased: false,
                panics: false,
                over: false,
                waker: None,
            });
            calls.calls.len() - 1
        };
        let _in_flight = InFlight(self, at);
        poll_fn(|cx| {
            let mut calls = lock(&self.calls);
            let call = &mut calls.calls[at];
            if call.panics {
                drop(calls);
                panic!("as it was told to");
            }
            call.waker = Some(cx.waker().clone());
            let reply = call.reply.take();
            if reply.is_some() && call.leased {
                let ids: Vec<_> = call.ids().into_iter().map(|id| id | LEASED).collect();
                calls.held.extend(ids);
            }
            reply.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Decide for ByHand {
    fn decide_at_once(&self, _: &mut Acquire) -> Option<Result<Decision, Error>> {
        None
    }

    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let mut reply = self.call(false, std::slice::from_ref(acquire)).await?;
        Ok(reply.remove(0))
    }

    async fn manage(&self, _: &Name, _: &Op) -> Result<Outcome, Error> {
        Ok(Outcome::Changed(true))
    }

    fn settle(&self, receipt: Receipt, _: u32) {
        lock(&self.calls).held.remove(&number(receipt.id));
    }
}

impl DecideRuns for ByHand {
    async fn acquire_run(&self, run: &[Acquire]) -> Reply {
        self.call(true, run).await
    }

    fn decides_together(&self, _: &Acquire) -> bool {
        self.together
    }
}

/// A clock that does something when somebody begins to sleep.
#[derive(Clone, Debug)]
struct Hooked {
    clock: ManualClock,
    hook: Arc<Mutex<Option<Hook>>>,
}

struct Hook(Box<dyn FnOnce() + Send>);

impl Clock for Hooked {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let hook = lock(&self.hook).take();
        if let Some(Hook(act)) = hook {
            act();
        }
        self.clock.sleep_until(time)
    }

    fn can_sleep(&self) -> bool {
        self.clock.can_sleep()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook(..)")
    }
}

pub(crate) struct World {
    line: Line<ByHand>,
    lines: Lines,
    clock: Hooked,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(true)
    }

    /// With a store that decides for one caller at a time.
    pub(crate) fn apart() -> Self {
        Self::with(false)
    }

    fn with(together: bool) -> Self {
        let clock = Hooked {
            clock: ManualClock::new(),
            hook: Arc::default(),
        };
        let lines = Lines::default();
        let store = ByHand {
            together,
            calls: Mutex::default(),
        };
        Self {
            line: Line::new(Arc::new(store), Arc::new(clock.clone()), lines.clone()),
            lines,
            clock,
        }
    }

    pub(crate) fn caller(&self, acquire: Acquire) -> Caller<'_> {
        let asked = acquire.clone();
        Caller {
            world: self,
            future: Box::pin(async move { self.line.acquire(&asked).await }),
            acquire,
            flag: Arc::new(Flag(AtomicBool::new(true))),
        }
    }

    pub(crate) fn callers(&self, ids: impl Iterator<Item = u64>) -> Vec<Caller<'_>> {
        ids.map(|id| self.caller(acquire(id))).collect()
    }

    /// Whether each call was made for many, and the ids that it asked for.
    pub(crate) fn calls(&self) -> Vec<(bool, Vec<u64>)> {
        let calls = lock(&self.line.inner.calls);
        let calls = calls.calls.iter();
        calls.map(|call| (call.run, call.ids())).collect()
    }

    pub(crate) fn is_dropped(&self, call: usize) -> bool {
        lock(&self.line.inner.calls).calls[call].over
    }

    pub(crate) fn held(&self) -> Vec<u64> {
        lock(&self.line.inner.calls).held.iter().copied().collect()
    }

    /// Whether the store ever granted what an id asked for.
    pub(crate) fn was_granted(&self, id: u64) -> bool {
        lock(&self.line.inner.calls).granted.contains(&id)
    }

    /// Has the store take what a call asks for, whoever hears of it.
    pub(crate) fn carry_out(&self, at: usize) {
        let mut calls = lock(&self.line.inner.calls);
        let call = &mut calls.calls[at];
        if call.over || call.carried_out {
            return;
        }
        call.carried_out = true;
        let ids = call.ids();
        let granted = ids.into_iter().filter(|id| is_granted(*id));
        let granted: Vec<_> = granted.collect();
        calls.held.extend(&granted);
        calls.granted.extend(&granted);
    }

    pub(crate) fn reply(&self, at: usize) {
        self.carry_out(at);
        self.answer(at, |call| {
            Ok(call
                .callers
                .iter()
                .map(|caller| {
                    if is_granted(number(caller.first.id)) {
                        grant(caller)
                    } else {
                        refusal(1000)
                    }
                })
                .collect())
        });
    }

    pub(crate) fn grant(&self, at: usize) {
        self.carry_out(at);
        self.answer(at, |call| Ok(call.callers.iter().map(grant).collect()));
    }

    /// Grants out of a lease, by ids of its own.
    pub(crate) fn lease(&self, at: usize) {
        self.answer(at, |call| {
            call.leased = true;
            Ok(call.callers.iter().map(leased).collect())
        });
    }

    /// Grants to the first of a call, and did not ask for the others.
    pub(crate) fn grant_some(&self, at: usize, count: usize) {
        self.answer(at, |call| {
            Ok(call.callers.iter().take(count).map(grant).collect())
        });
    }

    pub(crate) fn refuse(&self, at: usize, wait: u64) {
        self.answer(at, |call| {
            Ok(call.callers.iter().map(|_| refusal(wait)).collect())
        });
    }

    /// Refuses for another reason.
    pub(crate) fn refuse_as(&self, at: usize, kind: RefusalKind, wait: u64) {
        self.answer(at, |call| {
            let refused = |_: &Acquire| match refusal(wait) {
                Decision::Deny(refusal) => Decision::Deny(Refusal { kind, ..refusal }),
                allowed @ Decision::Allow(_) => allowed,
            };
            Ok(call.callers.iter().map(refused).collect())
        });
    }

    /// Refuses a call when somebody begins to sleep next.
    pub(crate) fn refuse_when_asleep(&self, at: usize) {
        let waker = {
            let mut calls = lock(&self.line.inner.calls);
            let call = &mut calls.calls[at];
            call.reply = Some(Ok(call.callers.iter().map(|_| refusal(1000)).collect()));
            call.waker.take().unwrap()
        };
        *lock(&self.clock.hook) = Some(Hook(Box::new(|| waker.wake())));
    }

    pub(crate) fn fail(&self, at: usize) {
        self.answer(at, |_| Err(ErrorKind::Unavailable.into()));
    }

    pub(crate) fn panic(&self, at: usize) {
        lock(&self.line.inner.calls).calls[at].panics = true;
        self.answer(at, |_| Err(ErrorKind::Unavailable.into()));
    }

    fn answer(&self, at: usize, reply: impl FnOnce(&mut Call) -> Reply) {
        let waker = {
            let mut calls = lock(&self.line.inner.calls);
            let call = &mut calls.calls[at];
            if call.over || call.reply.is_some() {
                return;
            }
            call.reply = Some(reply(call));
            call.waker.take()
        };
        match waker {
            // A store may do either.
            Some(waker) if at.is_multiple_of(2) => waker.wake_by_ref(),
            Some(waker) => waker.wake(),
            None => {}
        }
    }

    fn in_flight(&self) -> Vec<usize> {
        let calls = lock(&self.line.inner.calls);
        let open = |at: &usize| !calls.calls[*at].over && calls.calls[*at].reply.is_none();
        (0..calls.calls.len()).filter(open).collect()
    }

    /// Whether a call is not answered.
    pub(crate) fn is_busy(&self) -> bool {
        !self.in_flight().is_empty()
    }

    fn any(&self, which: proptest::sample::Index, act: impl FnOnce(usize)) {
        let calls = self.in_flight();
        if !calls.is_empty() {
            act(*which.get(&calls));
        }
    }

    pub(crate) fn carry_out_any(&self, which: proptest::sample::Index) {
        self.any(which, |at| self.carry_out(at));
    }

    pub(crate) fn reply_any(&self, which: proptest::sample::Index) {
        self.any(which, |at| self.reply(at));
    }

    /// Fails a call that was not carried out: one that was is given back by whoever knows that it was sent.
    pub(crate) fn fail_any(&self, which: proptest::sample::Index) {
        self.any(which, |at| {
            if !lock(&self.line.inner.calls).calls[at].carried_out {
                self.fail(at);
            }
        });
    }

    /// Serves out of a lease whom a run is for, if it was not carried out.
    pub(crate) fn lease_any(&self, which: proptest::sample::Index) {
        self.any(which, |at| {
            if !lock(&self.line.inner.calls).calls[at].carried_out {
                self.lease(at);
            }
        });
    }

    pub(crate) fn answer_all(&self) {
        self.in_flight().into_iter().for_each(|at| self.reply(at));
    }

    pub(crate) fn nudge(&self) {
        self.lines.room(&name(), false);
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_waited_for(&self, acquire: &Acquire) -> bool {
        self.lines.is_waited_for(acquire)
    }

    /// Has a verb carried out.
    pub(crate) fn manage(&self, name: &Name, op: &Op) {
        let store = ByHand {
            together: true,
            calls: Mutex::default(),
        };
        let listener: Box<dyn Listener> = Box::new(self.lines.clone());
        let exit = Exit::new(store, Listeners::new([listener]), About::default());
        let mut managing = pin!(Decide::manage(&exit, name, op));
        let polled = managing
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.clock.clock.advance(Duration::from_millis(millis));
    }

    pub(crate) fn lines(&self) -> String {
        format!("{:?}", self.lines)
    }

    /// How many have left whose calls are looked out for.
    pub(crate) fn gone(&self) -> usize {
        lock(self.lines.gone()).len()
    }
}

/// Somebody who asks, and is polled by hand.
pub(crate) struct Caller<'a> {
    world: &'a World,
    future: Pin<Box<dyn Future<Output = Result<Decision, Error>> + 'a>>,
    acquire: Acquire,
    flag: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Caller<'_> {
    pub(crate) fn id(&self) -> u64 {
        number(self.acquire.first.id)
    }

    pub(crate) fn waits(&self) -> bool {
        self.acquire.patience.is_some()
    }

    /// Whether it was woken since it was polled last, or never was.
    pub(crate) fn woken(&self) -> bool {
        self.flag.0.load(Ordering::SeqCst)
    }

    pub(crate) fn poll(&mut self) -> Option<Result<Decision, Error>> {
        self.flag.0.store(false, Ordering::SeqCst);
        // Who waits needs one.
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        let _runtime = RUNTIME
            .get_or_init(|| Builder::new_current_thread().build().unwrap())
            .enter();
        let waker = Waker::from(Arc::clone(&self.flag));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// As a deadline or a `RateLimiter` does.
    pub(crate) fn drop_and_give_back(self) {
        let (world, receipts) = (self.world, self.acquire.receipts());
        drop(self);
        for receipt in receipts {
            world.line.settle(receipt, 0);
        }
    }
}

pub(crate) fn acquire(id: u64) -> Acquire {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    Acquire {
        first: Charge {
            id: PermitId(bytes),
            ..Charge::named(name(), LimitSource::Store, Labels::unnamed("line"), 1)
        },
        rest: Vec::new(),
        on_failure: None,
        remaining: false,
        patience: None,
        asked: None,
    }
}

impl Acquire {
    pub(crate) fn waiting(self, patience: MaxWait) -> Self {
        Self {
            patience: Some(patience),
            ..self
        }
    }
}

fn name() -> Name {
    Name::exact("line").unwrap()
}

/// In the ids of what is granted out of a lease.
pub(crate) const LEASED: u64 = 1 << 63;

pub(crate) fn number(id: PermitId) -> u64 {
    let [first, _] = id.0.as_chunks::<8>().0 else {
        panic!("16 bytes");
    };
    u64::from_le_bytes(*first)
}

/// Some are refused.
fn is_granted(id: u64) -> bool {
    !id.is_multiple_of(6)
}

fn grant(acquire: &Acquire) -> Decision {
    let receipts = acquire.receipts();
    Decision::Allow(Grant::new(List::new(), receipts, Source::Store))
}

fn leased(caller: &Acquire) -> Decision {
    let id = number(caller.first.id) | LEASED;
    let receipts = acquire(id).receipts();
    Decision::Allow(Grant::new(List::new(), receipts, Source::Lease))
}

fn refusal(wait: u64) -> Decision {
    let wait = Duration::from_millis(wait);
    let limit = LimitState {
        labels: Labels::unnamed("line"),
        permits: 5,
        interval: wait,
        remaining: None,
        next_after: None,
        reset_after: wait,
        refused: true,
        retry_after: Some(wait),
        shadow: false,
    };
    let limits = List::from([limit]);
    Decision::Deny(Refusal::by_limits(limits, Some(wait), Source::Store))
}
