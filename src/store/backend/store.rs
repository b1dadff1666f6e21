//! A backend with the guards in front of it: [`BackendStore`].

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Backend,
    lanes::{Corrections, Lanes},
    opened::{Opened, Unwritten},
};
use crate::{
    store::{
        About, Answered, AnyStore, Calls, Decide, Joins, Listeners, Op, OpResult,
        guard::{
            deny_cache::bans::{BanCall, Bans, Found},
            outbox::{Nodes, breaker::Signal},
            policy,
        },
        prepare_call,
        sealed::{Handle as Stack, Sealed},
        stack::{self, Guards},
    },
    sync::OnDrop,
    values::{
        List,
        charge::{Charge, Settled},
        clock::{Clock, SteadyClock, SystemClock, moment, within},
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
/// How long corrections are tried for.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

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
            Unguarded(Arc::new(Parts {
                backend,
                clock,
                nodes,
                listeners,
                bans,
                lanes: Lanes::default(),
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
struct Unguarded<B>(Arc<Parts<B>>);

impl<B: Backend> Unguarded<B> {
    /// Decides for runs of callers by one call.
    async fn decide(
        &self,
        first: &Demand,
        runs: &[&[Demand]],
    ) -> Result<Vec<Result<List<Decision>, Error>>, Error> {
        let parts = &self.0;
        let asked = first
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let name = first.first().name();
        let pass = parts.nodes.enter(name, asked.unwrap_or_default())?;
        let has_ban = first.charges().any(|charge| charge.of().ban.is_some());
        let bans = has_ban.then(|| parts.bans.ask(first));
        let decided = parts.decide(runs, bans.as_ref()).await;
        let signal = decided.as_ref().err().map(|(_, signal)| *signal);
        pass.ends(signal.unwrap_or(Signal::Answered));
        decided.map_err(|(error, _)| error)
    }

    /// Decides for callers of the same limiters.
    async fn decide_run(&self, run: &[Demand]) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let decided = self.decide(first, &[run]).await?;
        decided
            .into_iter()
            .next()
            .unwrap_or_else(|| Ok(List::new()))
    }
}

struct Parts<B> {
    backend: B,
    clock: Arc<dyn Clock>,
    nodes: Arc<Nodes>,
    listeners: Listeners,
    bans: Arc<Bans>,
    lanes: Lanes,
    corrections: Corrections,
}

impl<B: Backend> Parts<B> {
    /// Decides for runs of callers, each of the same limiters, by the values of these, and swaps
    /// them for the next: again and again while another process has done so meanwhile. Callers may
    /// have asked before, and ask `again`.
    ///
    /// # Errors
    ///
    /// Those of the backend, with what they say of it.
    async fn decide(
        self: &Arc<Self>,
        runs: &[&[Demand]],
        bans: Option<&BanCall>,
    ) -> Result<Vec<Result<List<Decision>, Error>>, (Error, Signal)> {
        let firsts = || runs.iter().filter_map(|run| run.first());
        let names = names(firsts().flat_map(Demand::charges).map(Charge::name));
        let _lanes = self.lanes.enter(&names).await;
        for _ in 0..MOST_TRIES {
            let opened = self.open(&names).await?;
            for (first, bans) in firsts().zip(bans) {
                for (charge, carried) in first.charges().zip(&bans.carried) {
                    if let Some(ban) = &charge.of().ban {
                        let before = (carried.number, carried.age);
                        opened.store.strike_before(charge, ban, before);
                    }
                }
            }
            let decided = runs.iter().map(|run| {
                let decisions = opened.store.acquire_all(run);
                decisions.map(List::from_vec)
            });
            let decided: Vec<_> = decided.collect();
            let mut each = decided.iter().flatten().flatten();
            // Otherwise a refusal would cost a swap that only forgets what has expired.
            let writes = bans.is_some() || opened.keeps_alive() || each.any(Decision::is_allowed);
            if writes && let Err(unwritten) = opened.write(&self.backend).await {
                self.give_back(&decided, &unwritten).await;
                match unwritten.error {
                    Some(error) => return Err((error, Signal::Failed)),
                    None => continue,
                }
            }
            self.nodes.replied(0);
            if writes {
                opened
                    .changed()
                    .for_each(|name| self.listeners.changed(name));
            }
            for (first, bans) in firsts().zip(bans) {
                let charges = decided.iter().flatten().flatten().next();
                let charges = charges.map(Decision::charges).unwrap_or_default();
                let found: List<_> = first.charges().map(|it| opened.found(it)).collect();
                self.bans.learn(first, bans, &found, charges);
            }
            return Ok(decided);
        }
        Err((contended(), Signal::Answered))
    }

    /// Reads values, and notes that the backend has answered.
    async fn open(&self, names: &[Name]) -> Result<Opened, (Error, Signal)> {
        let opened = Opened::read(&self.backend, &*self.clock, names).await;
        let opened = opened.map_err(|error| {
            let signal = match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Timeout => Signal::Failed,
                _ => Signal::Answered,
            };
            (error, signal)
        })?;
        self.nodes.replied(0);
        Ok(opened)
    }

    /// Gives back what is written of grants that nobody gets. What only may be written is given
    /// back where grants have entries: otherwise those of others might be.
    async fn give_back(
        self: &Arc<Self>,
        decided: &[Result<List<Decision>, Error>],
        unwritten: &Unwritten,
    ) {
        for decision in decided.iter().flatten().flatten() {
            let Decision::Allow(grant) = decision else {
                continue;
            };
            for charge in grant.taken() {
                let name = charge.name();
                let is_found = charge.of().counting.tells_grants_apart();
                if unwritten.unknown.contains(name) && is_found {
                    self.correct(charge.clone(), 0);
                } else if unwritten.written.contains(name) {
                    let receipts = [(charge.clone(), 0)];
                    if self.settle(&receipts, true).await.is_err() {
                        self.correct(charge.clone(), 0);
                    }
                }
            }
        }
    }

    /// Settles receipts in the lanes of their names, which the caller is in.
    async fn settle(&self, receipts: &[(Charge, u32)], undone: bool) -> Result<(), Error> {
        let names = names(receipts.iter().map(|(receipt, _)| receipt.name()));
        // Of all copies the first settles, in the try that succeeds.
        let marks = receipts.iter().map(|(receipt, _)| receipt.settle());
        let marks: Vec<_> = marks.collect();
        for _ in 0..MOST_TRIES {
            let opened = self.open(&names).await.map_err(|(error, _)| error)?;
            for ((receipt, keep), mark) in receipts.iter().zip(&marks) {
                let mut receipt = receipt.clone();
                receipt.taken = mark.map(|mark| (mark, Settled::default()));
                opened.store.settle(receipt, *keep);
            }
            match opened.write(&self.backend).await {
                Ok(()) => {
                    names
                        .iter()
                        .for_each(|name| self.listeners.room(name, undone));
                    return Ok(());
                }
                // What is written of it would be settled twice.
                Err(Unwritten { written, error, .. }) if !written.is_empty() || error.is_some() => {
                    return Err(error.unwrap_or_else(contended));
                }
                Err(_) => {}
            }
        }
        Err(contended())
    }

    /// Settles in the background: with others that wait for that, in the order in which they came.
    fn correct(self: &Arc<Self>, receipt: Charge, keep: u32) {
        if !self.corrections.push(receipt, keep) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            self.corrections.end();
            return;
        };
        let parts = Arc::clone(self);
        runtime.spawn(async move {
            let ends = OnDrop::new(|| parts.corrections.end());
            while let Some(receipts) = parts.corrections.take() {
                let names = names(receipts.iter().map(|(receipt, _)| receipt.name()));
                let settled = within(SETTLES_WITHIN, async {
                    let _lanes = parts.lanes.enter(&names).await;
                    parts.settle(&receipts, false).await
                });
                if !matches!(settled.await, Some(Ok(()))) {
                    Corrections::lost(&receipts);
                }
            }
            // It has ended itself, as there was none.
            ends.disarm();
        });
    }
}

/// Returns each of these names once, in their order.
fn names<'n>(names: impl Iterator<Item = &'n Name>) -> List<Name> {
    let mut names: List<_> = names.cloned().collect();
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    names
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
    let why = "others have changed the value in each of 100 tries";
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
        let _lanes = parts.lanes.enter(&names).await;
        for _ in 0..MOST_TRIES {
            let opened = parts.open(&names).await.map_err(|(error, _)| error)?;
            let outcome = opened.store.manage_now(limiter, op)?;
            if op.only_reads() && !opened.keeps_alive() {
                return Ok(outcome);
            }
            match opened.write(&parts.backend).await {
                Ok(()) => return Ok(outcome),
                Err(Unwritten {
                    written,
                    error: None,
                    ..
                }) if written.is_empty() => {}
                Err(unwritten) => return Err(unwritten.error.unwrap_or_else(contended)),
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
    async fn acquire_run(&self, run: &[Demand], again: bool) -> Result<List<Decision>, Error> {
        // Those that are in the log are granted, and take nothing more.
        let repeated = again.then(|| run.iter().map(Demand::asked_again).collect::<Vec<_>>());
        let run = repeated.as_deref().unwrap_or(run);
        let error = match self.decide_run(run).await {
            Ok(decisions) => return Ok(decisions),
            Err(error) => error,
        };
        match policy::without_shadows(run, &error) {
            Some(enforced) => self.decide_run(&enforced).await,
            None => Err(error),
        }
    }

    /// One value that is none of a limiter fails them all, so they go apart then.
    async fn acquire_joint(&self, runs: &[&[Demand]]) -> List<Answered> {
        let Some(first) = runs.first().and_then(|run| run.first()) else {
            return List::new();
        };
        match self.decide(first, runs).await {
            Ok(decided) => decided.into_iter().map(Answered::Decided).collect(),
            Err(error) if error.kind() == ErrorKind::ForeignState => {
                let apart = runs.iter().map(|_| Answered::Apart { was_sent: false });
                apart.collect()
            }
            Err(error) => {
                let failed = runs.iter().map(|_| Answered::Decided(Err(error.clone())));
                failed.collect()
            }
        }
    }

    /// Those that do not wait, and have no ban.
    fn joins(&self, demand: &Demand) -> Option<Joins> {
        let has_ban = demand.charges().any(|charge| charge.of().ban.is_some());
        let joins = demand.max_wait.is_none() && !has_ban;
        joins.then(|| Joins {
            terms: demand.charges.len(),
            callers: usize::MAX,
        })
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        if keep != receipt.permits {
            self.0.correct(receipt, keep);
        }
    }
}
