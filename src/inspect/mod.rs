//! Checks of servers and limiters in Redis, for an operator and never for a request.

pub(crate) mod diagnose;
mod finding;
pub(crate) mod verify;

use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};

pub use self::finding::{Finding, FindingKind, Severity};

use crate::{
    clock::within,
    error::{Error, ErrorKind},
    name::Name,
    store::redis::{
        RedisStore,
        transport::{connection::Connection, link::To},
        wire,
    },
};

/// A server to inspect, and the timeout of each command.
struct Look<'a> {
    store: &'a RedisStore,
    connection: &'a Connection,
    timeout: Duration,
}

impl<'a> Look<'a> {
    fn at(store: &'a RedisStore) -> Self {
        Self {
            store,
            connection: &store.server().connection,
            timeout: store.settings.longest(),
        }
    }

    /// Sends a command to the master of a hash slot, or to the server.
    async fn ask(&self, to: Option<u16>, command: &Cmd) -> Result<RedisResult<Value>, Error> {
        let to = to.map_or(To::Any, To::Slot);
        let reply = within(self.timeout, self.connection.send_to(to, command)).await;
        reply.ok_or_else(|| ErrorKind::Timeout.into())
    }
}

fn exact(name: &str) -> Result<Name, Error> {
    Name::exact(name).map_err(|error| Error::new(ErrorKind::Name).caused_by(error))
}

fn parsed<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply)
        .map_err(|error| wire::unreadable().caused_by(RedisError::from(error)))
}
