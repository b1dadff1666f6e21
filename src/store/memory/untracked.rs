//! Decides for names that a full store has no room for (untracked names), by an estimate of the
//! permits that they took.
//!
//! `sketch.rs` counts them, with a sketch for each interval of their limits and, of each, for each
//! of three sizes of limits. As a limit may change, a name took the sum of all of its interval.
//! They count like a sliding log, whatever their algorithm. Whether a name is untracked, and what
//! it took, changes only while the lock of its shard is held; the lock of the sketches is always
//! taken last.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::sketch::{Parts, Sketch, Width};
use crate::{
    algorithm::{
        answer::Answer,
        limiter::{CallContext, Counter, LimiterState, Needs},
    },
    macros::warning,
    sync::lock,
    values::{
        charge::Charge,
        clock::{Now, TICKS},
        compiled_limit::Limiter,
        error::ErrorKind,
        limit::{self, Limit, StoredLimit, at_least_zero},
        name::Name,
    },
};

/// The maximum number of intervals with sketches: a further one has no untracked names.
const MOST_INTERVALS: usize = 4;
/// The minimum number of names for a sketch, so that a small store also has an accurate one.
const LEAST_NAMES: usize = 512;
/// The number of kinds of names whose limits are remembered.
const MOST_KINDS: usize = 64;

/// The untracked names of a store.
#[derive(Default)]
pub(super) struct Untracked {
    known: Mutex<Sketches>,
    /// Set if there is a sketch: without one, newcomers need not take the lock.
    any: AtomicBool,
    /// The number of decisions made for untracked names, and the minute of the last warning about
    /// them.
    decided: AtomicU64,
    warned: AtomicU64,
}

#[derive(Default)]
struct Sketches {
    sketches: Vec<Sketch>,
    /// The last limit of each kind of names, by the text before and after the part of a name that
    /// callers choose. An untracked name has no stored limit that verbs could use.
    kinds: Vec<(Box<str>, Box<str>, Limit)>,
}

/// The untracked names with their lock held, at an instant.
pub(super) struct Locked<'a> {
    untracked: &'a Untracked,
    known: MutexGuard<'a, Sketches>,
    now: Now,
}

impl Untracked {
    /// Returns whether a name with this limit can be counted here.
    pub(super) fn can_count(limit: Option<&Limit>) -> bool {
        limit.is_some_and(|limit| Width::of(limit.permits()).is_some() && !limit.is_several())
    }

    /// Returns whether there may be untracked names. Once a caller has locked the shard of a name,
    /// it sees what that name took before.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// Takes the lock and only then reads the clock: a sketch needs instants in their order.
    pub(super) fn lock(&self, now: impl FnOnce() -> Now) -> Locked<'_> {
        let mut known = lock(&self.known);
        let now = now();
        for sketch in &mut known.sketches {
            sketch.move_to(now.tick);
        }
        known.sketches.retain(|sketch| !sketch.is_over());
        if known.sketches.is_empty() {
            known.kinds.clear();
            self.any.store(false, Ordering::Relaxed);
        }
        Locked {
            untracked: self,
            known,
            now,
        }
    }

    /// Counts a decision, and warns once in a minute of the store's clock.
    pub(super) fn count_decision(&self, minute: u64) {
        // Zero stands for no warning.
        let minute = minute.saturating_add(1);
        self.decided.fetch_add(1, Ordering::Relaxed);
        // Read first: writing it for each decision would slow down other threads.
        if self.warned.load(Ordering::Relaxed) != minute
            && self.warned.swap(minute, Ordering::Relaxed) != minute
        {
            warning!(
                "the store in memory is full of limiters in use: newcomers are counted \
                 approximately, never above their limits; see `MemoryStore::max_limiters`"
            );
        }
    }
}

