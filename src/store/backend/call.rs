//! The calls of a store of one's own: what reads values, decides, and swaps them: [`BackendCalls`].

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Backend,
    lanes::{Correction, Corrections, NameLanes},
    opened::{Opened, Unwritten},
};
use crate::{
    store::{
        Calls, Listeners,
        guard::{
            deny_cache::bans::{BanCall, BanState, Bans},
            outbox::Nodes,
        },
    },
    sync::OnDrop,
    values::{
        List,
        charge::{Charge, Settled},
        clock::{Clock, within},
        decision::{Decision, Grant},
        demand::Demand,
        error::{Error, ErrorKind},
        limit::LimitSource,
        name::Name,
    },
};

/// So often a call begins again because another process has changed a value meanwhile: of that many
/// processes at once, each time one goes on.
const MOST_TRIES: u32 = 100;
/// How long corrections are tried for.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

/// Why a call has failed.
pub(super) struct FailedCall {
    pub(super) error: Error,
    /// Set if nothing of it is written, or may be.
    pub(super) is_unwritten: bool,
}

impl FailedCall {
    pub(super) fn before(error: Error) -> Self {
        Self {
            error,
            is_unwritten: true,
        }
    }

    /// Returns the error of a call that others have come before each time.
    pub(super) fn contended() -> Self {
        let why = format!("others have changed the value in each of {MOST_TRIES} tries");
        Self::before(Error::new(ErrorKind::Rejected).detail(why))
    }

    /// Returns whether it says that the server does not work.
    pub(super) fn is_of_server(&self) -> bool {
        matches!(
            self.error.kind(),
            ErrorKind::Unavailable | ErrorKind::Timeout
        )
    }
}

/// A backend, and what its calls share in this process.
pub(super) struct BackendCalls<B> {
    pub(super) backend: B,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) nodes: Arc<Nodes>,
    pub(super) listeners: Listeners,
    pub(super) bans: Arc<Bans>,
    pub(super) lanes: NameLanes,
    pub(super) corrections: Corrections,
}

impl<B: Backend> BackendCalls<B> {
    /// Decides for runs of callers, each of the same limiters, by the values of these, and swaps
    /// them for the next: again and again while another process has done so meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves it open whether permits were taken.
    pub(super) async fn decide(
        self: &Arc<Self>,
        names: &[Name],
        runs: &[&[Demand]],
        bans: Option<&BanCall>,
    ) -> Result<Vec<Result<List<Decision>, Error>>, FailedCall> {
        let firsts = || runs.iter().filter_map(|run| run.first());
        // A limit in the code lives by its grants.
        let is_stored = |charge: &Charge| !matches!(charge.limit(), LimitSource::Code(_));
        let has_stored = firsts().flat_map(Demand::charges).any(is_stored);
        for _ in 0..MOST_TRIES {
            let opened = self.open(names).await.map_err(FailedCall::before)?;
            for (first, bans) in firsts().zip(bans) {
                for (charge, carried) in first.charges().zip(&bans.carried) {
                    if let Some(ban) = &charge.compiled().ban {
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
                let Some(error) = unwritten.error else {
                    continue;
                };
                return Err(FailedCall {
                    error,
                    is_unwritten: false,
                });
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
        Err(FailedCall::contended())
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
            let is_found = charge.compiled().counting.tells_grants_apart();
            let correction = || Correction::new(charge.clone(), 0);
            if unwritten.written.contains(charge.name()) {
                written.push(correction());
            } else if unwritten.unknown.contains(charge.name()) && is_found {
                self.correct(correction());
            }
        }
        if written.is_empty() {
            return;
        }
        match self.settle(&written, true).await {
            Ok(()) => {}
            Err(failed) if failed.is_unwritten => {
                written.into_iter().for_each(|it| self.correct(it));
            }
            // What may be written must not be credited again by its mark.
            Err(_) => Corrections::lost(&written),
        }
    }

    /// Changes the limiters of these names, again and again while another process has done so
    /// meanwhile. `change` returns its outcome, and whether there is something to write.
    pub(super) async fn change<T>(
        &self,
        names: &[Name],
        change: impl Fn(&Opened) -> Result<(T, bool), Error>,
    ) -> Result<T, FailedCall> {
        for _ in 0..MOST_TRIES {
            let opened = self.open(names).await.map_err(FailedCall::before)?;
            let (outcome, writes) = change(&opened).map_err(FailedCall::before)?;
            if !writes {
                return Ok(outcome);
            }
            let Err(unwritten) = opened.write(&self.backend).await else {
                return Ok(outcome);
            };
            let is_unwritten = unwritten.written.is_empty() && unwritten.unknown.is_empty();
            let contended = || (!is_unwritten).then(|| FailedCall::contended().error);
            if let Some(error) = unwritten.error.or_else(contended) {
                return Err(FailedCall {
                    error,
                    is_unwritten,
                });
            }
        }
        Err(FailedCall::contended())
    }

    /// Makes corrections, by one call.
    pub(super) async fn settle(
        &self,
        corrections: &[Correction],
        undone: bool,
    ) -> Result<(), FailedCall> {
        let names = names(corrections.iter().map(|it| it.receipt.name()));
        let settle = |opened: &Opened| {
            for correction in corrections {
                let mut receipt = correction.receipt.clone();
                // Each try is the first to settle it.
                let mark = correction.mark.map(|mark| (mark, Settled::default()));
                receipt.taken = mark;
                opened.store.settle(receipt, correction.keep);
            }
            Ok(((), true))
        };
        self.change(&names, settle).await?;
        for name in &names {
            self.listeners.room(name, undone);
        }
        Ok(())
    }

    /// Makes a correction in the background: with others that wait for that, in the order in which
    /// they came.
    pub(super) fn correct(self: &Arc<Self>, correction: Correction) {
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
                    // One value can fail them all.
                    Some(Err(failed)) if failed.is_unwritten && !failed.is_of_server() => {
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
pub(super) fn names<'n>(names: impl Iterator<Item = &'n Name>) -> List<Name> {
    let mut names: List<_> = names.cloned().collect();
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    names
}

impl Opened {
    /// Returns how the ban of a charge's caller stands.
    fn found(&self, charge: &Charge) -> BanState {
        let Some(ban) = &charge.compiled().ban else {
            return BanState::default();
        };
        let ([left, back], strikes) = self.store.ban_of(charge, ban);
        BanState {
            left,
            back,
            strikes,
        }
    }
}
