//! The deliberate differences from Redisson. Any other difference fails.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    case::Op,
    model::{Caller, Entry, Limit, Pair, Reply, State},
};

/// What two ways of doing the same step can differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Facet {
    /// The answer
    Reply,
    /// The hash
    Fields,
    /// Permits left
    Value,
    /// Entries of the log
    Log,
    /// Times to live
    Ttl,
}

macro_rules! deviations {
    ($($name:ident [$($facet:ident)*] $reason:literal;)*) => {
        /// One wanted difference.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Deviation { $($name),* }

        impl Deviation {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Why it is better, or what of Redisson's it leaves out.
            pub fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason),* }
            }

            /// All that it may change.
            fn facets(self) -> &'static [Facet] {
                match self { $(Self::$name => &[$(Facet::$facet),*]),* }
            }
        }
    };
}

deviations! {
    NilHeal [Reply Value Log Ttl]
        "log lost, value left: the missing permits count as granted now; Redisson throws at a nil value whenever it is called";
    LostValue [Reply Value Log Ttl]
        "value lost, log left: counted from the log; Redisson grants the whole rate once more";
    Clamp [Reply Value Log Ttl]
        "more permits left than the rate: counted from the log at once; Redisson grants them all";
    WholeLog [Reply Value Log Ttl]
        "the newest entry has expired: a log beyond a page or with a drift is unlinked, another keeps its TTL";
    BoundedSweep [Reply Value Log Ttl]
        "a call removes so many expired entries and no more; others stay in the log until later calls";
    ZeroEntries [Value Log Ttl]
        "entries of no permits leave with the others; Redisson keeps them until something else expires";
    NoPermits [Reply Value Log Ttl]
        "zero permits are refused before anything is sent; Redisson adds an entry that never leaves by itself";
    AboveRate [Reply]
        "more than the rate is a refusal with a kind and no wait; Redisson throws";
    Resend [Reply Value Log Ttl]
        "a call that comes twice takes once and gets the same answer; Redisson takes twice and returns once";
    TtlKept [Ttl]
        "value keeps its TTL when it is written; Redisson's SET drops it";
    KeepAliveRenewed [Ttl]
        "a keep-alive TTL covers every entry's life, and is renewed when half of it is gone, or if it is longer";
    ReadKeepsAlive [Ttl]
        "available_permits keeps the limiter alive as an acquire does";
    ReadWritesNothing [Value Ttl]
        "available_permits of an unused limiter leaves no value behind";
    ReadAtLeastZero [Reply]
        "available_permits says 0 where more is in use than a lowered rate allows; Redisson says a negative number";
    SetRateOnce [Fields]
        "try_set_rate that answers false changes nothing; Redisson adds the keep-alive field to an old hash";
    SetRateDropsValue [Value Ttl]
        "try_set_rate drops a value without a log, which outlived its limiter; Redisson goes on from it, and throws";
    SetRateKeepsAlive [Ttl]
        "setting a rate with keep-alive puts the TTL on value and log, too";
    SetRatePersists [Ttl]
        "setting a rate without keep-alive lets the limiter stay; Redisson leaves an old TTL running";
    LoweredRate [Value]
        "a lowered rate holds at once, value may fall below zero; Redisson forgets what is in use beyond it";
    SetRateSweepsLater [Value Log]
        "with the same interval update_rate shifts value and leaves expired entries to the next acquire";
    ReleaseShrinks [Reply Value Log Ttl]
        "release takes permits out of the log, the oldest first; Redisson credits them again when they expire";
    GiveBack [Value Log Ttl]
        "a receipt gives back exactly what was taken, or a part of it; Redisson has none";
    ChargeMore [Value Log Ttl]
        "a receipt charges what was used beyond it, also where fewer than no permits are left; Redisson cannot";
    DriftStays [Value]
        "with the same interval update_rate shifts value, and what Redisson's release has done to it stays until repair";
    InSlots [Reply Value Log Ttl]
        "grants of one slot are one entry, which counts until an interval after the slot; Redisson notes each by itself";
    RenameWhole [Value Log Ttl]
        "rename takes value and log along; Redisson renames the hash alone and leaves them behind";
}

