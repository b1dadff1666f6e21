//! The report on a limiter, with a remedy for each finding.

use std::{cmp::Reverse, collections::BTreeMap, fmt, time::Duration};

use super::releases::{READS_OURS, words_of};
use crate::{
    inspect::{
        finding::{Finding, Severity, add, write_findings},
        format_of,
    },
    macros::opaque,
    store::{TimeToLive, redis::redisson},
    values::limit::{Algorithm, Limit, StoredLimit},
};

/// The result of [`RedisStore::diagnose`](crate::RedisStore::diagnose).
///
/// `Display` prints it on one page, which ends with the findings and their remedies. That page has
/// the limiter's name and so its caller's identity: it is for an operator. `Debug` leaves the name
/// out.
///
/// With the feature `serde` it is serialized as a map with all that was read, the name included. A
/// member that is not known is null:
///
/// - `name`, `limit` as text, `algorithm`, `left`, `used` and `findings`, as the methods return
///   them;
/// - `granted_in_last_second`, the permits in use that were granted since, by their scores;
///   `next_free_ms`, until the first permit in use is free; `expires_ms`, until the limit and the
///   permits left are gone;
/// - `stored`, the fields of the limit, and `value`, the permits left, a lower bound: expired ones
///   are credited when they are needed. By the calendar it is the date on which the window began,
///   and the permits used, as in `20261101 37`;
/// - `pttl`, of the keys of limit, value, this client's value, log and this client's log, as Redis
///   replies it: -1 for one that stays, -2 for none; `in_own_format`, as the method returns it, and
///   the format that is `unseen`: `own` or `redisson`, null if all was read;
/// - `entries` of the log, `entries_by_size` in bytes, and those that are `expired_entries` and
///   `foreign_entries`; `live_permits`, in use; `entries_ahead` of the server's clock by more than
///   a tenth of the interval, and `furthest_ahead_ms`; `settled`, whether nothing moved meanwhile;
/// - `drift`, the permits that are lost or, below zero, counted twice, which
///   [`RateLimiter::repair`](crate::RateLimiter::repair) would return;
/// - `banned_ms`, null if it is not banned, and `strikes`, refused calls that may count towards a
///   ban;
/// - `other_clients`, up to 1000, each with `id`, `live_entries` of the last interval, and the
///   `pttl` of its last key; `scanned_all`, whether all keys were searched for them;
/// - `redisson`, its releases whose acquire script the server has received.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    pub(super) keys: RedisKeys,
    pub(super) per_client: bool,
    /// The stored fields of the limit: `rate` (permits), `interval` (ms), `type` (0 overall, 1 per
    /// client) and `keepAliveTime` (ms, 0 none); missing ones are left out
    pub(super) fields: Vec<(&'static str, String)>,
    /// The shorter ones of several limits, each as its interval (ms) and its permits
    pub(super) shorter: Vec<(i64, i64)>,
    /// The algorithm that permits seem to be counted by
    pub(super) algorithm: Algorithm,
    /// The time to live of the five keys: limit, value, this client's value, log, this client's log
    pub(super) time_to_live: [TimeToLive; 5],
    /// The stored number of permits left, a lower bound: expired permits are credited when they are
    /// needed. GCRA stores no number; then it is the number left now. By the calendar it is the
    /// date on which the window began and the permits used in it, as in `20261101 37`, whose key
    /// stands instead of the value's
    pub(super) value: Option<String>,
    /// Set if it is in our own format, as that of a rule
    pub(super) in_own_format: bool,
    /// The format of which this user may not read all: true for our own
    pub(super) unseen: Option<bool>,
    /// Set if nothing moved while it was read. Always set for a log of at most 1000 entries
    pub(super) settled: bool,
    /// Entries in the log: grants, including those that have expired and were not swept yet
    pub(super) entries: u64,
    /// The entries by size in bytes. Redisson wrote those of 8 (3.13.3 to 3.16.3), 20 (3.16.4 to
    /// 3.16.8), 13 (3.17.0 to 3.20.x) and 21 (since 3.21.0, and this crate); others are foreign
    pub(super) entries_by_size: BTreeMap<usize, u64>,
    /// Entries that have expired and were not swept yet. This is normal: the next call that needs
    /// their permits credits them
    pub(super) expired_entries: u64,
    /// Permits in use: the sum of the entries that have not expired
    pub(super) live_permits: u64,
    /// The permits in use that were granted within the last second, by their scores
    pub(super) granted_lately: u64,
    /// The time until the first permit in use is free, of several limits for the one with the least
    /// room; `None` if none is in use
    pub(super) next_free: Option<Duration>,
    /// Permits that were lost or, below zero, counted twice: the rate, less `value`, less the
    /// permits of all entries. Expired entries that were not swept yet are not drift. `None` if it
    /// cannot be determined, as for a fixed window
    ///
    /// The number that [`RateLimiter::repair`](crate::RateLimiter::repair) would return.
    pub(super) drift: Option<i64>,
    /// Entries whose score is ahead of the server's clock by more than a tenth of the interval
    pub(super) entries_ahead: u64,
    /// The distance of the furthest of them
    pub(super) furthest_ahead: Duration,
    /// The time until the ban of the caller ends; zero if it is not banned. See
    /// [`Rule::ban`](crate::Rule::ban)
    pub(super) banned_for: Duration,
    /// Refused calls that may count towards a ban, or have counted and were not swept yet
    pub(super) strikes: u64,
    /// Other clients than this store's that have keys here, up to 1000; `None` if the server does
    /// not permit the search
    pub(super) other_clients: Option<Vec<OtherClient>>,
    /// Set if all keys of the database were searched for other clients
    pub(super) scanned_all: bool,
    /// The indices of Redisson's releases whose acquire script the server has received; `None` if
    /// the server does not permit the query
    pub(super) redisson: Option<Vec<usize>>,
}

