//! The Rust half of the model: what this crate does to the keys of a limiter, written from the
//! heads of the files in `lua/`.
//!
//! Every place where it differs from Redisson names the deviation.

use std::collections::BTreeSet;

use super::{
    deviations::Deviation,
    model::{Caller, Entry, Limit, Outcome, Pair, Reply, State},
};

/// Entries that a call may remove beyond those it needs.
const PAGE: i64 = 100;

/// The deviations that were at work in a step.
pub type Marks = BTreeSet<Deviation>;

impl Pair {
    fn newest(&self) -> Option<i64> {
        self.log.last().map(|entry| entry.score)
    }

    /// Whether value and log are there, stay, and share their hash with no other pair: then the
    /// value's time to live stands for all three.
    fn is_old(&self, limit: &Limit, now: i64, asks: &[Ask]) -> bool {
        let is_counted = self.expired(limit, now, asks).is_some();
        let stays = |newest| is_counted || newest + limit.interval > now;
        !limit.per_client && self.value.is_some() && self.newest().is_some_and(stays)
    }

    /// How many permits are asked for by those who may get them.
    fn wanted(&self, limit: &Limit, asks: &[Ask]) -> i64 {
        let asked =
            |(permits, member): &&Ask| *permits <= limit.rate || self.holds(member.as_ref());
        asks.iter().filter(asked).map(|ask| ask.0).sum()
    }

    /// How many entries have expired, where they leave behind the grant: enough is left, value and
    /// log agree by the number of entries, and those that expired hold one permit each. None of
    /// them is that of a call that comes again: it takes once more.
    fn expired(&self, limit: &Limit, now: i64, asks: &[Ask]) -> Option<i64> {
        let wanted = self.wanted(limit, asks);
        let entries = self.log.len() as i64;
        self.value
            .filter(|value| *value >= wanted && value + entries == limit.rate)?;
        let expired = |entry: &&Entry| entry.score <= now - limit.interval;
        let gone = self.log.iter().take_while(expired).count() as i64;
        let comes_again = |entry: &Entry| {
            let member = entry.member.as_ref();
            member.is_some() && asks.iter().any(|ask| ask.1.as_ref() == member)
        };
        let mut all = self.log.iter().take_while(expired);
        let single = all.all(|entry| entry.permits == 1 && !comes_again(entry));
        (single && gone <= PAGE).then_some(gone)
    }

    /// SET with KEEPTTL.
    pub fn keep(&mut self, value: i64, marks: &mut Marks) {
        if self.value_ttl.is_some() {
            marks.insert(Deviation::TtlKept);
        }
        self.value = Some(value);
    }

    fn live(&mut self, now: i64, interval: i64) -> i64 {
        self.log.retain(|entry| entry.score > now - interval);
        self.sum()
    }

    /// Brings value and log into agreement; the permits left.
    pub fn agree(&mut self, limit: &Limit, now: i64, marks: &mut Marks) -> i64 {
        let (rate, interval) = (limit.rate, limit.interval);
        match (self.newest(), self.value) {
            (Some(newest), _) if newest + interval <= now => {
                marks.insert(Deviation::WholeLog);
                self.log.clear();
                rate
            }
            (Some(_), Some(value)) if value <= rate => value,
            (Some(_), lost) => {
                marks.insert(if lost.is_none() {
                    Deviation::LostValue
                } else {
                    Deviation::Clamp
                });
                rate - self.live(now, interval)
            }
            (None, Some(value)) if value < rate => {
                marks.insert(Deviation::NilHeal);
                let mut left = rate - value;
                while left > 0 {
                    let part = left.min(u32::MAX.into());
                    self.add(now, part, None);
                    left -= part;
                }
                value
            }
            (None, Some(value)) if value > rate => {
                marks.insert(Deviation::Clamp);
                rate
            }
            (None, _) => rate,
        }
    }

