//! Checks of servers and limiters in Redis, for an operator and never for a request.

pub(crate) mod diagnose;
mod finding;
pub(crate) mod verify;

use redis::{Cmd, RedisError, RedisResult, Value};

pub use self::finding::{Finding, FindingKind, Severity};

use crate::{
    store::redis::{
        RedisStore, reply,
        transport::{connection::Connection, link::To},
    },
    values::{
        clock::within,
        error::{Error, ErrorKind},
        name::Name,
    },
};

/// A store whose server is inspected.
struct Look<'a>(&'a RedisStore);

impl Look<'_> {
    /// Sends a command to the master of a hash slot, or to the server.
    async fn ask(&self, to: Option<u16>, command: &Cmd) -> Result<RedisResult<Value>, Error> {
        let to = to.map_or(To::Any, To::Slot);
        self.in_time(self.connection().send_to(to, command)).await
    }

    /// Waits for the reply to one command.
    async fn in_time<T>(&self, reply: impl Future<Output = T>) -> Result<T, Error> {
        let reply = within(self.0.settings.longest(), reply).await;
        reply.ok_or_else(|| ErrorKind::Timeout.into())
    }

    fn connection(&self) -> &Connection {
        &self.0.server().connection
    }
}

fn exact(name: &str) -> Result<Name, Error> {
    Name::exact(name).map_err(|error| Error::new(ErrorKind::Name).caused_by(error))
}

fn parsed<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply)
        .map_err(|error| reply::unreadable().caused_by(RedisError::from(error)))
}
