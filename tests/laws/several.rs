//! L1 to L3 and L5 by several limits of one name: a request is granted if all have room, else it
//! waits for the last of them; each is told as it stands, and what is given back is free in each.

use kit::{guards::Guards, scene::*};
use proptest::sample::Index;
use tower_ratelimit::LimitState;

use super::{
    settled::Books,
    world::{MILLISECOND, World, check_in_redis, in_all_at_once, redis_store, wait_of},
};

/// What a caller does after a pause: it asks for permits, or settles an earlier grant.
#[derive(Clone, Copy, Debug)]
enum Act {
    Ask(u32),
    Settle(Index, u32),
}

/// Limits, the shortest first, and what callers do.
type Input = (Vec<Limit>, Vec<(u64, Act)>);

/// Each longer interval is a few times the one before, and allows less than that many times more.
fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let shortest = (2u64..5, prop_oneof![Just(10u64), Just(97), Just(1000)]);
    let longer = proptest::collection::vec((2u64..5, any::<Index>()), 1..4);
    (shortest, longer).prop_map(|((mut permits, mut interval), longer)| {
        let mut limits = vec![Limit::new(permits, millis(interval))];
        for (times, more) in longer {
            let most = usize::try_from(permits * (times - 1) - 1).expect("a few");
            permits += 1 + more.index(most) as u64;
            interval *= times;
            limits.push(Limit::new(permits, millis(interval)));
        }
        limits
    })
}

fn input() -> impl Strategy<Value = Input> {
    limits().prop_flat_map(|limits| {
        let short = u64::try_from(limits[0].interval().as_millis()).expect("short");
        let pause = prop_oneof![4 => Just(0), 6 => 0..=short / 2, 2 => short - 1..=short + 1,
            1 => 0..=4 * short];
        let act = prop_oneof![
            4 => (1u32..3).prop_map(Act::Ask),
            1 => (1u32..9).prop_map(Act::Ask),
            1 => (any::<Index>(), 0u32..6).prop_map(|(which, keep)| Act::Settle(which, keep)),
        ];
        let steps = proptest::collection::vec((pause, act), 1..60);
        (Just(limits), steps)
    })
}

fn law<S: Store>(world: &World<S>, (limits, steps): Input, settled: &impl AsyncFn(&S)) {
    let joined = limits.iter().copied().reduce(Limit::and).expect("some");
    let reversed = limits.iter().rev().copied().reduce(Limit::and);
    assert_eq!(
        (Some(joined), joined.to_string().parse()),
        (reversed, Ok(joined))
    );
    world.run(async {
        let limiter = joined.named(&unique("several")).single(&world.store);
        let limiter = limiter.expect("a limit");
        let mut books: Vec<_> = limits.iter().map(|limit| Books::of(*limit)).collect();
        let mut grants: Vec<(usize, u32, Grant)> = Vec::new();
        for (pause, act) in steps {
            world.advance(millis(pause));
            let now = world.now();
            let left = |books: &[Books]| -> Vec<u64> {
                let each = limits.iter().zip(books);
                each.map(|(limit, books)| limit.permits().saturating_sub(books.used(now)))
                    .collect()
            };
            match act {
                Act::Ask(permits) => {
                    let waits = books.iter().map(|books| books.wait(now, permits));
                    let must = waits.collect::<Option<Vec<_>>>();
                    let must = must.map(|waits| waits.into_iter().max().expect("some"));
                    let decision = limiter.try_acquire_many(permits).await.expect("a decision");
                    let said = wait_of(&decision);
                    match must {
                        Some(Duration::ZERO) => assert_eq!(said, Ok(())),
                        must => assert_eq!(said, Err(must), "{:?}", left(&books)),
                    }
                    if let Decision::Allow(grant) = &decision {
                        grants.push((books[0].charges.len(), permits, grant.clone()));
                        let charges = books.iter_mut().map(|books| &mut books.charges);
                        charges.for_each(|it| it.push((now, permits.into())));
                    }
                    // What was told before may have come free since.
                    if decision.source() == Source::Store && must.is_some() {
                        told(&decision, &limits, &left(&books), permits);
                        holds_times(&decision, &limits, &books, now, permits);
                    }
                }
                Act::Settle(which, keep) if !grants.is_empty() => {
                    let (place, taken, grant) = grants.remove(which.index(grants.len()));
                    limiter.settle(&grant, keep);
                    settled(&world.store).await;
                    for books in &mut books {
                        match keep.checked_sub(taken) {
                            Some(more) => books.charges.push((now, more.into())),
                            None => books.charges[place].1 = keep.into(),
                        }
                    }
                }
                Act::Settle(..) => {}
            }
            assert_eq!(Some(free(&limiter).await), left(&books).into_iter().min());
        }
    });
}

