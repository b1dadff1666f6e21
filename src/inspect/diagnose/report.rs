//! What a look at a limiter has found, and what to do about it.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::RedissonReleases;
use crate::{
    limit::Algorithm,
    name::Name,
    store::{TimeToLive, redis::wire},
};

/// What [`RedisStore::diagnose`](crate::RedisStore::diagnose) has seen of a limiter.
///
/// `Display` prints it on one page, with what looks wrong and what to do about it at the end. That page names the limiter
/// and so whoever it is for: it is made for an operator's eyes. `Debug` leaves the name out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    pub(crate) name: Name,
    pub(crate) keys: Keys,
    pub(crate) per_client: bool,
    /// The limit as stored: `rate` (permits), `interval` (ms), `type` (0 overall, 1 per client) and `keepAliveTime` (ms, 0
    /// none); those that are there
    pub fields: Vec<(&'static str, String)>,
    /// How permits seem to be counted, as nothing in Redis says it: by a fixed window where there are permits left that
    /// vanish within an interval, and no log; by GCRA where the value is one of that. A fixed window or a GCRA limiter in
    /// which nothing is in use looks like any unused limiter
    pub algorithm: Algorithm,
    /// When each of the five keys vanishes: limit, value, this client's value, log, this client's log
    pub time_to_live: [TimeToLive; 5],
    /// Permits left as stored, if they are. Expired ones are credited when they are needed, so it is a lower bound. By GCRA,
    /// which stores none, those that are left now
    pub value: Option<String>,
    /// Whether nothing moved while it was read. Never false where the log has 1000 entries or less
    pub settled: bool,
    /// Entries in the log: grants, those that have expired and were not swept yet included
    pub entries: u64,
    /// The same by size in bytes. A Redisson wrote those of 8 (3.13.3 to 3.16.3), 20 (3.16.4 to 3.16.8), 13 (3.17.0 to
    /// 3.20.x) and 21 (since 3.21.0, and this crate); others are foreign
    pub entries_by_size: BTreeMap<usize, u64>,
    /// Entries that have expired and were not swept yet. That is as it should be: the next call that needs their permits
    /// credits them
    pub expired_entries: u64,
    /// Permits in use: the sum of the entries that have not expired
    pub live_permits: u64,
    /// Permits that were lost, or below zero, that are counted twice: the rate, less `value`, less the permits of all
    /// entries. Expired ones that were not swept yet are no drift. `None` where it cannot be told, as in a fixed window
    ///
    /// What [`RateLimiter::repair`](crate::RateLimiter::repair) would say.
    pub drift: Option<i64>,
    /// Entries whose score leads the server's clock by more than a tenth of the interval
    pub entries_ahead: u64,
    /// By how much the furthest of those leads it
    pub furthest_ahead: Duration,
    /// Clients other than this store's that have keys here, up to 1000; `None` if the server does not let us look
    pub other_clients: Option<Vec<OtherClient>>,
    /// Whether all keys of the database were looked at for other clients
    pub scanned_all: bool,
    /// Redisson's releases whose acquire script the server has been sent; `None` if the server does not let us look
    pub redisson: Option<Vec<RedissonReleases>>,
}

/// The five keys, in the order in which every script takes them. They hold an identity, which logs must not.
#[derive(Clone)]
pub(crate) struct Keys(pub(crate) [String; 5]);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// A client that has keys of its own in a limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherClient {
    /// The id of its Redisson instance, or that given to
    /// [`RedisStoreBuilder::client_id`](crate::RedisStoreBuilder::client_id)
    pub id: String,
    /// Its grants of the last interval
    pub live_entries: u64,
    /// When the last of its keys vanishes
    pub time_to_live: TimeToLive,
}

impl OtherClient {
    /// Whether nothing of it is in use, and nothing lets its keys vanish: what a process that has gone leaves behind. One
    /// that is alive and idle looks the same.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        self.live_entries == 0 && self.time_to_live == TimeToLive::Lasting
    }
}