    /// Credits what has expired, the oldest first, until the budget is spent.
    pub fn credit(
        &mut self,
        limit: &Limit,
        now: i64,
        mut value: i64,
        mut budget: i64,
        marks: &mut Marks,
    ) -> i64 {
        let is_over = |entry: &&Entry| entry.score <= now - limit.interval;
        while budget > 0 {
            // A page at a time, as the budget is looked at between pages only.
            let size = budget.min(PAGE) as usize;
            let page = self.log.iter().take(size).take_while(is_over).count();
            for entry in self.log.drain(..page) {
                value += entry.permits;
                if entry.permits == 0 {
                    marks.insert(Deviation::ZeroEntries);
                } else {
                    budget -= 1;
                }
            }
            if page < size {
                break;
            }
        }
        if self.log.first().is_some_and(|oldest| is_over(&oldest)) {
            marks.insert(Deviation::BoundedSweep);
        }
        if value > limit.rate {
            marks.insert(Deviation::Clamp);
            value = limit.rate - self.live(now, limit.interval);
        }
        value
    }

    /// Grants each caller in turn that fits; the permits left are wanted exactly. Also returns
    /// those.
    fn take(
        &mut self,
        limit: &Limit,
        now: i64,
        asks: &[Ask],
        marks: &mut Marks,
    ) -> (Vec<bool>, i64) {
        let wanted = self.wanted(limit, asks);
        if wanted == 0 {
            return (vec![false; asks.len()], 0);
        }
        let counted = self.expired(limit, now, asks);
        if counted.is_some_and(|gone| gone > 0 && gone == self.log.len() as i64) {
            marks.insert(Deviation::WholeLog);
        }
        let mut value = match self.value.filter(|_| counted.is_some()) {
            Some(value) => value,
            None => self.agree(limit, now, marks),
        };
        if counted.is_none() && !self.log.is_empty() {
            let budget = (wanted + (-value).max(0) + 1).max(wanted + PAGE);
            value = self.credit(limit, now, value, budget, marks);
        }
        let granted = asks.iter().map(|(permits, member)| {
            if self.holds(member.as_ref()) {
                marks.insert(Deviation::Resend);
                return true;
            }
            let fits = *permits <= limit.rate && value >= *permits;
            if fits {
                self.add(now, *permits, member.clone());
                value -= permits;
            }
            fits
        });
        let granted = granted.collect();
        let gone = counted.unwrap_or(0);
        self.log.drain(..gone as usize);
        self.keep(value + gone, marks);
        (granted, value + gone)
    }
}

/// Permits that are asked for, and the member where it is known.
pub type Ask = (i64, Option<Vec<u8>>);

impl State {
    /// One call for several callers that do not wait. Returns which are granted.
    pub fn our_call(&mut self, client: &str, now: i64, asks: &[Ask]) -> Vec<bool> {
        let limit = self.limit.clone().expect("a limit is set");
        let mut marks = Marks::new();
        let pair = self.pair(client);
        let old = pair.is_old(&limit, now, asks);
        let granted = pair.take(&limit, now, asks, &mut marks).0;
        self.our_keep_alive(client, old, &mut marks);
        granted
    }

    /// One caller's acquire, with the permits left wanted exactly: what `RateLimiter` sends.
    pub fn our_acquire(&mut self, caller: &Caller, permits: i64, marks: &mut Marks) -> Outcome {
        if permits == 0 {
            marks.insert(Deviation::NoPermits);
            return Reply::NoPermits.into();
        }
        let Some(limit) = self.limit.clone() else {
            return Reply::NotInitialized.into();
        };
        // More than the rate only if it was granted before the limit was lowered.
        if permits > limit.rate && !self.pair(&caller.client).holds(caller.member.as_ref()) {
            marks.insert(Deviation::AboveRate);
            return Reply::NeverGranted.into();
        }
        let now = caller.now;
        let pair = self.pair(&caller.client);
        let asks = [(permits, caller.member.clone())];
        let old = pair.is_old(&limit, now, &asks);
        let (granted, value) = pair.take(&limit, now, &asks, marks);
        let (reply, wait) = if granted[0] {
            (Reply::Granted, None)
        } else if permits > limit.rate {
            marks.insert(Deviation::AboveRate);
            (Reply::NeverGranted, None)
        } else {
            marks.insert(Deviation::ExactWait);
            let mut need = permits - value;
            let mut due = now - limit.interval;
            for entry in &pair.log {
                if need <= 0 {
                    break;
                }
                due = entry.score;
                need -= entry.permits;
            }
            (Reply::Denied, Some(due + limit.interval - now))
        };
        let reset = pair
            .newest()
            .map_or(0, |newest| newest + limit.interval - now);
        self.our_keep_alive(&caller.client, old, marks);
        Outcome {
            reply,
            // Waits and times in the past are shown as zero.
            wait: wait.map(|wait| wait.max(0)),
            remaining: Some(value.max(0)),
            reset: Some(reset.max(0)),
        }
    }