impl Locked<'_> {
    /// Returns a name as it is before a decision; `None` if there are too many intervals.
    ///
    /// `names` is the store's maximum of limiters.
    pub(super) fn meet(
        &mut self,
        name: &Name,
        limit: &Limit,
        names: usize,
    ) -> Option<LimiterState<Estimate>> {
        let hash = name.seeded_hash();
        self.sketch(limit, names)?;
        let parts = self.known.parts(ticks(limit.stored().interval), hash)?;
        self.record_kind(name, limit);
        Some(LimiterState {
            limit: Some(limit.stored()),
            state: Estimate {
                hash,
                parts,
                taken: 0,
            },
        })
    }

    /// Adds the permits that an untracked name was granted since `meet`.
    pub(super) fn keep(&mut self, estimate: &LimiterState<Estimate>) {
        let Estimate { hash, taken, .. } = estimate.state;
        if taken > 0
            && let Some(kind) = estimate.limit.as_ref().and_then(kind)
            && let Some(sketch) = self.known.find(kind)
        {
            sketch.add(hash, taken, self.now.tick);
        }
    }

    /// Adds permits that a name took at an instant. Returns false if there are too many intervals.
    pub(super) fn add(
        &mut self,
        name: &Name,
        limit: &Limit,
        names: usize,
        (at, permits): (i64, u32),
    ) -> bool {
        let sketch = self.sketch(limit, names);
        sketch.is_some_and(|sketch| {
            sketch.add(name.seeded_hash(), permits, at);
            true
        })
    }

    /// Returns the permits that a name took, the earliest first, each with the last instant at
    /// which it may have taken them. A limiter that starts with them counts them until they have
    /// left.
    pub(super) fn past(&mut self, name: &Name, limit: &StoredLimit) -> Vec<(i64, u32)> {
        let (interval, now) = (ticks(limit.interval), self.now);
        let Some(parts) = self.known.parts(interval, name.seeded_hash()) else {
            return Vec::new();
        };
        let taken = parts
            .into_iter()
            .filter(|part| part.permits > 0)
            .map(|part| {
                let last = now.tick - interval + part.counts_for;
                (last.min(now.score()), part.permits)
            });
        taken.collect()
    }

    /// Returns the limit and the permits left of a name that took something while it was untracked.
    /// The limit is that of who asks; of one that gives none, the last one of that kind of names.
    pub(super) fn left(&mut self, limiter: &Limiter) -> Option<(StoredLimit, i64)> {
        let (before, after) = kind_of(&limiter.name);
        let mut kinds = self.known.kinds.iter();
        let kind = kinds.find(|kind| (&*kind.0, &*kind.1) == (before, after));
        let given = limiter.compiled.limit.given();
        let limit = given.or(kind.map(|kind| &kind.2))?.stored();
        let hash = limiter.name.seeded_hash();
        let used = used(&self.known.parts(ticks(limit.interval), hash)?);
        (used > 0).then_some((limit, limit.rate - used))
    }

    fn sketch(&mut self, limit: &Limit, names: usize) -> Option<&mut Sketch> {
        let kind = kind(&limit.stored())?;
        if self.known.find(kind).is_none() {
            let sketches = self.known.sketches.iter();
            let mut intervals: Vec<_> = sketches.map(Sketch::interval).collect();
            intervals.push(kind.0);
            intervals.sort_unstable();
            intervals.dedup();
            if intervals.len() > MOST_INTERVALS {
                return None;
            }
            let sketch = Sketch::new(kind, names.max(LEAST_NAMES), self.now.tick);
            self.known.sketches.push(sketch);
            self.untracked.any.store(true, Ordering::Relaxed);
        }
        self.known.find(kind)
    }

    fn record_kind(&mut self, name: &Name, limit: &Limit) {
        let (before, after) = kind_of(name);
        let kinds = &mut self.known.kinds;
        let mut known = kinds.iter_mut();
        if let Some(kind) = known.find(|kind| (&*kind.0, &*kind.1) == (before, after)) {
            kind.2 = *limit;
        } else if kinds.len() < MOST_KINDS {
            kinds.push((before.into(), after.into(), *limit));
        }
    }
}

impl Sketches {
    fn find(&mut self, kind: (i64, Width)) -> Option<&mut Sketch> {
        let mut sketches = self.sketches.iter_mut();
        sketches.find(|sketch| (sketch.interval(), sketch.width()) == kind)
    }

