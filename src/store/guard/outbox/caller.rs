//! A caller that stands in a line or shares a command: by which limiters, and what it waits for.

use std::time::Duration;

use tokio::{runtime::Handle, sync::oneshot};

use crate::values::{
    List,
    charge::Charge,
    compiled_limit::Limiter,
    decision::{Decision, Source},
    demand::Demand,
    error::Error,
};

/// The limiters of callers, each with whether it is a shadow, and whether its rule bans. Callers
/// that differ in any of these stand in different lines.
pub(super) type LineKey = List<(Limiter, [bool; 2])>;

pub(super) fn key(demand: &Demand) -> LineKey {
    let key_of = |charge: &Charge| {
        let bans = charge.of().ban.is_some();
        (charge.limiter.clone(), [charge.shadow, bans])
    };
    demand.charges().map(key_of).collect()
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