    pub fn our_available(&mut self, caller: &Caller, marks: &mut Marks) -> Reply {
        let Some(limit) = self.limit.clone() else {
            return Reply::NotInitialized;
        };
        let pair = self.pair(&caller.client);
        let mut value = pair.agree(&limit, caller.now, marks);
        // Also where all that was there has just been unlinked.
        let unused = pair.value.is_none() && pair.log.is_empty();
        if !pair.log.is_empty() {
            value = pair.credit(&limit, caller.now, value, i64::MAX, marks);
        }
        if unused {
            marks.insert(Deviation::ReadWritesNothing);
        } else {
            pair.keep(value, marks);
        }
        marks.insert(Deviation::ReadKeepsAlive);
        self.our_keep_alive(&caller.client, false, marks);
        if value < 0 {
            marks.insert(Deviation::ReadAtLeastZero);
        }
        Reply::Number(value.max(0))
    }

    pub fn our_try_set_rate(&mut self, client: &str, limit: &Limit, marks: &mut Marks) -> Reply {
        if self.limit.is_some() {
            marks.insert(Deviation::SetRateOnce);
            return Reply::Flag(false);
        }
        self.limit = Some(limit.clone());
        let pair = self.pair(client);
        if pair.log.is_empty() && pair.value.take().is_some() {
            marks.insert(Deviation::SetRateDropsValue);
        }
        self.our_written(client, marks);
        Reply::Flag(true)
    }

    pub fn our_set_rate(
        &mut self,
        caller: &Caller,
        limit: &Limit,
        how: (bool, bool),
        marks: &mut Marks,
    ) -> Reply {
        let (keep, must_exist) = how;
        let old = self.limit.clone();
        if must_exist && old.is_none() {
            return Reply::Flag(false);
        }
        self.limit = Some(Limit {
            ttl: old.as_ref().and_then(|old| old.ttl),
            ..limit.clone()
        });
        let same_type = old
            .as_ref()
            .is_none_or(|old| old.per_client == limit.per_client);
        let pair = self.pair(&caller.client);
        if keep && same_type {
            let old = old.as_ref();
            let shifted = pair
                .value
                .zip(old.filter(|old| old.interval == limit.interval));
            if let Some((value, old)) = shifted {
                if pair
                    .log
                    .first()
                    .is_some_and(|oldest| oldest.score <= caller.now - limit.interval)
                {
                    marks.insert(Deviation::SetRateSweepsLater);
                }
                if value + pair.sum() != old.rate {
                    marks.insert(Deviation::DriftStays);
                }
                let value = value + limit.rate - old.rate;
                if value < 0 {
                    marks.insert(Deviation::LoweredRate);
                }
                pair.keep(value, marks);
            } else {
                let live = pair.live(caller.now, limit.interval);
                if live > limit.rate {
                    marks.insert(Deviation::LoweredRate);
                }
                if live > 0 {
                    pair.keep(limit.rate - live, marks);
                } else {
                    marks.insert(Deviation::WholeLog);
                    pair.clear();
                }
            }
        } else {
            pair.clear();
        }
        if old.is_some_and(|old| old.per_client != limit.per_client) {
            for (id, pair) in &mut self.pairs {
                if id.is_empty() || *id == caller.client {
                    pair.clear();
                }
            }
        }
        self.tidy();
        self.our_written(&caller.client, marks);
        if must_exist {
            Reply::Flag(true)
        } else {
            Reply::Done
        }
    }