    /// Returns what a name took in an interval; `None` if no name took anything.
    fn parts(&mut self, interval: i64, hash: u64) -> Option<Parts> {
        let sketches = self.sketches.iter_mut();
        let parts = sketches
            .filter(|sketch| sketch.interval() == interval)
            .map(|sketch| sketch.parts(hash));
        parts.reduce(|mut sum, other| {
            for (sum, other) in sum.iter_mut().zip(other) {
                sum.permits = sum.permits.saturating_add(other.permits);
                sum.counts_for = sum.counts_for.max(other.counts_for);
            }
            sum
        })
    }
}

/// Returns the last grants that add up to this many permits. With only these there is room again at
/// the same time as with all.
pub(in crate::store) fn latest(mut past: Vec<(i64, u32)>, permits: u64) -> Vec<(i64, u32)> {
    let mut left = permits;
    for (_, granted) in past.iter_mut().rev() {
        *granted = u32::try_from(left).unwrap_or(u32::MAX).min(*granted);
        left -= u64::from(*granted);
    }
    past.retain(|(_, granted)| *granted > 0);
    past
}

/// A name without a limiter, during a call. No verb reaches it.
#[derive(Debug)]
pub(super) struct Estimate {
    hash: u64,
    parts: Parts,
    /// The permits granted to it in this call.
    taken: u32,
}

impl Counter for Estimate {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::SlidingLog
    }

    fn begin(&mut self, call: &CallContext, _wanted: i64) -> i64 {
        call.limit.rate - used(&self.parts)
    }

    fn take(&mut self, _call: &CallContext, charge: &Charge) {
        self.taken = self.taken.saturating_add(charge.permits);
        if let Some(present) = self.parts.last_mut() {
            present.permits = present.permits.saturating_add(charge.permits);
        }
    }

    fn end(&mut self, call: &CallContext, _taken: i64, answer: &mut Answer, needs: &mut [Needs]) {
        let interval = ticks(call.limit.interval);
        for needs in needs {
            let lacks = needs.permits - answer.remaining;
            let rounds = needs.rounds.saturating_mul(interval);
            needs.wait = until_free(&self.parts, lacks).saturating_add(rounds);
        }
        // When the next is free is not known: another name's grants may stand in its cells.
        answer.reset = until_free(&self.parts, used(&self.parts));
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        Ok(call.limit.rate - used(&self.parts))
    }

    fn charge(&mut self, _: &CallContext, _: u32) -> i64 {
        0
    }

    fn change_limit(&mut self, _: Option<&StoredLimit>, _: &StoredLimit, _: Now) {}

    fn forget(&mut self) {}

    fn full_at(&self, _: &StoredLimit) -> Option<i64> {
        None
    }

    fn end_of_life(&self, _: &StoredLimit, now: Now) -> i64 {
        now.tick
    }
}

fn used(parts: &Parts) -> i64 {
    parts.iter().map(|part| i64::from(part.permits)).sum()
}

/// Returns the time until this many permits have left, the oldest first.
fn until_free(parts: &Parts, permits: i64) -> i64 {
    let (mut left, mut until) = (permits, 0);
    for part in parts {
        if left <= 0 {
            break;
        }
        if part.permits > 0 {
            left -= i64::from(part.permits);
            until = part.counts_for;
        }
    }
    until
}

/// Returns the interval and the size of counts that a limit needs; `None` if no count is as large.
fn kind(limit: &StoredLimit) -> Option<(i64, Width)> {
    Some((ticks(limit.interval), Width::of(at_least_zero(limit.rate))?))
}

fn ticks(milliseconds: i64) -> i64 {
    milliseconds.saturating_mul(TICKS)
}

/// Returns the fixed parts in the names of one rule: the text around the hash tag.
fn kind_of(name: &Name) -> (&str, &str) {
    let Some((before, rest)) = name.as_str().split_once('{') else {
        return (name.as_str(), "");
    };
    (before, rest.split_once('}').map_or("", |(_, after)| after))
}
