//! Puts guards and stores together, in one fixed order.
//!
//! A [`Remote`] has all guards: every decision, verb and settlement passes them in its functions,
//! from the outside in. A store in memory has only the outermost guard and the outbox, for its
//! waiters.

#[cfg(feature = "_guards")]
use std::sync::Weak;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    About, AnyStore, Decide, Deciding, Listener, Listeners, Managing, Op,
    guard::{
        outbox::{Nodes, Outbox, Waits},
        policy,
    },
    report::{self, Undecided},
};
#[cfg(feature = "_guards")]
use super::{
    guard::{
        deny_cache::{Refusals, bans::Bans},
        fallback::Fallback,
        late::Late,
        lease::Leasing,
        local::{Locals, recent::Recent},
    },
    memory::shared::{Shared, stand_in},
};
#[cfg(feature = "_guards")]
use crate::{
    store::{OpResult, TimeToLive},
    values::{clock::check_timer, error::ErrorKind, limit::at_least_zero},
};
use crate::{
    sync::OnDrop,
    values::{
        charge::Charge,
        clock::{Clock, SteadyClock},
        compiled_limit::Limiter,
        decision::{Decision, RefusalKind},
        demand::Demand,
        error::Error,
        name::Name,
        observe::StateChange,
    },
};

/// The outermost guard: names the store in errors, and reports to listeners and observers.
pub(crate) struct Outermost {
    pub(crate) listeners: Listeners,
    pub(crate) about: About,
    /// The number of limiters or refusals last reported to the observers.
    reported: AtomicUsize,
}

impl Outermost {
    pub(crate) fn new(listeners: Listeners, about: About) -> Self {
        let reported = AtomicUsize::new(0);
        Self {
            listeners,
            about,
            reported,
        }
    }

    /// Adds the store's address to an error.
    fn named(&self, error: Error) -> Error {
        error.with_address(self.about.address.as_ref())
    }

    /// Reports to the observers how many limiters or refusals there are, if that has changed.
    fn report_count(&self, now: usize, change: impl FnOnce(usize, usize) -> StateChange<'static>) {
        if self.reported.load(Relaxed) != now {
            let before = self.reported.swap(now, Relaxed);
            self.about.observers.changed(&change(before, now));
        }
    }

    /// Calls the listeners when a verb that changes a limiter is over, or its caller is gone.
    pub(crate) fn changing<'a>(&'a self, name: &'a Name, op: &'a Op) -> OnDrop<impl FnOnce() + 'a> {
        OnDrop::new(move || {
            for name in op.changes(name) {
                self.listeners.changed(name);
                self.listeners.room(name, false);
            }
        })
    }
}

/// A store in memory, and its outbox.
pub(crate) struct InMemory<S> {
    outermost: Outermost,
    outbox: Arc<Outbox<S>>,
    store: Arc<S>,
}

/// The time for which callers wait for another caller's call in memory. It is over at once unless
/// nothing polls it.
const ANSWERS_WITHIN: Duration = Duration::from_millis(100);

/// Puts the outbox around a store in memory, which is made with its listeners.
pub(crate) fn memory<S: Decide>(
    clock: Arc<dyn Clock>,
    about: About,
    store: impl FnOnce(Listeners) -> S,
) -> (Arc<S>, Arc<dyn AnyStore>) {
    let waits = Arc::new(Waits::default());
    let listeners = Listeners::new([Box::new(Arc::clone(&waits)) as Box<dyn Listener>]);
    let store = Arc::new(store(listeners.clone()));
    let steady = Arc::new(SteadyClock::new());
    let nodes = Arc::new(Nodes::new(1, |_| 0, ANSWERS_WITHIN, steady));
    let stack = InMemory {
        outermost: Outermost::new(listeners, about),
        // Nothing happens to its limiters that it does not see.
        outbox: Outbox::new(Arc::clone(&store), clock, waits, nodes, None),
        store: Arc::clone(&store),
    };
    (store, Arc::new(stack))
}

impl<S: Decide> InMemory<S> {
    /// Returns the answer of the caller's policy: no other guard has answered the error.
    #[cold]
    fn answer_error(&self, demand: &Demand, error: Error) -> Result<Decision, Error> {
        policy::answer_error(demand, self.outermost.named(error))
    }

    fn report_limiters(&self) {
        if !self.outermost.about.observers.is_empty() {
            let limiters = |before, now| StateChange::Limiters { before, now };
            self.outermost.report_count(self.store.limiters(), limiters);
        }
    }
}

