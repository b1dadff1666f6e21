//! Bans: counts the refusals of a caller (strikes), and refuses it for a time after too many.

use super::{Clock, Id, MOST_I6, Reader, put, put_id};

/// The length of a strike, and of what follows them.
const STRIKE: usize = 20;
const TAIL: usize = 47;

/// The terms by which a rule bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How many refusals ban
    pub after: i64,
    /// How long a refusal counts, in ms
    pub within: i64,
    /// How long the first ban lasts, and the longest, as each doubles the one before
    pub first: i64,
    pub longest: i64,
}

impl Terms {
    pub fn of([after, within, first, longest]: [i64; 4]) -> Self {
        Self {
            after,
            within,
            first,
            longest,
        }
    }
}

/// A refusal, or so many that were answered from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    pub id: Id,
    pub number: i64,
    pub time: i64,
}

/// The state: the refusals that may still count, and the ban.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    /// Their times never fall.
    strikes: Vec<Strike>,
    /// For how long they count by the one who wrote it last
    within: i64,
    /// The place of the first that may count
    start: usize,
    /// By the server's clock, the time until which the key is kept
    ends: i64,
    pub until: i64,
    /// When the level is forgotten
    forgotten: i64,
    /// When the limit will have room for the refused call; not before the ban ends
    room: i64,
    /// The number of bans in a row
    level: i64,
}

impl Ban {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (strikes, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
        let each = strikes.chunks(STRIKE).map(|bytes| {
            let mut reader = Reader(bytes);
            let id = reader.id()?;
            reader.byte()?;
            Some(Strike {
                id,
                number: reader.number(4)?,
                time: reader.number(6)?,
            })
        });
        let strikes: Vec<_> = each.collect::<Option<_>>()?;
        let mut tail = Reader(tail);
        let within = tail.number(6)?;
        tail.number(7)?;
        let start = usize::try_from(tail.number(4)?).ok()?;
        if start % STRIKE != 0 || start / STRIKE > strikes.len() {
            return None;
        }
        Some(Self {
            strikes,
            within,
            start: start / STRIKE,
            ends: tail.number(6)?,
            until: tail.number(6)?,
            forgotten: tail.number(6)?,
            room: tail.number(6)?,
            level: tail.number(4)?,
        })
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for strike in &self.strikes {
            put_id(&mut bytes, strike.id);
            bytes.push(0);
            put(&mut bytes, strike.number, 4);
            put(&mut bytes, strike.time, 6);
        }
        put(&mut bytes, self.within, 6);
        put(&mut bytes, self.sum(), 7);
        put(
            &mut bytes,
            i64::try_from(self.start * STRIKE).unwrap_or(0),
            4,
        );
        for time in [self.ends, self.until, self.forgotten, self.room] {
            put(&mut bytes, time, 6);
        }
        put(&mut bytes, self.level, 4);
        bytes
    }

    /// Counts from now on by terms within which refusals count for so long.
    pub fn count_by(&mut self, within: i64, now: i64) {
        if self.within != within {
            (self.within, self.start) = (within, 0);
        }
        let rest = self.counting().iter();
        self.start += rest
            .take_while(|strike| strike.time <= now - within)
            .count();
    }

    fn counting(&self) -> &[Strike] {
        &self.strikes[self.start..]
    }

    fn sum(&self) -> i64 {
        self.counting().iter().map(|strike| strike.number).sum()
    }

    /// Sets back what the server's clock wrote before it was set back: a ban lasts no longer than
    /// itself, and a refusal was no later than now. Returns whether there was any.
    pub fn set_back(&mut self, now: i64) -> bool {
        // Its level is known for as long again as it lasts, unless that is for ever.
        let lasts = (self.forgotten - self.until).max(0);
        let late = self.until - now - lasts;
        let is_late = late > 0 && self.forgotten < MOST_I6;
        let is_ahead = self.strikes.last().is_some_and(|strike| strike.time > now);
        for strike in &mut self.strikes {
            strike.time = strike.time.min(now);
        }
        if is_late {
            self.until -= late;
            self.forgotten = (self.forgotten - late).max(0);
            self.room = (self.room - late).max(0);
        }
        is_late || is_ahead
    }

    pub fn is_in_force(&self, now: i64) -> bool {
        self.until > now
    }

    /// Returns the ms until the ban in force ends, those until it is worth asking again, and how
    /// many refusals count.
    pub fn standing(&self, now: i64) -> [i64; 3] {
        let [until, room] = if self.is_in_force(now) {
            [self.until - now, (self.room - now).max(0)]
        } else {
            [0, 0]
        };
        [until, room, self.sum()]
    }

    /// Returns whether a caller has a strike that counts.
    pub fn holds(&self, id: Id) -> bool {
        self.counting().iter().any(|strike| strike.id == id)
    }

    /// Adds a strike, for which the limit has room after `wait` ms, and bans if that makes too
    /// many. Returns whether it does.
    pub fn strike(&mut self, terms: &Terms, strike: Strike, wait: i64, now: i64) -> bool {
        let last = self.strikes.last().map_or(0, |strike| strike.time);
        let time = strike.time.max(last);
        self.strikes.push(Strike { time, ..strike });
        let bans = self.sum() >= terms.after;
        if bans {
            let level = self.level(now);
            let doubled = u32::try_from(level)
                .ok()
                .and_then(|it| 2_i64.checked_pow(it));
            let lasts = terms.first.saturating_mul(doubled.unwrap_or(i64::MAX));
            self.set(lasts.min(terms.longest), level + 1, wait, now);
        }
        bans
    }

    /// Bans for so many ms, in place of any ban in force.
    pub fn ban_for(&mut self, lasts: i64, now: i64) {
        self.set(lasts, self.level(now), 0, now);
    }

    fn level(&self, now: i64) -> i64 {
        if self.forgotten > now { self.level } else { 0 }
    }

    fn set(&mut self, lasts: i64, level: i64, wait: i64, now: i64) {
        self.strikes.clear();
        self.start = 0;
        self.level = level.min(u32::MAX.into());
        self.until = now.saturating_add(lasts).min(MOST_I6);
        self.forgotten = self.until.saturating_add(lasts).min(MOST_I6);
        self.room = self.until.max(now.saturating_add(wait)).min(MOST_I6);
    }

    /// Removes the strike of a caller that is granted after all. Returns whether it had one.
    pub fn forgive(&mut self, id: Id) -> bool {
        let mut counting = self.strikes.split_off(self.start);
        let before = counting.len();
        counting.retain(|strike| strike.id != id);
        let has_changed = counting.len() < before;
        self.strikes.append(&mut counting);
        has_changed
    }

    /// Prepares the state for its key, where so many bytes stand: whole where that is wanted, where
    /// it is shorter or its time is running out. Returns how long the key is kept then, in ms: not
    /// above 0 if it says nothing any more.
    pub fn keep(&mut self, whole: bool, length: usize, clock: Clock) -> Option<i64> {
        let last = self.counting().last().map(|strike| strike.time);
        let lasts = |within| last.map_or(0, |last| last + within).max(self.forgotten) - clock.now();
        let is_shorter = STRIKE * self.strikes.len() + TAIL < length;
        if !whole && !is_shorter && self.ends >= clock.server() + lasts(self.within) {
            return None;
        }
        let kept = lasts(2 * self.within);
        self.ends = (clock.server() + kept).min(MOST_I6);
        self.strikes.drain(..self.start);
        self.start = 0;
        Some(kept)
    }
}
