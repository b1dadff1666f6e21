//! The laws of a store as a test: random histories, beside the plainest count there is.
//!
//! Never more than the limit in any interval, and never less where there is room; the announced
//! wait is the first instant at which there is; a refusal takes nothing; several limits are charged
//! together or not at all; a grant is settled exactly, and once; a changed limit counts what is in
//! use; an interval without traffic leaves all permits free; callers at the same time get what
//! there is, and no more.

use std::{cmp::Reverse, time::Duration};

use tokio::task::JoinSet;

use crate::{
    clock::{Clock, ManualClock},
    decision::{Decision, RefusalKind},
    limit::Limit,
    limiter::RateLimiter,
    receipt::Receipt,
    store::{Store, random_id},
};

/// Checks the laws on a store that counts by `clock`, in so many histories.
///
/// Equal seeds are equal histories: a failure says which one and which step it was. The store's
/// deadline must be longer than its calls take on a busy machine. Its limiters are new, and stay.
///
/// # Panics
///
/// If the store breaks a law, or returns an error.
///
/// # Cancel safety
///
/// Dropping it ends the check.
pub async fn check(store: &impl Store, clock: &ManualClock, seed: u64, histories: u32) {
    for number in 0..histories {
        let random = Random(seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9)));
        let mut history = History::begin(store, clock, random).await;
        for step in 0..40 {
            let at = format!("seed {seed}, history {number}, step {step}");
            history.step(&at).await;
        }
        history
            .end(&format!("seed {seed}, history {number}, at its end"))
            .await;
    }
}

/// SplitMix64: enough for histories, and no dependency.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end
    }
}

/// One limiter, and what it has granted: when, and how many permits count.
struct Book {
    limiter: RateLimiter,
    limit: Limit,
    charges: Vec<(Duration, u64)>,
}

impl Book {
    async fn open(store: &impl Store, name: &str, random: &mut Random) -> Self {
        let interval = [3, 10, 100, 1000][random.below(4) as usize];
        let limit = Limit::new(1 + random.below(11), Duration::from_millis(interval));
        let limiter = RateLimiter::new(store, name).expect("a name");
        assert_eq!(limiter.limit().await.expect("a store"), None);
        assert!(limiter.try_set_rate(limit).await.expect("a store"));
        assert!(!limiter.try_set_rate(limit).await.expect("a store"));
        Self {
            limiter,
            limit,
            charges: Vec::new(),
        }
    }

    fn used(&self, now: Duration) -> u64 {
        let interval = self.limit.interval();
        let counts = |(at, _): &&(Duration, u64)| *at + interval > now;
        self.charges
            .iter()
            .filter(counts)
            .map(|(_, permits)| permits)
            .sum()
    }

    fn free(&self, now: Duration) -> u64 {
        self.limit.permits().saturating_sub(self.used(now))
    }

    /// Returns the time until so many fit, which are no more than the limit.
    fn wait(&self, now: Duration, permits: u64) -> Duration {
        let ends = self
            .charges
            .iter()
            .map(|(at, _)| *at + self.limit.interval());
        let instants = ends.filter(|end| *end > now).chain([now]);
        let fits = |at: &Duration| self.used(*at) + permits <= self.limit.permits();
        instants
            .filter(fits)
            .min()
            .map_or(Duration::ZERO, |at| at - now)
    }
}

/// A grant that can be settled: of which book, by which charge, and its receipt.
type Taken = (usize, usize, Receipt);

struct History<'a> {
    clock: &'a ManualClock,
    random: Random,
    books: [Book; 2],
    taken: Vec<Taken>,
}

impl<'a> History<'a> {
    async fn begin(store: &impl Store, clock: &'a ManualClock, mut random: Random) -> Self {
        let id = u128::from_be_bytes(random_id().expect("entropy").0);
        // Of one hash slot, wherever slots are.
        let name = |limiter| format!("{{laws:{id:x}}}:{limiter}");
        let books = [
            Book::open(store, &name("a"), &mut random).await,
            Book::open(store, &name("b"), &mut random).await,
        ];
        Self {
            clock,
            random,
            books,
            taken: Vec::new(),
        }
    }

    async fn step(&mut self, at: &str) {
        let which = self.random.below(2) as usize;
        match self.random.below(12) {
            0..3 => {
                let interval = self.books[which].limit.interval().as_millis() as u64;
                let pauses = [1, interval / 4, interval - 1, interval];
                let pause = pauses[self.random.below(4) as usize];
                self.clock.advance(Duration::from_millis(pause));
            }
            3 => self.settle(at).await,
            4 if self.random.below(4) == 0 => self.update(which).await,
            4 => {}
            5..8 => self.take(&[0, 1], at).await,
            _ => self.take(&[which], at).await,
        }
        self.count(at).await;
    }

