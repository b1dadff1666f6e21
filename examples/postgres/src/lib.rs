//! Limits in PostgreSQL: a store of one's own, as a [`Backend`] of tower-ratelimit.
//!
//! A decision is one call of one function, `limits.sql`, in one round trip. It takes a lock on the
//! names of its limiters until it is committed, and counts by the server's clock.
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
//! - A decision reads the grants of the last interval three times. With 10 or 100 grants it took
//!   half a millisecond on one core of a busy machine, with 1,000 grants 5 ms, and with 10,000 some
//!   30 ms. So it is for limits of up to some hundreds of permits: beyond that, take Redis.
//! - A grant is a row that is written, and later deleted: autovacuum has to follow. A refusal
//!   writes nothing. Neither waits for the disk: `synchronous_commit` is off on this connection. A
//!   server that crashes forgets the grants of the last moment, and no more than that.
//! - All calls of a process go over one connection, so they use one core of the server at most, and
//!   3,000 decisions a second were the most there. Calls for the same limiter wait for each other,
//!   in all processes.
//! - Limiters that rules made are forgotten when [`Postgres::forget`] is called.
//! - A clock of the server that is set back keeps grants for as much longer.
//! - There is no `expire`, `rename` and `repair`. Behind PgBouncer, it needs a pool by session.
//!
//! The role needs USAGE and CREATE on its schema. Or another role has run [`SCHEMA`], and this one
//! has SELECT, INSERT, UPDATE and DELETE on both tables.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, NoTls, Statement, error::SqlState, types::ToSql};
use tower_ratelimit::{
    Clock, Error, ErrorKind, Limit,
    backend::{
        Answer, Backend, Charge, Demand, LimitSource, Name, Op, OpResult, Settle, StoredLimit,
        failure,
    },
};
use uuid::Uuid;

/// The tables and functions. They are made when a store connects, if they are not there.
pub const SCHEMA: &str = include_str!("limits.sql");

/// Limiters in a PostgreSQL database.
pub struct Postgres {
    config: Config,
    /// The caller's clock; `None` for the server's.
    clock: Option<Arc<dyn Clock>>,
    /// The connection, replaced when it is lost.
    link: Mutex<Option<Arc<Link>>>,
}

/// A connection, and what is prepared on it.
struct Link {
    client: Client,
    demand: Statement,
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

    /// Stores a limit, only where there is none, or only an existing one. It keeps what is in use,
    /// or forgets it.
    async fn set(
        &self,
        name: &str,
        limit: StoredLimit,
        (only_new, existing, keep): (bool, bool, bool),
    ) -> Result<OpResult, Error> {
        let limit = limit.limit().ok_or(ErrorKind::Limit)?;
        let (permits, interval) = (
            i64::try_from(limit.permits()).ok(),
            millis(limit.interval()),
        );
        let kept = limit.keep_alive_time().and_then(millis);
        let values: [&(dyn ToSql + Sync); 7] = [
            &name, &permits, &interval, &kept, &only_new, &existing, &keep,
        ];
        let set = self.value("ratelimit_set($1, $2, $3, $4, $5, $6, $7)", &values);
        set.await.map(OpResult::Changed)
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
        let demand = "SELECT * FROM ratelimit_acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        Ok(Self {
            demand: client.prepare(demand).await?,
            settle: client
                .prepare("SELECT ratelimit_settle($1, $2, $3, $4, $5)")
                .await?,
            client,
        })
    }
}

impl Backend for Postgres {
    async fn acquire(&self, demand: &Demand) -> Result<Vec<Answer>, Error> {
        let charges: Vec<_> = demand.charges().collect();
        let given = |charge: &&Charge| match charge.limit() {
            LimitSource::Code(limit) | LimitSource::StoreOrInit(limit) => Some(limit),
            LimitSource::Store => None,
        };
        let each = |number: fn(Limit) -> Option<i64>| -> Vec<Option<i64>> {
            let limits = charges.iter().map(given);
            limits.map(|limit| limit.and_then(number)).collect()
        };
        let flags = |flag: fn(&Charge) -> bool| -> Vec<bool> {
            charges.iter().map(|charge| flag(charge)).collect()
        };
        let names: Vec<_> = charges
            .iter()
            .map(|charge| charge.name().as_str())
            .collect();
        let wanted: Vec<_> = charges
            .iter()
            .map(|charge| i64::from(charge.permits()))
            .collect();
        let permits = each(|limit| i64::try_from(limit.permits()).ok());
        let intervals = each(|limit| millis(limit.interval()));
        let kept = each(|limit| limit.keep_alive_time().and_then(millis));
        let must_exist = flags(|charge| charge.limit() == LimitSource::Store);
        let replaces = flags(|charge| matches!(charge.limit(), LimitSource::Code(_)));
        let shadows = flags(Charge::is_shadow);
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
            .query(&link.demand, &values)
            .await
            .map_err(failed)?;
        let answer = |row| {
            answer(row)
                .map_err(failed)?
                .ok_or(ErrorKind::ForeignState.into())
        };
        rows.iter().map(answer).collect()
    }

    async fn settle(&self, name: &Name, settle: Settle) -> Result<(), Error> {
        let (id, permits, is_more) = match settle {
            Settle::Keep(id, permits) => (id, permits, false),
            Settle::Charge(id, permits) => (id, permits, true),
        };
        let (id, permits) = (Uuid::from_bytes(id), i64::from(permits));
        let values: [&(dyn ToSql + Sync); 5] =
            [&name.as_str(), &id, &permits, &is_more, &self.now()];
        let link = self.link().await?;
        link.client
            .query(&link.settle, &values)
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        let (name, now) = (name.as_str(), self.now());
        match op {
            Op::TrySetRate(limit) => self.set(name, *limit, (true, false, true)).await,
            Op::SetRate {
                limit,
                keep,
                existing,
            } => self.set(name, *limit, (false, *existing, *keep)).await,
            Op::Release(permits) => {
                let (call, permits) = ("ratelimit_release($1, $2, $3)", i64::from(*permits));
                let released = self.number(call, &[&name, &permits, &now]).await?;
                Ok(OpResult::Number(released))
            }
            Op::Available => {
                let call = "ratelimit_available($1, $2)";
                Ok(OpResult::Number(self.number(call, &[&name, &now]).await?))
            }
            Op::Inspect => {
                let stored =
                    "(SELECT ARRAY[permits, millis] FROM ratelimit_limiter WHERE name = $1)";
                let stored: Option<Vec<i64>> = self.value(stored, &[&name]).await?;
                let limit = stored.and_then(|stored| limit(stored[0], stored[1]));
                Ok(OpResult::Limit(limit.map(StoredLimit::from)))
            }
            Op::Delete => {
                let deleted = self.value("ratelimit_delete($1)", &[&name]).await?;
                Ok(OpResult::Changed(deleted))
            }
            // `expire`, `rename` and `repair`: a keep-alive time is enough, and nothing drifts.
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
