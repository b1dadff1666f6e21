//! Checks of servers and limiters in Redis, for an operator and never for a request.
//!
//! [`RedisStore::verify`](crate::RedisStore::verify) checks a server before the first request, and
//! [`RedisStore::diagnose`](crate::RedisStore::diagnose) one limiter. Each report is a list of
//! [`Finding`]s, a page for an operator by `Display`, and all of its figures by
//! `serde::Serialize`, with the feature `serde`.
//!
//! # Example
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_ratelimit::{RedisStore, inspect::Severity};
//!
//! let store = RedisStore::open("redis://127.0.0.1/")?;
//! let report = store.verify().await?;
//! for finding in report.findings() {
//!     println!("{}: {finding}", finding.code());
//! }
//! assert_ne!(report.worst(), Some(Severity::Error));
//! # Ok(())
//! # }
//! ```

pub(crate) mod diagnose;
mod finding;
pub(crate) mod verify;

#[cfg(feature = "serde")]
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};

pub use self::{
    diagnose::Diagnosis,
    finding::{Finding, Severity},
    verify::Verification,
};

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

/// Serializes a report as a map of these members: `members!(to, "name": self.name)`.
#[cfg(feature = "serde")]
macro_rules! members {
    ($to:expr, $($name:literal: $value:expr),+ $(,)?) => {{
        let mut map = serde::Serializer::serialize_map($to, None)?;
        $(serde::ser::SerializeMap::serialize_entry(&mut map, $name, &$value)?;)+
        serde::ser::SerializeMap::end(map)
    }};
}
#[cfg(feature = "serde")]
use members;

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

/// Returns a time in milliseconds, as reports are serialized.
#[cfg(feature = "serde")]
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Returns a format in words.
fn format_of(own: bool) -> &'static str {
    if own {
        "our own format"
    } else {
        "Redisson's format"
    }
}

fn exact(name: &str) -> Result<Name, Error> {
    Name::exact(name).map_err(|error| Error::new(ErrorKind::Name).caused_by(error))
}

fn parsed<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply)
        .map_err(|error| reply::unreadable().caused_by(RedisError::from(error)))
}
