//! Limits in PostgreSQL: a store of one's own, as a [`Backend`] of tower-ratelimit.
//!
//! A decision is one call of one function, `limits.sql`, in one round trip. It takes a lock on the
//! names of its limiters until it is committed, and counts by the server's clock.
//!
//! What it costs:
//!
//! - A decision reads the grants of the last interval, up to three times. So it is for limits of up
//!   to some hundreds of permits: beyond that, take Redis.
//! - A grant is a row that is written, and later deleted: autovacuum has to follow. A refusal writes
//!   nothing. Neither waits for the disk: `synchronous_commit` is off on this connection. A server
//!   that crashes forgets the grants of the last moment, and no more than that.
//! - All calls of a process go over one connection, so they need one core of the server at most.
//!   Calls for the same limiter wait for each other, whichever process they are of.
//! - Limiters that rules made are forgotten when [`Postgres::forget`] is called.
//!
//! The role needs USAGE and CREATE on its schema, or [`SCHEMA`] was run by another one before and it
//! has SELECT, INSERT, UPDATE and DELETE on both tables.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, NoTls, Statement, error::SqlState, types::ToSql};
use tower_ratelimit::{
    Clock, Error, ErrorKind, Limit,
    backend::{Answer, Backend, Charge, Demand, LimitFrom, Outcome, Settlement, Verb, failure},
};
use uuid::Uuid;

/// The tables and functions. They are made when a store connects, if they are not there.
pub const SCHEMA: &str = include_str!("limits.sql");

/// Limiters in a PostgreSQL database.
pub struct Postgres {
    config: Config,
    /// The caller's clock; `None` for the server's.
    clock: Option<Arc<dyn Clock>>,
    /// The connection, made anew when it is lost.
    link: Mutex<Option<Arc<Link>>>,
}

/// A connection, and what is prepared on it.
struct Link {
    client: Client,
    acquire: Statement,
    settle: Statement,
}

impl Postgres {
    /// Connects with the first call.
    pub fn new(mut config: Config) -> Self {
        config
            .options("-c synchronous_commit=off -c default_transaction_isolation=read\\ committed");
        Self {
            config,
            clock: None,
            link: Mutex::default(),
        }
    }

    /// Counts by a clock of this process instead of the server's.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Forgets limiters with a keep-alive time that were not used for as long, and returns how
    /// many.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub async fn forget(&self) -> Result<u64, Error> {
        let forgotten: i64 = self.number("ratelimit_forget($1)", &[&self.now()]).await?;
        Ok(unsigned(forgotten))
    }

    fn now(&self) -> Option<i64> {
        let clock = self.clock.as_ref()?;
        i64::try_from(clock.now().as_micros()).ok()
    }

    async fn link(&self) -> Result<Arc<Link>, Error> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.client.is_closed()) {
            return Ok(Arc::clone(link));
        }
        let made = Arc::new(Link::open(&self.config).await.map_err(failed)?);
        Ok(Arc::clone(link.insert(made)))
    }

    /// Returns the only value of an expression. It is prepared each time: verbs are rare.
    async fn value<T>(&self, expression: &str, values: &[&(dyn ToSql + Sync)]) -> Result<T, Error>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let statement = format!("SELECT {expression}");
        let row = self
            .link()
            .await?
            .client
            .query_one(&statement, values)
            .await;
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }

    /// Returns a number that is null where there is no limit.
    async fn number(&self, call: &str, values: &[&(dyn ToSql + Sync)]) -> Result<i64, Error> {
        let number: Option<i64> = self.value(call, values).await?;
        number.ok_or_else(|| ErrorKind::NotInitialized.into())
    }
}

impl Link {
    async fn open(config: &Config) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        let made = client
            .query_one("SELECT to_regproc('ratelimit_forget') IS NOT NULL", &[])
            .await?;
        if !made.try_get::<_, bool>(0)? {
            // Of several that find nothing, one makes it.
            let locked = format!("BEGIN; SELECT pg_advisory_xact_lock(7246); {SCHEMA}; COMMIT");
            client.batch_execute(&locked).await?;
        }
        let acquire = "SELECT * FROM ratelimit_acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        Ok(Self {
            acquire: client.prepare(acquire).await?,
            settle: client
                .prepare("SELECT ratelimit_settle($1, $2, $3, $4, $5, $6)")
                .await?,
            client,
        })
    }
}

