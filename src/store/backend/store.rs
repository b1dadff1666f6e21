//! A backend with the guards in front of it: [`BackendStore`].

use std::{sync::Arc, time::Duration};

use super::{
    Backend,
    call::{BackendCalls, FailedCall, names},
    lanes::{Correction, Corrections, NameLanes},
    opened::Opened,
};
use crate::{
    store::{
        About, Answered, AnyStore, Calls, Decide, Joins, Op, OpResult,
        guard::{
            outbox::{Nodes, breaker::Signal},
            policy,
        },
        prepare_call,
        sealed::{Handle as Stack, Sealed},
        stack::{self, Guards},
    },
    values::{
        List,
        charge::Charge,
        clock::{Clock, SteadyClock, SystemClock, moment},
        compiled_limit::Limiter,
        decision::{Decision, Refusal},
        demand::Demand,
        error::{ConfigError, Error, ErrorKind},
        limit::{Limit, RateType},
        name::check_word,
    },
};

/// The failures among the last twice as many calls that open the breaker.
const FAILURES: u32 = 5;

/// A store of your own: a [`Backend`] behind the crate's guards. Clones are the same store.
#[derive(Clone, Debug)]
pub struct BackendStore(Arc<dyn AnyStore>);

/// The settings of a [`BackendStore`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// The prefix of the names of limiters that rules create. Default: `ratelimit`
    pub prefix: String,
    /// The longest time that a decision may take, waiting for permits not included. Default: 50
    /// milliseconds
    pub deadline: Duration,
    /// The clock that limits are counted by, that of each process that shares them. Default: the
    /// system's
    pub clock: Option<Arc<dyn Clock>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "ratelimit".into(),
            deadline: Duration::from_millis(50),
            clock: None,
        }
    }
}

impl BackendStore {
    /// Puts the guards in front of a backend. Refusals are repeated for a second, as by default in
    /// Redis.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Name`](crate::ConfigErrorKind::Name) if the prefix is empty or
    /// has other characters than `A-Z a-z 0-9 . _ -`.
    pub fn new(backend: impl Backend, settings: Settings) -> Result<Self, ConfigError> {
        check_word("a prefix", &settings.prefix)?;
        let steady: Arc<dyn Clock> = Arc::new(SteadyClock::new());
        // Not steadied: it is to follow that of others.
        let clock = settings.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let nodes = Nodes::new(1, |_| 0, settings.deadline, steady);
        let nodes = Arc::new(nodes.with_breakers(FAILURES, None, |_, _| ()));
        let guards = Guards {
            deny_cache: Duration::from_secs(1),
            nodes: Arc::clone(&nodes),
            own_clock: Some(Arc::clone(&clock)),
            ends_windows: true,
        };
        let about = About {
            prefix: settings.prefix.into(),
            lacks_clients: true,
            ..About::default()
        };
        let store = |listeners, bans| {
            Unguarded(Arc::new(BackendCalls {
                backend,
                clock,
                nodes,
                listeners,
                bans,
                lanes: NameLanes::default(),
                corrections: Corrections::default(),
            }))
        };
        Ok(Self(stack::remote(guards, about, store)))
    }
}

impl Sealed for BackendStore {
    fn handle(&self) -> Stack {
        Stack(Arc::clone(&self.0))
    }
}

/// A backend as the guards know a store.
struct Unguarded<B>(Arc<BackendCalls<B>>);

impl<B: Backend> Unguarded<B> {
    /// Decides for runs of callers by one call.
    async fn decide(
        &self,
        runs: &[&[Demand]],
    ) -> Result<Vec<Result<List<Decision>, Error>>, FailedCall> {
        let Some(first) = runs.first().and_then(|run| run.first()) else {
            return Ok(Vec::new());
        };
        let parts = &self.0;
        let firsts = runs.iter().filter_map(|run| run.first());
        let names = names(firsts.flat_map(Demand::charges).map(Charge::name));
        let _lanes = parts.lanes.enter(&names, parts.nodes.deadline()).await;
        let asked = first
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let name = first.first().name();
        let pass = parts.nodes.enter(name, asked.unwrap_or_default());
        let pass = pass.map_err(FailedCall::before)?;
        let bans = first.has_ban().then(|| parts.bans.ask(first));
        let decided = parts.decide(&names, runs, bans.as_ref()).await;
        pass.ends(match &decided {
            Err(failed) if failed.is_of_server() => Signal::Failed,
            _ => Signal::Answered,
        });
        decided
    }

