//! The sliding log: a record of each grant, counted by one to four intervals side by side.
//!
//! A record lives by an interval for as long as that. For each interval the state keeps a
//! [`Span`]: where the records begin that may live by it, and the sum of their permits. Permits
//! that a process fetched ahead stand apart until their time, so that only they return late.

pub mod count;

use super::{
    Clock, Id, MOST_I6, Reader, put,
    state::{ADDED, Callers},
};

/// The length of a record, of a span, and of what follows them.
const RECORD: usize = 22;
const SPAN: usize = 30;
const TAIL: usize = 10;

/// For each interval so many records can live, and as many once more, before some are merged.
const MOST_SINGLE: usize = 1000;
/// So many of the newest stay single then.
const KEPT: usize = 500;
/// By how many ms a record may lie after now, unless the server's clock was set back.
const SLACK: i64 = 1000;
/// The most grants that are fetched ahead at a time.
const MOST_AHEAD: usize = 64;
/// The most intervals side by side.
const MOST_SPANS: usize = 4;

/// A grant, or a slot: grants that were merged, which has no callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub callers: Callers,
    /// The sum of all its callers
    pub permits: i64,
    pub time: i64,
}

impl Record {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self {
            callers: Callers::read(&mut reader)?,
            permits: reader.number(6)?,
            time: reader.number(6)?,
        })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        self.callers.put(bytes);
        put(bytes, self.permits, 6);
        put(bytes, self.time, 6);
    }

    /// Returns whether it is still counted at `now` by this interval.
    fn lives(&self, interval: i64, now: i64) -> bool {
        self.time > now - interval
    }

    /// Returns what a caller has of it, if it is its grant.
    fn share(&self, id: Id) -> Option<i64> {
        self.callers.place_of(id).map(|_| self.permits)
    }
}

/// What the log keeps for one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub interval: i64,
    /// Of the last grant by this interval
    pub rate: i64,
    /// The sum of the permits of all records from `start` on
    pub used: i64,
    /// The index of the first record that may live
    pub start: usize,
    /// When a grant by this interval was last written
    pub seen: i64,
}

impl Span {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (interval, rate) = (reader.number(6)?, reader.number(7)?);
        let (used, start) = (reader.number(7)?, usize::try_from(reader.number(4)?).ok()?);
        let seen = reader.number(6)?;
        let is_sound = interval >= 1 && start % RECORD == 0;
        is_sound.then_some(Self {
            interval,
            rate,
            used,
            start: start / RECORD,
            seen,
        })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.interval, 6);
        put(bytes, self.rate, 7);
        put(bytes, self.used, 7);
        put(bytes, i64::try_from(self.start * RECORD).unwrap_or(0), 4);
        put(bytes, self.seen, 6);
    }

    /// Moves its start past the records that live no longer.
    fn advance(&mut self, records: &[Record], now: i64) {
        let rest = records.get(self.start..).unwrap_or_default();
        let is_dead = |it: &&Record| !it.lives(self.interval, now) || it.permits == 0;
        let (number, sum) = sum_of(rest.iter().take_while(is_dead));
        self.start += number;
        self.used = (self.used - sum).max(0);
    }
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Oldest first
    pub records: Vec<Record>,
    /// In the order in which they were fetched
    pub ahead: Vec<Record>,
    /// The longest interval first
    pub spans: Vec<Span>,
    /// By the server's clock, the time until which the key is kept
    pub ends: i64,
}

impl Log {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (head, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
        let mut tail = Reader(tail);
        let ends = tail.number(6)?;
        let (ahead, spans) = (usize::from(tail.byte()?), usize::from(tail.byte()?));
        let (head, spans) = head.split_at_checked(head.len().checked_sub(spans * SPAN)?)?;
        let stop = head.len().checked_sub(ahead * RECORD)?;
        let is_sound = stop > 0 && stop % RECORD == 0 && ahead <= MOST_AHEAD;
        let mut records = head.chunks(RECORD).map(Record::read);
        let spans: Vec<_> = spans.chunks(SPAN).map(Span::read).collect::<Option<_>>()?;
        let falls = spans.is_sorted_by(|one, next| one.interval > next.interval);
        let fits = spans.iter().all(|span| span.start * RECORD <= stop);
        let is_sound = is_sound && falls && fits && (1..=MOST_SPANS).contains(&spans.len());
        let stored = records.by_ref().take(stop / RECORD);
        let stored = is_sound.then(|| stored.collect::<Option<_>>())??;
        Some(Self {
            records: stored,
            ahead: records.collect::<Option<_>>()?,
            spans,
            ends,
        })
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        let records = self.records.iter().chain(&self.ahead);
        records.for_each(|record| record.put(&mut bytes));
        self.spans.iter().for_each(|span| span.put(&mut bytes));
        put(&mut bytes, self.ends, 6);
        for number in [self.ahead.len(), self.spans.len()] {
            bytes.push(u8::try_from(number).unwrap_or(u8::MAX));
        }
        bytes
    }