/// The five keys, in the order in which every script takes them; the first is the limiter's name.
/// They contain an identity, which logs must not.
#[derive(Clone, Default)]
pub(super) struct RedisKeys(pub(super) [String; 5]);

opaque!(RedisKeys);

/// A client that has keys of its own in a limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherClient {
    /// The id of its Redisson instance, or that given to
    /// [`RedisStoreBuilder::client_id`](crate::RedisStoreBuilder::client_id)
    pub(super) id: String,
    /// Its grants of the last interval
    pub(super) live_entries: u64,
    /// The time to live of its last key
    pub(super) time_to_live: TimeToLive,
}

impl OtherClient {
    /// Returns whether nothing of it is in use and its keys never expire. A process that has ended
    /// leaves this behind, but one that is alive and idle looks the same.
    fn is_left_behind(&self) -> bool {
        self.live_entries == 0 && self.time_to_live == TimeToLive::Lasting
    }
}

impl Diagnosis {
    /// Returns the limiter's name in Redis.
    pub fn name(&self) -> &str {
        let RedisKeys([name, ..]) = &self.keys;
        name
    }

    /// Returns the limit; `None` if there is none, or one that cannot be read.
    pub fn limit(&self) -> Option<Limit> {
        let part = |interval, rate| {
            let stored = StoredLimit {
                rate,
                interval,
                ..StoredLimit::default()
            };
            stored.limit()
        };
        let longest = part(self.number("interval")?, self.number("rate")?)?;
        let mut shorter = self.shorter.iter();
        let limit = shorter.try_fold(longest, |limit, (interval, rate)| {
            limit.joined(part(*interval, *rate)?).ok()
        })?;
        Some(if self.per_client {
            limit.per_client()
        } else {
            limit
        })
    }

    /// Returns the permits that are free now, also those that no call has credited yet: below zero
    /// if more are in use than a lowered limit has. `None` if that cannot be determined. Of several
    /// limits, those of the one with the least.
    pub fn left(&self) -> Option<i64> {
        let rate = self.number("rate");
        match self.algorithm {
            Algorithm::SlidingLog if !self.in_own_format => {
                let in_use = i64::try_from(self.live_permits).unwrap_or(i64::MAX);
                let free = rate?.saturating_sub(in_use);
                Some(free.saturating_sub(self.drift.unwrap_or(0)))
            }
            _ => self.permits_left().or(rate),
        }
    }

