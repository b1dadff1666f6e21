//! Guards and stores put together, in the one order.
//!
//! From the outside in: [`Exit`], which every decision passes once > the failure policy, and the
//! share of a limit that this process decides by > the caller's deadline > the deny cache > the
//! queue of those who share a call or wait > the lease > the store: its breaker, and the call.
//!
//! The lease is asked within the queue, as what it takes ahead goes with the queue's calls. A
//! demand that can be decided at once passes the queue by, also to take from a lease: where
//! a caller waits there is none. A store in memory has the exit, the queue and itself.

#[cfg(feature = "redis")]
use std::sync::Weak;
use std::{sync::Arc, time::Duration};

use super::{
    AnyStore, Decide, DecideRuns, Deciding, Listener, Listeners, Managing, Op, OpResult,
    guard::{
        policy,
        queue::{InFlight, Queued, Queues},
    },
    rule_names::RuleNames,
};
#[cfg(feature = "redis")]
use super::{
    guard::{
        breaker::Traffic,
        deadline::Deadline,
        deny_cache::{DenyCache, Refusals},
        fallback::Fallback,
        lease::Leasing,
        local::Locals,
    },
    memory::shared::stand_in,
};
use crate::{
    clock::{Clock, SteadyClock},
    decision::Decision,
    demand::Acquire,
    error::Error,
    name::Name,
    receipt::Receipt,
};

/// The outermost guard: every decision, verb and settlement passes here, once.
#[derive(Debug)]
pub(crate) struct Exit<S> {
    inner: S,
    listeners: Listeners,
    about: About,
}

/// What is the same for all that a store is asked.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// The beginning of the names that rules make.
    pub(crate) prefix: Arc<str>,
    /// For errors: without user and password.
    pub(crate) address: Option<Arc<str>>,
    /// One call reaches only limiters of one identity.
    pub(crate) is_cluster: bool,
    pub(crate) rule_names: RuleNames,
}

/// For how long a call of a store in memory is waited for before another one is made: it answers
/// at once, unless its caller is polled no more.
const ANSWERS_WITHIN: Duration = Duration::from_millis(100);

/// Puts the queue around a store in memory, which is made with its listeners.
pub(crate) fn memory<S: DecideRuns>(
    clock: Arc<dyn Clock>,
    store: impl FnOnce(Listeners) -> S,
) -> (Arc<S>, Arc<dyn AnyStore>) {
    let queues = Arc::new(Queues::default());
    let listeners = Listeners::new([Box::new(Arc::clone(&queues)) as Box<dyn Listener>]);
    let store = Arc::new(store(listeners.clone()));
    let about = About {
        prefix: "memory".into(),
        ..About::default()
    };
    let in_flight = InFlight::new(ANSWERS_WITHIN, Arc::new(SteadyClock::new()), |_| 0);
    let queued = Queued::new(Arc::clone(&store), clock, queues, in_flight);
    (store, Arc::new(Exit::new(queued, listeners, about)))
}

/// A server with its guards on, and those of its parts that are asked for by name.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct Remote<S: DecideRuns> {
    pub(crate) server: Arc<S>,
    pub(crate) leasing: Arc<Leasing<S>>,
    pub(crate) stack: Arc<dyn AnyStore>,
}

/// The settings of the guards around a server.
#[cfg(feature = "redis")]
pub(crate) struct Guards {
    pub(crate) deadline: Duration,
    /// For how long a refusal is cached.
    pub(crate) deny_cache: Duration,
    /// What came from the server, and when.
    pub(crate) traffic: Arc<Traffic>,
    /// The clock of the logs, if it is this process's; none for the server's.
    pub(crate) own_clock: Option<Arc<dyn Clock>>,
}