    /// Returns how many bytes it takes.
    pub fn length(&self) -> usize {
        (self.records.len() + self.ahead.len()) * RECORD + self.spans.len() * SPAN + TAIL
    }

    /// Returns the permits that a caller has, if it has a record, live or not.
    pub fn share(&self, id: Id) -> Option<i64> {
        self.share_from(id, 0)
    }

    /// Returns those that a settlement at so many permits finds.
    pub fn share_at(&self, id: Id, permits: i64) -> Option<i64> {
        self.share_from(id, self.sought_from(permits))
    }

    /// Returns the first record that a settlement at so many permits looks at: where all is given
    /// back, those that no longer live make no difference.
    fn sought_from(&self, permits: i64) -> usize {
        let first = self.spans.first().filter(|_| permits == 0);
        first.map_or(0, |span| span.start)
    }

    fn share_from(&self, id: Id, start: usize) -> Option<i64> {
        let each = self.records.iter().skip(start).chain(&self.ahead);
        each.filter_map(|record| record.share(id))
            .reduce(|sum, share| sum + share)
    }

    /// Returns the permits in use now by the longest interval.
    pub fn in_use(&self, now: i64) -> i64 {
        let longest = self.spans.first().filter(|_| self.lives(now)).copied();
        longest.map_or(0, |mut longest| {
            longest.advance(&self.records, now);
            longest.used + self.used_ahead(longest.interval, now)
        })
    }

    /// Returns the sum of the permits fetched ahead that live by an interval.
    fn used_ahead(&self, interval: i64, now: i64) -> i64 {
        sum_of(self.ahead.iter().filter(|it| it.lives(interval, now))).1
    }

    /// Returns whether anything lives by the longest interval.
    fn lives(&self, now: i64) -> bool {
        let ahead = self.ahead.iter().filter(|record| record.permits > 0);
        let mut each = self.records.last().into_iter().chain(ahead);
        each.any(|record| record.lives(self.longest(), now))
    }

    /// Returns when nothing is in use any more by the longest interval.
    pub fn unused_at(&self) -> i64 {
        let ahead = self.ahead.iter().map(|record| record.time);
        ahead.fold(self.newest(), i64::max) + self.longest()
    }

    fn longest(&self) -> i64 {
        self.spans.first().map_or(0, |span| span.interval)
    }

    /// Sets back the records that the server's clock wrote before it was set back. Returns whether
    /// there were any.
    pub fn set_back(&mut self, now: i64) -> bool {
        let tenth = self.longest() / 10;
        if self.newest() <= now + tenth.min(SLACK) {
            return false;
        }
        for record in &mut self.records {
            record.time = record.time.min(now);
        }
        for record in &mut self.ahead {
            record.time = record.time.min(now + tenth);
        }
        true
    }

    /// Returns the time of the last record.
    fn newest(&self) -> i64 {
        self.records.last().map_or(0, |record| record.time)
    }

    /// Adds a grant behind the others, and before it what was fetched ahead for a time that has
    /// come.
    fn push(&mut self, callers: Callers, permits: i64, now: i64) {
        let ahead = std::mem::take(&mut self.ahead).into_iter();
        let (mut due, ahead): (Vec<Record>, _) = ahead.partition(|record| record.time <= now);
        due.sort_by_key(|record| record.time);
        self.ahead = ahead;
        due.push(Record {
            callers,
            permits,
            time: now,
        });
        for record in due {
            let time = self.newest().max(record.time);
            self.records.push(Record { time, ..record });
            for span in &mut self.spans {
                span.used = span.used.saturating_add(record.permits);
            }
        }
    }

    /// Settles what a caller took at so many permits: less is freed of its grants; what is more
    /// than these have, or than they had if they are gone, is one record. Returns how many are
    /// free again; below zero, how many are charged.
    pub fn settle(&mut self, id: Id, permits: i64, was: i64, now: i64) -> i64 {
        let share = self.share_at(id, permits);
        let freed = share.map_or(0, |share| share - permits).max(0);
        self.free(id, freed, permits);
        let owed = (permits - share.unwrap_or(was)).max(0);
        let callers = Callers { id, number: ADDED };
        let from = self.sought_from(permits);
        let added = (from..self.records.len()).find(|at| {
            let record = &self.records[*at];
            record.callers == callers && record.permits > 0
        });
        let Some(at) = added else {
            if owed > 0 {
                self.push(callers, owed, now);
            }
            return freed - owed;
        };
        let more = owed - self.records[at].permits;
        self.records[at].permits = owed;
        for span in self.spans.iter_mut().filter(|span| span.start <= at) {
            span.used += more;
        }
        freed - more
    }

