//! The laws of a store as a test: [`swaps`](swaps()) compares a backend with a map, and [`check`]
//! compares random histories of a store with the simplest count.
//!
//! Never more than the limit in any interval, and never less where there is room; the announced
//! wait is the first instant at which there is; a refusal takes nothing; several limits are charged
//! together or not at all; a grant is settled exactly, and once; a changed limit counts what is in
//! use; an interval without traffic leaves all permits free; callers at the same time get no more
//! than there is, and leave the rest to those who come after them.

mod swaps;

use std::time::Duration;

use tokio::task::JoinSet;

pub use self::swaps::swaps;
use crate::{
    limiter::RateLimiter,
    store::{Store, random_id},
    values::{
        clock::{Clock, ManualClock},
        decision::{Decision, Grant, RefusalKind},
        limit::Limit,
    },
};

/// Checks the laws on a store that counts by `clock`, in this many random histories.
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
        let mut random = Random(seed ^ u64::from(number) << 32);
        let books = [
            Book::open(store, &mut random).await,
            Book::open(store, &mut random).await,
        ];
        let (clock, taken) = (clock.clone(), Vec::new());
        let mut history = History {
            clock,
            random,
            books,
            taken,
        };
        for step in 0..40 {
            history
                .step(&format!("seed {seed}, history {number}, step {step}"))
                .await;
        }
        history
            .end(&format!("seed {seed}, history {number}, its end"))
            .await;
    }
}

/// SplitMix64: enough for histories, and no dependency.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
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
    async fn open(store: &impl Store, random: &mut Random) -> Self {
        let id = u128::from_be_bytes(random_id().expect("entropy").0);
        // Of one hash slot, wherever slots are.
        let limiter = RateLimiter::new(store, &format!("{{laws}}:{id:x}")).expect("a name");
        let interval = Duration::from_millis([3, 10, 100, 1000][random.below(4) as usize]);
        let limit = Limit::new(1 + random.below(11), interval);
        assert!(limiter.try_set_rate(limit).await.expect("a store"));
        assert!(
            !limiter
                .try_set_rate(Limit::per_day(1))
                .await
                .expect("a store")
        );
        let charges = Vec::new();
        Self {
            limiter,
            limit,
            charges,
        }
    }

    fn used(&self, now: Duration) -> u64 {
        let counts = |at: Duration| at + self.limit.interval() > now;
        self.charges
            .iter()
            .map(|(at, permits)| permits * u64::from(counts(*at)))
            .sum()
    }

    fn free(&self, now: Duration) -> u64 {
        self.limit.permits().saturating_sub(self.used(now))
    }

    /// Returns the time until this many permits are free, at most the limit.
    fn wait(&self, now: Duration, permits: u64) -> Duration {
        let ends = self
            .charges
            .iter()
            .map(|(at, _)| *at + self.limit.interval());
        let instants = ends.filter(|end| *end > now).chain([now]);
        let first = instants.filter(|at| self.free(*at) >= permits).min();
        first.map_or(Duration::ZERO, |at| at - now)
    }
}

struct History {
    clock: ManualClock,
    random: Random,
    books: [Book; 2],
    /// Grants that can be settled: the numbers of book and charge, the permits, the grant.
    taken: Vec<(usize, usize, u64, Grant)>,
}

impl History {
    async fn step(&mut self, at: &str) {
        let which = self.random.below(2) as usize;
        let interval = self.books[which].limit.interval();
        match self.random.below(16) {
            0..4 => {
                let unit = Duration::from_millis(1);
                let pauses = [unit, interval / 3, interval - unit, interval];
                let pause = pauses[self.random.below(4) as usize].as_millis() as u64;
                self.clock.advance(Duration::from_millis(pause));
            }
            4..6 => self.settle(at).await,
            6 => self.change(which).await,
            7..11 => self.take(&[0, 1], at).await,
            _ => self.take(&[which], at).await,
        }
        self.count(at).await;
    }

