//! A backend with the guards in front of it: [`BackendStore`].

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Backend,
    opened::{Opened, Written},
};
use crate::{
    macros::detail,
    store::{
        About, AnyStore, Calls, Decide, Listeners, Op, OpResult,
        guard::{
            deny_cache::bans::{BanCall, Bans, Found},
            outbox::{Nodes, breaker::Signal},
            policy,
        },
        prepare_call,
        sealed::{Handle as Stack, Sealed},
        stack::{self, Guards},
    },
    values::{
        List,
        charge::{Charge, Settled},
        clock::{Clock, SteadyClock, moment},
        compiled_limit::Limiter,
        decision::{Decision, Refusal},
        demand::Demand,
        error::{ConfigError, Error, ErrorKind},
        limit::{Limit, RateType},
        name::{Name, check_word},
    },
};

/// The failures among the last twice as many calls that open the breaker.
const FAILURES: u32 = 5;
/// So often a call begins again because another process has changed a value meanwhile: of that many
/// processes at once, each time one goes on.
const MOST_TRIES: u32 = 100;

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
    /// system's, steadied
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
        let clock = settings.clock.unwrap_or_else(|| Arc::clone(&steady));
        let nodes = Nodes::new(1, |_| 0, settings.deadline, steady);
        let nodes = Arc::new(nodes.with_breakers(FAILURES, None, |_, _| ()));
        let guards = Guards {
            deny_cache: Duration::from_secs(1),
            nodes: Arc::clone(&nodes),
            own_clock: Some(Arc::clone(&clock)),
        };
        let about = About {
            prefix: settings.prefix.into(),
            lacks_clients: true,
            ..About::default()
        };
        let store = |listeners, bans| {
            Unguarded(Arc::new(Parts {
                backend,
                clock,
                nodes,
                listeners,
                bans,
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
struct Unguarded<B>(Arc<Parts<B>>);

struct Parts<B> {
    backend: B,
    clock: Arc<dyn Clock>,
    nodes: Arc<Nodes>,
    listeners: Listeners,
    bans: Arc<Bans>,
}

impl<B: Backend> Unguarded<B> {
    /// Decides for callers of the same limiters.
    async fn decide(&self, first: &Demand, run: &[Demand]) -> Result<List<Decision>, Error> {
        let parts = &self.0;
        let asked = first
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let pass = parts
            .nodes
            .enter(first.first().name(), asked.unwrap_or_default())?;
        let has_ban = first.charges().any(|charge| charge.of().ban.is_some());
        let bans = has_ban.then(|| parts.bans.ask(first));
        let decided = parts.decide(first, run, bans.as_ref()).await;
        pass.ends(match decided.as_ref().map_err(Error::kind) {
            Err(ErrorKind::Unavailable | ErrorKind::Timeout) => Signal::Failed,
            _ => Signal::Answered,
        });
        decided
    }
}

impl<B: Backend> Parts<B> {
    /// Decides by the values of the limiters, and swaps them for the next: again and again while
    /// another process has done so meanwhile.
    async fn decide(
        self: &Arc<Self>,
        first: &Demand,
        run: &[Demand],
        bans: Option<&BanCall>,
    ) -> Result<List<Decision>, Error> {
        for _ in 0..MOST_TRIES {
            let opened = self.open(first.charges().map(Charge::name)).await?;
            let carried = bans.iter().flat_map(|bans| &bans.carried);
            for (charge, carried) in first.charges().zip(carried) {
                if let Some(ban) = &charge.of().ban {
                    let before = (carried.number, carried.age);
                    opened.store.strike_before(charge, ban, before);
                }
            }
            let decisions = List::from_vec(opened.store.acquire_all(run)?);
            let has_taken = |decision: &Decision| decision.is_allowed();
            // Otherwise a refusal would cost a swap that only forgets what has expired.
            if bans.is_some() || decisions.iter().any(has_taken) {
                match opened.write(&self.backend).await {
                    Ok(Written::All) => {}
                    Ok(Written::NotAll(kept)) => {
                        self.give_back(&decisions, |charge| kept.contains(charge.name()));
                        if first.is_list() {
                            // What stood there for a moment may have refused others.
                            let names = first.charges().map(Charge::name);
                            names.for_each(|name| self.listeners.room(name, true));
                        }
                        continue;
                    }
                    Err(error) => {
                        // It may be written. Without an entry, another grant might be given back.
                        let counts = |charge: &Charge| charge.of().counting.tells_grants_apart();
                        self.give_back(&decisions, counts);
                        return Err(error);
                    }
                }
            }
            if let (Some(bans), Some(decision)) = (bans, decisions.first()) {
                let found = first.charges().map(|charge| opened.found(charge));
                let found: List<_> = found.collect();
                self.bans.learn(first, bans, &found, decision.charges());
            }
            return Ok(decisions);
        }
        Err(contended())
    }

    async fn open(&self, names: impl Iterator<Item = &Name>) -> Result<Opened, Error> {
        Opened::read(&self.backend, &self.clock, names).await
    }

    /// Gives back what these decisions have taken, of the charges that count.
    fn give_back(self: &Arc<Self>, decisions: &[Decision], counts: impl Fn(&Charge) -> bool) {
        for decision in decisions {
            let Decision::Allow(grant) = decision else {
                continue;
            };
            for charge in grant.taken().filter(|charge| counts(charge)) {
                self.settle_later(charge.clone(), 0);
            }
        }
    }

    /// Settles in the background.
    fn settle_later(self: &Arc<Self>, receipt: Charge, keep: u32) {
        let parts = Arc::clone(self);
        let settled = async move {
            if let Err(error) = parts.settle(receipt, keep).await {
                detail!(error = %error, "a correction of a charge is lost");
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(settled)),
            Err(_) => detail!("a correction of a charge is lost: there is no tokio runtime"),
        }
    }

    async fn settle(&self, mut receipt: Charge, keep: u32) -> Result<(), Error> {
        // Of all copies the first settles, in the try that succeeds.
        let taken = receipt.settle();
        for _ in 0..MOST_TRIES {
            receipt.taken = taken.map(|taken| (taken, Settled::default()));
            let opened = self.open([receipt.name()].into_iter()).await?;
            opened.store.settle(receipt.clone(), keep);
            if opened.write(&self.backend).await? == Written::All {
                self.listeners.room(receipt.name(), false);
                return Ok(());
            }
        }
        Err(contended())
    }
}

impl Opened {
    /// Returns how the ban of a charge's caller stands.
    fn found(&self, charge: &Charge) -> Found {
        let Some(ban) = &charge.of().ban else {
            return Found::default();
        };
        let ([left, back], strikes) = self.store.ban_of(charge, ban);
        Found {
            left,
            back,
            strikes,
        }
    }
}

/// Returns the error of a call that other processes have come before each time.
fn contended() -> Error {
    let why = "other processes have changed the value in each of 100 tries";
    Error::new(ErrorKind::Unavailable).detail(why)
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
        let (parts, name) = (&self.0, &limiter.name);
        let new = match op {
            Op::TrySetRate(limit) | Op::SetRate { limit, .. }
                if limit.rate_type == RateType::PerClient =>
            {
                return Err(per_client());
            }
            Op::Rename(new) => Some(new),
            _ => None,
        };
        for _ in 0..MOST_TRIES {
            let opened = parts.open([name].into_iter().chain(new)).await?;
            let outcome = opened.store.manage_now(limiter, op)?;
            if op.only_reads() {
                return Ok(outcome);
            }
            match opened.write(&parts.backend).await? {
                Written::All => return Ok(outcome),
                Written::NotAll(kept) if kept.is_empty() => {}
                Written::NotAll(_) => break,
            }
        }
        Err(contended())
    }

    fn strike(&self, demand: &Demand, refusal: &mut Refusal) {
        self.0.bans.count(demand, refusal);
    }
}

fn per_client() -> Error {
    Error::new(ErrorKind::Limit).detail("a store of your own counts for all clients together")
}

impl<B: Backend> Calls for Unguarded<B> {
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let error = match self.decide(first, run).await {
            Ok(decisions) => return Ok(decisions),
            Err(error) => error,
        };
        match policy::without_shadows(run, &error).as_deref() {
            Some(enforced @ [first, ..]) => self.decide(first, enforced).await,
            _ => Err(error),
        }
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        if keep != receipt.permits {
            self.0.settle_later(receipt, keep);
        }
    }
}
