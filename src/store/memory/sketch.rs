//! Estimates the permits that each of many names took in one interval, in bounded memory and never
//! too low.
//!
//! This is a count-min sketch. A name without a limiter of its own counts in four cells, one in
//! each of four rows, and shares them with other names. It took at most as many permits as the
//! lowest of its cells. So a name never gets more than its limit, and gets less only if others have
//! filled all four of its cells.
//!
//! Permits must expire after an interval. So time is divided into parts of an eighth of the
//! interval, and a cell has a count for each of nine parts: an interval that does not begin with a
//! part touches nine. The estimate is the sum, over the parts, of the lowest of the four cells *in
//! that part*. A grant raises that lowest value of its part, and the other three cells only as far
//! as that. Comparing the cells by their sums instead would count too little: a sum may be the
//! lowest only because a part that others had filled has expired.
//!
//! A count has one byte, two or four. With one, limits of up to 255 permits have the most cells in
//! the same memory: a flood fills the cells of small limits first.
//!
//! Instants and the interval must be in the same unit; any will do.

use std::{
    array,
    hash::{BuildHasher, RandomState},
};

const ROWS: usize = 4;
/// The number of parts of an interval.
const EIGHTHS: i64 = 8;
/// The number of parts that one interval touches.
const PARTS: usize = EIGHTHS as usize + 1;
/// The number of cells that are cleared together when a part begins.
const BLOCK: usize = 64;

pub(super) struct Sketch {
    interval: i64,
    /// The bytes of a count.
    width: Width,
    /// The cells of a row: a power of two.
    columns: usize,
    /// Seeded by itself: callers choose names, and must not choose which of them share cells.
    hasher: RandomState,
    /// Row after row. The parts of a cell are adjacent, because a decision reads all of them.
    counts: Vec<u8>,
    /// For each block of cells, the latest part that is cleared for use.
    cleared: Vec<i64>,
    /// An instant that never goes back, and how far the clock, which may go back, is behind it.
    now: i64,
    behind: i64,
    /// The last part in which something was added.
    last_used: i64,
}

/// The bytes of a count, and so the largest limit that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    One = 1,
    Two = 2,
    Four = 4,
}

impl Width {
    /// Returns the smallest for limits of this many permits; `None` if no count is that large.
    pub(super) fn of(permits: u64) -> Option<Self> {
        let mut widths = [Self::One, Self::Two, Self::Four].into_iter();
        widths.find(|width| permits <= width.most().into())
    }

    fn most(self) -> u32 {
        match self {
            Self::One => u8::MAX.into(),
            Self::Two => u16::MAX.into(),
            Self::Four => u32::MAX,
        }
    }
}

/// The permits that a name took in one part of the last interval, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) permits: u32,
    /// The time until they no longer count.
    pub(super) counts_for: i64,
}

/// The parts of the last interval, the oldest first.
pub(super) type Parts = [Part; PARTS];

impl Sketch {
    /// Creates an empty sketch. Each row has at least one cell for each of `names`, two or four.
    ///
    /// The operating system provides the memory of cells only when they are written.
    pub(super) fn new((interval, width): (i64, Width), names: usize, now: i64) -> Self {
        // Half of the bits of a hash choose a column.
        const MOST: usize = 1 << 31;
        let columns = names.saturating_mul(4 / width as usize);
        let columns = columns.checked_next_power_of_two();
        let columns = columns.map_or(MOST, |columns| columns.min(MOST));
        Self {
            interval: interval.max(1),
            width,
            columns,
            hasher: RandomState::new(),
            counts: vec![0; ROWS * columns * PARTS * width as usize],
            cleared: vec![0; (ROWS * columns).div_ceil(BLOCK)],
            now,
            behind: 0,
            last_used: part_at(now, interval.max(1)),
        }
    }

    pub(super) fn interval(&self) -> i64 {
        self.interval
    }