    /// Frees permits of a caller, of its newest records first.
    fn free(&mut self, id: Id, mut left: i64, permits: i64) {
        for record in self.ahead.iter_mut().rev() {
            let freed = record.share(id).unwrap_or(0).min(left);
            record.permits -= freed;
            left -= freed;
        }
        for at in (self.sought_from(permits)..self.records.len()).rev() {
            let freed = self.records[at].share(id).unwrap_or(0).min(left);
            left -= freed;
            self.take_from(at, freed);
        }
    }

    fn take_from(&mut self, at: usize, freed: i64) {
        self.records[at].permits -= freed;
        for span in self.spans.iter_mut().filter(|span| span.start <= at) {
            span.used = (span.used - freed).max(0);
        }
    }

    /// Releases so many permits of any callers, the oldest first. Returns how many.
    pub fn release(&mut self, permits: i64, now: i64) -> i64 {
        let (mut left, longest) = (permits, self.longest());
        for at in self.spans[0].start..self.records.len() {
            if self.records[at].lives(longest, now) {
                let freed = self.records[at].permits.min(left);
                left -= freed;
                self.take_from(at, freed);
            }
        }
        for record in &mut self.ahead {
            if record.lives(longest, now) {
                let freed = record.permits.min(left);
                left -= freed;
                record.permits -= freed;
            }
        }
        permits - left
    }

    /// Prepares the state for its key: whole where that is wanted, where it has grown too long or
    /// its time is running out; else as it is, behind the records that are written already.
    /// Returns how long the key is kept, in ms, if it is written whole.
    pub fn keep(&mut self, whole: bool, lead: i64, clock: Clock) -> Option<i64> {
        let longest = *self.spans.first()?;
        let needed = clock.server() + longest.interval + lead;
        let most = MOST_SINGLE * (self.spans.len() + 1);
        let is_long = self.records.len().saturating_sub(longest.start) > most;
        let is_full = self.records.len() > 2 * most;
        if !whole && !is_long && !is_full && self.ends >= needed {
            return None;
        }
        let now = clock.now();
        self.spans.retain(|span| span.seen > now - span.interval);
        if self.spans.is_empty() {
            // A log has at least one.
            self.spans.push(longest);
        }
        // By a caller's clock, or where a settlement writes, all of them may be dead.
        let merges = is_long && self.newest() > now - self.longest();
        self.cut();
        if merges {
            self.merge(now);
        }
        let kept = 2 * self.longest() + lead;
        self.ends = (clock.server() + kept).min(MOST_I6);
        Some(self.ends - clock.server())
    }

    /// Drops the records before the start of the longest interval.
    fn cut(&mut self) {
        let Span { start, used, .. } = self.spans[0];
        self.records.drain(..start.min(self.records.len()));
        for span in &mut self.spans {
            // Its start has not moved for long: it begins where all of them begin.
            if span.start < start {
                span.used = used;
            }
            span.start = span.start.saturating_sub(start);
        }
    }

    /// Merges those that lie in one part of time, a thousandth of the shortest interval by which
    /// they live, at the time of the last of them: what they took returns late by that, never
    /// early. A longer part consists of whole shorter ones. Few enough stay single.
    fn merge(&mut self, now: i64) {
        let mut widths: Vec<(i64, i64)> = Vec::new();
        for span in self.spans.iter().rev() {
            let own = (span.interval + 999) / 1000;
            let within = widths.last().map_or(0, |(_, width)| own % width);
            widths.push((span.interval, own - within));
        }
        let width = |record: &Record| {
            let mut each = widths.iter();
            let shortest = each.find(|(interval, _)| record.lives(*interval, now));
            shortest.map_or(1, |(_, width)| *width)
        };
        let longest = self.longest();
        let is_used = |it: &&Record| it.permits > 0 && it.lives(longest, now);
        let mut merged: Vec<Record> = Vec::new();
        // How long the part of the last group is, and which it is
        let mut group = (0, 0);
        let newest = self
            .records
            .split_off(self.records.len().saturating_sub(KEPT));
        if self.records.iter().filter(is_used).count() <= MOST_SINGLE {
            merged.extend(self.records.iter().filter(is_used));
            self.records.clear();
        }
        for record in self.records.iter().filter(is_used) {
            let part = (width(record), record.time / width(record));
            let fits =
                |slot: &&mut Record| part == group && slot.permits + record.permits <= MOST_I6;
            if let Some(slot) = merged.last_mut().filter(fits) {
                slot.callers = Callers::default();
                slot.permits += record.permits;
                slot.time = record.time;
            } else {
                group = part;
                merged.push(*record);
            }
        }
        merged.extend(newest);
        self.records = merged;
        for span in &mut self.spans {
            (span.start, span.used) = (0, sum_of(&self.records).1);
            span.advance(&self.records, now);
        }
    }
}

/// Returns how many records there are, and the sum of their permits.
fn sum_of<'r>(records: impl IntoIterator<Item = &'r Record>) -> (usize, i64) {
    let each = records.into_iter();
    each.fold((0, 0_i64), |(number, sum), record| {
        (number + 1, sum.saturating_add(record.permits))
    })
}
