//! A part of the limiters in this process, with its own lock, and the order in which they may be
//! evicted.

use std::{
    borrow::Borrow,
    cmp::Ordering as Order,
    collections::{BinaryHeap, HashMap},
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    algorithm::{
        self,
        answer::{Answer, Verdict},
        call::{self, Terms},
        limiter::LimiterState,
    },
    clock::Now,
    demand::{Acquire, Charge, Labels, Limiter, Target},
    error::Error,
    list::List,
    name::{BuildSpread, Name, Text},
    receipt::PermitId,
};

#[derive(Default)]
pub(super) struct Shard {
    /// By the text of their names alone: as in Redis, another algorithm is not another limiter.
    pub(super) limiters: HashMap<Place, Kept, BuildSpread>,
    /// The earliest time at which each limiter made by a rule is idle. Each is in here at least
    /// once. An entry may be out of date, but is never too late by more than a grant that was given
    /// back.
    idle: BinaryHeap<Idle>,
}

/// Finds a limiter by the text of its name.
pub(super) struct Place(Arc<Limiter>);

impl Borrow<Text> for Place {
    fn borrow(&self) -> &Text {
        self.0.name.text()
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.text().hash(state);
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.0.name.text() == other.0.name.text()
    }
}

impl Eq for Place {}

pub(super) struct Kept {
    /// The shared limiter that grants hold: one for all callers that use the same name.
    named: Arc<Limiter>,
    pub(super) limiter: Box<LimiterState>,
    /// Set by a verb: the limiter stays until it is deleted.
    pub(super) lasting: bool,
    /// The tick at which it expires, if it does.
    pub(super) expires_at: Option<i64>,
}

impl Kept {
    fn new(named: Arc<Limiter>, lasting: bool) -> Self {
        Self {
            limiter: algorithm::new(named.name.algorithm()),
            named,
            lasting,
            expires_at: None,
        }
    }

    /// Returns the limiter of a charge as a shared value, which is this one.
    pub(super) fn shared(&mut self, target: &Target) -> Arc<Limiter> {
        if !self.named.counts_like(target) {
            self.named = target.share();
        }
        Arc::clone(&self.named)
    }

    /// Returns the limiter as it was last named.
    pub(super) fn as_named(&self) -> Arc<Limiter> {
        Arc::clone(&self.named)
    }

    /// Gives it another name. Returns the limiter under that name.
    pub(super) fn rename(&mut self, name: &Name) -> Arc<Limiter> {
        self.named = Arc::new(Limiter {
            name: name.clone(),
            limit: self.named.limit,
        });
        self.as_named()
    }

    /// Returns whether it has not expired.
    pub(super) fn is_there(&self, now: Now) -> bool {
        self.expires_at.is_none_or(|end| end > now.tick)
    }

    /// Decides for one caller of this limiter alone. Returns the limiter too if it granted.
    pub(super) fn decide_one(
        &mut self,
        acquire: &Acquire,
        now: Now,
    ) -> Result<(Answer, Option<Arc<Limiter>>), Error> {
        let charge = &acquire.first;
        algorithm::count_by(&mut self.limiter, charge.name(), now);
        let answer = call::acquire_one(
            &mut *self.limiter,
            charge,
            Terms::HERE,
            acquire.remaining,
            now,
        )?;
        self.keep_alive(now);
        let is_granted = answer.verdict == Verdict::Granted;
        Ok((answer, is_granted.then(|| self.shared(&charge.limiter))))
    }

    /// Takes this many permits, or as many as there are.
    pub(super) fn charge(
        &mut self,
        limiter: &Target,
        (id, permits): (PermitId, u32),
        now: Now,
    ) -> Result<(), Error> {
        algorithm::count_by(&mut self.limiter, &limiter.name, now);
        let mut charge = Charge {
            id,
            // A shadow is answered with what is left.
            shadow: true,
            ..Charge::new(limiter.clone(), Labels::unnamed(""), permits)
        };
        let limiter = &mut *self.limiter;
        let answer = call::acquire_one(limiter, &charge, Terms::HERE, true, now)?;
        if answer.verdict != Verdict::Granted
            && let Ok(left @ 1..) = u32::try_from(answer.remaining)
        {
            charge.permits = left;
            call::acquire_one(limiter, &charge, Terms::HERE, true, now)?;
        }
        self.keep_alive(now);
        Ok(())
    }

