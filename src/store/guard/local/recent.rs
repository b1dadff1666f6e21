//! Records the permits that the store granted in the last interval: a few counts for each key.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use crate::{
    sync::lock,
    values::{
        charge::{Charge, Standing, TakenFrom},
        clock::{Clock, millis_of},
        limit::Limit,
        name::Name,
    },
};

/// Each admitted request looks for its key here, so a key is in one small set, and has no memory of
/// its own. The most that are recorded are 131,072 keys of 80 bytes: 11 MB. One that is evicted has
/// all of its share.
const SETS: usize = 1 << 14;
const MOST_OF_SET: usize = 8;
/// The parts of an interval. A grant leaves the interval one part too late at most, and two where
/// permits are leased.
const PARTS: usize = 8;

/// The recent grants of the store.
pub(crate) struct Recent {
    /// Made for the first rule that may need it, or leases.
    sets: OnceLock<Box<[Mutex<Set>]>>,
    /// The clock of the limits.
    clock: Arc<dyn Clock>,
}

/// Some limiters, each known by the hash of its name, which a secret of this process is part of.
#[derive(Default)]
struct Set {
    /// They lie together: a look-up reads all hashes, and the grants of one limiter alone.
    hashes: [u64; MOST_OF_SET],
    grants: Vec<LimiterGrants>,
}

impl Set {
    fn index(&self, hash: u64) -> Option<usize> {
        let known = self.hashes.iter().take(self.grants.len());
        known.copied().position(|it| it == hash)
    }
}

/// The grants of one limiter, the last part of the interval first. There are two more parts than an
/// interval has: the first and the last are cut, and a lease may lie a part ahead.
#[derive(Debug, PartialEq)]
struct LimiterGrants {
    permits: u64,
    interval: i64,
    /// The number of the first part, counted from 1970.
    newest: i64,
    /// Until when `newest` is the first part. It spares each grant two divisions.
    ends: i64,
    parts: [u32; PARTS + 2],
}

impl Recent {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let sets = OnceLock::new();
        Self { sets, clock }
    }

    /// Records a grant of this many permits that counts from now, or a lease that ends after
    /// `left`, and the limit that it was made by. Of a lease all permits count, as in the store,
    /// until it gives back those that no grant has.
    pub(crate) fn record(&self, name: &Name, standing: &Standing, permits: u32, left: Duration) {
        let at = millis_of(self.clock.now()).saturating_add(millis_of(left));
        let interval = standing.interval.cast_signed().max(1);
        let sets = self
            .sets
            .get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect());
        let hash = name.seeded_hash();
        // The lowest bits are enough on every machine.
        let mut set = lock(&sets[hash as usize % SETS]);
        let index = set.index(hash).unwrap_or_else(|| {
            let new = LimiterGrants::new(standing.permits, interval, at);
            let all = set.grants.len();
            if all < MOST_OF_SET {
                set.hashes[all] = hash;
                set.grants.push(new);
                return all;
            }
            // Grants that leave their interval first are missed least.
            let leaves = |at: &usize| {
                let it = &set.grants[*at];
                it.ends.saturating_add(it.interval)
            };
            let first = (0..all).min_by_key(leaves).unwrap_or(0);
            (set.hashes[first], set.grants[first]) = (hash, new);
            first
        });
        let granted = &mut set.grants[index];
        granted.permits = standing.permits;
        granted.move_to(interval, at);
        granted.add(permits);
    }

    /// Records how a grant was settled with the store. What a lease takes back is still in use
    /// there: it settles that itself.
    pub(crate) fn settle(&self, receipt: &Charge, keep: u32) {
        if !receipt.was_answered() {
            return;
        }
        self.with(receipt.name(), |recent| {
            recent.move_to(recent.interval, millis_of(self.clock.now()));
            match keep.checked_sub(receipt.permits) {
                Some(more) => recent.add(more),
                None if matches!(receipt.taken_from, TakenFrom::Lease(_)) => {}
                None => recent.remove(receipt.permits - keep),
            }
        });
    }

    /// Returns the limit as the store reported it last.
    pub(crate) fn limit(&self, name: &Name) -> Option<Limit> {
        let known = |granted: &mut LimiterGrants| (granted.permits, granted.interval);
        let (permits, interval) = self.with(name, known)?;
        Limit::of(permits, interval.unsigned_abs())
    }

    /// Hands over the grants of the interval, the earliest first, each with the time it counts
    /// from. They are removed here, under a lock that is held until they have arrived.
    pub(crate) fn hand_over<E>(
        &self,
        name: &Name,
        interval: i64,
        to: impl FnOnce(Vec<(i64, u32)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let handed = self.with(name, |granted| {
            to(granted.take(interval.max(1), millis_of(self.clock.now())))
        });
        handed.unwrap_or(Ok(()))
    }

    /// Acts on what is recorded of a limiter, under the lock of its set.
    fn with<T>(&self, name: &Name, act: impl FnOnce(&mut LimiterGrants) -> T) -> Option<T> {
        let hash = name.seeded_hash();
        let mut set = lock(&self.sets.get()?[hash as usize % SETS]);
        let index = set.index(hash)?;
        set.grants.get_mut(index).map(act)
    }
}

