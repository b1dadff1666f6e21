//! A store that always fails, behind the guards of a server, for tests of outages.

use std::{sync::Arc, time::Duration};

use super::{
    About, AnyStore, Calls, Decide, Op, OpResult,
    guard::breaker::NodeTraffic,
    stack::{Guards, remote},
};
use crate::{
    charge::Charge,
    clock::{Clock, SteadyClock},
    compiled_limit::Limiter,
    decision::Decision,
    demand::Demand,
    error::{Error, ErrorKind},
    list::List,
};

/// Returns a store whose calls all fail like this.
pub(super) fn failing(kind: ErrorKind, clock: Arc<dyn Clock>, about: About) -> Arc<dyn AnyStore> {
    let guards = Guards {
        // It fails at once.
        deadline: Duration::MAX,
        deny_cache: Duration::ZERO,
        traffic: Arc::new(NodeTraffic::new(1, |_| 0, Arc::new(SteadyClock::new()))),
        own_clock: Some(clock),
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
