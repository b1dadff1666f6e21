//! What the keys of one limiter hold.

use std::{collections::BTreeMap, fmt};

pub use super::said::{Caller, Condition, Reply};

/// What a Redisson version can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// 3.23 to 3.34: no keepAliveTime, and neither release nor the newer forms of setRate
    Older,
    /// 3.52 and newer
    KeepsAlive,
}

impl Generation {
    pub fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let (major, minor): (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match (major, minor) {
            (3, 23..=34) => Self::Older,
            (3, 52..) | (4.., _) => Self::KeepsAlive,
            _ => panic!("no steps are made for Redisson {version}"),
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
    pub member: Vec<u8>,
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
    /// As the sorted set: by score, then by bytes
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

    pub fn holds(&self, member: Option<&Vec<u8>>) -> bool {
        let mut members = self.log.iter().map(|entry| &entry.member);
        members.any(|known| Some(known) == member)
    }
}

impl State {
    /// How many keys there are.
    pub fn keys(&self) -> usize {
        let pairs = self.pairs.values();
        let of_pair =
            |pair: &Pair| usize::from(pair.value.is_some()) + usize::from(!pair.log.is_empty());
        usize::from(self.limit.is_some()) + pairs.map(of_pair).sum::<usize>()
    }

    /// Gives each new entry the bytes of one of the others that has its score and permits. Random
    /// ones differ whoever makes them.
    pub fn learn(&mut self, before: &Self, others: &Self) {
        let none = Pair::default();
        for (client, pair) in &mut self.pairs {
            let [known, others] = [before, others].map(|it| it.pairs.get(client).unwrap_or(&none));
            let is_new = |entry: &&Entry| !known.holds(Some(&entry.member));
            let mut left: Vec<_> = others.log.iter().filter(is_new).collect();
            let own = pair.log.iter_mut();
            for new in own.filter(|entry| !known.holds(Some(&entry.member))) {
                let fits = |it: &&Entry| (it.score, it.permits) == (new.score, new.permits);
                if let Some(place) = left.iter().position(fits) {
                    new.member.clone_from(&left.remove(place).member);
                }
            }
            let order = |a: &Entry, b: &Entry| (a.score, &a.member).cmp(&(b.score, &b.member));
            pair.log.sort_by(order);
        }
    }
}