impl LimiterGrants {
    fn new(permits: u64, interval: i64, now: i64) -> Self {
        let newest = part_at(now, interval);
        Self {
            permits,
            interval,
            newest,
            ends: end_of(newest, interval),
            parts: [0; PARTS + 2],
        }
    }

    /// Makes the first part that of `now`.
    fn move_to(&mut self, interval: i64, now: i64) {
        if interval != self.interval {
            // Parts of another length: their permits count from now on.
            let all = self.parts.into_iter().fold(0, u32::saturating_add);
            *self = Self::new(self.permits, interval, now);
            self.add(all);
            return;
        }
        // After a clock was set back, grants go into the part that is there.
        if now < self.ends {
            return;
        }
        let newest = part_at(now, interval).max(self.newest);
        let passed = newest.saturating_sub(self.newest);
        let count = self.parts.len();
        let passed = usize::try_from(passed).unwrap_or(count).min(count);
        self.parts.rotate_right(passed % count);
        let over = self.parts.iter_mut().take(passed);
        over.for_each(|part| *part = 0);
        self.newest = newest;
        self.ends = end_of(newest, interval);
    }

    fn add(&mut self, permits: u32) {
        if let Some(first) = self.parts.first_mut() {
            *first = first.saturating_add(permits);
        }
    }

    /// Removes permits, the latest first.
    fn remove(&mut self, permits: u32) {
        let mut left = permits;
        for part in &mut self.parts {
            let out = left.min(*part);
            *part -= out;
            left -= out;
        }
    }

    /// Removes all grants, and returns those of the interval as [`Recent::hand_over`] does.
    fn take(&mut self, interval: i64, now: i64) -> Vec<(i64, u32)> {
        self.move_to(interval, now);
        let parts = std::mem::take(&mut self.parts);
        let past = (0..).zip(parts).filter(|(_, permits)| *permits > 0);
        let past = past.map(|(back, permits)| (end_of(self.newest - back, interval), permits));
        let within = past.filter(|(at, _)| *at > now.saturating_sub(interval));
        let mut past: Vec<_> = within.map(|(at, permits)| (at.min(now), permits)).collect();
        past.reverse();
        past
    }
}

fn part_at(now: i64, interval: i64) -> i64 {
    let part = i128::from(now) * PARTS as i128 / i128::from(interval);
    i64::try_from(part).unwrap_or(i64::MAX)
}

