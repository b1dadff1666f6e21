//! L1 and L2 with settlements: released permits no longer count, additional charges count from then
//! on.
//!
//! Compared with the plainest count: a list of charges, and the sum of those younger than an
//! interval.

use crate::scene::*;
use proptest::sample::Index;

use super::world::{Request, World, check, check_in_redis, limit, traffic, wait_of};

/// An earlier grant to settle before a request, with its number of permits.
type Settled = Option<(Index, u32)>;

fn input() -> impl Strategy<Value = (Limit, Vec<(Request, Settled)>)> {
    let keep = prop_oneof![2 => Just(0u32), 6 => 0u32..8, 2 => 0u32..60];
    let settled = proptest::option::of((any::<Index>(), keep));
    limit().prop_flat_map(move |limit| {
        let settled = proptest::collection::vec(settled.clone(), 50);
        let steps = (traffic(limit, 50), settled)
            .prop_map(|(traffic, settled)| traffic.into_iter().zip(settled).collect());
        (Just(limit), steps)
    })
}

struct Books {
    limit: Limit,
    /// Time and permits
    charges: Vec<(u64, u64)>,
}

impl Books {
    fn interval(&self) -> u64 {
        u64::try_from(self.limit.interval().as_millis()).unwrap()
    }

    fn used(&self, now: u64) -> u64 {
        let live = self
            .charges
            .iter()
            .filter(|(at, _)| at + self.interval() > now);
        live.map(|(_, permits)| permits).sum()
    }

    fn fits(&self, now: u64, permits: u32) -> bool {
        self.used(now) + u64::from(permits) <= self.limit.permits()
    }

    /// Returns the time until this many fit; `None` if they never do.
    fn wait(&self, now: u64, permits: u32) -> Option<u64> {
        let ends = self.charges.iter().map(|(at, _)| at + self.interval());
        let instants = ends.filter(|end| *end > now).chain([now]);
        let first = instants.filter(|instant| self.fits(*instant, permits));
        first.min().map(|instant| instant - now)
    }
}

fn law<S: Store>(
    world: &World<S>,
    (limit, steps): (Limit, Vec<(Request, Settled)>),
    delivered: &impl AsyncFn(&S),
) {
    world.run(async {
        let limiter = world.limiter(limit).await;
        let mut books = Books {
            limit,
            charges: Vec::new(),
        };
        let mut grants: Vec<(usize, Receipt)> = Vec::new();
        for (Request { pause, permits }, settled) in steps {
            world.advance(pause);
            let now = world.now();
            if let Some((which, keep)) = settled.filter(|_| !grants.is_empty()) {
                // Once, as receipts are.
                let (charge, receipt) = grants.remove(which.index(grants.len()));
                limiter.settle(&receipt, keep);
                delivered(&world.store).await;
                match keep.checked_sub(receipt.permits()) {
                    Some(more) => books.charges.push((now, more.into())),
                    None => books.charges[charge].1 = keep.into(),
                }
            }
            let left = limit.permits().saturating_sub(books.used(now));
            assert_eq!(limiter.available_permits().await.unwrap(), left);

            let decision = limiter.try_acquire_many(permits).await.unwrap();
            let expected = match books.wait(now, permits) {
                Some(0) => Ok(()),
                wait => Err(wait),
            };
            assert_eq!(wait_of(&decision), expected, "{:?}", books.charges);
            if let Decision::Allow(grant) = decision {
                grants.push((books.charges.len(), grant.receipts()[0].clone()));
                books.charges.push((now, permits.into()));
            }
        }
    });
}

#[test]
fn in_memory() {
    let world = World::memory();
    check(400, &input(), |input| law(&world, input, &async |_| {}));
}

#[test]
fn in_redis() {
    check_in_redis(100, &input(), |world, input| {
        law(world, input, &async |store: &RedisStore| {
            store.close().await;
        });
    });
}
