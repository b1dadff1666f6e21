//! L1 and L2 with settlements: released permits no longer count, additional charges count from then
//! on.
//!
//! Compared with the plainest count: a list of charges, and the sum of those younger than an
//! interval.

use kit::scene::*;
use proptest::sample::Index;

use super::{
    kinds::{Lawful, WAYS},
    world::{Grant, MILLISECOND, Request, World, histories, law, wait_of},
};

/// An earlier grant to settle before a request, with its number of permits.
type Settled = Option<(Index, u32)>;
type Input = (Limit, Vec<(Request, Settled)>);

fn input() -> impl Strategy<Value = Input> {
    let keep = prop_oneof![4 => Just(0u32), 6 => 0u32..8, 2 => 0u32..60];
    let settled = proptest::option::weighted(0.7, (any::<Index>(), keep));
    let settled = proptest::collection::vec(settled, 60);
    (histories(MILLISECOND), settled).prop_map(|((limit, traffic), settled)| {
        let steps = traffic.into_iter().zip(settled);
        (limit, steps.collect())
    })
}

pub(crate) struct Books {
    limit: Limit,
    /// Time and permits
    pub(crate) charges: Vec<(Duration, u64)>,
}

impl Books {
    pub(crate) fn of(limit: Limit) -> Self {
        let charges = Vec::new();
        Self { limit, charges }
    }

    pub(crate) fn used(&self, now: Duration) -> u64 {
        let interval = self.limit.interval();
        let live = self.charges.iter().filter(|(at, _)| *at + interval > now);
        live.map(|(_, permits)| permits).sum()
    }

    fn fits(&self, now: Duration, permits: u32) -> bool {
        self.used(now) + u64::from(permits) <= self.limit.permits()
    }

    /// Returns the time until this many fit; `None` if they never do.
    pub(crate) fn wait(&self, now: Duration, permits: u32) -> Option<Duration> {
        let interval = self.limit.interval();
        let ends = self.charges.iter().map(|(at, _)| *at + interval);
        let instants = ends.filter(|end| *end > now).chain([now]);
        let first = instants.filter(|instant| self.fits(*instant, permits));
        first.min().map(|instant| instant - now)
    }
}

/// Released permits leave room, and no more than if they had never been taken.
fn law<S: Settles>(world: &World<S>, kind: Way, (limit, steps): Input) {
    world.run(async {
        let limiter = world.limiter_of(kind, limit).await;
        let mut books = Books::of(limit);
        let mut kept: Vec<Grant> = Vec::new();
        let mut grants: Vec<(usize, usize, u32, tower_ratelimit::Grant)> = Vec::new();
        for (Request { pause, permits }, settled) in steps {
            world.advance(pause);
            let now = world.now();
            if let Some((which, keep)) = settled.filter(|_| !grants.is_empty()) {
                // Once.
                let (place, charge, taken, grant) = grants.remove(which.index(grants.len()));
                // Of GCRA only the pace is checked, which more charges would hide.
                let keep = match kind {
                    Way::Gcra => keep.min(taken),
                    _ => keep,
                };
                limiter.settle(&grant, keep);
                world.store.settled().await;
                kept[place].permits = keep.min(taken);
                match keep.checked_sub(taken) {
                    Some(more) => books.charges.push((now, more.into())),
                    None => books.charges[charge].1 = keep.into(),
                }
            }
            if kind == Way::Log {
                let left = limit.permits().saturating_sub(books.used(now));
                assert_eq!(free(&limiter).await, left);
            }
            let decision = limiter.try_acquire_many(permits).await.unwrap();
            if kind == Way::Log {
                let expected = match books.wait(now, permits) {
                    Some(Duration::ZERO) => Ok(()),
                    wait => Err(wait),
                };
                assert_eq!(wait_of(&decision), expected, "{:?}", books.charges);
            }
            if let Decision::Allow(grant) = decision {
                grants.push((kept.len(), books.charges.len(), permits, grant));
                books.charges.push((now, permits.into()));
                kept.push(world.grant(permits));
            }
        }
        assert!(kind.holds(&kept, limit), "{kind:?}: {kept:?}");
    });
}

law! {
    input(), |world, kind, input| law(world, kind, input);
    in_memory: 430 by [&[Way::Log][..], &[Way::Gcra; 7]].concat(),
    in_redis: 100 by [Way::Log, Way::Gcra],
}

// What is given back at once is as if it had never been taken, whatever lies ahead.
#[test]
fn what_is_given_back_at_once_is_all_there_again() {
    let world = World::memory(MILLISECOND);
    for kind in WAYS {
        check(200, &histories(MILLISECOND), |(limit, traffic)| {
            world.run(async {
                let limiter = world.limiter_of(kind, limit).await;
                world.send(&limiter, &traffic).await;
                let all = free(&limiter).await;
                for permits in 1..=u32::try_from(all).unwrap() {
                    let grant = take(&limiter, permits).await;
                    assert_eq!(free(&limiter).await, all - u64::from(permits));
                    limiter.give_back(&grant);
                    assert_eq!(free(&limiter).await, all);
                }
            });
        });
    }
}