    /// Decides for callers of the same limiters.
    async fn decide_run(&self, run: &[Demand]) -> Result<List<Decision>, FailedCall> {
        let decided = self.decide(&[run]).await?.into_iter().next();
        decided
            .unwrap_or_else(|| Ok(List::new()))
            .map_err(FailedCall::before)
    }
}

impl<B: Backend> Decide for Unguarded<B> {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        let is_per_client = |charge: &Charge| {
            let limit = charge.limit();
            limit.given().is_some_and(Limit::is_per_client)
        };
        if demand.charges().any(is_per_client) {
            return Some(Err(per_client()));
        }
        prepare_call(self.0.nodes.refuses(demand), demand)
    }

    async fn manage(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        let parts = &self.0;
        let new = match op {
            Op::TrySetRate(limit) | Op::SetRate { limit, .. }
                if limit.rate_type == RateType::PerClient =>
            {
                return Err(per_client());
            }
            Op::Rename(new) => Some(new),
            _ => None,
        };
        let names = names([&limiter.name].into_iter().chain(new));
        let _lanes = parts.lanes.enter(&names, parts.nodes.deadline()).await;
        let manage = |opened: &Opened| {
            let outcome = opened.store.manage_now(limiter, op)?;
            Ok((outcome, !op.only_reads() || opened.keeps_alive()))
        };
        let managed = parts.change(&names, manage).await;
        managed.map_err(|failed| failed.error)
    }

    fn strike(&self, demand: &Demand, refusal: &mut Refusal) {
        self.0.bans.count(demand, refusal);
    }
}

fn per_client() -> Error {
    Error::new(ErrorKind::Limit).detail("a store of your own counts for all clients together")
}

impl<B: Backend> Calls for Unguarded<B> {
    async fn acquire_run(&self, run: &[Demand], again: bool) -> Result<List<Decision>, Error> {
        if again {
            // A list may be written in part, so what has an entry is given back first.
            let charges = run.iter().flat_map(Demand::charges);
            let given_back = charges.map(|charge| Correction::new(charge.to_send(), 0));
            let given_back: Vec<_> = given_back.collect();
            let settled = self.0.settle(&given_back, true).await;
            settled.map_err(|failed| failed.error)?;
        }
        let failed = match self.decide_run(run).await {
            Ok(decisions) => return Ok(decisions),
            Err(failed) => failed,
        };
        // Nothing is asked again by the same ids that may be written and is given back.
        match policy::without_shadows(run, &failed.error).filter(|_| failed.is_unwritten) {
            Some(enforced) => self.decide_run(&enforced).await.map_err(|it| it.error),
            None => Err(failed.error),
        }
    }

    /// One value can fail them all: they go apart then, if the server works.
    async fn acquire_joint(&self, runs: &[&[Demand]]) -> List<Answered> {
        match self.decide(runs).await {
            Ok(decided) => decided.into_iter().map(Answered::Decided).collect(),
            Err(failed) if failed.is_unwritten && !failed.is_of_server() => {
                let apart = runs.iter().map(|_| Answered::Apart { was_sent: false });
                apart.collect()
            }
            Err(failed) => {
                let all = runs
                    .iter()
                    .map(|_| Answered::Decided(Err(failed.error.clone())));
                all.collect()
            }
        }
    }

    /// Those that do not wait, and have no ban.
    fn joins(&self, demand: &Demand) -> Option<Joins> {
        let joins = demand.max_wait.is_none() && !demand.has_ban();
        joins.then(|| Joins {
            terms: demand.charges.len(),
            callers: usize::MAX,
        })
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        if keep != receipt.permits {
            self.0.correct(Correction::new(receipt, keep));
        }
    }
}
