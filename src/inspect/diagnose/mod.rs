//! Reads one limiter for an operator. It never writes, and works in steps that do not block the
//! server.

mod releases;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
    time::Duration,
};

use redis::Value;

use self::report::Keys;
pub use self::{
    releases::RedissonReleases,
    report::{Diagnosis, Finding, OtherClient},
};
use crate::{
    algorithm::{
        gcra::{Gcra, State},
        limiter::LimiterState,
    },
    clock::{Now, check_timer, within},
    error::{Error, ErrorKind},
    limit::{Algorithm, RateType, StoredLimit, ahead_of, at_least_zero},
    name::Name,
    receipt::PermitId,
    store::{
        TimeToLive,
        redis::{
            RedisStore,
            server::Server,
            transport::connection::Connection,
            wire::{
                self,
                arguments::{Arguments, Word},
                gcra,
                script::Script,
            },
        },
    },
};

/// Reads one page of a limiter's log, and the rest of its state.
pub(super) static DIAGNOSE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../../../lua/lib/state.lua"),
        include_str!("../../../lua/diagnose.lua")
    ))
});

/// Entries that are read at a time: below a millisecond of the server's time.
const PAGE: u64 = 1000;
/// The number of attempts to read a log of several pages that moves meanwhile.
const ATTEMPTS: usize = 3;
/// The keys that one SCAN visits. There are at most 1000 such steps: a million keys.
const SCAN_COUNT: usize = 1000;
const SCANS: usize = 1000;
/// The maximum number of other clients in the report.
const MOST_CLIENTS: usize = 1000;

impl RedisStore {
    /// Reads the limiter of this name, and which Redisson releases have used the server. It changes
    /// nothing.
    ///
    /// The name is the one in Redis, including a rule's prefix and identity. Counts are in permits,
    /// entries and milliseconds of the server's clock. For a limit per client, this client's part
    /// is read, so set the [`client_id`](crate::RedisStoreBuilder::client_id) of the process in
    /// question; other clients are only listed.
    ///
    /// The log is read in pages of 1000 entries, and other clients' keys are searched among the
    /// first million keys of the database, so that the server is never blocked. This may take
    /// seconds: it is a tool for operators, not for each request. In a Cluster the clock, the
    /// scripts and other clients' keys are those of the node that replies.
    ///
    /// Besides the permissions of the store it needs `+zcard`, and `+scan +zcount +script|exists`
    /// for other clients and for Redisson's releases; without them it leaves that part out and
    /// reports it.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Name`](ErrorKind::Name) if the name cannot name a limiter,
    /// [`ForeignState`](ErrorKind::ForeignState) if a key of another type is stored under it, and
    /// [`Unavailable`](ErrorKind::Unavailable), [`Timeout`](ErrorKind::Timeout) or
    /// [`Rejected`](ErrorKind::Rejected) if the server cannot be queried.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::open("redis://127.0.0.1/")?;
    /// let diagnosis = store.diagnose("orders").await?;
    /// println!("{diagnosis}");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "inspect")))]
    pub async fn diagnose(&self, name: &str) -> Result<Diagnosis, Error> {
        let name =
            Name::exact(name).map_err(|error| Error::new(ErrorKind::Name).caused_by(error))?;
        check_timer()?;
        let server = self.server();
        let look = Look {
            connection: &server.connection,
            timeout: self
                .settings
                .connect_timeout
                .saturating_add(self.settings.response_timeout),
            keys: wire::keys(&name, server.client_id()?),
        };
        let seen = look.limiter().await?;
        let now = seen.page.now;
        let others = permitted(look.other_clients(server, now, seen.interval()).await)?;
        let releases = permitted(look.loaded(&releases::ALL).await)?;
        Ok(seen.diagnosis(name, look.keys, others, releases))
    }
}

/// Leaves out the parts that the server does not let this user read.
fn permitted<T>(seen: Result<T, Error>) -> Result<Option<T>, Error> {
    match seen {
        Err(error) if error.kind() == ErrorKind::Rejected => Ok(None),
        seen => seen.map(Some),
    }
}

/// The limiter to read, and the timeout of each command.
struct Look<'a> {
    connection: &'a Connection,
    timeout: Duration,
    keys: [String; 5],
}