    /// Returns the permits of the limit that are not [`left`](Self::left), those in use of the
    /// longest of several, or those used by the calendar, whose limit is not stored.
    pub fn used(&self) -> Option<i64> {
        match self.algorithm {
            Algorithm::Calendar => self.value.as_deref()?.split_once(' ')?.1.parse().ok(),
            _ if !self.shorter.is_empty() => i64::try_from(self.live_permits).ok(),
            _ => Some(self.number("rate")?.saturating_sub(self.left()?)),
        }
    }

    /// Returns whether Redis has anything of it: a limit, permits in use, or the ban of its caller.
    pub fn exists(&self) -> bool {
        self.has_state() || self.banned_for().is_some()
    }

    /// Returns whether Redis has a limit or permits in use, and not the ban of its caller alone.
    pub fn has_state(&self) -> bool {
        self.time_to_live != [TimeToLive::Missing; 5]
    }

    /// Returns the time until the ban of its caller ends; `None` if it is not banned.
    pub fn banned_for(&self) -> Option<Duration> {
        Some(self.banned_for).filter(|left| !left.is_zero())
    }

    /// Returns whether it is in our own format, as that of a rule, which
    /// [`RateLimiter::of_rule`](crate::RateLimiter::of_rule) is for.
    pub fn in_own_format(&self) -> bool {
        self.in_own_format
    }

