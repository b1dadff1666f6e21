//! Examines one limiter in Redis for an operator. Never writes, and reads in small steps so as not
//! to block the server.

#[cfg(feature = "serde")]
mod json;
mod releases;
mod report;

use std::{collections::BTreeSet, sync::LazyLock, time::Duration};

use redis::{Cmd, FromRedisValue, Value};

pub use self::report::Diagnosis;
use self::{
    releases::RELEASES,
    report::{OtherClient, RedisKeys},
};
use super::{Look, exact, parsed};
use crate::{
    algorithm::{
        gcra::{Gcra, State},
        limiter::LimiterState,
    },
    store::{
        TimeToLive,
        redis::{
            RedisStore, classify, keys,
            node::slot,
            packed, redisson, reply,
            script::{Script, ScriptCall},
        },
    },
    values::{
        charge::PermitId,
        clock::{Now, check_timer},
        error::{Error, ErrorKind},
        limit::{Algorithm, StoredLimit, ahead_of, at_least_zero, calendar::LINGERS},
        name::Name,
    },
};

/// Reads one page of a limiter's log, and the rest of its state.
pub(super) static DIAGNOSE: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!(
        include_str!("../../../lua/lib/state.lua"),
        include_str!("../../../lua/diagnose.lua")
    );
    Script::new("diagnose", text)
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
    /// reports it. So it does with what is in one of the two formats, if the user may read the
    /// other.
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
    pub async fn diagnose(&self, name: &str) -> Result<Diagnosis, Error> {
        let name = exact(name)?;
        check_timer()?;
        let (look, own) = (Look(self), self.server().client_id()?);
        let (mut report, now) = look.settled(&name, own).await?;
        if report.in_own_format {
            // It has no keys of clients.
            (report.other_clients, report.scanned_all) = (Some(Vec::new()), true);
        } else if report.unseen != Some(false)
            && let Some((clients, complete)) =
                permitted(look.other_clients(&report, own, now).await)?
        {
            (report.other_clients, report.scanned_all) = (Some(clients), complete);
        }
        report.redisson = permitted(look.loaded(RELEASES.map(|(_, sha1)| sha1)).await)?;
        Ok(report)
    }

    /// Reads a limiter as [`diagnose`](Self::diagnose) does, without the search for other clients
    /// and for Redisson: cheap enough to be repeated. It has no findings about those.
    ///
    /// # Errors
    ///
    /// Returns those of [`diagnose`](Self::diagnose).
    ///
    /// # Cancel safety
    ///
    /// Safe to drop: it only reads.
    pub async fn look_at(&self, name: &str) -> Result<Diagnosis, Error> {
        let name = exact(name)?;
        check_timer()?;
        let own = self.server().client_id()?;
        Ok(Look(self).settled(&name, own).await?.0)
    }
}

/// Leaves out the parts that the server does not let this user read.
fn permitted<T>(seen: Result<T, Error>) -> Result<Option<T>, Error> {
    match seen {
        Err(error) if error.kind() == ErrorKind::Rejected => Ok(None),
        seen => seen.map(Some),
    }
}

/// Leaves out what is in keys that this user may not read. Another refusal, as of a command, is not
/// about what is there.
fn readable<T>(seen: Result<T, Error>) -> Result<Option<T>, Error> {
    // "access one of the keys", "access the '..' key"; commands are run.
    let is_of_keys = |error: &Error| {
        let said = std::error::Error::source(error).map(ToString::to_string);
        error.kind() == ErrorKind::Rejected && said.is_some_and(|said| said.contains("access"))
    };
    match seen {
        Err(error) if is_of_keys(&error) => Ok(None),
        seen => seen.map(Some),
    }
}

