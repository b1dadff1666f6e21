//! MemoryStore at its bound: who has to go, who never does, and who is refused.
//! `memory/strangers.rs` has those who are counted by an estimate.

#![cfg(feature = "test-util")]

mod strangers;

use crate::scene::*;
use std::{collections::BTreeMap, collections::HashSet, sync::Barrier};

use proptest::prelude::*;
use tower::{BoxError, util::BoxCloneSyncService};
use tower_ratelimit::Error;

const INTERVAL: u64 = 1000;
const RATE: u32 = 2;
/// The cost of each request: a limit of this size is too large for the estimates of a full store.
const COST: u32 = 40_000;

type Service = BoxCloneSyncService<Request<()>, Response<()>, BoxError>;

/// Returns a store of at most `bound` limiters, and a service whose rule admits when the store
/// fails.
fn flooded(bound: usize) -> (MemoryStore, ManualClock, Service) {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone()).max_limiters(bound);
    let limit = Limit::new((RATE * COST).into(), Duration::from_millis(INTERVAL));
    let rule = Rule::new("flood", limit, FromHeader::new("user"))
        .cost(COST)
        .on_failure(FailurePolicy::Allow);
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = RateLimitLayer::new(&store, rule)
        .layer(inner)
        .map_response(|answer| answer.map(drop))
        .map_err(BoxError::from);
    (store, clock, BoxCloneSyncService::new(service))
}