fn of<'d>(decision: &'d Decision, limit: &Limit) -> LimitState<'d> {
    let mut all = decision.limits();
    let found = all.find(|state| state.interval() == limit.interval());
    found.expect("an entry for each limit")
}

/// There is an entry for each limit, and the one that is closest to exhaustion is the first.
fn told(decision: &Decision, limits: &[Limit], left: &[u64], permits: u32) {
    assert_eq!(decision.limits().count(), limits.len());
    for (limit, left) in limits.iter().zip(left) {
        let state = of(decision, limit);
        assert_eq!(
            (state.permits(), state.remaining()),
            (limit.permits(), Some(*left))
        );
        let refuses = !decision.is_allowed() && *left < permits.into();
        assert_eq!(state.is_refused(), refuses, "{limit} of {left:?}");
    }
    let first = decision.limits().next().expect("a limit");
    match decision {
        Decision::Deny(refusal) => assert_eq!(first.retry_after(), refusal.retry_after()),
        Decision::Allow(_) => {
            let part = |state: &LimitState<'_>| {
                state.remaining().expect("counted") as f64 / state.permits() as f64
            };
            assert!(decision.limits().all(|state| part(&state) >= part(&first)));
        }
    }
}

/// Each limit says when it has room, or one permit more, to the millisecond.
fn holds_times(
    decision: &Decision,
    limits: &[Limit],
    books: &[Books],
    now: Duration,
    permits: u32,
) {
    for (limit, books) in limits.iter().zip(books) {
        let state = of(decision, limit);
        if state.is_refused() {
            assert_eq!(state.retry_after(), books.wait(now, permits), "{limit}");
        }
        let left = limit.permits().checked_sub(books.used(now));
        if decision.is_allowed()
            && let Some(left) = left.filter(|left| *left < limit.permits())
        {
            let one_more = u32::try_from(left + 1).expect("a few");
            assert_eq!(state.next_after(), books.wait(now, one_more), "{limit}");
        }
    }
}

#[test]
fn in_memory() {
    let world = World::memory(MILLISECOND);
    check(1500, &input(), |input| {
        law(&world, input, &Settles::settled);
    });
}

#[test]
fn in_a_store_of_ones_own() {
    let world = World::backend(MILLISECOND);
    let asks = input().prop_map(|(limits, steps)| {
        // What it gives back is settled in the background: `backend` waits for that.
        let asks = steps
            .into_iter()
            .filter(|(_, act)| matches!(act, Act::Ask(_)));
        (limits, asks.collect())
    });
    check(300, &asks, |input| law(&world, input, &async |_: &_| {}));
}

#[test]
fn in_redis() {
    check_in_redis(480, &input(), |world, input| {
        law(world, input, &Settles::settled);
    });
}

/// Callers that wait are granted one after the other, as fast as both limits allow.
async fn all_who_wait_are_granted_in_time(store: impl Store) {
    const CALLERS: u32 = 16;
    let limit = Limit::new(2, millis(40)).and(Limit::new(5, millis(150)));
    let limiter = limit.named(&unique("waits")).single(&store);
    let limiter = limiter.expect("a limit");
    let began = Instant::now();
    let callers = (0..CALLERS).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.try_acquire_for(1, LONG).await })
    });
    for caller in callers.collect::<Vec<_>>() {
        let decision = caller.await.expect("an answer").expect("a decision");
        assert!(decision.is_allowed(), "{decision:?}");
    }
    // Five at once, and as many in each interval.
    let least = millis(150) * ((CALLERS - 1) / 5);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_take_turns() {
    all_who_wait_are_granted_in_time(MemoryStore::new()).await;
    in_all_at_once(async |guards| {
        all_who_wait_are_granted_in_time(redis_store(guards)).await;
    })
    .await;
}

/// Callers of one call that ask for different numbers are each told of their own.
#[tokio::test]
async fn callers_of_one_call_are_told_of_their_own() {
    let store = redis_store(Guards::all()[0]);
    let limit = Limit::new(5, secs(1)).and(Limit::per_hour(100));
    for asks in [[5, 1, 3], [1, 5, 1], [3, 5, 3]] {
        let limiter = limit
            .named(&unique("told"))
            .single(&store)
            .expect("a limit");
        let ask = async |permits| limiter.try_acquire_many(permits).await.expect("a decision");
        assert!(ask(1).await.is_allowed());
        let [a, b, c] = asks.map(ask);
        for decision in <[Decision; 3]>::from(tokio::join!(a, b, c)) {
            assert_eq!(decision.limits().count(), 2);
            let first = decision.limits().next().expect("a limit");
            match &decision {
                Decision::Allow(_) => {
                    assert!(decision.limits().all(|it| it.next_after().is_some()));
                }
                Decision::Deny(refusal) => {
                    assert!(first.is_refused());
                    assert_eq!(first.retry_after(), refusal.retry_after());
                }
            }
        }
    }
}
