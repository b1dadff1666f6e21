//! One call, reported to the observers of its store: [`Calling`].

use std::time::Instant;

use redis::Value;
use tracing::{Span, debug_span, field::Empty};

use super::connection::{Connection, Failed};
use crate::{
    clock::moment,
    error::ErrorKind,
    observe::StoreCall,
    store::redis::classify::{code, meaning},
};

/// A call under way. If it is dropped before it has ended, its callers have given it up.
pub(crate) struct Calling<'a> {
    connection: &'a Connection,
    operation: &'static str,
    callers: usize,
    /// `None` where there are no observers.
    since: Option<Instant>,
    /// A timeout until it has ended.
    result: Result<(), ErrorKind>,
    /// By the conventions of OpenTelemetry for databases. It never holds a key.
    span: Span,
}

impl<'a> Calling<'a> {
    pub(crate) fn new(connection: &'a Connection, operation: &'static str, callers: usize) -> Self {
        let server = &connection.source.server;
        // Signed: the bridge to OpenTelemetry makes text of an unsigned number.
        let port = server.port.map(i64::from);
        Self {
            connection,
            operation,
            callers,
            since: (!connection.dial.observers.is_empty()).then(moment),
            result: Err(ErrorKind::Timeout),
            span: debug_span!(
                target: "tower_ratelimit",
                "ratelimit.store",
                otel.kind = "client",
                db.system.name = "redis",
                db.namespace = server.database.as_deref(),
                db.operation.name = operation,
                server.address = server.address.as_deref(),
                server.port = port,
                ratelimit.callers = i64::try_from(callers).unwrap_or(i64::MAX),
                db.response.status_code = Empty,
                "error.type" = Empty,
            ),
        }
    }

    /// Reports the end of the call to the observers. Returns the reply.
    pub(crate) fn ended(mut self, reply: Result<Value, Failed>) -> Result<Value, Failed> {
        if let Err(failed) = &reply
            && let Some(code) = code(&failed.error)
        {
            self.span.record("db.response.status_code", code);
        }
        let kind = |failed: &Failed| meaning(&failed.error).kind;
        self.result = reply.as_ref().map(|_| ()).map_err(kind);
        reply
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if let Err(kind) = self.result {
            self.span.record("error.type", kind.as_str());
        }
        if let Some(since) = self.since {
            self.connection.dial.observers.called(&StoreCall {
                operation: self.operation,
                node: self.connection.source.shown.as_deref(),
                callers: self.callers,
                duration: moment().saturating_duration_since(since),
                result: self.result,
            });
        }
    }
}
