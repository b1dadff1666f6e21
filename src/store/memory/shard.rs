//! A shard of a store in memory: a part of its limiters, with its own lock and its own bound.

use std::{
    collections::{BTreeSet, HashMap},
    mem, ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use hashbrown::HashTable;

use crate::{
    algorithm::{
        AnyLimiter,
        answer::{Answer, Verdict},
        ban::Record,
        bytes::bytes,
        limiter::LimiterState,
    },
    values::{
        charge::{Charge, PermitId},
        clock::Now,
        compiled_limit::{CompiledLimit, Limiter},
        error::{Error, ErrorKind},
        name::{BuildSpread, Name},
    },
};

/// A shard of at most this many limiters looks for idle ones for each newcomer.
const SMALL: usize = 128;
/// A tick that never comes.
pub(super) const NEVER: i64 = i64::MAX;

pub(super) struct Shard {
    tracked: HashTable<Tracked>,
    /// Strikes and bans, which outlive idle limiters, each with the tick at which it is forgotten.
    records: HashMap<Name, (Record, i64), BuildSpread>,
    /// The names of the records, by when these are forgotten.
    ends: BTreeSet<(i64, Name)>,
    /// The maximum number of limiters, and of records.
    pub(super) most: usize,
    /// The number of limiters that are lent, which count all the same.
    lent: usize,
    /// The number of newcomers that found no room since the shard last looked for idle limiters.
    turned_away: usize,
    /// The tick before which no limiter becomes idle.
    next_idle: i64,
    /// The number of limiters of the store, in all shards.
    count: Arc<AtomicUsize>,
}

/// What a name has in a store: its limiter, and the record of its caller's refusals and ban, with
/// the tick at which that is forgotten.
pub(super) type Held = (Option<KeptLimiter>, Option<(Record, i64)>);

/// A limiter by value, under the bytes of its name alone: as in Redis, one name is one limiter,
/// whatever its algorithm.
pub(super) struct Tracked {
    hash: u64,
    name: Box<[u8]>,
    pub(super) kept: KeptLimiter,
}

impl Tracked {
    /// Returns the hash of a name, rotated: its lowest bits chose the shard, and are the same for
    /// all in it.
    fn hash(name: &Name) -> u64 {
        name.seeded_hash().rotate_left(32)
    }

    fn is_of(name: &Name) -> impl Fn(&Self) -> bool {
        |tracked| *tracked.name == *name.as_bytes()
    }
}

pub(super) struct KeptLimiter {
    /// The limit of the last caller, whose way to count is this one's. Weak, as a limiter outlives
    /// rules, and what they own may hold this store.
    by: Weak<CompiledLimit>,
    pub(super) limiter: AnyLimiter,
    /// Set by a verb: the limiter stays until it is deleted.
    pub(super) lasting: bool,
    /// The tick at which it expires, or [`NEVER`].
    pub(super) expires_at: i64,
    /// Set if it has places in flight, which only the requests of this process give back. Kept
    /// here, as a limiter outlives the limit of its last caller.
    pub(super) in_flight: bool,
}

bytes!(KeptLimiter { limiter, lasting, expires_at } by: Weak::new(), in_flight: false);

/// A grant that can be put back while nothing else has happened.
pub(super) struct Granted {
    pub(super) answer: Answer,
    /// The limiter as it was; `None` for a log, in which the grant is found again.
    before: Option<AnyLimiter>,
    expires_at: i64,
}

impl KeptLimiter {
    pub(super) fn new(by: &Arc<CompiledLimit>) -> Self {
        let mut limiter = AnyLimiter::new(by.counting.algorithm);
        limiter.state.count_by(by.counting);
        Self {
            limiter,
            by: remembered(by),
            lasting: false,
            expires_at: NEVER,
            in_flight: by.is_in_flight(),
        }
    }

    /// Switches to the caller's algorithm, slots and limit.
    ///
    /// Permits that another algorithm counted stay in use, as in Redis, where logs and windows read
    /// the same keys: by the first call of a sliding log as if granted now, in a window until one
    /// interval from now. GCRA and the calendar, which have a key of their own, take over nothing,
    /// and leave nothing.
    #[inline]
    pub(super) fn count_by(&mut self, by: &Arc<CompiledLimit>, now: Now) {
        if self.last_caller_is(by) {
            return;
        }
        let algorithm = by.counting.algorithm;
        if algorithm != self.limiter.state.kind() {
            let before = mem::replace(&mut self.limiter, AnyLimiter::new(algorithm));
            self.limiter.limit = before.limit;
            if let (Some(limit), Some(value)) = (before.limit, before.state.value(now)) {
                self.limiter.state.resume(&limit, value, now);
            }
        }
        self.limiter.state.count_by(by.counting);
        self.by = remembered(by);
        // One that only looks gives no limit.
        self.in_flight = by.is_in_flight() || self.in_flight && by.limit.given().is_none();
    }

    pub(super) fn last_caller_is(&self, by: &Arc<CompiledLimit>) -> bool {
        ptr::eq(self.by.as_ptr(), Arc::as_ptr(by))
    }

    /// Takes a charge that has room, if the limiter counts by its algorithm and its limit.
    /// Otherwise it takes nothing, and returns `None`.
    pub(super) fn grant(&mut self, charge: &Charge, exact: bool, now: Now) -> Option<Granted> {
        let is_counted = self.limiter.state.kind() == charge.compiled().counting.algorithm
            && self
                .limiter
                .limit
                .is_some_and(|limit| charge.is_counted_by(&limit));
        if !is_counted || !self.last_caller_is(charge.compiled()) && charge.check().is_err() {
            return None;
        }
        self.count_by(charge.compiled(), now);
        let (before, expires_at) = (self.limiter.small(), self.expires_at);
        let answer = (self.limiter).acquire_one(charge, exact, now);
        let answer = answer.ok().filter(|it| it.verdict == Verdict::Granted)?;
        self.keep_alive(now);
        Some(Granted {
            answer,
            before,
            expires_at,
        })
    }

    /// Puts back what [`grant`](Self::grant) took at this instant.
    pub(super) fn put_back(&mut self, charge: &Charge, granted: Granted, now: Now) {
        self.expires_at = granted.expires_at;
        match granted.before {
            Some(before) => self.limiter = before,
            None => {
                let mark = granted.answer.mark(charge.compiled().counting);
                // As any settlement, it may find less where a wrong clock has moved a slot.
                let _ = self.limiter.settle(charge, mark, 0, now);
            }
        }
    }

    /// Settles a grant at `keep` permits. Returns how many were credited; below zero, charged.
    pub(super) fn settle(&mut self, receipt: &Charge, keep: u32, now: Now) -> i64 {
        let settled = self
            .limiter
            .settle(receipt, receipt.claim_mark(), keep, now);
        if !self.last_caller_is(receipt.compiled()) {
            // It went by the receipt's slots.
            self.by = Weak::new();
        }
        let credited = settled.unwrap_or(0);
        if credited < 0 {
            self.keep_alive(now);
        }
        credited
    }

    /// Returns the tick from which the limiter can be dropped without any effect on decisions.
    pub(super) fn idle_at(&self) -> i64 {
        let full_at = if self.lasting {
            NEVER
        } else {
            self.limiter.full_at().unwrap_or(i64::MIN)
        };
        self.expires_at.min(full_at)
    }

    pub(super) fn is_idle(&self, now: Now) -> bool {
        self.idle_at() <= now.tick
    }

    /// Takes this many permits, or as many as there are.
    pub(super) fn charge(
        &mut self,
        limiter: &Limiter,
        (id, permits): (PermitId, u32),
        now: Now,
    ) -> Result<(), Error> {
        self.count_by(&limiter.compiled, now);
        // What was granted over time may be more than a shorter limit grants at once.
        let counting = limiter.compiled.counting;
        self.limiter.state.count_by(counting.by_longest());
        let charged = self.charge_at_once(limiter, (id, permits), now);
        self.limiter.state.count_by(counting);
        self.keep_alive(now);
        charged
    }

    fn charge_at_once(
        &mut self,
        limiter: &Limiter,
        (id, permits): (PermitId, u32),
        now: Now,
    ) -> Result<(), Error> {
        let mut charge = Charge {
            id,
            // For a shadow charge, the answer contains the permits left.
            shadow: true,
            ..Charge::new(limiter.clone(), permits)
        };
        let answer = (self.limiter).acquire_one(&charge, true, now)?;
        if answer.verdict != Verdict::Granted
            && let Ok(left @ 1..) = u32::try_from(answer.remaining)
        {
            charge.permits = left;
            (self.limiter).acquire_one(&charge, true, now)?;
        }
        Ok(())
    }

    /// Extends its expiry, as the scripts do if a limit has a keep-alive time.
    pub(super) fn keep_alive(&mut self, now: Now) {
        let LimiterState { limit, state } = &*self.limiter;
        if let Some(limit) = limit
            && limit.keep_alive > 0
        {
            let keep_alive = now.score() + now.ticks(limit.keep_alive.cast_signed());
            self.expires_at = keep_alive.max(state.end_of_life(limit, now));
        }
    }
}

/// Returns the limit for the next caller to be compared with; none for that of one request alone,
/// whose memory would be kept.
fn remembered(by: &Arc<CompiledLimit>) -> Weak<CompiledLimit> {
    match Arc::strong_count(by) {
        1 => Weak::new(),
        _ => Arc::downgrade(by),
    }
}

impl Shard {
    pub(super) fn new(most: usize, count: &Arc<AtomicUsize>) -> Self {
        Self {
            tracked: HashTable::new(),
            records: HashMap::default(),
            ends: BTreeSet::new(),
            most,
            lent: 0,
            turned_away: 0,
            next_idle: i64::MIN,
            count: Arc::clone(count),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tracked.len()
    }

    /// Returns the limiter, unless it has expired.
    pub(super) fn get_mut(&mut self, name: &Name, now: Now) -> Option<&mut KeptLimiter> {
        let tracked = self
            .tracked
            .find_mut(Tracked::hash(name), Tracked::is_of(name))?;
        (tracked.kept.expires_at > now.tick).then_some(&mut tracked.kept)
    }

    /// Adds a limiter, for which there is room. No other has its name here.
    pub(super) fn make(&mut self, name: &Name, kept: KeptLimiter) -> &mut KeptLimiter {
        self.count.fetch_add(1, Relaxed);
        self.put(Tracked {
            hash: Tracked::hash(name),
            name: name.as_bytes().into(),
            kept,
        })
    }

    fn put(&mut self, tracked: Tracked) -> &mut KeptLimiter {
        self.next_idle = i64::MIN;
        let added = (self.tracked).insert_unique(tracked.hash, tracked, |tracked| tracked.hash);
        &mut added.into_mut().kept
    }

    fn take(&mut self, name: &Name) -> Option<Tracked> {
        let found = self
            .tracked
            .find_entry(Tracked::hash(name), Tracked::is_of(name));
        Some(found.ok()?.remove().0)
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<KeptLimiter> {
        let tracked = self.take(name)?;
        self.count.fetch_sub(1, Relaxed);
        Some(tracked.kept)
    }

    /// Takes the record of a name out, corrected by the clock. A caller that keeps it puts it back.
    pub(super) fn take_record(&mut self, name: &Name, now: Now) -> Record {
        let (mut record, _) = self.remove_record(name).unwrap_or_default();
        record.set_back(now);
        record
    }

    /// Removes the record of a name. Returns it with the tick at which it is forgotten.
    pub(super) fn remove_record(&mut self, name: &Name) -> Option<(Record, i64)> {
        let (name, (record, end)) = self.records.remove_entry(name)?;
        self.ends.remove(&(end, name));
        Some((record, end))
    }

    /// Stores a limiter that has another name now, with the record that it had.
    pub(super) fn put_renamed(
        &mut self,
        name: &Name,
        kept: KeptLimiter,
        record: Option<(Record, i64)>,
    ) {
        self.delete(name);
        self.make(name, kept);
        if let Some((record, end)) = record {
            self.insert_record(name, record, end);
        }
    }

    /// Removes a limiter and its record. Returns whether the limiter existed.
    pub(super) fn delete(&mut self, name: &Name) -> bool {
        self.remove_record(name);
        self.remove(name).is_some()
    }

    /// Stores the record of a name for as long as it counts, where a refusal counts for `within`
    /// ticks. Beyond the maximum, those give way that end first: else callers that are banned
    /// would free all others of theirs.
    pub(super) fn put_record(&mut self, name: &Name, record: Record, within: i64, now: Now) {
        let Some(end) = record.forgotten_at(within).filter(|end| *end > now.tick) else {
            return;
        };
        while let Some((first, name)) = self.ends.first()
            && (*first <= now.tick || self.records.len() >= self.most)
        {
            self.records.remove(name);
            self.ends.pop_first();
        }
        self.insert_record(name, record, end);
    }

    fn insert_record(&mut self, name: &Name, record: Record, end: i64) {
        self.records.insert(name.clone(), (record, end));
        self.ends.insert((end, name.clone()));
    }

    pub(super) fn record(&mut self, name: &Name, now: Now) -> Option<&Record> {
        let (record, _) = self.records.get_mut(name)?;
        record.set_back(now);
        Some(record)
    }

    /// Calls this for each name, with its limiter and its record, each if it has one.
    pub(super) fn each(
        &self,
        mut act: impl FnMut(&str, Option<&KeptLimiter>, Option<&(Record, i64)>),
    ) {
        for tracked in &self.tracked {
            // Each was the text of a name.
            if let Ok(name) = str::from_utf8(&tracked.name) {
                act(
                    name,
                    Some(&tracked.kept),
                    self.records.get(&Name::known(name)),
                );
            }
        }
        for (name, record) in &self.records {
            if self.find(name).is_none() {
                act(name.as_str(), None, Some(record));
            }
        }
    }

    /// Returns what a name has.
    #[cfg(any(test, feature = "unstable-store"))]
    pub(super) fn held(&self, name: &Name) -> (Option<&KeptLimiter>, Option<&(Record, i64)>) {
        let tracked = self.find(name);
        let limiter = tracked.map(|tracked| &tracked.kept);
        (limiter, self.records.get(name))
    }

    fn find(&self, name: &Name) -> Option<&Tracked> {
        self.tracked.find(Tracked::hash(name), Tracked::is_of(name))
    }

    /// Takes over what a name had in another store, unless this one knows the name, or has no room.
    /// Returns whether it did.
    pub(super) fn put_held(&mut self, name: &Name, (limiter, record): Held, now: Now) -> bool {
        if self.find(name).is_some() || self.records.contains_key(name) {
            return false;
        }
        let limiter = limiter
            .filter(|limiter| !limiter.is_idle(now) && self.make_room(name, false, now).is_ok());
        let record = record.filter(|(_, end)| *end > now.tick && self.records.len() < self.most);
        let is_there = limiter.is_some() || record.is_some();
        if let Some(limiter) = limiter {
            self.make(name, limiter);
        }
        if let Some((record, end)) = record {
            self.insert_record(name, record, end);
        }
        is_there
    }

    /// Lends a limiter, which counts as held until it is given back.
    pub(super) fn lend(&mut self, name: &Name) -> Option<Tracked> {
        let lent = self.take(name);
        self.lent += usize::from(lent.is_some());
        lent
    }

    /// Takes back a limiter that was lent.
    pub(super) fn take_back(&mut self, lent: Tracked) {
        self.lent -= 1;
        self.put(lent);
    }

    /// No longer counts a limiter that was lent and is dropped.
    pub(super) fn free_lent(&mut self) {
        self.lent -= 1;
        self.count.fetch_sub(1, Relaxed);
    }

    /// Returns whether there is no room for one more limiter unless an idle one is dropped.
    pub(super) fn is_full(&self) -> bool {
        self.len() + self.lent >= self.most
    }

    /// Makes room for a new limiter where it can: drops an expired one of its name, and idle ones.
    /// `can_estimate` says whether an estimate can count it if there is none.
    ///
    /// Looking for idle limiters takes long in a large shard, as it visits all of them. A newcomer
    /// that an estimate can count does not need that, so a full shard looks once for many such
    /// newcomers. For any other newcomer it looks as soon as a limiter may have become idle.
    pub(super) fn make_room(
        &mut self,
        name: &Name,
        can_estimate: bool,
        now: Now,
    ) -> Result<(), ErrorKind> {
        self.remove(name);
        if !self.is_full() {
            return Ok(());
        }
        self.turned_away += 1;
        let is_due = !can_estimate && self.next_idle <= now.tick;
        if is_due || self.turned_away > self.most.saturating_sub(SMALL) / 8 {
            self.turned_away = 0;
            self.forget_idle(now);
        }
        if self.is_full() {
            return Err(ErrorKind::Full);
        }
        Ok(())
    }

    /// Notes that a limiter may become idle at this tick, earlier than was known.
    pub(super) fn may_be_idle_at(&mut self, tick: i64) {
        self.next_idle = self.next_idle.min(tick);
    }

    /// Drops idle limiters.
    pub(super) fn forget_idle(&mut self, now: Now) {
        let (mut next, before) = (i64::MAX, self.len());
        self.tracked.retain(|tracked| {
            let idle_at = tracked.kept.idle_at();
            let is_idle = idle_at <= now.tick;
            next = if is_idle { next } else { next.min(idle_at) };
            !is_idle
        });
        self.count.fetch_sub(before - self.len(), Relaxed);
        self.next_idle = next;
    }
}