impl Look<'_> {
    /// Reads the limiter, again if it moved between two pages.
    async fn settled(&self, name: &Name, own: &str) -> Result<(Diagnosis, i64), Error> {
        let mut read = self.limiter(name, own).await?;
        for _ in 1..ATTEMPTS {
            if read.0.settled {
                break;
            }
            read = self.limiter(name, own).await?;
        }
        Ok(read)
    }

    /// Reads the limiter, and the server's clock. Of one format this user may read nothing, or less
    /// than all.
    async fn limiter(&self, name: &Name, own: &str) -> Result<(Diagnosis, i64), Error> {
        let keys = redisson::keys(name, own);
        let (mut report, now) = match readable(self.redissons(&keys).await)? {
            Some(read) => read,
            None => {
                let mut unread = Diagnosis::begin(keys);
                unread.unseen = Some(false);
                (unread, self.clock(name).await?)
            }
        };
        // Whatever a server says, the times of states can be counted from it.
        let now = now.clamp(0, (1 << 53) - 1);
        let is_redissons = report.has_state();
        if !is_redissons {
            for key in [packed::calendar::key(name), packed::key(name)] {
                if !report.in_own_format {
                    let read = self.read_own(&mut report, key, now).await;
                    report.permitted(true, read)?;
                }
            }
        }
        // What has no state may still have a ban, and what is counted in one format a ban of the
        // other.
        for is_in_own in [false, true] {
            let key = keys::ban(name, is_in_own);
            let ban = self.reply(redis::cmd("GET").arg(key)).await;
            let ban: Option<Vec<u8>> = report.permitted(is_in_own, ban)?;
            if let Some(ban) = ban.as_deref().and_then(packed::ban::State::read) {
                // By two bans alone, a limit that is in code is not taken for one in Redis.
                report.in_own_format |= is_in_own && !is_redissons;
                let left = time(ban.until.saturating_sub(now));
                report.banned_for = left.max(report.banned_for);
                report.strikes = ban.strikes.max(report.strikes);
            }
        }
        Ok((report, now))
    }

    /// Returns the clock of the server that has a limiter.
    async fn clock(&self, name: &Name) -> Result<i64, Error> {
        let to = Some(slot(keys::tag(name)));
        let reply = self.ask(to, &redis::cmd("TIME")).await?;
        let (seconds, micros): (i64, i64) = parsed(reply.map_err(classify::failure)?)?;
        Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
    }

    /// Reads what is in Redisson's format, but a ban, and the server's clock.
    async fn redissons(&self, keys: &[String; 5]) -> Result<(Diagnosis, i64), Error> {
        let (now, fields, lives, value, entries, log) = self.page(keys, 0).await?;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let mut report = Diagnosis::begin(keys.clone());
        report.per_client = fields[2].as_deref() == Some(b"1");
        let fields = FIELDS.into_iter().zip(&fields);
        let stored = fields.filter_map(|(field, stored)| Some((field, text(stored.as_ref()?))));
        report.fields = stored.collect();
        for (life, left) in report.time_to_live.iter_mut().zip(lives) {
            *life = reply::time_to_live(&Value::Int(left))?;
        }
        (report.value, report.entries) = (value.as_ref().map(text), entries);
        let mut logged = report.count(&log, now);
        let mut read = PAGE;
        // Also ends for a log that grows as fast as it is read.
        while read < entries {
            let (.., later_value, later_entries, log) = self.page(keys, read).await?;
            report.settled &= later_value == value && later_entries == entries;
            logged = logged.saturating_add(report.count(&log, now));
            read += PAGE;
        }
        report.compare(logged);
        Ok((report, now))
    }

    /// Reads a state in our own format, if that is all there is.
    async fn read_own(&self, report: &mut Diagnosis, key: String, now: i64) -> Result<(), Error> {
        let bytes: Option<Vec<u8>> = self.reply(redis::cmd("GET").arg(&key)).await?;
        let Some(bytes) = bytes else {
            return Ok(());
        };
        report.time_to_live[1] = self.time_to_live(&key).await?;
        report.in_own_format = true;
        report.keys.0[1] = key;
        if let Some(state) = packed::log::State::read(&bytes) {
            report.read_log(&state, now);
        } else if let Some(state) = packed::gcra::read(&bytes) {
            report.read_gcra(&state, now);
        } else if let Some(state) = packed::window::State::read(&bytes) {
            report.read_window(&state, now);
        } else if let Some(state) = packed::calendar::State::read(&bytes) {
            report.algorithm = Algorithm::Calendar;
            report.value = Some(format!("{} {}", state.label, state.used));
            if let TimeToLive::Left(left) = report.time_to_live[1] {
                report.next_free = left.checked_sub(Duration::from_millis(LINGERS.unsigned_abs()));
            }
        } else {
            report.value = Some(format!("not ours: {}", bytes.escape_ascii()));
        }
        Ok(())
    }

    async fn page(&self, keys: &[String; 5], first: u64) -> Result<LogPage, Error> {
        let mut command = DIAGNOSE.start(keys.len(), 2);
        command.arg(keys).arg((first, PAGE));
        let call = ScriptCall {
            script: &DIAGNOSE,
            command,
            once: false,
            callers: 0,
        };
        let reply = self.in_time(call.send(self.connection())).await?;
        parsed(reply.map_err(|failed| classify::failure(failed.error))?)
    }

    /// Returns the other clients that have keys here, and whether all keys were searched.
    async fn other_clients(
        &self,
        report: &Diagnosis,
        own: &str,
        now: i64,
    ) -> Result<(Vec<OtherClient>, bool), Error> {
        let [_, value, _, log, _] = &report.keys.0;
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
            scan.arg((cursor, "MATCH", &pattern, "COUNT", SCAN_COUNT));
            let found: Vec<Vec<u8>>;
            (cursor, found) = self.reply(&scan).await?;
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
            let after = format!("({}", now.saturating_sub(report.interval()));
            let mut zcount = redis::cmd("ZCOUNT");
            zcount.arg((&keys[1], after, "+inf"));
            let [value, log] = &keys;
            clients.push(OtherClient {
                id,
                live_entries: self.reply(&zcount).await?,
                time_to_live: (self.time_to_live(value).await?).max(self.time_to_live(log).await?),
            });
        }
        Ok((clients, complete))
    }

    /// Returns the indices of the scripts with these hashes that the server knows.
    async fn loaded<const N: usize>(&self, hashes: [&str; N]) -> Result<Vec<usize>, Error> {
        let mut exists = redis::cmd("SCRIPT");
        exists.arg("EXISTS").arg(&hashes);
        let known: Vec<bool> = self.reply(&exists).await?;
        let indices = (0..).zip(known).filter(|(_, known)| *known);
        Ok(indices.map(|(index, _)| index).collect())
    }

    async fn time_to_live(&self, key: &str) -> Result<TimeToLive, Error> {
        reply::time_to_live(&self.reply(redis::cmd("PTTL").arg(key)).await?)
    }

    async fn reply<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        parsed(self.ask(None, command).await?.map_err(classify::failure)?)
    }
}