    /// Returns the format of which the server does not let this user read all: there it may have a
    /// limiter or a ban, too. `None` if all was read.
    pub fn unseen(&self) -> Option<&'static str> {
        self.unseen.map(format_of)
    }

    /// Returns the algorithm that permits seem to be counted by, which Redis does not store.
    ///
    /// It is a fixed window if there is no log and the permits left expire within an interval; GCRA
    /// if the value is one of GCRA; the calendar if there is nothing but its key. A fixed window or
    /// a GCRA limiter without permits in use looks like any unused limiter.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the number of log entries that no Redisson wrote.
    pub(super) fn foreign_entries(&self) -> u64 {
        self.entries_of(|size| !redisson::is_member_size(size))
    }

    /// Returns the findings, the worst first. Empty if there are none.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Some(format) = self.unseen() {
            add!(found, Note "not_permitted": "what Redis has of it in {format} is unknown: the \
                user may not read all of its keys");
        }
        // By the calendar the limit is in the code, and any number of permits may be used.
        if self.algorithm != Algorithm::Calendar {
            self.look_at_the_limit(&mut found);
            self.look_at_the_counts(&mut found);
            self.look_at_the_log(&mut found);
            self.look_at_lives(&mut found);
            self.look_at_the_neighbours(&mut found);
        }
        found.sort_by_key(|finding| Reverse(finding.severity()));
        found
    }

    /// Returns the worst severity; `None` if there are no findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings().first().map(Finding::severity)
    }

    fn look_at_the_limit(&self, found: &mut Vec<Finding>) {
        // Of a rule Redis has no limit before permits are in use, and may have a ban.
        let may_be_elsewhere = self.in_own_format || self.unseen.is_some();
        if !self.has_state() && (may_be_elsewhere || self.exists()) {
            return;
        }
        let is_missing = |field: &&str| self.field(field).is_none();
        let is_invalid = |field: &&str| self.number(field).is_none_or(|number| number < 1);
        if ["rate", "interval", "type"].iter().any(is_missing) {
            if self.value.is_some() || self.entries > 0 {
                add!(found, Error "limit_missing": "no limit is set, but permits are counted, as \
                    after Redisson's rename and unlink: call `try_set_rate`, or `delete` if it \
                    is not needed");
            } else {
                add!(found, Note "not_initialized": "no limit is set: call `try_set_rate`");
            }
        } else if ["rate", "interval"].iter().any(is_invalid)
            || !matches!(self.field("type"), Some("0" | "1"))
        {
            add!(found, Error "limit_unreadable": "the stored limit is invalid: call `set_rate`, \
                and find out who wrote it");
        }
    }

    fn look_at_the_counts(&self, found: &mut Vec<Finding>) {
        match self.drift {
            None if self.entries > 0 && self.permits_left().is_none() => {
                add!(found, Warning "value_missing": "the number of permits left is missing: call \
                    `repair` before a Java peer grants a whole new quota");
            }
            None | Some(0) => {}
            Some(lost @ 1..) if self.entries == 0 => {
                add!(found, Warning "log_missing": "{lost} permits are in use, but their grants \
                    are missing, and a Java peer throws when it has to refuse: call `repair` to \
                    free them now; otherwise the next call from here frees them after an interval");
            }
            Some(lost @ 1..) => {
                add!(found, Warning "drift": "{lost} permits are lost, as by Redisson's resent \
                    calls or a manual change of the keys: call `repair`");
            }
            Some(twice) => {
                add!(found, Warning "drift": "{} permits are counted twice, as by Redisson's \
                    `release`: call `repair`", twice.unsigned_abs());
            }
        }
    }

    fn look_at_the_log(&self, found: &mut Vec<Finding>) {
        let foreign = self.foreign_entries();
        if foreign > 0 {
            add!(found, Error "foreign_entries": "{foreign} entries of the log were written by no \
                Redisson, so calls fail: find out who writes them, and remove them with ZREM");
        }
        let old = self.entries_of(|size| matches!(size, 8 | 20));
        if old > 0 {
            add!(found, Warning "old_entries": "{old} entries were written by Redisson before \
                3.17.0: stop those processes, because they cannot read newer entries, nor newer \
                Redisson theirs");
        }
        if self.entries_ahead > 0 {
            add!(found, Warning "scores_ahead": "{} entries are ahead of the server's clock, up to \
                {:?}: run NTP on the machines where Java or a `client_clock` counts",
                self.entries_ahead, self.furthest_ahead);
        }
        if !self.settled {
            add!(found, Note "moved": "it moved while it was read, so drift is unknown: try again, \
                or when it is quiet");
        }
    }

    fn look_at_lives(&self, found: &mut Vec<Finding>) {
        let [limit, value, client_value, log, client_log] = self.time_to_live;
        let (mut counted, mut others) = ([value, log], [client_value, client_log]);
        if self.per_client {
            (counted, others) = (others, counted);
        }
        if let TimeToLive::Left(left) = limit {
            if self.number("keepAliveTime").unwrap_or(0) == 0 {
                add!(found, Warning "limit_vanishes": "the limit expires in {left:?} and has no \
                    keep-alive time: call `clear_expire` unless this is intended; Redisson's \
                    `setRate` leaves an old time to live in place");
            }
            if counted.contains(&TimeToLive::Lasting) {
                add!(found, Note "count_outlives": "the limit expires but its counts do not, as \
                    after Redisson's `availablePermits`: the next acquire corrects it, or call \
                    `clear_expire`");
            }
        }
        if limit != TimeToLive::Missing && others != [TimeToLive::Missing; 2] {
            add!(found, Note "other_rate_type": "there are unused keys of the other rate type: the \
                limit was changed, or deleted by another client; remove them with UNLINK");
        }
    }

    fn look_at_the_neighbours(&self, found: &mut Vec<Finding>) {
        let mut releases = self.redisson.iter().flatten();
        if releases.any(|index| *index < READS_OURS) {
            add!(found, Warning "old_redisson": "a Redisson before 3.17.0 has used this server: \
                stop it if it shares limits, because it cannot read newer entries");
        }
        let clients = self.other_clients.iter().flatten();
        let left_behind = clients.filter(|client| client.is_left_behind()).count();
        if left_behind > 0 {
            add!(found, Note "left_behind": "{left_behind} other clients have keys without a time \
                to live and nothing in use: remove the keys of those that have ended with UNLINK, \
                and give the limit a keep-alive time");
        }
        if self.other_clients.is_some() && !self.scanned_all {
            add!(found, Note "scan_incomplete": "not all keys were searched for other clients: \
                there may be more of them");
        }
        let is_refused = self.other_clients.is_none() && self.unseen != Some(false);
        if is_refused || self.redisson.is_none() {
            add!(found, Note "not_permitted": "other clients or Redisson's releases are unknown: \
                the user may not call SCAN, ZCOUNT or SCRIPT EXISTS");
        }
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let (_, stored) = self.fields.iter().find(|(field, _)| *field == name)?;
        Some(stored)
    }

    pub(super) fn number(&self, field: &str) -> Option<i64> {
        self.field(field)?.parse().ok()
    }

    pub(super) fn permits_left(&self) -> Option<i64> {
        self.value.as_deref()?.parse().ok()
    }

    fn write_log(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  log: {} entries, {} of them expired and not swept yet; {} permits in use",
            self.entries, self.expired_entries, self.live_permits
        )?;
        for (size, entries) in &self.entries_by_size {
            let writer = match size {
                8 => "Redisson 3.13.3 to 3.16.3",
                20 => "Redisson 3.16.4 to 3.16.8",
                13 => "Redisson 3.17.0 to 3.20",
                21 => "Redisson since 3.21.0, and this crate",
                _ => "foreign",
            };
            write!(f, "\n    {entries} of {size} bytes: {writer}")?;
        }
        match self.drift {
            Some(drift) => write!(f, "\n  drift: {drift}"),
            None => f.write_str("\n  drift: unknown"),
        }
    }

    fn write_neighbours(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = self.other_clients.as_deref();
        write!(f, "\n  other clients: {}", count_of(clients))?;
        for client in clients.unwrap_or_default().iter().take(SHOWN) {
            let (id, live) = (client.id.escape_debug(), client.live_entries);
            write!(f, "\n    {id}: {live} live entries")?;
        }
        if clients.unwrap_or_default().len() > SHOWN {
            f.write_str("\n    and so on")?;
        }
        let loaded = self.redisson.as_deref();
        let count = count_of(loaded);
        write!(
            f,
            "\n  Redisson on this server, since it last lost its scripts: {count}"
        )?;
        let mut loaded = loaded.unwrap_or_default().iter();
        loaded.try_for_each(|index| write!(f, "\n    {}", words_of(*index)))
    }

    fn entries_of(&self, sizes: impl Fn(usize) -> bool) -> u64 {
        let matching = self
            .entries_by_size
            .iter()
            .filter(|(size, _)| sizes(**size));
        matching.map(|(_, entries)| entries).sum()
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Others wrote these names, ids and fields: characters that could steer a terminal are
        // escaped.
        write!(f, "{}\n  limit:", self.name().escape_debug())?;
        for (field, stored) in &self.fields {
            write!(f, " {field} {}", stored.escape_debug())?;
        }
        if self.fields.is_empty() {
            f.write_str(" none")?;
        }
        for (interval, rate) in &self.shorter {
            write!(f, " and rate {rate} interval {interval}")?;
        }
        f.write_str("\n  keys:\n")?;
        for (key, life) in self.keys.0.iter().zip(self.time_to_live) {
            match life {
                TimeToLive::Missing => {}
                TimeToLive::Lasting => writeln!(f, "    {} stays", key.escape_debug())?,
                TimeToLive::Left(left) => {
                    writeln!(f, "    {} expires in {left:?}", key.escape_debug())?;
                }
            }
        }
        let value = self.value.as_deref().unwrap_or("none");
        writeln!(f, "  value: {}", value.escape_debug())?;
        match self.algorithm {
            Algorithm::SlidingLog => self.write_log(f)?,
            Algorithm::FixedWindow => {
                f.write_str("  counted by a fixed window, which ends when value expires")?;
            }
            Algorithm::Gcra => f.write_str("  counted by GCRA")?,
            Algorithm::Calendar => f.write_str(
                "  counted by the calendar: the date on which the window began, and the permits \
                    used",
            )?,
        }
        if let Some(left) = self.banned_for() {
            write!(f, "\n  banned for {left:?}: `unban` ends it")?;
        }
        if self.strikes > 0 {
            write!(
                f,
                "\n  refused calls that may lead to a ban: {}",
                self.strikes
            )?;
        }
        self.write_neighbours(f)?;
        let findings = self.findings();
        if findings.is_empty() {
            return f.write_str("\nNothing looks wrong.");
        }
        f.write_str("\nWhat looks wrong:")?;
        write_findings(f, &findings)
    }
}

/// The maximum number of other clients on the page.
const SHOWN: usize = 20;

/// Returns how many there are, in words where there is no number.
fn count_of<T>(all: Option<&[T]>) -> String {
    match all {
        None => "unknown".to_owned(),
        Some([]) => "none".to_owned(),
        Some(all) => all.len().to_string(),
    }
}
