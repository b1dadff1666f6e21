//! The report on a limiter as data, with all of its figures.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{
    releases::words_of,
    report::{Diagnosis, OtherClient},
};
use crate::{inspect::millis, store::TimeToLive};

impl Serialize for Diagnosis {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        self.write_summary(&mut map)?;
        let stored: BTreeMap<_, _> = self.fields.iter().cloned().collect();
        map.serialize_entry("stored", &stored)?;
        map.serialize_entry("value", &self.value)?;
        map.serialize_entry("pttl", &self.time_to_live.map(pttl))?;
        map.serialize_entry("in_own_format", &self.in_own_format)?;
        self.write_log_to(&mut map)?;
        map.serialize_entry("banned_ms", &millis(self.banned_for))?;
        map.serialize_entry("strikes", &self.strikes)?;
        map.serialize_entry("other_clients", &self.other_clients)?;
        map.serialize_entry("scanned_all", &self.scanned_all)?;
        let releases = self.redisson.as_ref();
        let releases = releases.map(|all| all.iter().map(|it| words_of(*it)).collect::<Vec<_>>());
        map.serialize_entry("redisson", &releases)?;
        map.serialize_entry("findings", &self.findings())?;
        map.end()
    }
}

impl Diagnosis {
    fn write_summary<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("name", self.name())?;
        // Not every stored limit has a text that can be read again.
        map.serialize_entry("limit", &self.limit().map(|limit| limit.to_string()))?;
        map.serialize_entry("algorithm", &self.algorithm.to_string())?;
        map.serialize_entry("left", &self.left())?;
        map.serialize_entry("used", &self.used())?;
        map.serialize_entry("granted_in_last_second", &self.granted_lately)?;
        map.serialize_entry("next_free_ms", &self.next_free.map(millis))?;
        let expires = match self.time_to_live[0].max(self.time_to_live[1]) {
            TimeToLive::Left(left) => Some(millis(left)),
            _ => None,
        };
        map.serialize_entry("expires_ms", &expires)
    }

    fn write_log_to<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("settled", &self.settled)?;
        map.serialize_entry("entries", &self.entries)?;
        map.serialize_entry("entries_by_size", &self.entries_by_size)?;
        map.serialize_entry("expired_entries", &self.expired_entries)?;
        map.serialize_entry("foreign_entries", &self.foreign_entries())?;
        map.serialize_entry("live_permits", &self.live_permits)?;
        map.serialize_entry("drift", &self.drift)?;
        map.serialize_entry("entries_ahead", &self.entries_ahead)?;
        map.serialize_entry("furthest_ahead_ms", &millis(self.furthest_ahead))
    }
}

impl Serialize for OtherClient {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(3))?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("live_entries", &self.live_entries)?;
        map.serialize_entry("pttl", &pttl(self.time_to_live))?;
        map.end()
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
