//! Reads a sliding log in our own format: see `lua/README.md`, "States in one string".

use std::collections::BTreeSet;

use super::number_of;

/// The last bytes of such a state: version and kind, and what marks all states.
const END: [u8; 2] = [17, 183];
const RECORD: usize = 22;
const WINDOW: usize = 30;

/// A log, or the part of it that a script writes over the end of a stored one.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnLog {
    /// Those of grants, and then those of permits ahead
    pub records: Vec<Record>,
    /// How many of them are ahead
    ahead: usize,
    windows: Vec<Window>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// With the place and the number of callers
    pub id: Vec<u8>,
    pub permits: i64,
    /// In ms
    pub time: i64,
}

#[derive(Clone, Debug, PartialEq)]
struct Window {
    interval: i64,
    used: i64,
    /// The first record that counts
    start: usize,
}

impl OwnLog {
    /// Reads what begins with a record; `None` if it is no log.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if !bytes.ends_with(&END) {
            return None;
        }
        let [ahead, windows] = [4, 3].map(|back| usize::from(bytes[bytes.len() - back]));
        let (records, end) = bytes.split_at(bytes.len() - 10 - WINDOW * windows);
        assert!(records.len() % RECORD == 0, "no whole records: {bytes:?}");
        let window = |window: &[u8]| Window {
            interval: number(&window[..6]),
            used: number(&window[13..20]),
            start: number(&window[20..24]) as usize / RECORD,
        };
        Some(Self {
            records: records.chunks(RECORD).map(Record::of).collect(),
            ahead,
            windows: end.chunks_exact(WINDOW).take(windows).map(window).collect(),
        })
    }

    /// Returns the permits of the records that live by this interval.
    pub fn in_use(&self, now: i64, interval: i64) -> i64 {
        let lives = |it: &&Record| it.time > now - interval;
        let living = self.records.iter().filter(lives);
        living.map(|it| it.permits).sum()
    }

    /// Returns the permits in use by the window of a stored log, as a script counts them; `None` if
    /// the interval has no window.
    pub fn in_use_by_window(&self, now: i64, interval: i64) -> Option<i64> {
        let window = self.windows.iter().find(|it| it.interval == interval)?;
        let (written, ahead) = self.records.split_at(self.records.len() - self.ahead);
        let is_over = |it: &&Record| it.time <= now - interval;
        let over = written.iter().skip(window.start).filter(is_over);
        let ahead = ahead.iter().filter(|it| !is_over(it));
        let [over, ahead] = [
            over.map(|it| it.permits).sum::<i64>(),
            ahead.map(|it| it.permits).sum(),
        ];
        Some(window.used - over + ahead)
    }

    /// Returns the first grant that is there twice, if any is.
    pub fn twice(&self) -> Option<&Record> {
        let mut ids = BTreeSet::new();
        let mut grants = self.records.iter().filter(|it| !it.is_merged());
        grants.find(|it| !ids.insert(&it.id))
    }

    /// Returns what is wrong with the books of a whole state, if anything is: a window whose
    /// permits are not those of its records.
    pub fn mistake(&self) -> Option<String> {
        let written = &self.records[..self.records.len() - self.ahead];
        let sum = |window: &Window| -> i64 {
            let counted = written.iter().skip(window.start);
            counted.map(|it| it.permits).sum()
        };
        let wrong = self.windows.iter().find(|it| it.used != sum(it));
        wrong.map(|it| {
            let sum = sum(it);
            format!("not the {sum} permits of its records: {it:?} of {self:?}")
        })
    }
}

impl Record {
    fn of(bytes: &[u8]) -> Self {
        Self {
            id: bytes[..10].to_vec(),
            permits: number(&bytes[10..16]),
            time: number(&bytes[16..]),
        }
    }

    /// Returns whether it is a slot: grants that have, or had, records of their own.
    pub fn is_merged(&self) -> bool {
        self.id[9] == 0
    }
}

fn number(bytes: &[u8]) -> i64 {
    number_of(bytes).cast_signed()
}
