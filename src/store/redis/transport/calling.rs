//! One call, told to the observers of its store: [`Calling`].

use std::time::{Duration, Instant};

use redis::Value;

use super::connection::{Connection, Failed};
use crate::{clock::moment, error::ErrorKind, observe::StoreCall, store::redis::classify::meaning};

/// A call under way. If it is dropped before it has ended, its callers have given it up.
pub(crate) struct Calling<'a> {
    connection: &'a Connection,
    operation: &'static str,
    callers: usize,
    /// `None` where there are no observers, and once it has ended.
    since: Option<Instant>,
}

impl<'a> Calling<'a> {
    pub(crate) fn new(connection: &'a Connection, operation: &'static str, callers: usize) -> Self {
        Self {
            connection,
            operation,
            callers,
            since: (!connection.observers().is_empty()).then(moment),
        }
    }

    /// Returns the reply, of which the observers know now.
    pub(crate) fn ended(mut self, reply: Result<Value, Failed>) -> Result<Value, Failed> {
        let kind = |failed: &Failed| meaning(&failed.error).kind;
        self.tell(reply.as_ref().map(|_| ()).map_err(kind));
        reply
    }

    fn tell(&mut self, result: Result<(), ErrorKind>) {
        if let Some(since) = self.since.take() {
            self.connection.observers().called(&StoreCall {
                operation: self.operation,
                node: self.connection.address(),
                callers: self.callers,
                duration: moment()
                    .checked_duration_since(since)
                    .unwrap_or(Duration::ZERO),
                result,
            });
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.tell(Err(ErrorKind::Timeout));
    }
}