impl Backend for Postgres {
    async fn acquire(&self, demand: Demand<'_>) -> Result<Vec<Answer>, Error> {
        let charges: Vec<_> = demand.charges().collect();
        let given = |charge: &Charge<'_>| match charge.limit() {
            LimitFrom::Given(limit) | LimitFrom::StoredOr(limit) => Some(limit),
            LimitFrom::Stored => None,
        };
        let each = |number: fn(Limit) -> Option<i64>| -> Vec<Option<i64>> {
            charges
                .iter()
                .map(|charge| given(charge).and_then(number))
                .collect()
        };
        let flags =
            |flag: fn(&Charge<'_>) -> bool| -> Vec<bool> { charges.iter().map(flag).collect() };
        let names: Vec<_> = charges.iter().map(Charge::name).collect();
        let wanted: Vec<_> = charges
            .iter()
            .map(|charge| i64::from(charge.permits()))
            .collect();
        let permits = each(|limit| i64::try_from(limit.permits()).ok());
        let intervals = each(|limit| millis(limit.interval()));
        let kept = each(|limit| limit.keep_alive_time().and_then(millis));
        let must_exist = flags(|charge| charge.limit() == LimitFrom::Stored);
        let replaces = flags(|charge| matches!(charge.limit(), LimitFrom::Given(_)));
        let shadows = flags(|charge| charge.is_shadow());
        let (id, now) = (Uuid::from_bytes(demand.id()), self.now());
        let values: [&(dyn ToSql + Sync); 10] = [
            &names,
            &wanted,
            &permits,
            &intervals,
            &kept,
            &must_exist,
            &replaces,
            &shadows,
            &id,
            &now,
        ];
        let link = self.link().await?;
        let rows = link
            .client
            .query(&link.acquire, &values)
            .await
            .map_err(failed)?;
        rows.iter()
            .map(|row| {
                answer(row)
                    .map_err(failed)?
                    .ok_or(ErrorKind::ForeignState.into())
            })
            .collect()
    }

    async fn settle(&self, settled: Settlement<'_>) -> Result<(), Error> {
        let (id, more) = (
            Uuid::from_bytes(settled.id()),
            Uuid::from_bytes(settled.id_of_more()),
        );
        let values: [&(dyn ToSql + Sync); 6] = [
            &settled.name(),
            &id,
            &i64::from(settled.keep()),
            &i64::from(settled.more()),
            &more,
            &self.now(),
        ];
        let link = self.link().await?;
        link.client
            .query(&link.settle, &values)
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn manage(&self, name: &str, verb: &Verb) -> Result<Outcome, Error> {
        let set = async |limit: Limit, only_new: bool, existing: bool, keep: bool| {
            let permits = i64::try_from(limit.permits()).ok();
            let (interval, kept) = (
                millis(limit.interval()),
                limit.keep_alive_time().and_then(millis),
            );
            let call = "ratelimit_set($1, $2, $3, $4, $5, $6, $7)";
            let values: [&(dyn ToSql + Sync); 7] = [
                &name, &permits, &interval, &kept, &only_new, &existing, &keep,
            ];
            self.value(call, &values).await.map(Outcome::Changed)
        };
        match *verb {
            Verb::TrySetRate(limit) => set(limit, true, false, true).await,
            Verb::SetRate {
                limit,
                keep,
                existing,
            } => set(limit, false, existing, keep).await,
            Verb::Release(permits) => {
                let call = "ratelimit_release($1, $2, $3)";
                let released = self
                    .number(call, &[&name, &i64::from(permits), &self.now()])
                    .await?;
                Ok(Outcome::Permits(unsigned(released)))
            }
            Verb::Available => {
                let free = self
                    .number("ratelimit_available($1, $2)", &[&name, &self.now()])
                    .await?;
                Ok(Outcome::Permits(unsigned(free)))
            }
            Verb::Limit => {
                let stored =
                    "(SELECT ARRAY[permits, millis] FROM ratelimit_limiter WHERE name = $1)";
                let stored: Option<Vec<i64>> = self.value(stored, &[&name]).await?;
                let limit =
                    stored.map(|stored| limit(stored[0], stored[1]).ok_or(ErrorKind::ForeignState));
                Ok(Outcome::Limit(limit.transpose()?))
            }
            Verb::Delete => self
                .value("ratelimit_delete($1)", &[&name])
                .await
                .map(Outcome::Changed),
            _ => Err(ErrorKind::Rejected.into()),
        }
    }
}

/// Returns the answer in a row; `None` for a limit that cannot be.
fn answer(row: &tokio_postgres::Row) -> Result<Option<Answer>, tokio_postgres::Error> {
    let micros = |column| -> Result<_, tokio_postgres::Error> {
        let micros: Option<i64> = row.try_get(column)?;
        Ok(micros.map(|micros| Duration::from_micros(unsigned(micros))))
    };
    let limit = limit(row.try_get("permits")?, row.try_get("millis")?);
    let (wait, next, reset) = (micros("wait")?, micros("next")?, micros("reset")?);
    let (remaining, changed) = (row.try_get("remaining")?, row.try_get("changed")?);
    Ok(limit.map(|limit| Answer {
        limit,
        remaining: unsigned(remaining),
        wait,
        next: next.unwrap_or_default(),
        reset: reset.unwrap_or_default(),
        changed,
    }))
}

fn limit(permits: i64, millis: i64) -> Option<Limit> {
    Limit::try_new(unsigned(permits), Duration::from_millis(unsigned(millis))).ok()
}

fn millis(time: Duration) -> Option<i64> {
    i64::try_from(time.as_millis()).ok()
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Tells a limit that is not set, and a server that does not work, from a statement that fails.
fn failed(error: tokio_postgres::Error) -> Error {
    let kind = match error.code() {
        Some(code) if *code == SqlState::NO_DATA_FOUND => ErrorKind::NotInitialized,
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