impl Look<'_> {
    /// Reads the limiter, again if it moved between two pages.
    async fn limiter(&self) -> Result<Seen, Error> {
        let mut attempt = 1;
        loop {
            let seen = self.pages().await?;
            if seen.settled || attempt == ATTEMPTS {
                return Ok(seen);
            }
            attempt += 1;
        }
    }

    async fn pages(&self) -> Result<Seen, Error> {
        let first = self.page(0).await?;
        let mut seen = Seen::new(first);
        let mut read = PAGE;
        // Also ends for a log that grows as fast as it is read.
        while read < seen.page.entries {
            let page = self.page(read).await?;
            seen.settled &= page.value == seen.page.value && page.entries == seen.page.entries;
            seen.count(&page.log);
            read += PAGE;
        }
        Ok(seen)
    }

    async fn page(&self, first: u64) -> Result<Page, Error> {
        let argv = [first, PAGE].map(Word::number);
        let arguments = Arguments::new(&self.keys, argv);
        let call = DIAGNOSE.call(self.connection, &arguments);
        let reply = within(self.timeout, call).await.ok_or(ErrorKind::Timeout)?;
        Page::read(reply.map_err(|failed| wire::failure(failed.error))?)
    }

    /// Returns the other clients that have keys here, and whether all keys were searched.
    async fn other_clients(
        &self,
        server: &Server,
        now: i64,
        interval: i64,
    ) -> Result<(Vec<OtherClient>, bool), Error> {
        let own = server.client_id()?;
        let [_, value, _, log, _] = &self.keys;
        let ids_in = |key: &[u8]| {
            let key = String::from_utf8_lossy(key);
            let id = [value, log]
                .into_iter()
                .find_map(|companion| key.strip_prefix(companion)?.strip_prefix(':'))?;
            (id != own).then(|| id.to_owned())
        };
        let mut pattern = escaped(value.strip_suffix("value").unwrap_or(value));
        pattern.push('*');
        let (mut ids, mut cursor, mut complete) = (BTreeSet::new(), 0, false);
        for _ in 0..SCANS {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(SCAN_COUNT);
            let found: Vec<Vec<u8>>;
            (cursor, found) = parsed(self.ask(&scan).await?)?;
            ids.extend(found.iter().filter_map(|key| ids_in(key)));
            complete = cursor == 0;
            if complete || ids.len() > MOST_CLIENTS {
                break;
            }
        }
        complete &= ids.len() <= MOST_CLIENTS;
        let mut clients = Vec::new();
        for id in ids.into_iter().take(MOST_CLIENTS) {
            let keys = [value, log].map(|companion| format!("{companion}:{id}"));
            let mut lives = [TimeToLive::Missing; 2];
            for (life, key) in lives.iter_mut().zip(&keys) {
                *life = wire::time_to_live(&self.ask(redis::cmd("PTTL").arg(key)).await?)?;
            }
            let after = format!("({}", now.saturating_sub(interval));
            let mut zcount = redis::cmd("ZCOUNT");
            zcount.arg(&keys[1]).arg(after).arg("+inf");
            let live = wire::count(&self.ask(&zcount).await?)?;
            clients.push(OtherClient {
                id,
                live_entries: at_least_zero(live),
                time_to_live: longest(lives),
            });
        }
        Ok((clients, complete))
    }

    /// Returns the releases whose acquire script the server knows.
    async fn loaded(&self, table: &[RedissonReleases]) -> Result<Vec<RedissonReleases>, Error> {
        let mut exists = redis::cmd("SCRIPT");
        exists.arg("EXISTS");
        for releases in table {
            exists.arg(releases.sha1);
        }
        let known: Vec<bool> = parsed(self.ask(&exists).await?)?;
        Ok(table
            .iter()
            .zip(known)
            .filter_map(|(releases, known)| known.then_some(*releases))
            .collect())
    }

    async fn ask(&self, command: &redis::Cmd) -> Result<Value, Error> {
        let reply = within(self.timeout, self.connection.send(command)).await;
        let reply = reply.ok_or(ErrorKind::Timeout)?;
        reply.map_err(|failed| wire::failure(failed.error))
    }
}