    pub(super) fn width(&self) -> Width {
        self.width
    }

    /// Moves on to `now`. If the clock was set back, the present part stays, and time continues
    /// from there: so permits count for an interval, and for an eighth more at most.
    ///
    /// Calls must be serialized, each with an instant that was read in its turn: an instant read
    /// before that of another call would look like a clock that was set back.
    pub(super) fn move_to(&mut self, now: i64) {
        let instant = now.saturating_add(self.behind);
        if instant < self.now {
            self.behind = self.behind.saturating_add(self.now - instant);
        }
        self.now = self.now.max(instant);
    }

    /// Returns whether nothing that was added counts any more.
    pub(super) fn is_over(&self) -> bool {
        self.part() - self.last_used >= PARTS as i64
    }

    /// Returns the permits that the name with this hash took within the last interval, at most.
    pub(super) fn parts(&mut self, hash: u64) -> Parts {
        let cells = self.cells_of(hash);
        let oldest = self.part() - EIGHTHS;
        array::from_fn(|index| {
            let part = oldest + index as i64;
            Part {
                permits: self.least(&cells, part),
                counts_for: start_of(part + PARTS as i64, self.interval).saturating_sub(self.now),
            }
        })
    }

    /// Adds permits that the name with this hash took at this instant of the clock.
    pub(super) fn add(&mut self, hash: u64, permits: u32, at: i64) {
        let cells = self.cells_of(hash);
        let at = at.saturating_add(self.behind).min(self.now);
        let part = part_at(at, self.interval).max(self.part() - EIGHTHS);
        let least = self.least(&cells, part).saturating_add(permits);
        for cell in cells {
            let count = least.min(self.width.most()).max(self.count(cell, part));
            let at = self.index_of(cell, part);
            let bytes = self.width as usize;
            self.counts[at..at + bytes].copy_from_slice(&count.to_le_bytes()[..bytes]);
        }
        self.last_used = self.last_used.max(part);
    }

    fn part(&self) -> i64 {
        part_at(self.now, self.interval)
    }

    fn least(&self, cells: &[usize; ROWS], part: i64) -> u32 {
        let counts = cells.map(|cell| self.count(cell, part));
        counts.into_iter().min().unwrap_or(0)
    }

    fn count(&self, cell: usize, part: i64) -> u32 {
        let at = self.index_of(cell, part);
        let (bytes, mut count) = (self.width as usize, [0; 4]);
        count[..bytes].copy_from_slice(&self.counts[at..at + bytes]);
        u32::from_le_bytes(count)
    }

    /// Returns where the count of a part begins.
    fn index_of(&self, cell: usize, part: i64) -> usize {
        (cell * PARTS + part.rem_euclid(PARTS as i64) as usize) * self.width as usize
    }

    /// Returns the cells of a name, one in each row, after clearing the parts that have left.
    fn cells_of(&mut self, hash: u64) -> [usize; ROWS] {
        let hashes = [false, true].map(|second| self.hasher.hash_one((hash, second)));
        let cells = array::from_fn(|row| {
            let bits = hashes[row / 2] >> (32 * (row % 2));
            row * self.columns + bits as usize % self.columns
        });
        cells.iter().for_each(|cell| self.clear(cell / BLOCK));
        cells
    }

    /// Clears the parts of a block that have begun since it was last used.
    fn clear(&mut self, block: usize) {
        let (present, cleared) = (self.part(), self.cleared[block]);
        let first = (cleared + 1).max(present - EIGHTHS);
        let end = (ROWS * self.columns).min((block + 1) * BLOCK);
        let counts = self.index_of(block * BLOCK, 0)..self.index_of(end, 0);
        for part in first..=present {
            let at = self.index_of(0, part);
            for cell in self.counts[counts.clone()].chunks_exact_mut(PARTS * self.width as usize) {
                cell[at..at + self.width as usize].fill(0);
            }
        }
        self.cleared[block] = present;
    }
}

