//! The callers of one limiter, one behind the other ([`Line`]): by which limiters one stands there
//! or shares a command, what it waits for, and those that a command takes ([`TakenCallers`]).

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    iter,
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    store::Joins,
    values::{
        List,
        charge::Charge,
        decision::{Charges, Decision, Source},
        demand::Demand,
        error::{Error, ErrorKind},
        name::Name,
    },
};

/// The limiters of callers, each with whether it is a shadow, and whether its rule bans. Callers
/// that differ in any of these stand in different lines.
///
/// It holds the charges of a caller. They are shared, so that a clone of the key copies no names.
#[derive(Clone)]
pub(super) struct LineKey(pub(super) Charges);

impl LineKey {
    /// Returns the names of the limiters: there is one at least.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().map(Charge::name)
    }
}

impl PartialEq for LineKey {
    fn eq(&self, other: &Self) -> bool {
        let part = |charge: &Charge| (charge.shadow, charge.compiled().ban.is_some());
        let mut each = iter::zip(&*self.0, &*other.0);
        // Mostly it is the same list.
        self.0.as_ptr() == other.0.as_ptr()
            || self.0.len() == other.0.len()
                && each.all(|(it, other)| it.limiter == other.limiter && part(it) == part(other))
    }
}

impl Eq for LineKey {}

impl Hash for LineKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|charge| charge.limiter.hash(state));
    }
}

/// Returns the decision of a run of one.
pub(super) fn first_of(mut decided: List<Decision>) -> Result<Decision, Error> {
    decided.pop().ok_or_else(|| ErrorKind::Permits.into())
}

/// Returns whether a server has answered, and not a lease alone, or an error on the way to it.
pub(super) fn is_answer(decided: Result<&[Decision], &Error>) -> bool {
    match decided {
        Ok(decisions) => decisions.iter().any(|it| it.source() != Source::Lease),
        Err(error) => matches!(
            error.kind(),
            ErrorKind::NotInitialized
                | ErrorKind::RateTypeDiffers
                | ErrorKind::ForeignState
                | ErrorKind::Rejected
        ),
    }
}

/// What a caller in a line asks, and where it waits for the reply.
pub(super) type Member = (Demand, Caller);

/// A caller in a line, or of a shared command.
pub(super) struct Caller {
    pub(super) number: u64,
    /// When it came.
    pub(super) since: Duration,
    pub(super) reply: oneshot::Sender<Reply>,
    pub(super) runtime: Handle,
}

/// A decision on its way to a caller, who may have left and given back by now.
pub(super) struct Reply {
    pub(super) outcome: Result<Decision, Error>,
    /// Set if it was given back before it was taken.
    pub(super) gave_back: bool,
}

impl Reply {
    /// Returns what to give back for a caller that has left: a grant that it gave back too early,
    /// or a leased one, whose id it does not know. The code that dropped the caller decides
    /// about other grants.
    pub(super) fn unread(self) -> Vec<Charge> {
        match self.outcome {
            Ok(Decision::Allow(grant)) if self.gave_back || grant.source() == Source::Lease => {
                grant.charges().to_vec()
            }
            _ => Vec::new(),
        }
    }
}

/// The callers of a limiter, of one list or of one limit. It is there while a command is in flight
/// for it, or a caller waits to be sent.
#[derive(Default)]
pub(super) struct Line {
    /// What it needs of a command that it shares with others.
    pub(super) joins: Option<Joins>,
    /// The command for those that stood before these, and when it was sent.
    pub(super) command: Option<(u64, Duration)>,
    /// In the order of arrival
    pub(super) behind: VecDeque<Member>,
    /// How many of the first are asked for without other limiters: a shared command did not answer
    /// them.
    pub(super) apart: usize,
    /// Set if that command may have been carried out: then these ask again.
    pub(super) was_sent: bool,
}

impl Line {
    /// Adds a caller, which has this number here. Returns what it waits for.
    pub(super) fn push(
        &mut self,
        number: u64,
        demand: &Demand,
        runtime: Handle,
        now: Duration,
    ) -> oneshot::Receiver<Reply> {
        let (reply, receiver) = oneshot::channel();
        let caller = Caller {
            number,
            since: now,
            reply,
            runtime,
        };
        self.behind.push_back((demand.clone(), caller));
        receiver
    }
}

/// What a command takes that is sent now.
#[derive(Default)]
pub(super) struct TakenCallers {
    /// The number of the command from now on
    pub(super) number: u64,
    pub(super) keys: List<LineKey>,
    /// How many callers each limiter has, and whether they were sent before.
    pub(super) counts: List<(usize, bool)>,
    /// What the callers ask, those of the first limiter first
    pub(super) demands: Vec<Demand>,
    pub(super) callers: Vec<Caller>,
}

impl TakenCallers {
    /// Reserves room for so many limiters of a caller each.
    pub(super) fn reserve(&mut self, limiters: usize) {
        self.keys.reserve(limiters);
        self.counts.reserve(limiters);
        self.demands.reserve(limiters);
        self.callers.reserve(limiters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::decision::Grant;

    #[test]
    fn only_what_a_server_says_is_an_answer() {
        let by = |source| Decision::Allow(Grant::new(Charges::default(), source));
        let [lease, store] = [Source::Lease, Source::Store];
        assert!(!is_answer(Ok(&[by(lease), by(lease)])));
        assert!(is_answer(Ok(&[by(lease), by(store)])));
        for (kind, is_its) in [
            (ErrorKind::NotInitialized, true),
            (ErrorKind::ForeignState, true),
            (ErrorKind::Rejected, true),
            (ErrorKind::Timeout, false),
            (ErrorKind::Unavailable, false),
            (ErrorKind::Limit, false),
        ] {
            assert_eq!(is_answer(Err(&kind.into())), is_its, "{kind:?}");
        }
    }
}