impl<S: Decide> AnyStore for InMemory<S> {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        // A decision is large: it is changed in place.
        let mut decision = self.store.decide_at_once(demand);
        if let Some(Err(error)) = &decision {
            decision = Some(self.answer_error(demand, error.clone()));
        }
        self.report_limiters();
        if let Some(decided) = &decision {
            report::at_once(demand, decided);
        }
        decision
    }

    fn acquire(self: Arc<Self>, demand: Demand) -> Deciding {
        let mut undecided = Undecided::new(demand);
        Box::pin(async move {
            let demand = &undecided.demand;
            let mut decision = self.outbox.acquire(demand).await;
            strike(&*self.store, demand, &mut decision);
            self.report_limiters();
            let decision = decision.or_else(|error| self.answer_error(demand, error));
            undecided.ends(Some(&decision));
            decision
        })
    }

    fn manage(self: Arc<Self>, limiter: Limiter, op: Op) -> Managing {
        Box::pin(async move {
            let _changing = self.outermost.changing(&limiter.name, &op);
            let managed = self.store.manage(&limiter, &op).await;
            self.report_limiters();
            managed.map_err(|error| self.outermost.named(error))
        })
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        self.outbox.settle(receipt, keep);
    }

    fn about(&self) -> &About {
        &self.outermost.about
    }
}

/// Counts a refusal towards a ban, if its caller has waited for permits.
fn strike(store: &impl Decide, demand: &Demand, decision: &mut Result<Decision, Error>) {
    if let Ok(Decision::Deny(refusal)) = decision
        && refusal.kind == RefusalKind::OverLimit
        && demand.max_wait.is_some()
    {
        store.strike(demand, refusal);
    }
}

/// A server with its guards on.
#[cfg(feature = "_guards")]
pub(crate) struct Remote<S: Decide> {
    outermost: Outermost,
    fallback: Fallback<Shared>,
    nodes: Arc<Nodes>,
    refusals: Arc<Refusals>,
    /// Sends its calls through the leases, as what these take ahead goes with them.
    outbox: Arc<Outbox<Leasing<S>>>,
    pub(crate) leasing: Arc<Leasing<S>>,
    pub(crate) server: Arc<S>,
}

/// How long after an answer callers that wait are asked for again, if no refusal is cached.
#[cfg(feature = "_guards")]
const ASKS_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The settings of the guards around a server.
#[cfg(feature = "_guards")]
pub(crate) struct Guards {
    /// For how long a refusal is cached.
    pub(crate) deny_cache: Duration,
    pub(crate) nodes: Arc<Nodes>,
    /// The clock of the logs, if it is this process's; none for the server's.
    pub(crate) own_clock: Option<Arc<dyn Clock>>,
    /// Set if windows end by that, too: there is no server that ends them.
    pub(crate) ends_windows: bool,
}

/// Puts the guards around a server, which is made with its listeners.
#[cfg(feature = "_guards")]
pub(crate) fn remote<S: Decide>(
    guards: Guards,
    about: About,
    server: impl FnOnce(Listeners, Arc<Bans>) -> S,
) -> Arc<Remote<S>> {
    let own_clock = guards.own_clock;
    // Without a clock of this process, timers use a monotonic one.
    let clock = own_clock
        .clone()
        .unwrap_or_else(|| Arc::new(SteadyClock::new()));
    let waits = Arc::new(Waits::default());
    let refusals = Arc::new(Refusals::new(
        guards.deny_cache,
        own_clock.clone(),
        guards.ends_windows,
    ));
    let recent = Arc::new(Recent::new(Arc::clone(&clock)));
    let mut listeners = Listeners::none();
    let leasing = Arc::new_cyclic(|leasing| {
        // The store knows its listeners, and leases their store: one must not keep the other.
        listeners = Listeners::new([
            Box::new(Arc::clone(&refusals)) as Box<dyn Listener>,
            Box::new(Weak::clone(leasing)),
            Box::new(Arc::clone(&waits)),
        ]);
        let bans = Arc::clone(&refusals.bans);
        let server = Arc::new(server(listeners.clone(), bans));
        let (clock, waits) = (Arc::clone(&clock), Arc::clone(&waits));
        Leasing::new(server, own_clock, clock, waits, Arc::clone(&recent))
    });
    // Also those that keep no refusals: a caller that waits does not ask all the time.
    let asks_again_after = match guards.deny_cache {
        Duration::ZERO => ASKS_AGAIN_AFTER,
        pause => pause,
    };
    let nodes = guards.nodes;
    let locals = Locals::new(stand_in(Arc::clone(&clock)), recent);
    Arc::new(Remote {
        outermost: Outermost::new(listeners, about),
        fallback: Fallback::new(Arc::clone(&refusals), locals, Arc::clone(&nodes.clock)),
        nodes: Arc::clone(&nodes),
        refusals,
        outbox: Outbox::new(
            Arc::clone(&leasing),
            clock,
            waits,
            nodes,
            Some(asks_again_after),
        ),
        server: Arc::clone(&leasing.inner),
        leasing,
    })
}

