//! A backend with its guards on: [`BackendStore`].

use std::{fmt, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{Answer, Backend, Demand, Outcome, Settlement, Verb};
use crate::{
    algorithm::answer::{self, Changed, Verdict},
    clock::{Clock, Now, SteadyClock, moment},
    decision::Decision,
    demand::{Acquire, Charge},
    error::{ConfigError, Error, ErrorKind},
    limit::RateType,
    list::List,
    name::{Name, check_word},
    observe::{Observer, Observers, StateChange},
    receipt::Receipt,
    store::{
        About, AnyStore, Calls, Decide, Listeners, Op, OpResult,
        guard::{
            breaker::{Breakers, Signal},
            policy,
        },
        random_id,
        sealed::{Handle as Stack, Sealed},
        stack::{self, Guards},
    },
};

/// The failures among the last twice as many calls that open the breaker.
const FAILURES: u32 = 5;

/// A store of your own: a [`Backend`] behind the crate's guards. Clones are the same store.
pub struct BackendStore<B> {
    backend: Arc<B>,
    settings: Settings,
    stack: Arc<dyn AnyStore>,
}

#[derive(Clone)]
struct Settings {
    prefix: Arc<str>,
    deadline: Duration,
    clock: Option<Arc<dyn Clock>>,
    observers: Observers,
}

impl<B: Backend> BackendStore<B> {
    /// Returns a store whose decisions take 50 milliseconds at most, and whose refusals are
    /// repeated for a second, as by default in Redis.
    #[must_use]
    pub fn new(backend: B) -> Self {
        let settings = Settings {
            prefix: "ratelimit".into(),
            deadline: Duration::from_millis(50),
            clock: None,
            observers: Observers::default(),
        };
        Self::build(Arc::new(backend), settings)
    }

    /// Sets the prefix of the names of limiters that rules create. Default: `ratelimit`.
    ///
    /// This and the other settings return a new store on the same backend.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Name`](crate::ConfigErrorKind::Name) if it is empty or has other
    /// characters than `A-Z a-z 0-9 . _ -`.
    pub fn prefix(self, prefix: &str) -> Result<Self, ConfigError> {
        check_word("a prefix", prefix)?;
        Ok(self.with(|settings| settings.prefix = prefix.into()))
    }

    /// Sets the longest time that a decision may take, waiting for permits not included. Default:
    /// 50 milliseconds.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// Names the clock of this process that the backend counts by. Default: it counts by its
    /// server's.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        self.with(|settings| settings.clock = Some(Arc::new(clock)))
    }

    /// Adds an observer, which is called for all that the store is asked. Default: none.
    #[must_use]
    pub fn observe(self, observer: Arc<dyn Observer>) -> Self {
        self.with(|settings| settings.observers = settings.observers.and(observer))
    }

    fn with(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.settings;
        set(&mut settings);
        Self::build(self.backend, settings)
    }

    fn build(backend: Arc<B>, settings: Settings) -> Self {
        let steady = Arc::new(SteadyClock::new());
        let breakers = Breakers::new(FAILURES, settings.deadline, 1, |_| 0, steady);
        let guards = Guards {
            deadline: settings.deadline,
            deny_cache: Duration::from_secs(1),
            traffic: Arc::clone(breakers.traffic()),
            own_clock: settings.clock.clone(),
        };
        let about = About {
            prefix: Arc::clone(&settings.prefix),
            counts_by_log_alone: true,
            observers: settings.observers.clone(),
            ..About::default()
        };
        let unguarded = |listeners, _| Unguarded {
            backend: Arc::clone(&backend),
            breakers,
            listeners,
            observers: settings.observers.clone(),
        };
        let stack = stack::remote(guards, about, unguarded);
        Self {
            backend,
            settings,
            stack,
        }
    }
}

impl<B> Clone for BackendStore<B> {
    fn clone(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            settings: self.settings.clone(),
            stack: Arc::clone(&self.stack),
        }
    }
}

impl<B: fmt::Debug> fmt::Debug for BackendStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendStore")
            .field("backend", &self.backend)
            .field("prefix", &self.settings.prefix)
            .field("deadline", &self.settings.deadline)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Sealed for BackendStore<B> {
    fn handle(&self) -> Stack {
        Stack(Arc::clone(&self.stack))
    }
}

