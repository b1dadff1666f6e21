//! What the keys of one limiter hold, and what Redisson does to them: the Java half of the model.
//!
//! Written from `RRateLimiter`'s behaviour on the wire. The tests compare real Redisson with it
//! after each step, so they test the model as well.

use std::{collections::BTreeMap, fmt};

pub use super::said::{Caller, Condition, Outcome, Reply};

/// The wire behaviour of a Redisson version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// 3.22.1 to 3.34: no keepAliveTime; a recount counts entries and not their permits
    CountsEntries,
    /// 3.38 and newer
    KeepsAlive,
}

impl Generation {
    pub fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let (major, minor): (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match (major, minor) {
            (3, 23..=34) => Self::CountsEntries,
            (3, 52..) | (4, ..=3) | (4, 4..=7) => Self::KeepsAlive,
            _ => panic!("the model does not know Redisson {version}: read its scripts first"),
        }
    }
}

/// Time to live as it was set; real time runs a few milliseconds meanwhile. `None`: no TTL.
pub type Ttl = Option<i64>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub rate: i64,
    pub interval: i64,
    pub per_client: bool,
    /// The field; hashes of old versions lack it.
    pub keep_alive: Option<i64>,
    pub ttl: Ttl,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub score: i64,
    /// `None` until the step that made it is over and its random bytes are known.
    pub member: Option<Vec<u8>>,
    pub permits: i64,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.permits, self.score)
    }
}

/// Value and log, shared or of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    pub value: Option<i64>,
    pub value_ttl: Ttl,
    pub log: Vec<Entry>,
    pub log_ttl: Ttl,
}

/// All keys of one name. The shared pair has the client id "".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub limit: Option<Limit>,
    pub pairs: BTreeMap<String, Pair>,
}

impl Pair {
    pub fn sum(&self) -> i64 {
        self.log.iter().map(|entry| entry.permits).sum()
    }

    /// ZADD: a member that is there gets the new score.
    pub fn add(&mut self, score: i64, permits: i64, member: Option<Vec<u8>>) {
        // Where the set was gone, its TTL went with it.
        self.tidy();
        if member.is_some() {
            self.log.retain(|entry| entry.member != member);
        }
        self.log.push(Entry {
            score,
            member,
            permits,
        });
        self.sort();
    }

    pub fn holds(&self, member: Option<&Vec<u8>>) -> bool {
        member.is_some() && self.log.iter().any(|entry| entry.member.as_ref() == member)
    }

    /// As the sorted set: by score, then by bytes.
    pub fn sort(&mut self) {
        self.log
            .sort_by(|a, b| (a.score, &a.member).cmp(&(b.score, &b.member)));
    }