/// Returns a time by its milliseconds, if there are any.
fn time(millis: i64) -> Duration {
    Duration::from_millis(at_least_zero(millis))
}

/// Returns the text as a pattern that matches nothing else.
fn escaped(text: &str) -> String {
    let escape = |character| match character {
        '*' | '?' | '[' | ']' | '\\' => format!("\\{character}"),
        _ => character.to_string(),
    };
    text.chars().map(escape).collect()
}

/// The stored fields of a limit.
const FIELDS: [&str; 4] = ["rate", "interval", "type", "keepAliveTime"];

/// A reply of `diagnose.lua`: the server's clock, the stored fields of the limit, the times to live
/// of the keys, the value, the number of entries, and a page of them with their scores.
type LogPage = (
    i64,
    [Option<Vec<u8>>; 4],
    [i64; 5],
    Option<Vec<u8>>,
    u64,
    Vec<(Vec<u8>, f64)>,
);

impl Diagnosis {
    /// Begins the report on the limiter of these keys.
    fn begin(keys: [String; 5]) -> Self {
        Self {
            keys: RedisKeys(keys),
            settled: true,
            ..Self::default()
        }
    }

    /// Leaves out what this user may not read of one format, unless that is so of the other, too.
    fn permitted<T: Default>(&mut self, own: bool, seen: Result<T, Error>) -> Result<T, Error> {
        if self.unseen == Some(!own) {
            return seen;
        }
        let seen = readable(seen)?;
        if seen.is_none() {
            self.unseen = Some(own);
        }
        Ok(seen.unwrap_or_default())
    }

    /// Returns the stored interval; without one nothing has expired.
    fn interval(&self) -> i64 {
        self.number("interval").unwrap_or(i64::MAX)
    }