/// Entries that a call may remove beyond those it needs.
const PAGE: usize = 100;

/// A step of Rust.
pub struct Asked<'a> {
    /// What the keys of its name held
    pub before: &'a State,
    pub caller: &'a Caller,
    pub op: &'a Op,
    /// What it asks for, or what was asked for that is sent again or settled
    pub permits: i64,
    pub in_slots: bool,
}

impl Asked<'_> {
    /// Returns the deviations that may be at work in it, by what it has found, and said.
    pub fn deviations(&self, said: &Reply) -> BTreeSet<Deviation> {
        use Deviation as D;
        let limit = self.before.limit.as_ref();
        let at_work = match (self.op, limit) {
            (Op::Demand(0) | Op::Release(0), _) => vec![D::NoPermits],
            (Op::TrySetRate(_), Some(_)) => vec![D::SetRateOnce],
            (Op::TrySetRate(new), None) => {
                let pair = self.pair(new);
                let drops = pair.log.is_empty() && pair.value.is_some();
                let drops = drops.then_some(D::SetRateDropsValue);
                lives(new).iter().copied().chain(drops).collect()
            }
            (Op::Update(..), None) => vec![],
            (Op::Set(new, keep) | Op::Update(new, keep), _) => self.updates(new, *keep),
            (Op::Settle(keep), None) if *keep < self.permits => vec![D::GiveBack],
            (_, None) => vec![],
            (Op::Rename, Some(_)) => vec![D::RenameWhole],
            (op, Some(limit)) => {
                let pair = self.pair(limit);
                let own: &[(D, bool)] = match op {
                    Op::Demand(_) | Op::Resend => &[
                        (D::InSlots, self.in_slots),
                        (D::AboveRate, self.permits > limit.rate),
                        (D::Resend, pair.holds(self.caller.member.as_ref())),
                    ],
                    Op::Available => &[
                        (D::ReadKeepsAlive, true),
                        (D::ReadWritesNothing, pair.value.is_none()),
                        (D::ReadAtLeastZero, *said == Reply::Number(0)),
                    ],
                    Op::Release(_) => &[(D::ReleaseShrinks, true)],
                    Op::Settle(keep) if *keep < self.permits => &[(D::GiveBack, true)],
                    Op::Settle(_) => &[(D::ChargeMore, true)],
                    // These do the same in both languages.
                    _ => return BTreeSet::new(),
                };
                self.counts(limit, &pair, own)
            }
        };
        at_work.into_iter().collect()
    }

    /// Returns value and log of the caller, by a limit.
    fn pair(&self, limit: &Limit) -> Pair {
        let own = if limit.per_client {
            &*self.caller.client
        } else {
            ""
        };
        self.before.pairs.get(own).cloned().unwrap_or_default()
    }

    fn expired(&self, limit: &Limit, pair: &Pair) -> Vec<Entry> {
        let up_to = self.caller.now - limit.interval;
        let expired = pair.log.iter().filter(|entry| entry.score <= up_to);
        expired.cloned().collect()
    }

    /// Returns those of a step that counts what is in use, and `own` of its verb.
    fn counts(&self, limit: &Limit, pair: &Pair, own: &[(Deviation, bool)]) -> Vec<Deviation> {
        use Deviation as D;
        let expired = self.expired(limit, pair);
        let is_over = !expired.is_empty() && expired.len() == pair.log.len();
        let freed: i64 = expired.iter().map(|entry| entry.permits).sum();
        let after = pair.value.map(|value| value + freed);
        let is_missed = pair.value.is_some_and(|value| value < limit.rate);
        let shared = [
            (D::NilHeal, pair.log.is_empty() && is_missed),
            (D::LostValue, pair.value.is_none() && !pair.log.is_empty()),
            (D::Clamp, after.is_some_and(|after| after > limit.rate)),
            (D::WholeLog, is_over),
            (D::BoundedSweep, expired.len() > PAGE),
            (D::ZeroEntries, expired.iter().any(|it| it.permits == 0)),
            (D::TtlKept, pair.value_ttl.is_some()),
            (D::KeepAliveRenewed, limit.keep_alive > Some(0)),
        ];
        let all = shared.iter().chain(own);
        all.filter(|it| it.1).map(|it| it.0).collect()
    }

    /// Returns those of a limit that is written in the place of another.
    fn updates(&self, new: &Limit, keep: bool) -> Vec<Deviation> {
        use Deviation as D;
        let (pair, old) = (self.pair(new), self.before.limit.as_ref());
        let mut all = lives(new).to_vec();
        let is_same_type = old.is_none_or(|old| old.per_client == new.per_client);
        if keep && is_same_type {
            let (used, expired) = (pair.sum(), self.expired(new, &pair));
            let live = used - expired.iter().map(|entry| entry.permits).sum::<i64>();
            let drifts = |old: &Limit| pair.value.is_some_and(|value| value + used != old.rate);
            let own = [
                (D::TtlKept, pair.value_ttl.is_some()),
                (D::LoweredRate, used > new.rate),
                (D::WholeLog, live == 0),
                (D::SetRateSweepsLater, !expired.is_empty()),
                (D::DriftStays, old.is_some_and(drifts)),
            ];
            all.extend(own.iter().filter(|it| it.1).map(|it| it.0));
        }
        all
    }
}