    /// Decides for callers of this limiter alone.
    pub(super) fn decide(&mut self, run: &[Acquire], now: Now) -> Result<List<Answer>, Error> {
        if let Some(first) = run.first() {
            algorithm::count_by(&mut self.limiter, first.first.name(), now);
        }
        let limiters = std::iter::once((&mut *self.limiter, Terms::HERE));
        let answers = call::acquire(limiters, run, now)?;
        self.keep_alive(now);
        Ok(answers)
    }

    /// Extends its expiry, as the scripts do if a limit has a keep-alive time.
    pub(super) fn keep_alive(&mut self, now: Now) {
        if let Some(limit) = self.limiter.limit
            && limit.keep_alive > 0
        {
            let keep_alive = now.score() + now.ticks(limit.keep_alive.cast_signed());
            let end = self.limiter.state.end_of_life(&limit, now);
            self.expires_at = Some(keep_alive.max(end));
        }
    }
}

/// The time at which a limiter may be evicted. The heap has the earliest on top.
struct Idle {
    /// In ticks.
    at: i64,
    limiter: Arc<Limiter>,
}

impl Ord for Idle {
    fn cmp(&self, other: &Self) -> Order {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Idle {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Idle {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Idle {}

impl Shard {
    /// Returns the limiter, unless it has expired.
    pub(super) fn get_mut(
        &mut self,
        name: &Name,
        now: Now,
        count: &AtomicUsize,
    ) -> Option<&mut Kept> {
        if !self.limiters.get(name.text())?.is_there(now) {
            self.limiters.remove(name.text());
            count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.limiters.get_mut(name.text())
    }

    pub(super) fn insert(&mut self, limiter: Arc<Limiter>, lasting: bool, now: Now) {
        if !lasting {
            // Not idle yet: otherwise the limiters of one list would evict each other.
            self.record_idle(now.tick + 1, Arc::clone(&limiter));
        }
        self.put(Kept::new(limiter, lasting));
    }

    /// Stores a limiter under its name. Returns the previous one.
    pub(super) fn put(&mut self, kept: Kept) -> Option<Kept> {
        self.limiters.insert(Place(Arc::clone(&kept.named)), kept)
    }

    /// Records the earliest time at which a limiter is idle.
    pub(super) fn record_idle(&mut self, at: i64, limiter: Arc<Limiter>) {
        if self.idle.len() > 2 * self.limiters.len() + 16 {
            // After many releases, keep one entry for each limiter.
            let limiters = &self.limiters;
            let idle = limiters
                .iter()
                .filter(|(_, kept)| !kept.lasting || kept.expires_at.is_some());
            self.idle = idle
                .map(|(Place(limiter), kept)| {
                    let end = if kept.lasting {
                        kept.expires_at
                    } else {
                        kept.limiter.full_at()
                    };
                    Idle {
                        at: end.unwrap_or(at),
                        limiter: Arc::clone(limiter),
                    }
                })
                .collect();
        }
        self.idle.push(Idle { at, limiter });
    }

    /// Evicts one limiter that has all its permits, if there is one.
    pub(super) fn evict_idle(&mut self, now: Now) -> bool {
        while let Some(next) = self.idle.peek() {
            if next.at > now.tick {
                return false;
            }
            let Some(Idle { limiter, .. }) = self.idle.pop() else {
                return false;
            };
            let Some(kept) = self.limiters.get(limiter.name.text()) else {
                continue;
            };
            let gone_at = match (kept.expires_at, kept.lasting) {
                (Some(end), _) if end <= now.tick => Some(end),
                (end, true) => end,
                (_, false) => Some(kept.limiter.full_at().unwrap_or(now.tick)),
            };
            match gone_at {
                // Set by a verb, and now without an expiry.
                None => {}
                Some(at) if at > now.tick => self.idle.push(Idle { at, limiter }),
                Some(_) => {
                    self.limiters.remove(limiter.name.text());
                    return true;
                }
            }
        }
        false
    }
}

/// The state behind the lock is whole between any two statements, so it survives a panic elsewhere.
pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