    /// Counts the entries of a page, and returns the sum of their permits.
    fn count(&mut self, log: &[(Vec<u8>, f64)], now: i64) -> i64 {
        let interval = self.interval();
        let mut logged = 0;
        for (member, score) in log {
            *self.entries_by_size.entry(member.len()).or_default() += 1;
            let permits = redisson::permits(member).unwrap_or(0);
            logged += i64::from(permits);
            // Whole milliseconds, except from other writers; beyond the range it is the nearest
            // number.
            let age = now.saturating_sub(*score as i64);
            if age >= interval {
                self.expired_entries += 1;
                continue;
            }
            self.live_permits = self.live_permits.saturating_add(permits.into());
            if (0..1000).contains(&age) {
                self.granted_lately = self.granted_lately.saturating_add(permits.into());
            }
            let left = time(interval.saturating_sub(age));
            self.next_free = Some(self.next_free.map_or(left, |next| next.min(left)));
            let ahead = age.saturating_neg();
            if ahead > ahead_of(interval) {
                self.entries_ahead += 1;
                self.furthest_ahead = self.furthest_ahead.max(time(ahead));
            }
        }
        logged
    }

    /// Compares the permits left with those of the log.
    fn compare(&mut self, logged: i64) {
        // The value of a sliding log does not expire, or later than its entries do.
        let interval = time(self.interval());
        let value_life = self.time_to_live[if self.per_client { 2 } else { 1 }];
        let ends = match value_life {
            TimeToLive::Left(left) if self.entries == 0 && left <= interval => Some(left),
            _ => None,
        };
        if ends.is_some() {
            (self.algorithm, self.next_free) = (Algorithm::FixedWindow, ends);
        } else if self.foreign_entries() == 0 && self.settled {
            self.drift = match (self.number("rate"), self.permits_left()) {
                (Some(rate), Some(left)) => Some(rate.saturating_sub(logged).saturating_sub(left)),
                (Some(_), None) if self.entries == 0 => Some(0),
                _ => None,
            };
        }
    }

    /// Reads the limit of a limiter in our own format.
    fn read_limit(&mut self, algorithm: Algorithm, rate: i64, interval: i64) {
        self.algorithm = algorithm;
        self.fields = vec![
            ("rate", rate.to_string()),
            ("interval", interval.to_string()),
            ("type", u8::from(false).to_string()),
        ];
    }

    /// Reads a log in our own format. Of several limits, the longest counts what is in use, and the
    /// one with the least room what is left.
    fn read_log(&mut self, state: &packed::log::State, now: i64) {
        let (interval, rate) = state.limits.first().copied().unwrap_or_default();
        self.read_limit(Algorithm::SlidingLog, rate, interval);
        self.shorter = state.limits.iter().skip(1).copied().collect();
        let within = |interval: i64| {
            let records = state.records.iter();
            records.filter(move |(time, _)| *time > now - interval)
        };
        let used = |interval| {
            let sum =
                within(interval).fold(0_i64, |sum, (_, permits)| sum.saturating_add(*permits));
            at_least_zero(sum)
        };
        self.entries = state.records.len() as u64;
        self.expired_entries = self.entries - within(interval).count() as u64;
        self.live_permits = used(interval);
        self.granted_lately = used(interval.min(1000));
        let left = |&(interval, rate): &(i64, i64)| rate.saturating_sub_unsigned(used(interval));
        if let Some(tightest) = state.limits.iter().min_by_key(|limit| left(limit)) {
            self.value = Some(left(tightest).to_string());
            let first = within(tightest.0).map(|(time, _)| time).min();
            self.next_free = first.map(|granted| time(granted + tightest.0 - now));
        }
    }

    /// Reads a window in our own format.
    fn read_window(&mut self, state: &packed::window::State, now: i64) {
        self.read_limit(Algorithm::FixedWindow, state.rate, state.interval);
        let used = if now < state.ends { state.used } else { 0 };
        self.value = Some(state.rate.saturating_sub(used).to_string());
        self.next_free = (used > 0).then_some(time(state.ends - now));
    }

    /// Reads the limit and the permits left of a GCRA limiter.
    fn read_gcra(&mut self, state: &State, now: i64) {
        self.read_limit(Algorithm::Gcra, state.rate, state.interval);
        let mut limiter = LimiterState {
            limit: Some(StoredLimit {
                rate: state.rate,
                interval: state.interval,
                ..StoredLimit::default()
            }),
            state: Gcra {
                stored: Some(*state),
                ends: state.tat.at,
                since: 0,
            },
        };
        // The last microsecond of the millisecond in which it was read, so no grant that was read
        // is later.
        let now = Now::at(now.saturating_mul(1000).saturating_add(999));
        let left = limiter.available(now, PermitId::NONE);
        self.value = left.ok().map(|left| left.to_string());
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
}
