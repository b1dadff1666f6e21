//! A part of the limiters in this process, behind a lock of its own: who is there, and who may be forgotten.

use std::{
    cmp::Ordering as Order,
    collections::{BinaryHeap, HashMap},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    algorithm::{
        answer::{Answer, Verdict},
        call::{self, Ask, Caller, Take},
        counted::Counted,
    },
    clock::Now,
    demand::{Acquire, Charge},
    error::Error,
    limit::{Algorithm, LimitSource},
    list::List,
    name::{BuildSpread, Name, Text},
    receipt::PermitId,
};

#[derive(Default)]
pub(crate) struct Shard {
    /// By the text of their names alone: as in Redis, another algorithm is no other limiter.
    pub(crate) limiters: HashMap<Text, Kept, BuildSpread>,
    /// When limiters that rules made are idle, at the earliest. Each of them is in here at least once; what is said of
    /// it may be out of date, but never too late by more than a grant that was given back.
    idle: BinaryHeap<Idle>,
}

pub(crate) struct Kept {
    pub(crate) limiter: Counted,
    /// Whether a verb set it: it stays until it is deleted.
    pub(crate) lasting: bool,
    /// The tick at which it vanishes, if it does.
    pub(crate) expires_at: Option<i64>,
}

impl Kept {
    fn new(algorithm: Algorithm, lasting: bool) -> Self {
        Self {
            limiter: Counted::new(algorithm),
            lasting,
            expires_at: None,
        }
    }

    /// Whether its time is not over.
    pub(crate) fn is_there(&self, now: Now) -> bool {
        self.expires_at.is_none_or(|end| end > now.tick)
    }

    /// Decides for one caller of this limiter alone.
    pub(crate) fn decide_one(&mut self, acquire: &Acquire, now: Now) -> Result<Answer, Error> {
        let charge = &acquire.first;
        self.limiter.count_by(&charge.name, now);
        let ask = ask(charge.limit, acquire.remaining);
        let answer = call::acquire_one(self.limiter.counts(), ask, &take(charge), now)?;
        self.keep_alive(now);
        Ok(answer)
    }

    /// Takes so many permits, or as many as there are.
    pub(crate) fn charge(
        &mut self,
        name: &Name,
        limit: LimitSource,
        (id, permits): (PermitId, u32),
        now: Now,
    ) -> Result<(), Error> {
        self.limiter.count_by(name, now);
        // What is only tried out is told what is left.
        let take = |permits| Take {
            permits,
            id,
            shadow: true,
            lead: 0,
        };
        let mut ask_for = |permits| {
            let counts = self.limiter.counts();
            call::acquire_one(counts, ask(limit, true), &take(permits), now)
        };
        let answer = ask_for(permits)?;
        if answer.verdict != Verdict::Granted
            && let Ok(left @ 1..) = u32::try_from(answer.remaining)
        {
            ask_for(left)?;
        }
        self.keep_alive(now);
        Ok(())
    }

    /// Decides for callers of this limiter alone.
    pub(crate) fn decide(
        &mut self,
        charge: &Charge,
        exact: bool,
        callers: &[Caller],
        now: Now,
    ) -> Result<List<Answer>, Error> {
        self.limiter.count_by(&charge.name, now);
        let limiters = std::iter::once((self.limiter.counts(), ask(charge.limit, exact)));
        let answers = call::acquire(limiters, callers, now)?;
        self.keep_alive(now);
        Ok(answers)
    }

    /// Puts off its end, as the scripts do where a limit has a keep-alive time.
    pub(crate) fn keep_alive(&mut self, now: Now) {
        if let Some(limit) = self.limiter.limit()
            && limit.keep_alive > 0
        {
            let keep_alive = now.score() + now.ticks(limit.keep_alive.cast_signed());
            let end = self.limiter.end_of_life(&limit, now);
            self.expires_at = Some(keep_alive.max(end));
        }
    }
}

/// A note of when a limiter may be forgotten. The heap has the earliest on top.
struct Idle {
    /// In ticks.
    at: i64,
    name: Text,
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
    /// The limiter, unless its time is over.
    pub(crate) fn get_mut(
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

    pub(crate) fn insert(&mut self, name: &Name, lasting: bool, now: Now) {
        if !lasting {
            // Not yet: those of one list would take each other's places.
            self.note_idle(now.tick + 1, name);
        }
        let kept = Kept::new(name.algorithm(), lasting);
        self.limiters.insert(name.text().clone(), kept);
    }

    pub(crate) fn note_idle(&mut self, at: i64, name: &Name) {
        if self.idle.len() > 2 * self.limiters.len() + 16 {
            // Many were given back: keep one note of each.
            let limiters = &self.limiters;
            let idle = limiters
                .iter()
                .filter(|(_, kept)| !kept.lasting || kept.expires_at.is_some());
            self.idle = idle
                .map(|(name, kept)| {
                    let end = if kept.lasting {
                        kept.expires_at
                    } else {
                        kept.limiter.full_at()
                    };
                    Idle {
                        at: end.unwrap_or(at),
                        name: name.clone(),
                    }
                })
                .collect();
        }
        self.idle.push(Idle {
            at,
            name: name.text().clone(),
        });
    }

    /// Forgets one limiter that has all its permits, if there is one.
    pub(crate) fn evict_idle(&mut self, now: Now) -> bool {
        while let Some(noted) = self.idle.peek() {
            if noted.at > now.tick {
                return false;
            }
            let Some(Idle { name, .. }) = self.idle.pop() else {
                return false;
            };
            let Some(kept) = self.limiters.get(&name) else {
                continue;
            };
            let gone_at = match (kept.expires_at, kept.lasting) {
                (Some(end), _) if end <= now.tick => Some(end),
                (end, true) => end,
                (_, false) => Some(kept.limiter.full_at().unwrap_or(now.tick)),
            };
            match gone_at {
                // Set by a verb, and without an end by now.
                None => {}
                Some(at) if at > now.tick => self.idle.push(Idle { at, name }),
                Some(_) => {
                    self.limiters.remove(&name);
                    return true;
                }
            }
        }
        false
    }
}

pub(crate) fn caller(acquire: &Acquire) -> Caller {
    Caller {
        waits: acquire.patience.is_some(),
        takes: acquire.charges().map(take).collect(),
    }
}

fn take(charge: &Charge) -> Take {
    Take {
        permits: charge.permits,
        id: charge.id,
        shadow: charge.shadow,
        lead: charge.lead,
    }
}

pub(crate) fn ask(limit: LimitSource, exact: bool) -> Ask {
    Ask {
        limit,
        rewrite: true,
        exact,
        resendable: false,
    }
}

/// What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
pub(crate) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