/// Returns the number of the part that contains an instant, counted from the epoch.
fn part_at(instant: i64, interval: i64) -> i64 {
    // Beyond the reach of any clock, and a few parts can be added without overflow.
    const LAST: i64 = i64::MAX / 2;
    let part = (i128::from(instant) * i128::from(EIGHTHS)).div_euclid(interval.into());
    i64::try_from(part).map_or(LAST, |part| part.min(LAST))
}

/// Returns the first instant of a part.
fn start_of(part: i64, interval: i64) -> i64 {
    let start = i128::from(part) * i128::from(interval);
    let start = -(-start).div_euclid(i128::from(EIGHTHS));
    i64::try_from(start).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: u64 = 24;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(u64, u32),
        /// Permits taken this long ago
        AddLate(u64, u32, i64),
        Pause(i64),
        SetBack(i64),
    }

    fn steps(interval: i64) -> impl Strategy<Value = Vec<Step>> {
        let name = || 0..NAMES;
        let step = prop_oneof![
            8 => (name(), 1..400_u32).prop_map(|(name, permits)| Step::Add(name, permits)),
            1 => (name(), 1..70_000_u32).prop_map(|(name, permits)| Step::Add(name, permits)),
            1 => (name(), 1..9_u32, 0..2 * interval)
                .prop_map(|(name, permits, ago)| Step::AddLate(name, permits, ago)),
            5 => (0..=interval / 3).prop_map(Step::Pause),
            1 => prop::sample::select(vec![interval, 9 * interval / 8, interval * 1000])
                .prop_map(Step::Pause),
            1 => (1..interval * 100).prop_map(Step::SetBack),
        ];
        prop::collection::vec(step, 1..120)
    }

    fn histories() -> impl Strategy<Value = (i64, Vec<Step>)> {
        let interval = prop_oneof![1..40_i64, Just(800), Just(3_600_000_000)];
        interval.prop_flat_map(|interval| (Just(interval), steps(interval)))
    }

    fn widths() -> impl Strategy<Value = Width> {
        prop::sample::select(vec![Width::One, Width::Two, Width::Four])
    }

    fn estimate(sketch: &mut Sketch, name: u64) -> u64 {
        sketch
            .parts(name)
            .iter()
            .map(|part| u64::from(part.permits))
            .sum()
    }

    /// Carries out a step, by a clock that it may set back.
    fn live(sketch: &mut Sketch, clock: &mut i64, step: Step) {
        match step {
            Step::Add(name, permits) => sketch.add(name, permits, *clock),
            Step::AddLate(name, permits, ago) => sketch.add(name, permits, *clock - ago),
            Step::Pause(pause) => *clock += pause,
            Step::SetBack(by) => *clock -= by,
        }
        sketch.move_to(*clock);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(inside) { 256 } else { 64 }))]

        /// Holds for all shared cells, expired parts, and clocks that are set back. The reference
        /// log has a time of its own, which the clock does not show.
        #[test]
        fn an_estimate_is_never_below_what_was_taken(
            (interval, steps) in histories(),
            width in widths(),
        ) {
            let mut clock = 1_700_000_000_000_000;
            let mut sketch = Sketch::new((interval, width), 3, clock);
            let (mut time, mut taken) = (0, Vec::new());
            for step in steps {
                match step {
                    Step::Add(name, permits) => taken.push((time, name, permits)),
                    Step::AddLate(name, permits, ago) => taken.push((time - ago, name, permits)),
                    Step::Pause(pause) => time += pause,
                    Step::SetBack(_) => {}
                }
                live(&mut sketch, &mut clock, step);
                for name in 0..NAMES {
                    let own = taken.iter().filter(|(_, other, _)| *other == name);
                    let within = own.filter(|(at, ..)| *at > time - interval);
                    let within: u64 = within.map(|(.., permits)| u64::from(*permits)).sum();
                    let estimate = estimate(&mut sketch, name);
                    // A cell counts up to more than any limit that is counted here.
                    let exact = within.min(width.most().into());
                    prop_assert!(estimate >= exact, "{estimate} of {within}");
                }
            }
        }

        /// It recovers: an interval and an eighth after the last grant nothing counts, and each
        /// part leaves at the time it reported.
        #[test]
        fn what_was_taken_leaves_when_it_says_so(
            (interval, steps) in histories(),
            width in widths(),
        ) {
            let mut clock = 1_700_000_000_000_000;
            let mut sketch = Sketch::new((interval, width), 3, clock);
            for step in steps {
                live(&mut sketch, &mut clock, step);
            }
            for name in 0..NAMES {
                let parts = sketch.parts(name);
                prop_assert!(parts.is_sorted_by_key(|part| part.counts_for));
                for part in parts {
                    prop_assert!(part.counts_for > 0);
                    prop_assert!(part.counts_for <= interval + (interval + 7) / 8);
                }
            }
            let before: Vec<_> = (0..NAMES).map(|name| sketch.parts(name)).collect();
            let mut ends: Vec<_> = before[0].iter().map(|part| part.counts_for).collect();
            ends.dedup();
            for end in ends {
                for (passed, still) in [(end - 1, end), (end, end + 1)] {
                    sketch.move_to(clock + passed);
                    for (name, before) in (0..).zip(&before) {
                        let left = before.iter().filter(|part| part.counts_for >= still);
                        let left: u64 = left.map(|part| u64::from(part.permits)).sum();
                        prop_assert_eq!(estimate(&mut sketch, name), left);
                    }
                }
            }
            prop_assert!(sketch.is_over());
        }
    }

    /// Names that share no cell are counted separately. If there are few names, most share none.
    #[test]
    fn few_names_are_counted_exactly() {
        let mut sketch = Sketch::new((1000, Width::Two), 1000, 0);
        for name in 0..1000 {
            sketch.add(name, 1 + (name % 5) as u32, 0);
        }
        let exact = (0..1000).filter(|name| estimate(&mut sketch, *name) == 1 + name % 5);
        assert!(exact.count() > 900);
    }

    /// The figures of SECURITY.md, of a store an eighth as large as by default: a flood at one
    /// instant of names that have each taken their limit, less those that were tracked.
    #[test]
    fn a_flood_refuses_as_many_newcomers_as_is_promised() {
        const TRACKED: usize = 100_000 / 8;
        const NEWCOMERS: u64 = 20_000;
        const NAMES: [u64; 4] = [200_000, 300_000, 600_000, 1_000_000];
        for (width, expected) in [
            (Width::One, [0..1, 0..2, 10..17, 40..49]),
            (Width::Two, [0..2, 5..11, 47..58, 84..92]),
            (Width::Four, [5..11, 33..43, 87..95, 99..100]),
        ] {
            for (names, expected) in NAMES.into_iter().zip(expected) {
                let mut sketch = Sketch::new((1000, width), TRACKED, 0);
                let flood = names / 8 - TRACKED as u64;
                (0..flood).for_each(|name| sketch.add(name, 1, 0));
                let newcomers = flood..flood + NEWCOMERS;
                let refused = newcomers.filter(|name| estimate(&mut sketch, *name) > 0);
                let percent = refused.count() as u64 * 100 / NEWCOMERS;
                assert!(
                    expected.contains(&percent),
                    "{percent} %: {width:?} {names}"
                );
            }
        }
        // What counts for a limit is how much of it is left.
        let mut sketch = Sketch::new((1000, Width::One), TRACKED, 0);
        (0..900_000 / 8).for_each(|name| sketch.add(name, 1, 0));
        let is_full = |name: &u64| estimate(&mut sketch, *name) >= 100;
        assert_eq!((900_000..900_000 + NEWCOMERS).filter(is_full).count(), 0);
    }
}