/// Something that looks wrong. `Display` says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// There is no limit under the name, and nothing is counted
    NotInitialized,
    /// There is no limit, or a part of it, but permits are counted
    LimitMissing,
    /// The limit is not one: not a number, or out of range
    LimitUnreadable,
    /// So many permits are lost, or below zero, counted twice
    Drift(i64),
    /// There are grants, but no number of permits left
    ValueMissing,
    /// So many permits are in use, but there are no grants
    LogMissing(i64),
    /// So many entries that no Redisson wrote
    ForeignEntries(u64),
    /// So many entries of releases before 3.17.0
    OldEntries(u64),
    /// So many entries have scores ahead of the server's clock, up to this far
    ScoresAhead(u64, Duration),
    /// The limit vanishes though it has no keep-alive time
    LimitVanishes(Duration),
    /// The limit vanishes, and what is counted stays
    CountOutlives,
    /// Keys of the other rate type are there
    OtherRateType,
    /// So many other clients seem to have left keys behind
    LeftBehind(usize),
    /// A Redisson before 3.17.0 has been at work on this server
    OldRedisson,
    /// The limiter moved while it was read
    Moved,
    /// There may be more clients than were looked for
    ScanIncomplete,
    /// This user of the server may not look for other clients, or for scripts
    NotPermitted,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => f.write_str("no limit is set: call `try_set_rate`"),
            Self::LimitMissing => f.write_str(
                "no limit is set, but permits are counted, as Redisson's rename and unlink leave it: call `try_set_rate`, \
                 or `delete` if nobody needs it",
            ),
            Self::LimitUnreadable => {
                f.write_str("what is stored is not a limit: call `set_rate`, and find who wrote it")
            }
            Self::Drift(lost) if *lost > 0 => write!(
                f,
                "{lost} permits are lost, as Redisson's resent calls and a hand on the keys lose them: call `repair`"
            ),
            Self::Drift(lost) => write!(
                f,
                "{} permits are counted twice, as Redisson's `release` does: call `repair`",
                lost.unsigned_abs()
            ),
            Self::ValueMissing => f.write_str(
                "the permits left are not stored: call `repair` before a Java peer grants a whole new quota",
            ),
            Self::LogMissing(permits) => write!(
                f,
                "{permits} permits are in use, but their grants are gone, and a Java peer throws when it has to refuse: \
                 call `repair` to free them now; the next call from here would free them after an interval"
            ),
            Self::ForeignEntries(entries) => write!(
                f,
                "{entries} entries of the log were not written by any Redisson, so calls fail: find who writes them, \
                 and remove them with ZREM"
            ),
            Self::OldEntries(entries) => write!(
                f,
                "{entries} entries are of Redisson before 3.17.0: stop those processes, as they cannot read newer \
                 entries, nor newer Redisson theirs"
            ),
            Self::ScoresAhead(entries, furthest) => write!(
                f,
                "{entries} entries are ahead of the server's clock, up to {furthest:?}: run NTP where Java, or a \
                 `client_clock`, counts"
            ),
            Self::LimitVanishes(left) => write!(
                f,
                "the limit vanishes in {left:?} and has no keep-alive time: call `clear_expire` unless somebody wanted \
                 that; Redisson's `setRate` leaves old times running"
            ),
            Self::CountOutlives => f.write_str(
                "the limit vanishes and what is counted stays, as Redisson's `availablePermits` leaves it: the next \
                 acquire mends it, or call `clear_expire`",
            ),
            Self::OtherRateType => f.write_str(
                "there are keys of the other rate type, which nobody counts by: the limit was changed, or deleted by \
                 another client; remove them with UNLINK",
            ),
            Self::LeftBehind(clients) => write!(
                f,
                "{clients} other clients have lasting keys and nothing in use: remove the keys of those that have gone \
                 with UNLINK, and give the limit a keep-alive time"
            ),
            Self::OldRedisson => f.write_str(
                "a Redisson before 3.17.0 has been at work on this server: stop Java older than 3.17.0 where it shares \
                 limits, as it cannot read newer entries",
            ),
            Self::Moved => {
                f.write_str("it was in use while it was read, so drift is not told: look again, or when it is quiet")
            }
            Self::ScanIncomplete => {
                f.write_str("not all keys were looked at for other clients: there may be more of them")
            }
            Self::NotPermitted => f.write_str(
                "other clients or Redisson's releases are not told: the user may not call SCAN, ZCOUNT or SCRIPT EXISTS",
            ),
        }
    }
}

impl Diagnosis {
    /// The limiter's name in Redis.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Entries in the log that no Redisson wrote.
    #[must_use]
    pub fn foreign_entries(&self) -> u64 {
        self.entries_of(|size| !wire::is_member_size(size))
    }