/// Puts the guards around a server, which is made with its listeners.
#[cfg(feature = "redis")]
pub(crate) fn remote<S: DecideRuns>(
    guards: Guards,
    about: About,
    server: impl FnOnce(Listeners) -> S,
) -> Remote<S> {
    let own_clock = guards.own_clock;
    // Who waits for the server's clock waits by one of this process that never jumps.
    let clock = own_clock
        .clone()
        .unwrap_or_else(|| Arc::new(SteadyClock::new()));
    let queues = Arc::new(Queues::default());
    let refusals = Arc::new(Refusals::new(guards.deny_cache, own_clock.clone()));
    // The store knows its listeners, and leases their store: one must not keep the other.
    let listeners = |leasing: &Weak<Leasing<S>>| {
        Listeners::new([
            Box::new(Arc::clone(&refusals)) as Box<dyn Listener>,
            Box::new(Weak::clone(leasing)),
            Box::new(Arc::clone(&queues)),
        ])
    };
    let leasing = Arc::new_cyclic(|leasing| {
        let server = Arc::new(server(listeners(leasing)));
        Leasing::new(server, own_clock, Arc::clone(&clock), queues.clone())
    });
    let listeners = listeners(&Arc::downgrade(&leasing));
    let traffic = Arc::clone(&guards.traffic);
    let steady: Arc<dyn Clock> = Arc::new(SteadyClock::new());
    let in_flight = InFlight::new(guards.deadline, Arc::clone(&steady), move |name| {
        traffic.index(name)
    });
    let queued = Queued::new(Arc::clone(&leasing), Arc::clone(&clock), queues, in_flight);
    let deny_cache = DenyCache::new(queued, Arc::clone(&refusals));
    let deadline = Deadline::new(deny_cache, guards.deadline, guards.traffic);
    let locals = Locals::new(stand_in(Arc::clone(&clock)), clock);
    let fallback = Fallback::new(deadline, refusals, locals, steady);
    Remote {
        server: Arc::clone(leasing.inner()),
        leasing,
        stack: Arc::new(Exit::new(fallback, listeners, about)),
    }
}

impl<S: Decide> Exit<S> {
    pub(crate) fn new(inner: S, listeners: Listeners, about: About) -> Self {
        Self {
            inner,
            listeners,
            about,
        }
    }

    /// Adds the store's address to an error, and turns an error that no guard has answered into the
    /// answer of the caller's policy.
    #[inline]
    fn leaves(
        &self,
        acquire: &Acquire,
        decision: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        decision.or_else(|error| policy::answer_error(acquire, self.named(error)))
    }

    fn named(&self, error: Error) -> Error {
        error.of(self.about.address.as_ref())
    }
}

impl<S: Decide> Decide for Exit<S> {
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        let decision = self.inner.decide_at_once(acquire);
        match &decision {
            Some(Err(error)) => Some(self.leaves(acquire, Err(error.clone()))),
            // A decision is large, and not moved where there is nothing to change.
            _ => decision,
        }
    }

    /// # Cancel safety
    ///
    /// As the guards within.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let decision = self.inner.acquire(acquire).await;
        self.leaves(acquire, decision)
    }

    /// # Cancel safety
    ///
    /// Dropping it may leave the verb carried out or not: listeners are called either way.
    async fn manage(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        // Not made for what only reads: it calls the listeners when it is dropped.
        let _changing = (!op.only_reads()).then(|| Changing {
            listeners: &self.listeners,
            name,
            op,
        });
        let managed = self.inner.manage(name, op).await;
        managed.map_err(|error| self.named(error))
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        self.inner.settle(receipt, keep);
    }
}

/// A verb that changes a limiter: listeners hear of it when it is over, or its caller is gone.
struct Changing<'a> {
    listeners: &'a Listeners,
    name: &'a Name,
    op: &'a Op,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let new_name = match self.op {
            Op::Rename(new_name) => Some(new_name),
            _ => None,
        };
        for name in std::iter::once(self.name).chain(new_name) {
            self.listeners.changed(name);
            self.listeners.room(name, false);
        }
    }
}

impl<S: Decide> AnyStore for Exit<S> {
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        Decide::decide_at_once(self, acquire)
    }

    fn acquire(self: Arc<Self>, acquire: Acquire) -> Deciding {
        Deciding::Pending(Box::pin(
            async move { Decide::acquire(&*self, &acquire).await },
        ))
    }

    fn manage(self: Arc<Self>, name: Name, op: Op) -> Managing {
        Box::pin(async move { Decide::manage(&*self, &name, &op).await })
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        Decide::settle(self, receipt, keep);
    }

    fn is_cluster(&self) -> bool {
        self.about.is_cluster
    }

    fn prefix(&self) -> &str {
        &self.about.prefix
    }

    fn rule_names(&self) -> &RuleNames {
        &self.about.rule_names
    }
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests;