/// Returns the later of two expiries.
fn longest(lives: [TimeToLive; 2]) -> TimeToLive {
    let rank = |life: &TimeToLive| match life {
        TimeToLive::Missing => (0, Duration::ZERO),
        TimeToLive::Left(left) => (1, *left),
        TimeToLive::Lasting => (2, Duration::ZERO),
    };
    let [first, second] = lives;
    if rank(&first) < rank(&second) {
        second
    } else {
        first
    }
}

/// Returns the text as a pattern that matches nothing else.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

fn parsed<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|error| {
        Error::new(ErrorKind::Unavailable)
            .detail("a reply that Redis never sends")
            .caused_by(redis::RedisError::from(error))
    })
}

/// A reply of `diagnose.lua`.
struct Page {
    now: i64,
    fields: [Option<Vec<u8>>; 4],
    lives: [TimeToLive; 5],
    value: Option<Vec<u8>>,
    entries: u64,
    log: Vec<(Vec<u8>, f64)>,
}

impl Page {
    fn read(reply: Value) -> Result<Self, Error> {
        type Read = (
            i64,
            [Option<Vec<u8>>; 4],
            [i64; 5],
            Option<Vec<u8>>,
            u64,
            Vec<(Vec<u8>, f64)>,
        );
        let (now, fields, lives, value, entries, log): Read = parsed(reply)?;
        let mut read = [TimeToLive::Missing; 5];
        for (life, left) in read.iter_mut().zip(lives) {
            *life = wire::time_to_live(&Value::Int(left))?;
        }
        Ok(Self {
            now,
            fields,
            lives: read,
            value,
            entries,
            log,
        })
    }
}

/// The sum of the pages.
struct Seen {
    /// The first page, with everything except the rest of the log.
    page: Page,
    settled: bool,
    by_size: BTreeMap<usize, u64>,
    logged: i64,
    live: i64,
    expired: u64,
    ahead: u64,
    furthest: i64,
}

impl Seen {
    fn new(mut page: Page) -> Self {
        let log = std::mem::take(&mut page.log);
        let mut seen = Self {
            page,
            settled: true,
            by_size: BTreeMap::new(),
            logged: 0,
            live: 0,
            expired: 0,
            ahead: 0,
            furthest: 0,
        };
        seen.count(&log);
        seen
    }

    fn number(&self, field: usize) -> Option<i64> {
        std::str::from_utf8(self.page.fields[field].as_deref()?)
            .ok()?
            .parse()
            .ok()
    }

    /// Returns the stored interval; without one nothing has expired.
    fn interval(&self) -> i64 {
        self.number(1).unwrap_or(i64::MAX)
    }

    fn count(&mut self, log: &[(Vec<u8>, f64)]) {
        let interval = self.interval();
        for (member, score) in log {
            *self.by_size.entry(member.len()).or_default() += 1;
            let permits = wire::permits(member).map_or(0, i64::from);
            self.logged = self.logged.saturating_add(permits);
            // Whole milliseconds, except from other writers; beyond the range it is the nearest
            // number.
            let age = self.page.now.saturating_sub(*score as i64);
            if age >= interval {
                self.expired += 1;
                continue;
            }
            self.live = self.live.saturating_add(permits);
            if age.saturating_neg() > ahead_of(interval) {
                self.ahead += 1;
                self.furthest = self.furthest.max(age.saturating_neg());
            }
        }
    }

    /// Guesses the algorithm. The value of a sliding log does not expire, or later than its entries
    /// do.
    fn algorithm(&self, per_client: bool) -> Algorithm {
        let life = self.page.lives[if per_client { 2 } else { 1 }];
        match life {
            TimeToLive::Left(left)
                if self.page.entries == 0
                    && left <= Duration::from_millis(at_least_zero(self.interval())) =>
            {
                Algorithm::FixedWindow
            }
            _ => Algorithm::SlidingLog,
        }
    }

    /// Returns the permits in use, if they are counted by GCRA.
    fn gcra(&self) -> Option<State> {
        gcra::state(self.page.value.as_deref()?)
    }

