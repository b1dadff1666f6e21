//! Sends calls for permits through the breakers of their nodes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Value;

use super::{
    classify::{self, Class},
    node,
    script::ScriptCall,
    transport::connection::Connection,
};
use crate::{
    store::guard::outbox::{Nodes, breaker::Signal},
    values::{clock::moment, compiled_limit::Limiter, demand::Demand, error::Error},
};

/// A call that failed.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Set if it may have been carried out all the same.
    pub(super) unacknowledged: bool,
    /// Set if its connection is of no more use.
    pub(super) connection_lost: bool,
    /// Set if every call would fail so, or none of its callers may ask again.
    pub(super) fails_for_all: bool,
}

/// The connection, and the breakers that keep decisions away from failing nodes. Verbs and receipts
/// bypass them, because no request waits for these.
pub(super) struct Exchange {
    pub(super) connection: Arc<Connection>,
    pub(super) nodes: Arc<Nodes>,
}

impl Exchange {
    /// Sends a call for this limiter, and for others of its node, and records what it says about
    /// the server. Its first caller asked at `asked_at`.
    ///
    /// # Errors
    ///
    /// Those of the server and its connection, and that the breaker is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the call unsent, or carried out or not.
    pub(super) async fn send(
        &self,
        call: ScriptCall,
        limiter: &Limiter,
        asked_at: Option<Instant>,
    ) -> Result<Value, Failure> {
        let waited = asked_at.map_or(Duration::ZERO, |asked_at| {
            moment().saturating_duration_since(asked_at)
        });
        let pass = self.nodes.enter(&limiter.name, waited)?;
        // If it must not be sent twice, permits of a lost reply stay in use until they expire.
        let outcome = call.send(&self.connection).await;
        call.recycle();
        match outcome {
            Ok(reply) => {
                pass.ends(Signal::Answered);
                Ok(reply)
            }
            Err(failed) => {
                let class = Class::of(&failed.error);
                if class == Class::Silent && failed.unacknowledged {
                    pass.ends_unanswered();
                } else {
                    pass.ends(node::signal(&failed, self.connection.source.is_cluster));
                }
                Err(Failure {
                    unacknowledged: failed.unacknowledged,
                    connection_lost: class.ends_connection(),
                    // A script that is refused a command may have written for the first limiters of
                    // a list: who asked again would be found there, and take nothing of the others.
                    fails_for_all: matches!(
                        class,
                        Class::Unable | Class::Unwritable | Class::Silent | Class::RefusedWithin
                    ),
                    error: classify::failure(failed),
                })
            }
        }
    }
}

/// Returns when the first of those asked that do not wait for permits: the others have time.
pub(super) fn asked_at<'a>(run: impl IntoIterator<Item = &'a Demand>) -> Option<Instant> {
    let not_waiting = run.into_iter().filter(|demand| demand.max_wait.is_none());
    not_waiting.filter_map(|demand| demand.asked_at).min()
}

impl Failure {
    /// Returns the same, of a call that may have been carried out before if it was made `again`.
    pub(super) fn after(self, again: bool) -> Self {
        Self {
            unacknowledged: self.unacknowledged || again,
            ..self
        }
    }

    /// Returns that of a call whose reply is an error, and which may have been carried out before.
    pub(super) fn read(error: Error, again: bool) -> Self {
        Self::from(error).after(again)
    }
}

impl From<Error> for Failure {
    /// The call was not sent, or was answered.
    fn from(error: Error) -> Self {
        Self {
            error,
            unacknowledged: false,
            connection_lost: false,
            fails_for_all: true,
        }
    }
}
