//! The store that the guards are tested around, what they ask and answer, and the names that their
//! tests use.

use std::{collections::VecDeque, future::poll_fn, ops::Deref};
pub(crate) use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    deny_cache::Refusals,
    fallback::Fallback,
    local::{Locals, recent::Recent},
};
use crate::{
    algorithm::call,
    store::memory::shared::{Shared, stand_in},
    values::compiled_limit::Limiter,
};
pub(crate) use crate::{
    algorithm::{limiter::LimiterState, sliding_log::SlidingLog},
    store::{Calls, Decide, Listener, Listeners, MemoryStore, Op, OpResult, sealed::Sealed},
    values::{
        List,
        charge::{Charge, PermitId, Standing},
        clock::{Clock, ManualClock, Now, millis},
        compiled_limit::CompiledLimit,
        decision::{Charges, Decision, Grant, Refusal, RefusalKind, Source},
        demand::{Demand, MaxWait},
        error::{Error, ErrorKind},
        failure_policy::FailurePolicy,
        limit::{Algorithm, Limit, LimitSource},
        name::Name,
    },
};

/// The calls of a store, in order.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

pub(crate) fn write(log: &Log, entry: impl Into<String>) {
    log.lock().unwrap().push(entry.into());
}

/// Returns the entries since the last call.
pub(crate) fn read(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

/// A store that answers by script: it fails, or has another store decide, or gives the next answer
/// once there is one. A verb takes two polls.
#[derive(Default)]
pub(crate) struct Scripted {
    pub(crate) log: Log,
    pub(crate) listeners: Option<Listeners>,
    /// The error of a call that needs no wait; without it such a call waits.
    pub(crate) fails_at_once: Mutex<Option<ErrorKind>>,
    /// The error of all others
    pub(crate) fails: Mutex<Option<Error>>,
    pub(crate) answers: Mutex<VecDeque<Decision>>,
    pub(crate) decided_by: Option<MemoryStore>,
}

impl Scripted {
    pub(crate) fn fail(&self, error: Option<Error>) {
        *self.fails.lock().unwrap() = error;
    }

    pub(crate) fn answer(&self, decision: Decision) {
        self.answers.lock().unwrap().push_back(decision);
    }

    /// Returns the settlements since the last call.
    pub(crate) fn settled(&self) -> Vec<String> {
        let mut log = read(&self.log);
        log.retain(|entry| entry.contains(" of "));
        log
    }
}

impl Decide for Scripted {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        write(&self.log, "at once");
        demand.identify(PermitId([7; 16]));
        let fails = *self.fails_at_once.lock().unwrap();
        fails.map(|kind| Err(kind.into()))
    }

    async fn manage(&self, _: &Limiter, _: &Op) -> Result<OpResult, Error> {
        write(&self.log, "verb");
        pause().await;
        Ok(OpResult::Changed(true))
    }
}

impl Calls for Scripted {
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        write(&self.log, "in time");
        if let Some(error) = self.fails.lock().unwrap().clone() {
            return Err(error);
        }
        if let Some(store) = &self.decided_by {
            let mut demand = Demand {
                on_failure: None,
                ..run[0].clone()
            };
            let decision = store.handle().0.decide_at_once(&mut demand).unwrap();
            return decision.map(|decision| List::from([decision]));
        }
        let next = || self.answers.lock().unwrap().pop_front();
        let decision = poll_fn(|_| next().map_or(Poll::Pending, Poll::Ready)).await;
        Ok(List::from([decision]))
    }

    fn decides_together(&self, _: &Demand) -> bool {
        true
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        assert!(!receipt.is_local());
        let granted = if receipt.was_answered() {
            ", granted"
        } else {
            ""
        };
        let (name, permits) = (receipt.name().as_str(), receipt.permits);
        write(&self.log, format!("{name}: {keep} of {permits}{granted}"));
        if let Some(listeners) = &self.listeners {
            listeners.room(receipt.name(), false);
        }
        if let Some(store) = &self.decided_by {
            store.handle().0.settle(receipt, keep);
        }
    }
}