    /// The permits that were given back.
    pub fn our_release(&mut self, caller: &Caller, permits: i64, marks: &mut Marks) -> Reply {
        if permits == 0 {
            marks.insert(Deviation::NoPermits);
            return Reply::NoPermits;
        }
        let Some(limit) = self.limit.clone() else {
            return Reply::NotInitialized;
        };
        marks.insert(Deviation::ReleaseShrinks);
        let pair = self.pair(&caller.client);
        let mut value = pair.agree(&limit, caller.now, marks);
        if !pair.log.is_empty() {
            value = pair.credit(&limit, caller.now, value, i64::MAX, marks);
        }
        let mut given = 0;
        while given < permits && !pair.log.is_empty() {
            let left = permits - given;
            let oldest = &mut pair.log[0];
            if oldest.permits <= left {
                given += oldest.permits;
                pair.log.remove(0);
            } else {
                oldest.permits -= left;
                if let Some(member) = &mut oldest.member {
                    let count = member.len() - 4;
                    member[count..].copy_from_slice(&(oldest.permits as u32).to_le_bytes());
                }
                given = permits;
                pair.sort();
            }
        }
        value = if pair.log.is_empty() {
            limit.rate
        } else {
            value + given
        };
        pair.keep(value, marks);
        self.our_keep_alive(&caller.client, false, marks);
        Reply::Number(given)
    }

    /// The times to live after a limit was written.
    fn our_written(&mut self, client: &str, marks: &mut Marks) {
        let Some(limit) = &mut self.limit else { return };
        if limit.keep_alive.unwrap_or(0) > 0 {
            marks.insert(Deviation::SetRateKeepsAlive);
            self.our_keep_alive(client, false, marks);
        } else {
            marks.insert(Deviation::SetRatePersists);
            limit.ttl = None;
            let pair = self.pair(client);
            (pair.value_ttl, pair.log_ttl) = (None, None);
        }
    }

    /// Renews the times to live. Where value and log are `old`, the value's stands for all.
    pub fn our_keep_alive(&mut self, client: &str, old: bool, marks: &mut Marks) {
        self.tidy();
        let Some(limit) = self.limit.clone() else {
            return;
        };
        let field = limit.keep_alive.unwrap_or(0);
        let pair = self.pair(client);
        let ttl = if field > 0 {
            let life = limit.interval + limit.interval / 10;
            let enough = (field / 2).max(life)..=field.max(life);
            let short = |exists: bool, ttl: Option<i64>| {
                !exists || ttl.is_none_or(|ttl| !enough.contains(&ttl))
            };
            if short(pair.value.is_some(), pair.value_ttl)
                || !old && (short(true, limit.ttl) || short(!pair.log.is_empty(), pair.log_ttl))
            {
                Some(field.max(life))
            } else {
                marks.insert(Deviation::KeepAliveRenewed);
                None
            }
        } else {
            limit.ttl
        };
        if ttl.is_some() {
            (pair.value_ttl, pair.log_ttl) = (ttl, ttl);
            if let Some(limit) = &mut self.limit {
                limit.ttl = ttl;
            }
        }
        self.tidy();
    }
}

/// The five keys of the caller; of limits per client, those of others stay behind.
pub fn our_rename(world: &mut [State; 2], from: usize, client: &str, marks: &mut Marks) -> Reply {
    let Some(limit) = world[from].limit.take() else {
        return Reply::NoSuchKey;
    };
    marks.insert(Deviation::RenameWhole);
    for id in ["", client] {
        let pair = world[from].pairs.remove(id).unwrap_or_default();
        world[1 - from].pairs.insert(id.to_owned(), pair);
    }
    world[1 - from].limit = Some(limit);
    Reply::Done
}