/// Returns those of the times to live, where a limit is written.
fn lives(new: &Limit) -> &'static [Deviation] {
    if new.keep_alive > Some(0) {
        &[Deviation::SetRateKeepsAlive, Deviation::KeepAliveRenewed]
    } else {
        &[Deviation::SetRatePersists]
    }
}

/// In what the replies and states differ.
pub fn differences(ours: (&Reply, &[State; 2]), java: (&Reply, &[State; 2])) -> BTreeSet<Facet> {
    let mut facets = BTreeSet::new();
    let mut note = |differs: bool, facet| {
        if differs {
            facets.insert(facet);
        }
    };
    note(ours.0 != java.0, Facet::Reply);
    let empty = Default::default();
    for (ours, java) in ours.1.iter().zip(java.1) {
        let (mut a, mut b) = (ours.limit.clone(), java.limit.clone());
        let ttls = |limit: &mut Option<Limit>| limit.as_mut().and_then(|limit| limit.ttl.take());
        note(ttls(&mut a).is_some() != ttls(&mut b).is_some(), Facet::Ttl);
        note(a != b, Facet::Fields);
        for client in ours.pairs.keys().chain(java.pairs.keys()) {
            let a = ours.pairs.get(client).unwrap_or(&empty);
            let b = java.pairs.get(client).unwrap_or(&empty);
            note(a.value != b.value, Facet::Value);
            note(a.log != b.log, Facet::Log);
            note(
                (a.value_ttl.is_some(), a.log_ttl.is_some())
                    != (b.value_ttl.is_some(), b.log_ttl.is_some()),
                Facet::Ttl,
            );
        }
    }
    facets
}

/// The differences that none of the deviations that were at work explains.
pub fn unexplained(differences: &BTreeSet<Facet>, at_work: &BTreeSet<Deviation>) -> Vec<Facet> {
    let explained = |facet: &Facet| at_work.iter().any(|one| one.facets().contains(facet));
    differences
        .iter()
        .filter(|facet| !explained(facet))
        .copied()
        .collect()
}

/// How often each deviation made a difference.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Deviation, u64>);

impl Tally {
    /// Counts those at work that may have made these differences.
    pub fn count(&mut self, differences: &BTreeSet<Facet>, at_work: &BTreeSet<Deviation>) {
        for one in at_work {
            if one.facets().iter().any(|facet| differences.contains(facet)) {
                *self.0.entry(*one).or_default() += 1;
            }
        }
    }

    /// Deviations that the list names and no step has shown.
    pub fn missing(&self) -> Vec<Deviation> {
        Deviation::ALL
            .iter()
            .filter(|one| !self.0.contains_key(one))
            .copied()
            .collect()
    }

    pub fn print(&self) {
        for (one, times) in &self.0 {
            println!("  {times:>7}  {one:?}: {}", one.reason());
        }
    }
}
