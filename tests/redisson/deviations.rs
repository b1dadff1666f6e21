//! The deliberate differences from Redisson. Any other difference fails.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Outcome, State};

/// What two ways of doing the same step can differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Facet {
    /// The answer
    Reply,
    /// The announced wait
    Wait,
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
    NilHeal [Reply Wait Value Log Ttl]
        "log lost, value left: the missing permits count as granted now; Redisson throws at a nil value whenever it is called";
    LostValue [Reply Wait Value Log Ttl]
        "value lost, log left: counted from the log; Redisson grants the whole rate once more";
    Clamp [Reply Wait Value Log Ttl]
        "more permits left than the rate: counted from the log at once; Redisson grants them all";
    WholeLog [Reply Wait Value Log Ttl]
        "the newest entry has expired: a log beyond a page or with a drift is unlinked, another keeps its TTL";
    BoundedSweep [Reply Wait Value Log Ttl]
        "a call removes so many expired entries and no more; others stay in the log until later calls";
    ZeroEntries [Wait Value Log Ttl]
        "entries of no permits leave with the others; Redisson keeps them until something else expires";
    NoPermits [Reply Wait Value Log Ttl]
        "zero permits are refused before anything is sent; Redisson adds an entry that never leaves by itself";
    AboveRate [Reply]
        "more than the rate is a refusal with a kind and no wait; Redisson throws";
    ExactWait [Wait]
        "the wait ends when enough permits are free, to the millisecond; Redisson adds 3 and looks at one entry";
    Resend [Reply Wait Value Log Ttl]
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
    RenameWhole [Value Log Ttl]
        "rename takes value and log along; Redisson renames the hash alone and leaves them behind";
}

/// In what the outcomes and states differ.
pub fn differences(
    ours: (&Outcome, &[State; 2]),
    java: (&Outcome, &[State; 2]),
) -> BTreeSet<Facet> {
    let mut facets = BTreeSet::new();
    let mut note = |differs: bool, facet| {
        if differs {
            facets.insert(facet);
        }
    };
    note(ours.0.reply != java.0.reply, Facet::Reply);
    note(ours.0.wait != java.0.wait, Facet::Wait);
    let empty = Default::default();
    for (ours, java) in ours.1.iter().zip(java.1) {
        let (mut a, mut b) = (ours.limit.clone(), java.limit.clone());
        let ttls = |limit: &mut Option<super::model::Limit>| {
            limit.as_mut().and_then(|limit| limit.ttl.take())
        };
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