    /// Takes permits of these books, together.
    async fn take(&mut self, of: &[usize], at: &str) {
        let now = self.clock.now();
        let most = of
            .iter()
            .map(|which| self.books[*which].limit.permits())
            .max()
            .unwrap_or(1);
        let permits = 1 + self.random.below(most.div_ceil(2) + 1);
        let books = || of.iter().map(|which| &self.books[*which]);
        let limiters = books().map(|book| &book.limiter);
        let all = RateLimiter::all(limiters).expect("limiters of one store");
        let asked = u32::try_from(permits).expect("a few");
        let decision = all.try_acquire_many(asked).await.expect("a decision");
        let is_possible = books().all(|book| permits <= book.limit.permits());
        let wait = books()
            .map(|book| book.wait(now, permits))
            .max()
            .unwrap_or_default();
        let at = format!("{at}: {permits} permits of {of:?}");
        let grant = match decision {
            Decision::Deny(refusal) if !is_possible => {
                return assert_eq!(refusal.kind(), RefusalKind::AboveRate, "{at}");
            }
            Decision::Deny(refusal) => {
                assert!(!wait.is_zero(), "{at}: refused, and there is room");
                return assert_eq!(refusal.retry_after(), Some(wait), "{at}: its wait");
            }
            Decision::Allow(grant) => grant,
        };
        assert!(
            is_possible && wait.is_zero(),
            "{at}: granted beyond the limit"
        );
        assert_eq!(grant.receipts().len(), of.len(), "{at}: receipts");
        for which in of {
            let book = &mut self.books[*which];
            let is_its = |receipt: &&Receipt| receipt.name().as_str() == book.limiter.name();
            let receipt = grant.receipts().iter().find(is_its).expect("its receipt");
            self.taken
                .push((*which, book.charges.len(), receipt.clone()));
            book.charges.push((now, permits));
        }
        let mut left: Vec<_> = of
            .iter()
            .map(|which| self.books[*which].free(now))
            .collect();
        let mut said: Vec<_> = grant
            .limits()
            .filter_map(|limit| limit.remaining())
            .collect();
        left.sort_unstable();
        said.sort_unstable();
        assert_eq!(said, left, "{at}: the permits left");
    }

    /// Settles an earlier grant. To give back twice is to give back once.
    async fn settle(&mut self, at: &str) {
        let Some(last) = (self.taken.len() as u64).checked_sub(1) else {
            return;
        };
        let place = self.random.below(last + 1) as usize;
        let (which, charge, receipt) = self.taken.swap_remove(place);
        let keep = self.random.below(u64::from(receipt.permits()) + 3);
        let now = self.clock.now();
        let (taken, book) = (u64::from(receipt.permits()), &mut self.books[which]);
        let (before, free) = (book.charges.clone(), book.free(now));
        match keep.checked_sub(taken) {
            Some(more) => book.charges.push((now, more)),
            None => book.charges[charge].1 = keep,
        }
        // It is carried out in the background: what cannot be seen may come at any time, and so is
        // left out, unless there is nothing to see for ever.
        let is_over = before[charge].0 + book.limit.interval() <= now && keep < taken;
        if book.free(now) == free && !is_over {
            book.charges = before;
            return;
        }
        for _ in 0..=u32::from(keep < taken) {
            let keep = u32::try_from(keep).expect("a few");
            self.books[which].limiter.settle(&receipt, keep);
            self.count(&format!("{at}: settled at {keep}")).await;
        }
    }

    /// Changes a limit: what is in use goes on counting.
    async fn update(&mut self, which: usize) {
        let permits = 1 + self.random.below(11);
        let book = &mut self.books[which];
        book.limit = Limit::new(permits, book.limit.interval());
        assert!(book.limiter.update_rate(book.limit).await.expect("a store"));
        assert_eq!(
            book.limiter.limit().await.expect("a store"),
            Some(book.limit)
        );
    }

    /// Counts what is free. Settlements are carried out in the background: it waits for them.
    async fn count(&self, at: &str) {
        let now = self.clock.now();
        for book in &self.books {
            let (mut free, expected) = (None, book.free(now));
            for _ in 0..2000 {
                free = book.limiter.available_permits().await.ok();
                if free == Some(expected) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(
                free,
                Some(expected),
                "{at}: free permits of {}",
                book.limiter.name()
            );
        }
    }

    async fn end(mut self, at: &str) {
        self.books
            .sort_by_key(|book| Reverse(book.limit.interval()));
        self.clock.advance(self.books[0].limit.interval());
        self.books.iter_mut().for_each(|book| book.charges.clear());
        self.count(at).await;
        // In either order: calls must not lock each other out.
        let [a, b] = &self.books;
        let mut callers = JoinSet::new();
        for number in 0..4 * a.limit.permits().max(b.limit.permits()) {
            let (a, b) = (&a.limiter, &b.limiter);
            let pair = if number % 2 == 0 { [a, b] } else { [b, a] };
            let all = RateLimiter::all(pair).expect("limiters of one store");
            callers.spawn(async move { all.try_acquire().await.expect("a decision").is_allowed() });
        }
        let granted = callers
            .join_all()
            .await
            .into_iter()
            .filter(|granted| *granted)
            .count();
        let least = a.limit.permits().min(b.limit.permits());
        assert_eq!(
            granted as u64, least,
            "{at}: granted to callers at the same time"
        );
        for book in &mut self.books {
            book.charges.push((self.clock.now(), least));
        }
        self.count(at).await;
        for book in &self.books {
            assert!(
                book.limiter.delete().await.expect("a store"),
                "{at}: deleted"
            );
            assert_eq!(
                book.limiter.limit().await.expect("a store"),
                None,
                "{at}: deleted"
            );
        }
    }
}