/// Is pending once.
pub(crate) async fn pause() {
    let mut paused = false;
    poll_fn(|_| {
        if std::mem::replace(&mut paused, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

pub(crate) fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns what a future is ready with that waits for nothing.
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    match poll(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// The time of a server whose clock this is.
pub(crate) fn server_time(clock: &ManualClock) -> Now {
    Now::millis(millis(clock).cast_signed())
}

/// Has the pure sliding log decide for callers of one limiter, as a server does.
pub(crate) fn decide(
    limiter: &mut LimiterState<SlidingLog>,
    run: &[Demand],
    now: Now,
) -> List<Decision> {
    let sent: Vec<_> = run.iter().map(sent).collect();
    let limiters = std::iter::once(limiter as &mut LimiterState);
    let answers = call::acquire(limiters, &sent, now).unwrap();
    let answers = run.iter().zip(answers.iter());
    answers
        .map(|(demand, answer)| demand.decision(std::slice::from_ref(answer)))
        .collect()
}

/// Returns a demand as a server gets it, which may have got it before.
pub(crate) fn sent(demand: &Demand) -> Demand {
    Demand {
        charges: demand.to_settle().into_iter().collect(),
        ..demand.clone()
    }
}

/// Returns a charge of this many permits of a limiter whose rule has its name.
pub(crate) fn charge(name: &str, permits: u32, limit: LimitSource) -> Charge {
    let of = CompiledLimit::with_defaults(name, true, false);
    Charge::named(Name::exact(name).unwrap(), limit, &of, permits)
}

pub(crate) fn shadow(charge: Charge) -> Charge {
    Charge {
        shadow: true,
        ..charge
    }
}

/// Returns a demand whose caller wants to know what is left, and waits for nothing.
pub(crate) fn asks(charges: impl IntoIterator<Item = Charge>) -> Demand {
    Demand {
        wants_remaining: true,
        ..Demand::caller(charges, false)
    }
}

/// Returns the same with a failure policy.
pub(crate) fn by(
    policy: impl Into<Option<FailurePolicy>>,
    charges: impl IntoIterator<Item = Charge>,
) -> Demand {
    Demand {
        on_failure: policy.into(),
        ..asks(charges)
    }
}

/// Returns a store whose failures are answered by the policy, by the same clock throughout.
pub(crate) fn with_fallback(store: Scripted, clock: &ManualClock) -> WithFallback {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let refusals = Refusals::new(Duration::from_secs(60), Some(Arc::clone(&clock)), false);
    let recent = Arc::new(Recent::new(Arc::clone(&clock)));
    let locals = Locals::new(stand_in(Arc::clone(&clock)), recent);
    WithFallback {
        inner: store,
        fallback: Fallback::new(Arc::new(refusals), locals, clock),
    }
}

/// A store behind the fallback alone.
pub(crate) struct WithFallback {
    pub(crate) inner: Scripted,
    pub(crate) fallback: Fallback<Shared>,
}

impl WithFallback {
    pub(crate) fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        let decision = self.inner.decide_at_once(demand)?;
        Some(decision.or_else(|error| self.unsent(demand, error)))
    }

    pub(crate) async fn acquire(&self, demand: &Demand) -> Result<Decision, Error> {
        let decision = self.inner.acquire(demand).await;
        self.answer(demand, decision, |receipt| self.inner.settle(receipt, 0))
    }

    pub(crate) fn settle(&self, receipt: Charge, keep: u32) {
        if let Some(receipt) = self.locals.settle(receipt, keep) {
            self.inner.settle(receipt, keep);
        }
    }
}

impl Deref for WithFallback {
    type Target = Fallback<Shared>;

    fn deref(&self) -> &Self::Target {
        &self.fallback
    }
}

/// Returns the charge of a limit of one permit that is used up for so long.
pub(crate) fn spent(charge: &Charge, wait: Duration) -> Charge {
    Charge {
        standing: Standing {
            permits: 1,
            interval: u64::try_from(wait.as_millis()).unwrap(),
            remaining: Some(0),
            wait: Some(wait),
            reset_after: wait,
            refused: true,
            banned: false,
            granted: false,
        },
        ..charge.clone()
    }
}

pub(crate) fn granted(demand: &Demand, source: Source) -> Decision {
    Decision::Allow(Grant::new(demand.to_settle().into_iter().collect(), source))
}

/// Returns the refusal by all limits of a demand.
pub(crate) fn refusal(demand: &Demand, wait: Duration) -> Refusal {
    let limits = demand.charges().map(|charge| spent(charge, wait));
    Refusal::by_limits(limits.collect(), Some(wait), Source::Store)
}

/// Returns the refusal that a decision is.
pub(crate) fn refused(decision: Decision) -> Refusal {
    match decision {
        Decision::Deny(refusal) => refusal,
        Decision::Allow(_) => panic!("{decision:?}"),
    }
}

/// Returns the receipts of the grant that a decision is.
pub(crate) fn receipts(decision: &Decision) -> Vec<Charge> {
    match decision {
        Decision::Allow(grant) => grant.taken().cloned().collect(),
        Decision::Deny(_) => panic!("{decision:?}"),
    }
}
