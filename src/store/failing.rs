//! A store that always fails, behind the guards of a server, for tests of outages.

use std::{sync::Arc, time::Duration};

use super::{
    About, AnyStore, Calls, Decide, Op, OpResult,
    guard::outbox::Nodes,
    stack::{Guards, remote},
};
use crate::values::{
    List,
    charge::Charge,
    clock::{Clock, SteadyClock},
    compiled_limit::Limiter,
    decision::Decision,
    demand::Demand,
    error::{Error, ErrorKind},
};

/// Returns a store whose calls all fail like this.
pub(super) fn failing(kind: ErrorKind, clock: Arc<dyn Clock>, about: About) -> Arc<dyn AnyStore> {
    // It fails at once, before any deadline.
    let nodes = Nodes::new(1, |_| 0, Duration::MAX, Arc::new(SteadyClock::new()));
    let guards = Guards {
        deny_cache: Duration::ZERO,
        nodes: Arc::new(nodes),
        own_clock: Some(clock),
        ends_windows: false,
    };
    remote(guards, about, |_, _| Failing(kind))
}

struct Failing(ErrorKind);

impl Decide for Failing {
    fn decide_at_once(&self, _: &mut Demand) -> Option<Result<Decision, Error>> {
        Some(Err(self.0.into()))
    }

    async fn manage(&self, _: &Limiter, _: &Op) -> Result<OpResult, Error> {
        Err(self.0.into())
    }
}

impl Calls for Failing {
    async fn acquire_run(&self, _: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        Err(self.0.into())
    }

    fn settle(&self, _: Charge, _: u32) {}
}