/// The order of all guards: outermost > fallback > deny cache > deadline > outbox > leases >
/// server.
///
/// `decide_at_once` asks the deny cache, the leases and the breaker before there is a future, and
/// so past the outbox. That overtakes no waiter: a limiter that callers wait for has no lease.
#[cfg(feature = "_guards")]
impl<S: Decide> Remote<S> {
    /// Gives back what a caller without HTTP may have taken when it left, if its call was sent. A
    /// request stays charged, except its places in flight, and callers that wait for permits have
    /// given back.
    fn left(&self, demand: &Demand) {
        let is_request = demand.on_failure.is_some();
        if demand.max_wait.is_some() || demand.unsent.get().is_some() {
            return;
        }
        let back = demand.charges();
        for charge in back.filter(|charge| !is_request || charge.compiled().is_in_flight()) {
            self.settle(charge.made(demand.asked_at), 0);
        }
    }
}

#[cfg(feature = "_guards")]
impl<S: Decide> AnyStore for Remote<S> {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        // A repeated refusal and a leased grant say nothing of the store's health, and both were
        // recorded when the store answered.
        let decision = if let Some(refusal) = self.refusals.refusal(demand) {
            Ok(Decision::Deny(refusal))
        } else if let Some(granted) = self.leasing.table.take(demand) {
            Ok(Decision::Allow(granted))
        } else {
            let decision = self.server.decide_at_once(demand)?;
            let decision = decision.or_else(|error| self.fallback.unsent(demand, error));
            decision.map_err(|error| self.outermost.named(error))
        };
        report::at_once(demand, &decision);
        Some(decision)
    }

    fn acquire(self: Arc<Self>, demand: Demand) -> Deciding {
        let mut undecided = Undecided::new(demand);
        Box::pin(async move {
            let demand = &undecided.demand;
            let asked = self.refusals.ask(demand);
            let left = OnDrop::new(|| self.left(demand));
            let call = || self.outbox.acquire(demand);
            let mut decision = self.nodes.within(demand, call).await;
            left.disarm();
            strike(&*self.server, demand, &mut decision);
            match &decision {
                Ok(decision) => {
                    self.refusals.decided(demand, asked, decision);
                    let refusals = |before, now| StateChange::Remembered { before, now };
                    self.outermost.report_count(self.refusals.count(), refusals);
                }
                Err(error) if Late::of(error) == Some(Late::Unsent) => {
                    let observers = &demand.first().compiled().observers;
                    observers.changed(&StateChange::Overload);
                }
                Err(error) if error.kind() == ErrorKind::NotInitialized => {
                    // Of several, it is not known which.
                    let names = demand.charges().map(Charge::name);
                    names.for_each(|name| self.outermost.listeners.changed(name));
                }
                Err(_) => {}
            }
            let give_back = |receipt| self.outbox.settle(receipt, 0);
            let decision = self.fallback.answer(demand, decision, give_back);
            let decision = decision.map_err(|error| self.outermost.named(error));
            undecided.ends(Some(&decision));
            decision
        })
    }

    fn manage(self: Arc<Self>, limiter: Limiter, op: Op) -> Managing {
        Box::pin(async move {
            let name = &limiter.name;
            let _changing = self.outermost.changing(name, &op);
            // An operator's call is worth waiting for: the connection's own timeouts bound it.
            let managed = match check_timer() {
                Ok(()) => {
                    if self.leasing.end_changed(name, &op) {
                        // What it gives back is sent by tasks, which mostly go first.
                        tokio::task::yield_now().await;
                    }
                    self.server.manage(&limiter, &op).await
                }
                Err(error) => Err(error),
            };
            match &managed {
                Ok(OpResult::Limit(Some(limit))) => {
                    let permits = at_least_zero(limit.rate);
                    let interval = at_least_zero(limit.interval);
                    self.refusals.saw_limit(name, permits, interval);
                }
                found if finds_none(found) => self.outermost.listeners.changed(name),
                _ => {}
            }
            managed.map_err(|error| self.outermost.named(error))
        })
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        if let Some(receipt) = self.fallback.locals.settle(receipt, keep) {
            self.refusals.settles(&receipt);
            self.outbox.settle(receipt, keep);
        }
    }

    fn about(&self) -> &About {
        &self.outermost.about
    }
}

/// Returns whether a verb has found that there is no limit.
#[cfg(feature = "_guards")]
fn finds_none(managed: &Result<OpResult, Error>) -> bool {
    match managed {
        Ok(found) => matches!(
            found,
            OpResult::Limit(None) | OpResult::TimeToLive(TimeToLive::Missing)
        ),
        Err(error) => error.kind() == ErrorKind::NotInitialized,
    }
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests;
