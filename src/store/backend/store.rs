//! A backend with the guards in front of it: [`BackendStore`].

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Backend,
    lanes::{Correction, Corrections, Lanes},
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
        decision::{Decision, Grant, Refusal},
        demand::Demand,
        error::{ConfigError, Error, ErrorKind},
        limit::{Limit, LimitSource, RateType},
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

/// Why a call has failed.
struct Failed {
    error: Error,
    /// Set if nothing of it is written, or may be.
    is_unwritten: bool,
}

impl Failed {
    fn before(error: Error) -> Self {
        Self {
            error,
            is_unwritten: true,
        }
    }

    /// Returns the error of a call that others have come before each time.
    fn contended() -> Self {
        let why = "others have changed the value in each of 100 tries";
        Self::before(Error::new(ErrorKind::Rejected).detail(why))
    }

    /// Returns whether it says that the server does not work.
    fn is_of_server(&self) -> bool {
        matches!(
            self.error.kind(),
            ErrorKind::Unavailable | ErrorKind::Timeout
        )
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
    ) -> Result<Vec<Result<List<Decision>, Error>>, Failed> {
        let parts = &self.0;
        let firsts = runs.iter().filter_map(|run| run.first());
        let names = names(firsts.flat_map(Demand::charges).map(Charge::name));
        let _lanes = parts.lanes.enter(&names, parts.nodes.deadline()).await;
        let asked = first
            .asked_at
            .map(|asked| moment().saturating_duration_since(asked));
        let name = first.first().name();
        let pass = parts.nodes.enter(name, asked.unwrap_or_default());
        let pass = pass.map_err(Failed::before)?;
        let has_ban = first.charges().any(|charge| charge.of().ban.is_some());
        let bans = has_ban.then(|| parts.bans.ask(first));
        let decided = parts.decide(&names, runs, bans.as_ref()).await;
        pass.ends(match &decided {
            Err(failed) if failed.is_of_server() => Signal::Failed,
            _ => Signal::Answered,
        });
        decided
    }

    /// Decides for callers of the same limiters.
    async fn decide_run(&self, run: &[Demand]) -> Result<List<Decision>, Failed> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let decided = self.decide(first, &[run]).await?.into_iter().next();
        decided
            .unwrap_or_else(|| Ok(List::new()))
            .map_err(Failed::before)
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
    /// them for the next: again and again while another process has done so meanwhile.
    async fn decide(
        self: &Arc<Self>,
        names: &[Name],
        runs: &[&[Demand]],
        bans: Option<&BanCall>,
    ) -> Result<Vec<Result<List<Decision>, Error>>, Failed> {
        let firsts = || runs.iter().filter_map(|run| run.first());
        // A limit in the code lives by its grants.
        let is_stored = |charge: &Charge| !matches!(charge.limit(), LimitSource::Code(_));
        let has_stored = firsts().flat_map(Demand::charges).any(is_stored);
        for _ in 0..MOST_TRIES {
            let opened = self.open(names).await.map_err(Failed::before)?;
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
            let writes = bans.is_some()
                || has_stored && opened.keeps_alive()
                || each.any(Decision::is_allowed);
            if writes && let Err(unwritten) = opened.write(&self.backend).await {
                self.give_back(&decided, &unwritten).await;
                match unwritten.error {
                    Some(error) => {
                        return Err(Failed {
                            error,
                            is_unwritten: false,
                        });
                    }
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
        Err(Failed::contended())
    }

    /// Reads values, and notes that the backend has answered.
    async fn open(&self, names: &[Name]) -> Result<Opened, Error> {
        let opened = Opened::read(&self.backend, &*self.clock, names).await?;
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
        let grants = decided.iter().flatten().flatten();
        let grants = grants.filter_map(|decision| match decision {
            Decision::Allow(grant) => Some(grant),
            Decision::Deny(_) => None,
        });
        let mut written = Vec::new();
        for charge in grants.flat_map(Grant::taken) {
            let is_found = charge.of().counting.tells_grants_apart();
            let correction = || Correction::new(charge.clone(), 0);
            if unwritten.written.contains(charge.name()) {
                written.push(correction());
            } else if unwritten.unknown.contains(charge.name()) && is_found {
                self.correct(correction());
            }
        }
        if !written.is_empty() && self.settle(&written, true).await.is_err() {
            written.into_iter().for_each(|it| self.correct(it));
        }
    }

    /// Makes corrections, by one call.
    async fn settle(&self, corrections: &[Correction], undone: bool) -> Result<(), Error> {
        let names = names(corrections.iter().map(|it| it.receipt.name()));
        for _ in 0..MOST_TRIES {
            let opened = self.open(&names).await?;
            for Correction {
                receipt,
                keep,
                mark,
            } in corrections
            {
                let mut receipt = receipt.clone();
                // Each try is the first to settle it.
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
                Err(Unwritten {
                    written,
                    unknown,
                    error: None,
                }) if written.is_empty() && unknown.is_empty() => {}
                // What is written of it would be settled twice.
                Err(unwritten) => {
                    return Err(unwritten.error.unwrap_or_else(|| Failed::contended().error));
                }
            }
        }
        Err(Failed::contended().error)
    }

    /// Makes a correction in the background: with others that wait for that, in the order in which
    /// they came.
    fn correct(self: &Arc<Self>, correction: Correction) {
        let runtime = Handle::try_current().ok();
        let starts = self.corrections.push(correction, runtime.is_some());
        let Some(runtime) = runtime.filter(|_| starts) else {
            return;
        };
        let parts = Arc::clone(self);
        // Made before the task, which may never run.
        let ends = OnDrop::new({
            let parts = Arc::clone(self);
            move || parts.corrections.end()
        });
        runtime.spawn(async move {
            while let Some(corrections) = parts.corrections.take() {
                let lost = OnDrop::new(|| Corrections::lost(&corrections));
                let names = names(corrections.iter().map(|it| it.receipt.name()));
                let made = within(SETTLES_WITHIN, async {
                    let _lanes = parts.lanes.enter(&names, parts.nodes.deadline()).await;
                    parts.settle(&corrections, false).await
                });
                match made.await {
                    Some(Ok(())) => lost.disarm(),
                    // One value that is none of a limiter fails them all.
                    Some(Err(error)) if error.kind() == ErrorKind::ForeignState => {
                        lost.disarm();
                        for alone in corrections.chunks(1) {
                            let made = within(SETTLES_WITHIN, parts.settle(alone, false));
                            if !matches!(made.await, Some(Ok(()))) {
                                Corrections::lost(alone);
                            }
                        }
                    }
                    _ => drop(lost),
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
        for _ in 0..MOST_TRIES {
            let opened = parts.open(&names).await?;
            let outcome = opened.store.manage_now(limiter, op)?;
            if op.only_reads() && !opened.keeps_alive() {
                return Ok(outcome);
            }
            match opened.write(&parts.backend).await {
                Ok(()) => return Ok(outcome),
                Err(Unwritten {
                    written,
                    unknown,
                    error: None,
                }) if written.is_empty() && unknown.is_empty() => {}
                Err(unwritten) => {
                    return Err(unwritten.error.unwrap_or_else(|| Failed::contended().error));
                }
            }
        }
        Err(Failed::contended().error)
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
            self.0.settle(&given_back, true).await?;
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
        let Some(first) = runs.first().and_then(|run| run.first()) else {
            return List::new();
        };
        match self.decide(first, runs).await {
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
        let has_ban = demand.charges().any(|charge| charge.of().ban.is_some());
        let joins = demand.max_wait.is_none() && !has_ban;
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
