//! Limits in PostgreSQL: a store of one's own, as a [`Backend`] of tower-ratelimit. It is one table
//! of two columns, the name of a limiter and its value.
//!
//! ```no_run
//! use tower_ratelimit::{Limit, RateLimitLayer, backend::{BackendStore, Settings}, key::PeerIp};
//! use tower_ratelimit_postgres::Postgres;
//!
//! let postgres = Postgres::new("host=localhost user=shop dbname=shop".parse()?);
//! let store = BackendStore::new(postgres, Settings::default())?;
//! let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp).named("address"));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! What it costs:
//!
//! - A grant reads a row for each of its limiters and updates it, in two round trips; a refusal
//!   reads it. Callers in one process share both. Autovacuum has to follow the updates.
//! - Nothing waits for the disk: `synchronous_commit` is off on this connection. A server that
//!   crashes forgets the grants of the last moment, and no more than that.
//! - All calls of a process go over one connection, so they use one core of the server at most.
//! - Values that say nothing any more stay until [`Postgres::forget`] is called.
//!
//! The role needs USAGE and CREATE on its schema. Or another role has run [`SCHEMA`], and this one
//! has SELECT, INSERT, UPDATE and DELETE on the table. Behind PgBouncer, it needs a pool by
//! session.

use std::{fmt, sync::Arc, time::SystemTime};

use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, NoTls, Statement, types::ToSql};
use tower_ratelimit::{
    Error, ErrorKind,
    backend::{Backend, Swap, failure},
};

/// The table. It is made when a store connects, if it is not there.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS ratelimit (
    name text COLLATE \"C\" PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 50)";

/// Limiters in a PostgreSQL database.
pub struct Postgres {
    config: Config,
    /// The connection, replaced when it is lost.
    link: Mutex<Option<Arc<Link>>>,
}

/// A connection, and what is prepared on it.
struct Link {
    client: Client,
    get: Statement,
    insert: Statement,
    update: Statement,
    delete: Statement,
}

impl Postgres {
    /// Connects with the first call.
    pub fn new(mut config: Config) -> Self {
        config
            .options("-c synchronous_commit=off -c default_transaction_isolation=read\\ committed");
        Self {
            config,
            link: Mutex::default(),
        }
    }

    /// Removes the values that said nothing any more at this time, and returns how many. It reads
    /// the whole table: once in an hour is enough.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub async fn forget(&self, now: SystemTime) -> Result<u64, Error> {
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let millis = u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        // A value begins with six bytes of the time until which it counts.
        let now = &millis.to_be_bytes()[2..];
        let link = self.link().await?;
        let forget = "DELETE FROM ratelimit WHERE value < $1";
        link.client.execute(forget, &[&now]).await.map_err(failed)
    }

    async fn link(&self) -> Result<Arc<Link>, Error> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.client.is_closed()) {
            return Ok(Arc::clone(link));
        }
        let made = Arc::new(Link::open(&self.config).await.map_err(failed)?);
        Ok(Arc::clone(link.insert(made)))
    }
}

impl Link {
    async fn open(config: &Config) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        let made = client
            .query_one("SELECT to_regclass('ratelimit') IS NOT NULL", &[])
            .await?;
        if !made.try_get::<_, bool>(0)? {
            // Of several that find nothing, one makes it.
            let locked = format!("BEGIN; SELECT pg_advisory_xact_lock(7246); {SCHEMA}; COMMIT");
            client.batch_execute(&locked).await?;
        }
        let insert = "INSERT INTO ratelimit VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let update = "UPDATE ratelimit SET value = $3 WHERE name = $1 AND value = $2";
        let delete = "DELETE FROM ratelimit WHERE name = $1 AND value = $2";
        Ok(Self {
            get: client
                .prepare("SELECT value FROM ratelimit WHERE name = $1")
                .await?,
            insert: client.prepare(insert).await?,
            update: client.prepare(update).await?,
            delete: client.prepare(delete).await?,
            client,
        })
    }
}

impl Backend for Postgres {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let link = self.link().await?;
        let row = link.client.query_opt(&link.get, &[&key]).await;
        let value = row.and_then(|row| row.map(|row| row.try_get(0)).transpose());
        value.map_err(failed)
    }

    async fn swap(&self, Swap { key, old, new }: Swap<'_>) -> Result<bool, Error> {
        let link = self.link().await?;
        let (statement, values): (_, &[&(dyn ToSql + Sync)]) = match (&old, &new) {
            (None, None) => return Ok(self.get(key).await?.is_none()),
            (None, Some(new)) => (&link.insert, &[&key, new]),
            (Some(old), Some(new)) => (&link.update, &[&key, old, new]),
            (Some(old), None) => (&link.delete, &[&key, old]),
        };
        let changed = link.client.execute(statement, values).await;
        changed.map(|rows| rows == 1).map_err(failed)
    }
}

/// Tells a server that does not work from a statement that fails.
fn failed(error: tokio_postgres::Error) -> Error {
    let kind = match error.code() {
        // Shutting down, too many connections, out of resources.
        Some(code)
            if ["57", "53", "08"]
                .iter()
                .any(|class| code.code().starts_with(class)) =>
        {
            ErrorKind::Unavailable
        }
        Some(_) => ErrorKind::Rejected,
        None => ErrorKind::Unavailable,
    };
    failure(kind, error)
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the config: it has a password.
        f.debug_struct("Postgres")
            .field("hosts", &self.config.get_hosts())
            .finish_non_exhaustive()
    }
}
