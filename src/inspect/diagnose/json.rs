//! The report on a limiter as data, with all of its figures.

use std::collections::BTreeMap;

use serde::ser::{Serialize, Serializer};

use super::{
    releases::words_of,
    report::{Diagnosis, OtherClient},
};
use crate::{
    inspect::{members, millis},
    store::TimeToLive,
};

impl Serialize for Diagnosis {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let expires = match self.time_to_live[0].max(self.time_to_live[1]) {
            TimeToLive::Left(left) => Some(millis(left)),
            _ => None,
        };
        let stored: BTreeMap<_, _> = self.fields.iter().cloned().collect();
        let releases = self.redisson.as_ref();
        let releases = releases.map(|all| all.iter().map(|it| words_of(*it)).collect::<Vec<_>>());
        let unseen = (self.unseen).map(|own| if own { "own" } else { "redisson" });
        members!(to,
            "name": self.name(),
            // Not every stored limit has a text that can be read again.
            "limit": self.limit().map(|limit| limit.to_string()),
            "algorithm": self.algorithm.to_string(), "left": self.left(), "used": self.used(),
            "granted_in_last_second": self.granted_lately,
            "next_free_ms": self.next_free.map(millis), "expires_ms": expires,
            "stored": stored, "value": self.value, "pttl": self.time_to_live.map(pttl),
            "in_own_format": self.in_own_format, "unseen": unseen, "settled": self.settled,
            "entries": self.entries, "entries_by_size": self.entries_by_size,
            "expired_entries": self.expired_entries,
            "foreign_entries": self.foreign_entries(), "live_permits": self.live_permits,
            "drift": self.drift, "entries_ahead": self.entries_ahead,
            "furthest_ahead_ms": millis(self.furthest_ahead),
            "banned_ms": self.banned_for().map(millis), "strikes": self.strikes,
            "other_clients": self.other_clients, "scanned_all": self.scanned_all,
            "redisson": releases, "findings": self.findings(),
        )
    }
}

impl Serialize for OtherClient {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (id, live) = (&self.id, self.live_entries);
        members!(to, "id": id, "live_entries": live, "pttl": pttl(self.time_to_live))
    }
}

/// Returns a time to live as PTTL replies it.
fn pttl(life: TimeToLive) -> i64 {
    match life {
        TimeToLive::Missing => -2,
        TimeToLive::Lasting => -1,
        TimeToLive::Left(left) => millis(left),
    }
}