    /// A key that holds nothing is no key, and has no TTL.
    pub fn tidy(&mut self) {
        if self.value.is_none() {
            self.value_ttl = None;
        }
        if self.log.is_empty() {
            self.log_ttl = None;
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// SET without KEEPTTL.
    fn set(&mut self, value: i64) {
        self.value = Some(value);
        self.value_ttl = None;
    }

    fn expire(&mut self, ttl: Ttl) {
        self.value_ttl = ttl;
        self.log_ttl = ttl;
        self.tidy();
    }
}

impl State {
    pub fn pair(&mut self, client: &str) -> &mut Pair {
        let per_client = self.limit.as_ref().is_some_and(|limit| limit.per_client);
        self.pairs
            .entry(if per_client {
                client.to_owned()
            } else {
                String::new()
            })
            .or_default()
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        let pairs = self.pairs.values();
        usize::from(self.limit.is_some())
            + pairs
                .map(|pair| usize::from(pair.value.is_some()) + usize::from(!pair.log.is_empty()))
                .sum::<usize>()
    }

    pub fn tidy(&mut self) {
        self.pairs.values_mut().for_each(Pair::tidy);
    }

    /// Both pairs that a caller's five keys name.
    fn both<'a>(&'a mut self, client: &'a str) -> impl Iterator<Item = &'a mut Pair> {
        self.pairs
            .iter_mut()
            .filter(move |(id, _)| id.is_empty() || *id == client)
            .map(|(_, pair)| pair)
    }

    pub fn java_acquire(
        &mut self,
        generation: Generation,
        caller: &Caller,
        permits: i64,
    ) -> Outcome {
        let Some(Limit { rate, interval, .. }) = self.limit else {
            return Reply::NotInitialized.into();
        };
        if rate < permits {
            return Reply::AboveRate.into();
        }
        // Packed into 32 bits without a sign.
        let packed = i64::from(permits as u32);
        let now = caller.now;
        let pair = self.pair(&caller.client);
        let mut wait = None;
        if let Some(mut value) = pair.value {
            let released = java_sweep(pair, now - interval);
            if released > 0 {
                value += released;
                if value > rate {
                    let used = match generation {
                        Generation::CountsEntries => pair.log.len() as i64,
                        Generation::KeepsAlive => pair.sum(),
                    };
                    value = rate - used;
                }
                pair.set(value);
            }
            if value < permits {
                let Some(oldest) = pair.log.first() else {
                    // What was written before stays: a script is not undone.
                    pair.tidy();
                    return Reply::NilArithmetic.into();
                };
                wait = Some(3 + interval - (now - oldest.score));
            } else {
                pair.add(now, packed, caller.member.clone());
                pair.value = Some(value - permits);
            }
        } else {
            pair.set(rate - permits);
            pair.add(now, packed, caller.member.clone());
        }
        self.java_keep_alive(generation, &caller.client);
        Outcome {
            wait,
            ..if wait.is_some() {
                Reply::Denied
            } else {
                Reply::Granted
            }
            .into()
        }
    }

    pub fn java_available(&mut self, caller: &Caller) -> Reply {
        let Some(Limit { rate, interval, .. }) = self.limit else {
            return Reply::NotInitialized;
        };
        let pair = self.pair(&caller.client);
        let Some(value) = pair.value else {
            pair.set(rate);
            return Reply::Number(rate);
        };
        let released = java_sweep(pair, caller.now - interval);
        if released > 0 {
            pair.set(value + released);
        }
        pair.tidy();
        Reply::Number(value + released)
    }

    /// Since 3.52.
    pub fn java_release(&mut self, caller: &Caller, permits: i64) -> Reply {
        if permits == 0 {
            return Reply::Done;
        }
        let Some(Limit { rate, .. }) = self.limit else {
            return Reply::NotInitialized;
        };
        let pair = self.pair(&caller.client);
        let value = pair.value.unwrap_or(rate);
        pair.set(rate.min(value + permits));
        self.java_keep_alive(Generation::KeepsAlive, &caller.client);
        Reply::Done
    }

    pub fn java_try_set_rate(&mut self, generation: Generation, limit: &Limit) -> Reply {
        let field = match generation {
            Generation::CountsEntries => None,
            Generation::KeepsAlive => limit.keep_alive,
        };
        match &mut self.limit {
            // A "no" that still adds the field that an old hash lacks.
            Some(stored) => {
                stored.keep_alive = stored.keep_alive.or(field);
                Reply::Flag(false)
            }
            none => {
                let ttl = field.filter(|time| *time > 0);
                *none = Some(Limit {
                    keep_alive: field,
                    ttl,
                    ..limit.clone()
                });
                Reply::Flag(true)
            }
        }
    }

    /// The fields as both forms of setRate write them; an old TTL runs on.
    fn java_fields(&mut self, generation: Generation, limit: &Limit) {
        let (old_field, old_ttl) = self
            .limit
            .as_ref()
            .map_or((None, None), |old| (old.keep_alive, old.ttl));
        let (field, ttl) = match generation {
            Generation::CountsEntries => (old_field, old_ttl),
            Generation::KeepsAlive => (
                limit.keep_alive,
                limit.keep_alive.filter(|time| *time > 0).or(old_ttl),
            ),
        };
        self.limit = Some(Limit {
            keep_alive: field,
            ttl,
            ..limit.clone()
        });
    }

    pub fn java_set_rate(
        &mut self,
        generation: Generation,
        caller: &Caller,
        limit: &Limit,
    ) -> Reply {
        self.java_fields(generation, limit);
        self.pair(&caller.client).clear();
        Reply::Done
    }

    /// setRate(args) and, where a limit must be there, updateRate(args). Since 4.4.
    pub fn java_update_rate(
        &mut self,
        caller: &Caller,
        limit: &Limit,
        keep: bool,
        must_exist: bool,
    ) -> Reply {
        let answer = if must_exist {
            Reply::Flag(true)
        } else {
            Reply::Done
        };
        let old_type = self.limit.as_ref().map(|old| old.per_client);
        if must_exist && old_type.is_none() {
            return Reply::Flag(false);
        }
        self.java_fields(Generation::KeepsAlive, limit);
        if old_type.is_some_and(|old| old != limit.per_client) {
            self.both(&caller.client).for_each(Pair::clear);
        } else if keep {
            let pair = self.pair(&caller.client);
            pair.log
                .retain(|entry| entry.score > caller.now - limit.interval);
            let value = (limit.rate - pair.sum()).max(0);
            pair.set(value);
            pair.tidy();
            self.java_keep_alive(Generation::KeepsAlive, &caller.client);
        } else {
            self.pair(&caller.client).clear();
        }
        answer
    }

    fn java_keep_alive(&mut self, generation: Generation, client: &str) {
        let Some(limit) = &mut self.limit else { return };
        let field = limit
            .keep_alive
            .filter(|time| *time > 0 && generation == Generation::KeepsAlive);
        if field.is_some() {
            limit.ttl = field;
        }
        let ttl = limit.ttl;
        if ttl.is_some() {
            self.pair(client).expire(ttl);
        }
        self.tidy();
    }

    /// PEXPIRE on the five keys, in both languages.
    pub fn expire(&mut self, client: &str, ttl: i64, condition: Condition) -> Reply {
        let mut taken = false;
        let mut put = |exists: bool, old: &mut Ttl| {
            let wanted = match (condition, *old) {
                // A key without a TTL counts as one that never expires.
                (Condition::Always, _) | (Condition::IfLess, None) => true,
                (Condition::IfGreater, None) => false,
                (Condition::IfSet, old) => old.is_some(),
                (Condition::IfNotSet, old) => old.is_none(),
                (Condition::IfGreater, Some(old)) => ttl > old,
                (Condition::IfLess, Some(old)) => ttl < old,
            };
            if exists && wanted {
                *old = Some(ttl);
                taken = true;
            }
        };
        if let Some(limit) = &mut self.limit {
            put(true, &mut limit.ttl);
        }
        for pair in self.both(client) {
            put(pair.value.is_some(), &mut pair.value_ttl);
            put(!pair.log.is_empty(), &mut pair.log_ttl);
        }
        Reply::Flag(taken)
    }

    /// All that has a time to live comes to its end.
    pub fn idle(&mut self) {
        self.limit.take_if(|limit| limit.ttl.is_some());
        for pair in self.pairs.values_mut() {
            pair.value.take_if(|_| pair.value_ttl.is_some());
            if pair.log_ttl.is_some() {
                pair.log.clear();
            }
        }
        self.tidy();
    }

    /// PERSIST on the five keys, in both languages.
    pub fn clear_expire(&mut self, client: &str) -> Reply {
        let mut cleared = self
            .limit
            .as_mut()
            .is_some_and(|limit| limit.ttl.take().is_some());
        for pair in self.both(client) {
            cleared |= pair.value_ttl.take().is_some();
            cleared |= pair.log_ttl.take().is_some();
        }
        Reply::Flag(cleared)
    }

    /// DEL of the five keys, in both languages.
    pub fn delete(&mut self, client: &str) -> Reply {
        let mut any = self.limit.take().is_some();
        for pair in self.both(client) {
            any |= pair.value.is_some() || !pair.log.is_empty();
            pair.clear();
        }
        Reply::Flag(any)
    }

    /// PTTL of the hash, in both languages.
    pub fn life(&self) -> Reply {
        Reply::Life(match &self.limit {
            None => -2,
            Some(Limit { ttl: None, .. }) => -1,
            Some(_) => 0,
        })
    }

    pub fn config(&self) -> Reply {
        Reply::Config(
            self.limit
                .as_ref()
                .map(|limit| (limit.per_client, limit.rate, limit.interval)),
        )
    }
}

/// Returns the permits of expired members; they go only if there are any.
fn java_sweep(pair: &mut Pair, up_to: i64) -> i64 {
    let expired = |entry: &Entry| (0..=up_to).contains(&entry.score);
    let released = pair
        .log
        .iter()
        .filter(|entry| expired(entry))
        .map(|entry| entry.permits)
        .sum();
    if released > 0 {
        pair.log.retain(|entry| !expired(entry));
    }
    released
}

/// RENAME of the hash alone: value and log stay behind.
pub fn java_rename(world: &mut [State; 2], from: usize) -> Reply {
    match world[from].limit.take() {
        None => Reply::NoSuchKey,
        limit => {
            world[1 - from].limit = limit;
            Reply::Done
        }
    }
}