    /// What looks wrong, the worst first. Empty where all is well.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.look_at_the_limit(&mut findings);
        self.look_at_the_books(&mut findings);
        self.look_at_lives(&mut findings);
        self.look_at_the_neighbours(&mut findings);
        findings
    }

    fn look_at_the_limit(&self, findings: &mut Vec<Finding>) {
        if ["rate", "interval", "type"]
            .iter()
            .any(|field| self.field(field).is_none())
        {
            findings.push(if self.value.is_some() || self.entries > 0 {
                Finding::LimitMissing
            } else {
                Finding::NotInitialized
            });
        } else if ["rate", "interval"]
            .iter()
            .any(|field| self.number(field).is_none_or(|n| n < 1))
            || !matches!(self.field("type"), Some("0" | "1"))
        {
            findings.push(Finding::LimitUnreadable);
        }
    }

    fn look_at_the_books(&self, findings: &mut Vec<Finding>) {
        let foreign = self.foreign_entries();
        if foreign > 0 {
            findings.push(Finding::ForeignEntries(foreign));
        }
        match self.drift {
            None if self.entries > 0 && !self.has_value() => findings.push(Finding::ValueMissing),
            None | Some(0) => {}
            Some(lost) if lost > 0 && self.entries == 0 => findings.push(Finding::LogMissing(lost)),
            Some(lost) => findings.push(Finding::Drift(lost)),
        }
        let old = self.entries_of(|size| matches!(size, 8 | 20));
        if old > 0 {
            findings.push(Finding::OldEntries(old));
        }
        if self.entries_ahead > 0 {
            findings.push(Finding::ScoresAhead(
                self.entries_ahead,
                self.furthest_ahead,
            ));
        }
        if !self.settled {
            findings.push(Finding::Moved);
        }
    }

    fn look_at_lives(&self, findings: &mut Vec<Finding>) {
        let [limit, value, client_value, log, client_log] = self.time_to_live;
        let (counted, others) = if self.per_client {
            ([client_value, client_log], [value, log])
        } else {
            ([value, log], [client_value, client_log])
        };
        if let TimeToLive::Left(left) = limit {
            if self.number("keepAliveTime").unwrap_or(0) == 0 {
                findings.push(Finding::LimitVanishes(left));
            }
            if counted.contains(&TimeToLive::Lasting) {
                findings.push(Finding::CountOutlives);
            }
        }
        if limit != TimeToLive::Missing && others.iter().any(|life| *life != TimeToLive::Missing) {
            findings.push(Finding::OtherRateType);
        }
    }

    fn look_at_the_neighbours(&self, findings: &mut Vec<Finding>) {
        let releases = self.redisson.iter().flatten();
        if releases
            .into_iter()
            .any(|releases| !releases.reads_our_entries)
        {
            findings.push(Finding::OldRedisson);
        }
        let clients = self.other_clients.iter().flatten();
        let left_behind = clients.filter(|client| client.is_left_behind()).count();
        if left_behind > 0 {
            findings.push(Finding::LeftBehind(left_behind));
        }
        if self.other_clients.is_some() && !self.scanned_all {
            findings.push(Finding::ScanIncomplete);
        }
        if self.other_clients.is_none() || self.redisson.is_none() {
            findings.push(Finding::NotPermitted);
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let (_, stored) = self.fields.iter().find(|(field, _)| *field == name)?;
        Some(stored)
    }

    fn number(&self, field: &str) -> Option<i64> {
        self.field(field)?.parse().ok()
    }

    fn has_value(&self) -> bool {
        let value = self.value.as_deref();
        value.is_some_and(|value| value.parse::<i64>().is_ok())
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
            None => f.write_str("\n  drift: not known"),
        }
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
        // Others have written names, ids and fields: what could steer a terminal is escaped.
        write!(f, "{}\n  limit:", self.name().escape_debug())?;
        for (field, stored) in &self.fields {
            write!(f, " {field} {}", stored.escape_debug())?;
        }
        if self.fields.is_empty() {
            f.write_str(" none")?;
        }
        f.write_str("\n  keys:\n")?;
        for (key, life) in self.keys.0.iter().zip(self.time_to_live) {
            match life {
                TimeToLive::Missing => {}
                TimeToLive::Lasting => writeln!(f, "    {} stays", key.escape_debug())?,
                TimeToLive::Left(left) => {
                    writeln!(f, "    {} vanishes in {left:?}", key.escape_debug())?;
                }
            }
        }
        match &self.value {
            Some(value) => writeln!(f, "  value: {}", value.escape_debug())?,
            None => writeln!(f, "  value: none")?,
        }
        match self.algorithm {
            Algorithm::SlidingLog => self.write_log(f)?,
            Algorithm::FixedWindow => {
                f.write_str("  counted by a fixed window, which ends when value vanishes")?;
            }
            Algorithm::Gcra => f.write_str("  counted by GCRA")?,
        }
        match self.other_clients.as_deref() {
            None => f.write_str("\n  other clients: not known")?,
            Some([]) => f.write_str("\n  other clients: none")?,
            Some(clients) => {
                write!(f, "\n  other clients: {}", clients.len())?;
                for client in clients.iter().take(SHOWN) {
                    let (id, live) = (client.id.escape_debug(), client.live_entries);
                    write!(f, "\n    {id}: {live} live entries")?;
                }
                if clients.len() > SHOWN {
                    f.write_str("\n    and so on")?;
                }
            }
        }
        f.write_str("\n  Redisson on this server, since it last lost its scripts:")?;
        match self.redisson.as_deref() {
            None => f.write_str(" not known")?,
            Some([]) => f.write_str(" none")?,
            Some(loaded) => {
                for releases in loaded {
                    write!(f, "\n    {releases}")?;
                }
            }
        }
        let findings = self.findings();
        if findings.is_empty() {
            return f.write_str("\nNothing looks wrong.");
        }
        f.write_str("\nWhat looks wrong:")?;
        for finding in findings {
            write!(f, "\n- {finding}")?;
        }
        Ok(())
    }
}

/// Other clients that the page names.
const SHOWN: usize = 20;