/// A backend as the guards know a store.
struct Unguarded<B> {
    backend: Arc<B>,
    breakers: Breakers,
    listeners: Listeners,
    observers: Observers,
}

impl<B: Backend> Unguarded<B> {
    async fn decide(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let waited = acquire.asked.map_or(Duration::ZERO, |asked| {
            moment().saturating_duration_since(asked)
        });
        let pass = self.breakers.enter(acquire.first.name(), waited)?;
        let answers = self.backend.acquire(Demand(acquire)).await;
        self.breakers.traffic().replied(0);
        pass.ends(match &answers {
            Err(error) if is_failure(error) => Signal::Failed,
            _ => Signal::Answered,
        });
        let answers = answers?;
        for (charge, answer) in acquire.charges().zip(&answers) {
            if answer.changed {
                self.listeners.changed(charge.name());
            }
        }
        let answers: Vec<_> = acquire.charges().zip(&answers).map(counted).collect();
        if answers.len() != 1 + acquire.rest.len() {
            return Err(Error::new(ErrorKind::Rejected).detail("not one answer for each charge"));
        }
        Ok(acquire.decision(&answers))
    }
}

fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// Returns the answer in microseconds, from now on.
fn counted((charge, answer): (&Charge, &Answer)) -> answer::Answer {
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
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        let counts = |charge: &Charge| {
            let is_overall = |limit: &crate::Limit| limit.rate_type() == RateType::Overall;
            charge.name().tells_grants_apart() && charge.limit().given().is_none_or(is_overall)
        };
        if !acquire.charges().all(counts) {
            let reason = "a store of your own has a sliding log without slots, for all clients";
            return Some(Err(Error::new(ErrorKind::Limit).detail(reason)));
        }
        if let Some(error) = self.breakers.refuses(acquire) {
            return Some(Err(error));
        }
        match random_id() {
            Ok(id) => acquire.identify(id),
            Err(error) => return Some(Err(error)),
        }
        acquire.share();
        acquire.drop_leases();
        acquire.asked = Some(moment());
        None
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        let valid = |limit: &crate::limit::StoredLimit| limit.limit().ok_or(ErrorKind::Limit);
        let verb = match op {
            Op::TrySetRate(limit) => Verb::TrySetRate(valid(limit)?),
            Op::SetRate {
                limit,
                keep,
                existing,
            } => Verb::SetRate {
                limit: valid(limit)?,
                keep: *keep,
                existing: *existing,
            },
            Op::Release(permits) => Verb::Release(*permits),
            Op::Available => Verb::Available,
            Op::Inspect => Verb::Limit,
            Op::Delete => Verb::Delete,
            _ => {
                let reason = format!("a store of your own has no `{}`", op.verb());
                return Err(Error::new(ErrorKind::Rejected).detail(reason));
            }
        };
        Ok(match self.backend.manage(name.as_str(), &verb).await? {
            Outcome::Changed(changed) => OpResult::Changed(changed),
            Outcome::Limit(limit) => OpResult::Limit(limit.map(|limit| limit.stored())),
            Outcome::Permits(permits) => {
                OpResult::Number(i64::try_from(permits).unwrap_or(i64::MAX))
            }
        })
    }
}

impl<B: Backend> Calls for Unguarded<B> {
    /// Decides for the first: a backend takes one demand at a time.
    async fn acquire_run(&self, run: &[Acquire]) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let decision = match self.decide(first).await {
            Err(error) => match policy::without_shadows(std::slice::from_ref(first), &error) {
                Some(enforced) => self.decide(enforced.first().unwrap_or(first)).await?,
                None => return Err(error),
            },
            Ok(decision) => decision,
        };
        Ok(List::from([decision]))
    }

    fn decides_together(&self, _: &Acquire) -> bool {
        false
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        let gives_back = keep < receipt.permits;
        let lost = StateChange::Lost {
            receipt: gives_back,
        };
        if keep == receipt.permits {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return self.observers.changed(&lost);
        };
        let (backend, observers) = (Arc::clone(&self.backend), self.observers.clone());
        let listeners = self.listeners.clone();
        runtime.spawn(async move {
            match backend.settle(Settlement(&receipt, keep)).await {
                Ok(()) if gives_back => listeners.room(receipt.name(), false),
                Ok(()) => {}
                Err(_) => observers.changed(&lost),
            }
        });
    }
}