    /// Reads the permits left of a GCRA limiter, and its limit if a rule made it: then only the
    /// value has the limit.
    fn read_gcra(&mut self, state: &State) {
        let stored = self.page.fields[..3].iter().all(Option::is_some);
        if !stored {
            // The script reads this client's value only if there is no other.
            let per_client = self.page.lives[1] == TimeToLive::Missing;
            let [rate, interval] = [state.rate, state.interval].map(|n| n.to_string().into_bytes());
            let rate_type = vec![if per_client { b'1' } else { b'0' }];
            self.page.fields = [Some(rate), Some(interval), Some(rate_type), None];
        }
        let mut limiter = gcra_limiter(state, self.number(0), self.number(1));
        // The last microsecond of the millisecond in which it was read, so no grant that was read
        // is later.
        let now = self.page.now.saturating_mul(1000).saturating_add(999);
        let left = limiter.available(Now::at(now), PermitId::NONE);
        self.page.value = left.ok().map(|left| left.to_string().into_bytes());
    }

    fn diagnosis(
        mut self,
        name: Name,
        keys: [String; 5],
        others: Option<(Vec<OtherClient>, bool)>,
        redisson: Option<Vec<RedissonReleases>>,
    ) -> Diagnosis {
        let gcra = self.gcra();
        if let Some(state) = &gcra {
            self.read_gcra(state);
        }
        let fields = ["rate", "interval", "type", "keepAliveTime"];
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let value = self.page.value.as_deref().map(text);
        let number = value.as_deref().and_then(|value| value.parse().ok());
        let foreign = self.by_size.keys().any(|size| !wire::is_member_size(*size));
        let per_client = self.page.fields[2].as_deref() == Some(b"1");
        let algorithm = match gcra {
            Some(_) => Algorithm::Gcra,
            None => self.algorithm(per_client),
        };
        let drift = match (self.number(0), number) {
            // The other algorithms have no log to compare with.
            _ if foreign || !self.settled || algorithm != Algorithm::SlidingLog => None,
            (Some(rate), Some(value)) => {
                Some(rate.saturating_sub(self.logged).saturating_sub(value))
            }
            (Some(_), None) if self.page.entries == 0 => Some(0),
            _ => None,
        };
        let (other_clients, scanned_all) = match others {
            Some((clients, complete)) => (Some(clients), complete),
            None => (None, false),
        };
        Diagnosis {
            name,
            fields: fields
                .into_iter()
                .zip(&self.page.fields)
                .filter_map(|(field, stored)| Some((field, text(stored.as_deref()?))))
                .collect(),
            per_client,
            algorithm,
            keys: Keys(keys),
            time_to_live: self.page.lives,
            value,
            settled: self.settled,
            entries: self.page.entries,
            entries_by_size: self.by_size,
            expired_entries: self.expired,
            live_permits: at_least_zero(self.live),
            drift,
            entries_ahead: self.ahead,
            furthest_ahead: Duration::from_millis(at_least_zero(self.furthest)),
            other_clients,
            scanned_all,
            redisson,
        }
    }
}

/// Returns the limiter with this value, by the stored limit if there is one.
fn gcra_limiter(state: &State, rate: Option<i64>, interval: Option<i64>) -> LimiterState<Gcra> {
    LimiterState {
        limit: Some(StoredLimit {
            rate: rate.unwrap_or(state.rate),
            interval: interval.unwrap_or(state.interval),
            rate_type: RateType::Overall,
            keep_alive: 0,
        }),
        state: Gcra {
            stored: Some(*state),
            ends: state.tat.at,
            since: 0,
        },
    }
}

#[cfg(test)]
#[cfg(inside)]
#[path = "../../../tests/inside/diagnose.rs"]
mod inside;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_name_alone() {
        assert_eq!(escaped(r"{a*[b]?\c^-}:"), r"{a\*\[b\]\?\\c^-}:");
    }

    #[test]
    fn the_longer_life_counts() {
        let [short, long] = [1, 2].map(|secs| TimeToLive::Left(Duration::from_secs(secs)));
        assert_eq!(longest([short, long]), long);
        assert_eq!(longest([long, short]), long);
        assert_eq!(longest([long, TimeToLive::Lasting]), TimeToLive::Lasting);
        assert_eq!(longest([TimeToLive::Missing, short]), short);
    }
}