/// The last millisecond of a part.
fn end_of(part: i64, interval: i64) -> i64 {
    let end = (i128::from(part) + 1) * i128::from(interval) / PARTS as i128;
    i64::try_from(end).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            atomic::{AtomicBool, AtomicUsize, Ordering},
            mpsc,
        },
        thread,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::values::clock::ManualClock;

    impl Recent {
        /// Returns how many permits are recorded.
        pub(crate) fn count(&self, name: &Name) -> u32 {
            self.with(name, |it| it.parts.iter().sum()).unwrap_or(0)
        }
    }

    proptest! {
        /// The grants of the interval are there, at their times or up to a part later; of older
        /// ones at most those of one part before, or two with leases.
        #[test]
        fn what_was_granted_lately_is_there(
            interval in 1..100_000_i64,
            leads in any::<bool>(),
            steps in prop::collection::vec((0..100_i64, 1..100_u32, any::<bool>()), 1..60),
        ) {
            let mut now = 1_700_000_000_000;
            let mut granted = LimiterGrants::new(10, interval, now);
            let mut all = Vec::new();
            for (pause, permits, is_lease) in steps {
                now += pause * interval / 200;
                let at = now + if leads && is_lease { interval / 10 } else { 0 };
                granted.move_to(interval, at);
                granted.add(permits);
                all.push((at, permits));
            }
            let past = granted.take(interval, now);
            let part = interval / PARTS as i64 + 1;
            let late = if leads { 2 * part } else { part };
            // At each time: at least what was granted since, and at most that of a part before.
            for at in [now, now - interval / 3, now - interval / 2, now - interval + 1] {
                let sum = |of: &[(i64, u32)], from: i64| {
                    let since = of.iter().filter(|(time, _)| *time >= from);
                    since.map(|(_, permits)| permits).sum::<u32>()
                };
                let counted = sum(&past, at);
                prop_assert!(counted >= sum(&all, at), "{counted} since {at}");
                prop_assert!(counted <= sum(&all, at - late), "{counted} since {at}");
            }
            prop_assert!(past.is_sorted_by_key(|(time, _)| *time));
            let within = now - interval + 1..=now;
            prop_assert!(past.iter().all(|(time, _)| within.contains(time)));
            prop_assert!(granted.take(interval, now).is_empty());
        }

        #[test]
        fn what_is_given_back_is_taken_out(
            taken in prop::collection::vec(1..50_u32, 1..20),
            back in 0..500_u32,
        ) {
            let mut granted = LimiterGrants::new(10, 1000, 0);
            let mut now = 0;
            for permits in &taken {
                granted.move_to(1000, now);
                granted.add(*permits);
                now += 40;
            }
            granted.remove(back);
            let left: u32 = granted.take(1000, now).iter().map(|(_, permits)| permits).sum();
            prop_assert_eq!(left, taken.iter().sum::<u32>().saturating_sub(back));
        }
    }

    fn standing() -> Standing {
        Standing {
            permits: 10,
            interval: 1000,
            ..Standing::default()
        }
    }

    /// Returns one with a clock that stands still.
    fn recent() -> Recent {
        clocked().0
    }

    fn clocked() -> (Recent, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new());
        clock.set(Duration::from_millis(5000));
        (Recent::new(clock.clone()), clock)
    }

    /// Returns the sum of what is handed over.
    fn handed_over(recent: &Recent, name: &Name) -> u32 {
        let mut all = 0;
        let done = recent.hand_over(name, 1000, |past| {
            all = past.iter().map(|(_, permits)| permits).sum();
            Ok::<_, Infallible>(())
        });
        assert_eq!(done, Ok(()));
        all
    }

    #[test]
    fn threads_that_note_a_name_first_at_once_all_note_it() {
        const THREADS: usize = 3;
        let names = (0..3000).map(|name| Name::exact(&format!("user{name}")).unwrap());
        let names: Vec<_> = names.collect();
        let (recent, arrived) = (recent(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for (before, name) in names.iter().enumerate() {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        while arrived.load(Ordering::SeqCst) < THREADS * (before + 1) {
                            thread::yield_now();
                        }
                        recent.record(name, &standing(), 1, Duration::ZERO);
                    }
                });
            }
        });
        for name in &names {
            assert_eq!(handed_over(&recent, name), THREADS as u32);
        }
    }

    /// No limiter has the grants of another, also where there is no room for all of them.
    #[test]
    fn of_more_keys_than_there_is_room_for_most_are_recorded() {
        let names = (0..200_000).map(|name| Name::exact(&format!("user{name}")).unwrap());
        let names: Vec<_> = names.collect();
        let recent = recent();
        for name in &names {
            recent.record(name, &standing(), 3, Duration::ZERO);
        }
        let recorded: Vec<_> = names
            .iter()
            .map(|name| handed_over(&recent, name))
            .collect();
        assert!(recorded.iter().all(|permits| [0, 3].contains(permits)));
        let kept = recorded.iter().filter(|permits| **permits == 3).count();
        assert!((120_000..=SETS * MOST_OF_SET).contains(&kept), "{kept}");
    }

    /// Also of a part that has just ended: its grants count for the rest of the interval.
    #[test]
    fn grants_of_a_long_interval_outlast_those_of_short_ones() {
        let (recent, clock) = clocked();
        let (ann, day) = (Name::exact("ann").unwrap(), 86_400_000);
        clock.set(Duration::from_millis(day / PARTS as u64 - 1));
        let daily = Standing {
            interval: day,
            ..standing()
        };
        recent.record(&ann, &daily, 3, Duration::ZERO);
        clock.advance(Duration::from_secs(60));
        for name in 0..200_000 {
            let name = Name::exact(&format!("user{name}")).unwrap();
            recent.record(&name, &standing(), 1, Duration::ZERO);
        }
        assert_eq!(recent.count(&ann), 3);
    }

    /// The next decision must find it charged.
    #[test]
    fn a_grant_is_not_gone_before_it_has_arrived() {
        let (recent, name) = (recent(), Name::exact("ann").unwrap());
        recent.record(&name, &standing(), 3, Duration::ZERO);
        let has_arrived = AtomicBool::new(false);
        let (say, said) = mpsc::channel();
        thread::scope(|scope| {
            let (recent, name, has_arrived) = (&recent, &name, &has_arrived);
            let done = recent.hand_over(name, 1000, |past| {
                scope.spawn(move || {
                    let left = handed_over(recent, name);
                    let _ = say.send((left, has_arrived.load(Ordering::SeqCst)));
                });
                // As long as it takes another to come in between, if it may.
                let between = said.recv_timeout(Duration::from_millis(200));
                assert_eq!(between, Err(mpsc::RecvTimeoutError::Timeout));
                assert_eq!(past, [(5000, 3)]);
                has_arrived.store(true, Ordering::SeqCst);
                Ok::<_, Infallible>(())
            });
            assert_eq!(done, Ok(()));
            assert_eq!(said.recv(), Ok((0, true)));
        });
    }

    /// A lease counts from its end.
    #[test]
    fn a_grant_is_there_until_its_part_is_an_interval_old() {
        for (left, end) in [(0, 5125), (125, 5250)] {
            for (now, expected) in [(end + 999, 3), (end + 1000, 0)] {
                let ((recent, clock), name) = (clocked(), Name::exact("ann").unwrap());
                recent.record(&name, &standing(), 3, Duration::from_millis(left));
                clock.set(Duration::from_millis(now));
                assert_eq!(handed_over(&recent, &name), expected, "{left} {now}");
            }
        }
    }

    #[test]
    fn another_interval_forgets_nothing() {
        let mut granted = LimiterGrants::new(10, 1000, 5000);
        granted.add(3);
        assert_eq!(granted.take(250, 5100), [(5100, 3)]);
    }
}
