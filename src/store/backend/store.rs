//! A backend with the guards in front of it: [`BackendStore`].

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{Answer, Backend, Settle};
use crate::{
    algorithm::answer::{self, Changed, Verdict},
    macros::detail,
    store::{
        About, AnyStore, Calls, Decide, Listeners, Op, OpResult,
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
        clock::{Clock, Now, SteadyClock, moment},
        compiled_limit::Limiter,
        decision::Decision,
        demand::Demand,
        error::{ConfigError, Error, ErrorKind},
        limit::Limit,
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
    /// The clock of this process that the backend counts by. Default: none, it counts by its
    /// server's
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
        let steady = Arc::new(SteadyClock::new());
        let nodes = Nodes::new(1, |_| 0, settings.deadline, steady);
        let nodes = Arc::new(nodes.with_breakers(FAILURES, None, |_, _| ()));
        let guards = Guards {
            deny_cache: Duration::from_secs(1),
            nodes: Arc::clone(&nodes),
            own_clock: settings.clock,
        };
        let about = About {
            prefix: settings.prefix.into(),
            counts_by_log_alone: true,
            ..About::default()
        };
        let backend = Arc::new(backend);
        Ok(Self(stack::remote(guards, about, |listeners, _| {
            Unguarded {
                backend,
                nodes,
                listeners,
            }
        })))
    }
}

impl Sealed for BackendStore {
    fn handle(&self) -> Stack {
        Stack(Arc::clone(&self.0))
    }
}

/// A backend as the guards know a store.
struct Unguarded<B> {
    backend: Arc<B>,
    nodes: Arc<Nodes>,
    listeners: Listeners,
}

impl<B: Backend> Unguarded<B> {
    async fn decide(&self, demand: &Demand) -> Result<Decision, Error> {
        let asked = demand
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let name = demand.first().name();
        let pass = self.nodes.enter(name, asked.unwrap_or_default())?;
        let answers = self.backend.acquire(demand).await;
        pass.ends(match answers.as_ref().map_err(Error::kind) {
            Err(ErrorKind::Unavailable | ErrorKind::Timeout) => Signal::Failed,
            _ => Signal::Answered,
        });
        let answers = answers?;
        if answers.len() != demand.charges.len() {
            return Err(Error::new(ErrorKind::Rejected).detail("not one answer for each charge"));
        }
        let counted = demand.charges().zip(&answers).map(|(charge, answer)| {
            if answer.changed {
                self.listeners.changed(charge.name());
            }
            counted(charge, answer)
        });
        Ok(demand.decision(&counted.collect::<List<_>>()))
    }
}

/// Returns the answer in microseconds, from now on.
fn counted(charge: &Charge, answer: &Answer) -> answer::Answer {
    // Rounded up: a wait is never too short.
    let micros = |time: Duration| i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX);
    let verdict = match answer.wait {
        _ if u64::from(charge.permits) > answer.limit.permits() => Verdict::AboveRate,
        Some(_) => Verdict::Refused,
        None => Verdict::Granted,
    };
    let counted = answer::Answer {
        remaining: i64::try_from(answer.remaining).unwrap_or(i64::MAX),
        next: micros(answer.next),
        reset: micros(answer.reset),
        ..answer::Answer::new(&answer.limit.stored(), Changed::Nothing, Now::at(0))
    };
    counted.for_caller(verdict, micros(answer.wait.unwrap_or_default()))
}

impl<B: Backend> Decide for Unguarded<B> {
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        let is_lacking = |charge: &Charge| {
            let limit = charge.limit();
            !charge.of().counting.tells_grants_apart()
                || limit.given().is_some_and(Limit::is_per_client)
        };
        if demand.charges().any(is_lacking) {
            let reason = "a store of your own has a sliding log without slots, for all clients";
            return Some(Err(Error::new(ErrorKind::Limit).detail(reason)));
        }
        prepare_call(self.nodes.refuses(demand), demand)
    }

    async fn manage(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        self.backend.manage(&limiter.name, op).await
    }
}

impl<B: Backend> Calls for Unguarded<B> {
    /// Decides for the first: a backend takes one demand at a time.
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let decided = self.decide(first).await;
        let enforced = decided
            .as_ref()
            .err()
            .and_then(|error| policy::without_shadows(std::slice::from_ref(first), error));
        Ok(List::from([match enforced.as_deref() {
            Some([enforced]) => self.decide(enforced).await?,
            _ => decided?,
        }]))
    }

    fn decides_together(&self, _: &Demand) -> bool {
        false
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        let settle = match keep.checked_sub(receipt.permits) {
            Some(0) => return,
            Some(more) => Settle::Charge(receipt.id.for_more().0, more),
            None => Settle::Keep(receipt.id.0, keep),
        };
        let (backend, listeners) = (Arc::clone(&self.backend), self.listeners.clone());
        let settled = async move {
            match backend.settle(receipt.name(), settle).await {
                Ok(()) => listeners.room(receipt.name(), false),
                Err(error) => detail!(error = %error, "a correction of a charge is lost"),
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(settled)),
            Err(_) => detail!("a correction of a charge is lost: there is no tokio runtime"),
        }
    }
}