async fn ask(service: &Service, user: impl ToString) -> Answer {
    let request = Request::builder()
        .header("user", user.to_string())
        .body(())
        .unwrap();
    let answer = service.clone().oneshot(request).await.unwrap();
    match answer.extensions().get::<Decision>() {
        Some(Decision::Allow(grant)) => {
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(
                grant.receipts().len(),
                1,
                "let pass without taking a permit"
            );
            Answer::Granted
        }
        Some(Decision::Deny(refusal)) if refusal.kind() == RefusalKind::Unavailable => {
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(refusal.error().unwrap().kind(), ErrorKind::Full);
            Answer::Full
        }
        Some(Decision::Deny(_)) => {
            assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
            Answer::Refused
        }
        None => panic!("no decision"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Granted,
    Refused,
    Full,
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u8),
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..12).prop_map(Step::Ask),
        1 => (0u8..200).prop_map(Step::Ask),
        2 => proptest::sample::select(&[1u64, 200, 499, 500, 999, 1000][..]).prop_map(Step::Pause),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A user without grants in the last interval may be forgotten without a difference; no other may
/// be. So the decisions are known, whichever idle limiters were evicted.
fn law(bound: usize, lasting: usize, steps: &[Step]) {
    let (store, clock, service) = flooded(bound);
    run(async {
        let kept: Vec<_> = (0..lasting)
            .map(|number| RateLimiter::new(&store, &format!("kept-{number}")).unwrap())
            .collect();
        for limiter in &kept {
            assert!(limiter.try_set_rate(Limit::per_hour(1)).await.unwrap());
        }
        let mut now = 0;
        let mut grants: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
        for step in steps {
            let user = match *step {
                Step::Pause(millis) => {
                    now += millis;
                    clock.advance(Duration::from_millis(millis));
                    continue;
                }
                Step::Ask(user) => user,
            };
            for list in grants.values_mut() {
                list.retain(|at| at + INTERVAL > now);
            }
            grants.retain(|_, list| !list.is_empty());
            let used = grants.get(&user).map_or(0, Vec::len);
            let expected = match used {
                0 if grants.len() + lasting == bound => Answer::Full,
                _ if used < RATE as usize => Answer::Granted,
                _ => Answer::Refused,
            };
            assert_eq!(
                ask(&service, user).await,
                expected,
                "user {user} at {now}, {grants:?}"
            );
            if expected == Answer::Granted {
                grants.entry(user).or_default().push(now);
            }
            assert!(store.len() <= bound, "{} of {bound}", store.len());
        }
        for limiter in &kept {
            assert_eq!(limiter.limit().await.unwrap(), Some(Limit::per_hour(1)));
            assert_eq!(limiter.available_permits().await.unwrap(), 1);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_the_idle_have_to_go(bound in 1usize..10, lasting in 0usize..3, steps in steps()) {
        law(bound, lasting.min(bound), &steps);
    }
}

#[test]
fn a_newcomer_is_refused_whatever_the_failure_policy() {
    let (store, clock, service) = flooded(2);
    run(async {
        assert_eq!(ask(&service, "a").await, Answer::Granted);
        clock.advance(Duration::from_millis(1));
        assert_eq!(ask(&service, "b").await, Answer::Granted);
        assert_eq!(ask(&service, "c").await, Answer::Full);
        // Who is known is still counted.
        assert_eq!(ask(&service, "a").await, Answer::Granted);
        assert_eq!(ask(&service, "a").await, Answer::Refused);

        clock.advance(Duration::from_millis(INTERVAL - 1));
        assert_eq!(ask(&service, "c").await, Answer::Full, "both hold a permit");
        clock.advance(Duration::from_millis(1));
        assert_eq!(ask(&service, "c").await, Answer::Granted);
        assert!(store.len() <= 2);
    });
}

#[test]
fn a_limit_that_a_verb_set_stays_and_takes_a_place() {
    let (store, clock, service) = flooded(2);
    run(async {
        let [first, second, third] =
            ["one", "two", "three"].map(|name| RateLimiter::new(&store, name).unwrap());
        assert!(first.try_set_rate(Limit::per_second(3)).await.unwrap());
        assert_eq!(ask(&service, "a").await, Answer::Granted);
        let full = second.try_set_rate(Limit::per_second(3)).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Full);

        // The idle one goes, for a verb too.
        clock.advance(Duration::from_millis(INTERVAL));
        assert!(second.try_set_rate(Limit::per_second(3)).await.unwrap());
        clock.advance(Duration::from_secs(1_000_000));
        assert_eq!(ask(&service, "a").await, Answer::Full);
        fails(
            third.try_set_rate(Limit::per_second(3)).await,
            ErrorKind::Full,
        );
        assert_eq!(first.limit().await.unwrap(), Some(Limit::per_second(3)));
    });
}

#[test]
fn a_limit_that_a_rule_made_stays_once_a_verb_has_claimed_it() {
    let (store, clock, service) = flooded(1);
    let rule = Rule::shared("orders").or_init(Limit::per_second(3));
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let orders = RateLimitLayer::new(&store, rule).layer(inner);
    run(async {
        let answer = orders.oneshot(Request::new(())).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let limiter = RateLimiter::new(&store, "orders").unwrap();
        assert!(!limiter.try_set_rate(Limit::per_second(9)).await.unwrap());

        clock.advance(Duration::from_secs(1_000_000));
        assert_eq!(ask(&service, "a").await, Answer::Full);
        assert_eq!(limiter.limit().await.unwrap(), Some(Limit::per_second(3)));
    });
}

#[test]
fn questions_take_no_place() {
    let (store, _, _) = flooded(1);
    run(async {
        let limiter = RateLimiter::new(&store, "unknown").unwrap();
        assert!(
            limiter
                .try_acquire()
                .await
                .unwrap_err()
                .is_not_initialized()
        );
        assert!(
            limiter
                .available_permits()
                .await
                .unwrap_err()
                .is_not_initialized()
        );
        assert_eq!(limiter.limit().await.unwrap(), None);
    });
    assert!(store.is_empty());
}

#[test]
fn there_is_room_for_one_at_least() {
    let (store, _, service) = flooded(0);
    assert_eq!(run(ask(&service, "a")), Answer::Granted);
    assert_eq!(run(ask(&service, "b")), Answer::Full);
    assert_eq!(store.len(), 1);
}

#[test]
fn many_threads_keep_the_bound_and_the_limits() {
    const BOUND: usize = 16;
    const THREADS: usize = 8;
    let (store, clock, service) = flooded(BOUND);
    // Twice over, the second time with a full house of idle limiters that all have to go.
    for _ in 0..2 {
        let start = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (start, store, service) = (Arc::clone(&start), store.clone(), service.clone());
                thread::spawn(move || {
                    start.wait();
                    let mut granted = Vec::new();
                    for number in 0..400 {
                        // Users that several threads ask for at the same time, and everybody's own.
                        let shared = number % 3 == 0;
                        let user = if shared {
                            number / 3
                        } else {
                            10_000 * (thread + 1) + number
                        };
                        if run(ask(&service, user)) == Answer::Granted {
                            granted.push(user);
                        }
                        assert!(store.len() <= BOUND, "{}", store.len());
                    }
                    granted
                })
            })
            .collect();
        let granted: Vec<_> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();

        // The clock stands still, so no user with a grant can be evicted.
        let users: HashSet<_> = granted.iter().collect();
        assert_eq!(users.len(), BOUND);
        for user in users {
            let count = granted.iter().filter(|other| *other == user).count();
            assert!(count <= RATE as usize, "{count} for {user}");
        }
        assert_eq!(store.len(), BOUND);
        clock.advance(Duration::from_millis(INTERVAL));
    }
}

/// A waiter that leaves gives back at once, perhaps before its permit is taken. Then the permit is
/// given back again.
#[test]
fn a_waiter_that_leaves_while_it_is_asked_for_loses_nothing() {
    type Waiting = Pin<Box<dyn Future<Output = Result<Grant, Error>> + Send>>;
    fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
    let runtime = runtime();
    let _entered = runtime.enter();
    let limiter = RateLimiter::new(&MemoryStore::new(), "orders").unwrap();
    let now = |future: Waiting| poll(&mut { future }).unwrap();
    let set = limiter.try_set_rate(Limit::per_day(64));
    assert!(poll(&mut Box::pin(set)).unwrap().unwrap());
    for round in 0..200 {
        let all = limiter.clone();
        let taken = now(Box::pin(async move { all.acquire_many(64).await })).unwrap();
        let mut waiting: Vec<Waiting> = (0..30)
            .map(|_| limiter.clone())
            .map(|limiter| Box::pin(async move { limiter.acquire().await }) as Waiting)
            .collect();
        assert!(waiting.iter_mut().all(|waiter| poll(waiter).is_none()));
        limiter.give_back(&taken.receipts()[0]);
        let mut leader = waiting.remove(0);
        let begin = Arc::new(Barrier::new(2));
        let (others_begin, handle) = (Arc::clone(&begin), runtime.handle().clone());
        let others = thread::spawn(move || {
            let _entered = handle.enter();
            others_begin.wait();
            // At another moment in each round.
            (0..round).for_each(|_| std::hint::spin_loop());
            drop(waiting);
        });
        begin.wait();
        if let Some(granted) = poll(&mut leader) {
            limiter.give_back(&granted.unwrap().receipts()[0]);
        }
        others.join().unwrap();
        drop(leader);
        let left = poll(&mut Box::pin(limiter.available_permits())).unwrap();
        assert_eq!(left.unwrap(), 64, "in round {round}");
    }
}

/// An expired limiter does not exist, whichever verb looks for it first.
#[tokio::test]
async fn an_expired_limiter_does_not_exist() {
    let second = Duration::from_secs(1);
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    for asks in [false, true] {
        let limiter = RateLimiter::new(&store, "orders").unwrap();
        assert!(limiter.try_set_rate(Limit::per_hour(1)).await.unwrap());
        assert!(limiter.try_acquire().await.unwrap().is_allowed());
        assert!(limiter.expire(second).await.unwrap());
        clock.advance(second - Duration::from_millis(1));
        assert!(!limiter.try_acquire().await.unwrap().is_allowed());
        clock.advance(Duration::from_millis(1));
        if asks {
            let error = limiter.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotInitialized);
        }
        assert!(!limiter.exists().await.unwrap());
        assert!(store.is_empty());
    }
}

/// A store that shares a look for idle limiters between newcomers does not refuse those that it
/// cannot estimate meanwhile.
#[tokio::test]
async fn a_large_store_has_room_at_once_when_others_are_idle() {
    let (store, clock, service) = flooded(4_000);
    let mut full = 0;
    for user in 0..6_000 {
        full += usize::from(ask(&service, user).await == Answer::Full);
    }
    assert!(full > 1_000, "{full}");
    clock.advance(Duration::from_millis(2 * INTERVAL));
    for user in 0..10 {
        assert_eq!(ask(&service, format!("late {user}")).await, Answer::Granted);
    }
    let (store, clock, service) = {
        let again = flooded(4_000);
        drop((store, clock, service));
        again
    };
    for user in 0..6_000 {
        ask(&service, user).await;
    }
    clock.advance(Duration::from_millis(2 * INTERVAL));
    for name in 0..10 {
        let limiter = RateLimiter::new(&store, &format!("set {name}")).unwrap();
        assert!(limiter.try_set_rate(Limit::per_minute(1)).await.unwrap());
    }
}