    /// Takes permits of these books, together.
    async fn take(&mut self, of: &[usize], at: &str) {
        let (now, books) = (self.clock.now(), &mut self.books);
        let most = of.iter().map(|which| books[*which].limit.permits());
        let (least, most) = (most.clone().min().unwrap_or(1), most.max().unwrap_or(1));
        let permits = 1 + self.random.below(most / 2 + 1);
        let all = RateLimiter::all(of.iter().map(|which| &books[*which].limiter));
        let all = all.expect("limiters of one store");
        let decision = all
            .try_acquire_many(permits as u32)
            .await
            .expect("a decision");
        let waits = of.iter().map(|which| books[*which].wait(now, permits));
        let wait = waits.max().unwrap_or_default();
        let at = format!("{at}: {permits} permits of {of:?}");
        match decision {
            Decision::Deny(refusal) if permits > least => {
                assert_eq!(refusal.kind(), RefusalKind::AboveRate, "{at}");
            }
            Decision::Deny(refusal) => {
                assert!(!wait.is_zero(), "{at}: refused, and there is room");
                assert_eq!(refusal.retry_after(), Some(wait), "{at}: the wait");
            }
            Decision::Allow(grant) => {
                assert!(
                    permits <= least && wait.is_zero(),
                    "{at}: granted beyond the limit"
                );
                for which in of {
                    let charges = &mut books[*which].charges;
                    let taken = (*which, charges.len(), permits, grant.clone());
                    self.taken.push(taken);
                    charges.push((now, permits));
                }
                let said: u64 = grant.limits().filter_map(|limit| limit.remaining()).sum();
                let left: u64 = of.iter().map(|which| books[*which].free(now)).sum();
                assert_eq!(said, left, "{at}: the permits left");
            }
        }
    }

    /// Settles an earlier grant; to give back twice is to give back once.
    async fn settle(&mut self, at: &str) {
        if self.taken.is_empty() {
            return;
        }
        let index = self.random.below(self.taken.len() as u64) as usize;
        let (which, charge, taken, grant) = self.taken.swap_remove(index);
        let keep = self.random.below(taken + 3);
        let (now, book) = (self.clock.now(), &mut self.books[which]);
        let (before, free) = (book.charges.clone(), book.free(now));
        let is_over = book.charges[charge].0 + book.limit.interval() <= now;
        match keep.checked_sub(taken) {
            Some(more) => book.charges.push((now, more)),
            None => book.charges[charge].1 = keep,
        }
        // The store carries a settlement out in the background, at any time. One whose effect
        // cannot be observed is left out here, unless it can never have any.
        let gives_back = keep < taken;
        if book.free(now) == free && !(is_over && gives_back) {
            book.charges = before;
            return;
        }
        for _ in 0..=u32::from(gives_back) {
            self.books[which].limiter.settle(&grant, keep as u32);
            self.count(&format!("{at}: settled at {keep}")).await;
        }
    }

    /// Changes a limit: what is in use stays in use, or is forgotten.
    async fn change(&mut self, which: usize) {
        let (forgets, permits) = (self.random.below(3) == 0, 1 + self.random.below(11));
        let book = &mut self.books[which];
        book.limit = Limit::new(permits, book.limit.interval());
        if forgets {
            book.charges.clear();
            self.taken.retain(|(of, ..)| *of != which);
            book.limiter.set_rate(book.limit).await.expect("a store");
        } else {
            assert!(book.limiter.update_rate(book.limit).await.expect("a store"));
        }
        assert_eq!(
            book.limiter.limit().await.expect("a store"),
            Some(book.limit)
        );
    }

    /// Counts what is free, and waits for settlements.
    async fn count(&self, at: &str) {
        for book in &self.books {
            let (mut free, expected) = (None, Some(book.free(self.clock.now())));
            for _ in 0..2000 {
                free = book.limiter.available_permits().await.ok();
                if free == expected {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(
                free,
                expected,
                "{at}: free of {} in use",
                book.charges.len()
            );
        }
    }

    /// Leaves an interval without traffic, and has many ask at the same time, in either order:
    /// calls must not lock each other out.
    async fn end(mut self, at: &str) {
        let [a, b] = &mut self.books;
        self.clock
            .advance(a.limit.interval().max(b.limit.interval()));
        let least = a.limit.permits().min(b.limit.permits());
        (a.charges, b.charges) = (Vec::new(), Vec::new());
        self.count(at).await;
        let [a, b] = &self.books.map(|book| book.limiter);
        let mut callers = JoinSet::new();
        for number in 0..4 * least {
            let pair = if number % 2 == 0 { [a, b] } else { [b, a] };
            let all = RateLimiter::all(pair).expect("limiters of one store");
            callers.spawn(async move { all.try_acquire().await.expect("a decision").is_allowed() });
        }
        let granted = callers
            .join_all()
            .await
            .into_iter()
            .map(u64::from)
            .sum::<u64>();
        let mut after = 0;
        let all = RateLimiter::all([a, b]).expect("limiters of one store");
        while granted + after <= least && all.try_acquire().await.expect("a decision").is_allowed()
        {
            after += 1;
        }
        assert!(
            granted > 0,
            "{at}: nobody of many at the same time got anything"
        );
        assert_eq!(
            granted + after,
            least,
            "{at}: granted to many at the same time, and after"
        );
        for limiter in [a, b] {
            assert!(limiter.delete().await.expect("a store"), "{at}: deleted");
            assert_eq!(
                limiter.limit().await.expect("a store"),
                None,
                "{at}: deleted"
            );
        }
    }
}
