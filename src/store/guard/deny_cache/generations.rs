//! Counts the changes of each name (its generation), to recognise refusals from before a change.
//!
//! A refusal can arrive after calls that changed its limiter while it was on its way. So a change
//! does not look for refusals to remove: each refusal carries the generations of its names from
//! when its call was made, and is valid only while they are current. The order of events does not
//! matter.

use std::{
    hash::BuildHasher,
    sync::{LazyLock, atomic::AtomicU64},
};

use crate::{
    sync::atomic::{AtomicU32, Ordering},
    values::{
        List,
        name::{BuildSpread, Name},
    },
};

/// The number of counts. Names share them, so a change also makes refusals of other names stale,
/// which costs each of these a call: two on average, as there are at most twice as many refusals as
/// counts.
///
/// There is one where all orders of steps are tried: otherwise each run would share them
/// differently.
const GENERATIONS: usize = if cfg!(interleavings) { 1 } else { 1 << 16 };

/// Changes, counted by name.
#[derive(Debug)]
pub(crate) struct Generations {
    /// Made by the first call, as a store may be set up in several steps.
    all: LazyLock<Box<[Generation]>>,
}

/// The changes of the names that share it.
#[derive(Debug, Default)]
struct Generation {
    /// One that wraps around seems not to have changed: that takes 2^32 changes while one refusal
    /// is valid.
    count: AtomicU32,
    /// The limiter that was seen last, and its limit: a half of each one's hash.
    last: AtomicU64,
}

impl Default for Generations {
    fn default() -> Self {
        Self {
            all: LazyLock::new(|| (0..GENERATIONS).map(|_| Generation::default()).collect()),
        }
    }
}

/// The generations of some names at one moment.
#[derive(Debug)]
pub(crate) struct Seen(List<(usize, u32)>);

impl Generations {
    /// Returns the present generations. Call it before sending the call whose answer they are for.
    pub(crate) fn see<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Seen {
        let seen = names.map(|name| {
            let index = Self::index(name);
            (index, self.at(index))
        });
        Seen(seen.collect())
    }

    /// Makes refusals of this name stale. Call it when a change is known, before it is reported to
    /// anyone.
    pub(crate) fn changed(&self, name: &Name) {
        if let Some(generation) = self.all.get(Self::index(name)) {
            generation.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Learns the limit of this name, as permits and interval. If it is another one than that which
    /// was seen last, refusals of the name are stale, except that which is being `answered`. Of two
    /// names that share an index and take turns, no change is noticed.
    pub(crate) fn saw_limit(&self, name: &Name, limit: (u64, u64), answered: Option<&mut Seen>) {
        let index = Self::index(name);
        let Some(Generation { count, last }) = self.all.get(index) else {
            return;
        };
        let of_limit = BuildSpread::new().hash_one(limit) >> 32;
        let of_name = name.seeded_hash() >> 32;
        let seen = of_name << 32 | of_limit;
        let before = last.load(Ordering::Relaxed);
        if before == seen {
            return;
        }
        last.store(seen, Ordering::Relaxed);
        if before >> 32 == of_name {
            let before = count.fetch_add(1, Ordering::Release);
            let answered = answered.into_iter().flat_map(|seen| &mut seen.0);
            answered
                .filter(|seen| **seen == (index, before))
                .for_each(|(_, then)| *then = before.wrapping_add(1));
        }
    }

    /// Returns whether nothing has changed since.
    pub(crate) fn is_current(&self, seen: &Seen) -> bool {
        seen.0.iter().all(|(index, then)| self.at(*index) == *then)
    }

    fn at(&self, index: usize) -> u32 {
        let generation = self.all.get(index);
        generation.map_or(0, |it| it.count.load(Ordering::Acquire))
    }

    /// Returns the index of a name's count. Its text decides alone: the algorithms share the same
    /// keys.
    fn index(name: &Name) -> usize {
        // The lowest bits are enough on every machine.
        name.seeded_hash() as usize % GENERATIONS
    }
}
