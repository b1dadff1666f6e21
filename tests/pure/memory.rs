//! A full MemoryStore: which names it drops, which it never drops, and which callers it refuses.
//! `memory/untracked.rs` has those who are counted by an estimate.

#![cfg(feature = "test-util")]

mod untracked;

use kit::scene::*;
use std::{collections::BTreeMap, collections::HashSet, sync::Barrier};

use proptest::prelude::*;
use tower::{BoxError, util::BoxCloneSyncService};
use tower_ratelimit::{Error, IntoRules};

const INTERVAL: u64 = 1000;
const RATE: u32 = 2;
/// The cost of each request: a limit of this size is too large for the estimates of a full store.
const COST: u32 = 1 << 31;

type Service = BoxCloneSyncService<Request<()>, Response<()>, BoxError>;

fn erased<S, B>(service: S) -> Service
where
    S: tower::Service<Request<()>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: 'static,
{
    let service = service.map_response(|answer: Response<B>| answer.map(drop));
    BoxCloneSyncService::new(service.map_err(BoxError::from))
}

/// A store with few places, and its clock.
struct FewPlaces {
    store: MemoryStore,
    clock: ManualClock,
}

impl FewPlaces {
    fn of(places: usize) -> Self {
        // So that rules count in each way.
        let store = MemoryStore::builder().redisson();
        let (store, clock) = store.max_limiters(places).build_manual();
        Self { store, clock }
    }

    /// A store whose one place is taken for a day.
    fn occupied() -> Self {
        let world = Self::of(1);
        world.occupy();
        world
    }

    fn occupy(&self) {
        let place = RateLimiter::new(&self.store, "place").unwrap();
        assert!(now(place.try_set_rate(Limit::per_day(1))).unwrap());
    }

    fn service(&self, rules: impl IntoRules) -> Service {
        let layer = RateLimitLayer::builder(&self.store).otherwise(rules);
        erased(layer.build().unwrap().layer(service_fn(serve)))
    }

    /// A service whose rule admits when the store fails.
    fn flooded(&self) -> Service {
        let limit = Limit::new(u64::from(RATE) * u64::from(COST), millis(INTERVAL));
        let rule = Rule::new("flood", limit, FromHeader::new("user"));
        self.service(rule.cost(COST).on_failure(FailurePolicy::Allow))
    }

    fn limiter(&self, user: &str, rule: &str) -> RateLimiter {
        RateLimiter::new(&self.store, &format!("memory:{{{user}}}:{rule}")).unwrap()
    }

    fn left(&self, user: &str, rule: &str) -> u64 {
        now(self.limiter(user, rule).available_permits()).unwrap()
    }
}

/// Nothing here waits for anything.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match poll(&mut pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

fn flooded(bound: usize) -> (MemoryStore, ManualClock, Service) {
    let world = FewPlaces::of(bound);
    let service = world.flooded();
    (world.store, world.clock, service)
}

async fn ask(service: &Service, user: impl ToString) -> Answer {
    let request = asking("GET /", &[("user", &user.to_string())]).map(drop);
    let answer = service.clone().oneshot(request).await.unwrap();
    match answer.extensions().get::<Decision>() {
        Some(Decision::Allow(grant)) => {
            assert_eq!(answer.status(), StatusCode::OK);
            let taken = permits_taken(grant).len();
            assert_eq!(taken, 1, "let pass without taking a permit");
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

/// Evicting a user without grants in the last interval makes no difference; no other user may be
/// evicted. So the decisions do not depend on which idle limiters were evicted.
fn law(bound: usize, lasting: usize, steps: &[Step]) {
    let (store, clock, service) = flooded(bound);
    // There is room for one at least.
    let bound = bound.max(1);
    now(async {
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
            let found = ask(&service, user).await;
            assert_eq!(found, expected, "user {user} at {now}, {grants:?}");
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
    fn only_the_idle_have_to_go(bound in 0usize..10, lasting in 0usize..3, steps in steps()) {
        law(bound, lasting.min(bound), &steps);
    }
}

#[test]
fn a_limit_that_a_verb_set_stays_and_takes_a_place() {
    let (store, clock, service) = flooded(2);
    now(async {
        let [first, second, third] =
            ["one", "two", "three"].map(|name| RateLimiter::new(&store, name).unwrap());
        assert!(first.try_set_rate(Limit::per_second(3)).await.unwrap());
        assert_eq!(ask(&service, "a").await, Answer::Granted);
        let full = second.try_set_rate(Limit::per_second(3)).await;
        fails(full, ErrorKind::Full);

        // The idle one goes, for a verb too.
        clock.advance(millis(INTERVAL));
        assert!(second.try_set_rate(Limit::per_second(3)).await.unwrap());
        clock.advance(Duration::from_secs(1_000_000));
        assert_eq!(ask(&service, "a").await, Answer::Full);
        let full = third.try_set_rate(Limit::per_second(3)).await;
        fails(full, ErrorKind::Full);
        assert_eq!(first.limit().await.unwrap(), Some(Limit::per_second(3)));
    });
}

#[test]
fn a_limit_that_a_rule_made_stays_once_a_verb_has_claimed_it() {
    let (store, clock, service) = flooded(1);
    let rule = Rule::shared("orders").or_init(Limit::per_second(3));
    let orders = RateLimitLayer::new(&store, rule).layer(service_fn(serve));
    now(async {
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
    now(async {
        let limiter = RateLimiter::new(&store, "unknown").unwrap();
        fails(limiter.try_acquire().await, ErrorKind::NotInitialized);
        fails(limiter.available_permits().await, ErrorKind::NotInitialized);
        assert_eq!(limiter.limit().await.unwrap(), None);
    });
    assert!(store.is_empty());
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
                        if now(ask(&service, user)) == Answer::Granted {
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
        clock.advance(millis(INTERVAL));
    }
}

/// A waiter that leaves gives back at once, perhaps before its permit is taken. Then the permit is
/// given back again.
#[test]
fn a_waiter_that_leaves_while_it_is_asked_for_loses_nothing() {
    type Waiting = Pin<Box<dyn Future<Output = Result<Grant, Error>> + Send>>;
    let runtime = runtime();
    let _entered = runtime.enter();
    let limiter = RateLimiter::new(&MemoryStore::new(), "orders").unwrap();
    assert!(now(limiter.try_set_rate(Limit::per_day(64))).unwrap());
    for round in 0..200 {
        let taken = now(limiter.acquire_many(64)).unwrap();
        let mut waiting: Vec<Waiting> = (0..30)
            .map(|_| limiter.clone())
            .map(|limiter| Box::pin(async move { limiter.acquire().await }) as Waiting)
            .collect();
        assert!(waiting.iter_mut().all(|waiter| poll(waiter).is_pending()));
        limiter.give_back(&taken);
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
        if let Poll::Ready(granted) = poll(&mut leader) {
            limiter.give_back(&granted.unwrap());
        }
        others.join().unwrap();
        drop(leader);
        let left = now(limiter.available_permits()).unwrap();
        assert_eq!(left, 64, "in round {round}");
    }
}

/// An expired limiter does not exist, for any verb that looks for it first.
#[tokio::test]
async fn an_expired_limiter_does_not_exist() {
    let (store, clock) = MemoryStore::builder().build_manual();
    for asks in [false, true] {
        let limiter = RateLimiter::new(&store, "orders").unwrap();
        assert!(limiter.try_set_rate(Limit::per_hour(1)).await.unwrap());
        assert!(limiter.try_acquire().await.unwrap().is_allowed());
        assert!(limiter.expire(SECOND).await.unwrap());
        clock.advance(SECOND - millis(1));
        assert!(!limiter.try_acquire().await.unwrap().is_allowed());
        clock.advance(millis(1));
        if asks {
            fails(limiter.try_acquire().await, ErrorKind::NotInitialized);
        }
        assert!(!limiter.exists().await.unwrap());
        assert!(store.is_empty());
    }
}

/// A store that shares a look for idle limiters between newcomers does not refuse those that it
/// cannot estimate meanwhile.
#[tokio::test]
async fn a_large_store_has_room_at_once_when_others_are_idle() {
    for by_verb in [false, true] {
        let (store, clock, service) = flooded(4_000);
        let mut full = 0;
        for user in 0..6_000 {
            full += usize::from(ask(&service, user).await == Answer::Full);
        }
        assert!(full > 1_000, "{full}");
        clock.advance(millis(2 * INTERVAL));
        for number in 0..10 {
            if by_verb {
                let limiter = RateLimiter::new(&store, &format!("set {number}")).unwrap();
                assert!(limiter.try_set_rate(Limit::per_minute(1)).await.unwrap());
            } else {
                let late = ask(&service, format!("late {number}")).await;
                assert_eq!(late, Answer::Granted, "{number}");
            }
        }
    }
}

/// Nor those that come when permits came back, or a verb changed a limit.
#[tokio::test]
async fn a_large_store_has_room_at_once_when_one_is_idle_again() {
    for way in ["given back", "released", "expires"] {
        let world = FewPlaces::of(1_500);
        let limit = Limit::per_hour(u64::from(COST) * 2).named("large");
        let keyed = limit.keyed(&world.store).unwrap();
        let mut grants = Vec::new();
        let by_hand = RateLimiter::new(&world.store, "by hand").unwrap();
        assert!(by_hand.try_set_rate(Limit::per_day(1)).await.unwrap());
        for number in 1..1_500 {
            grants.push(take(&keyed.of(number), 1).await);
        }
        let newcomer = keyed.of("newcomer");
        fails(newcomer.try_acquire().await, ErrorKind::Full);
        world.clock.advance(SECOND);
        let first = keyed.of(1);
        match way {
            "given back" => first.give_back(&grants[0]),
            "released" => assert_eq!(first.release(1).await.unwrap(), 1),
            _ => assert!(by_hand.expire(millis(1)).await.unwrap()),
        }
        world.clock.advance(millis(1));
        assert!(newcomer.try_acquire().await.unwrap().is_allowed(), "{way}");
        fails(keyed.of("another").try_acquire().await, ErrorKind::Full);
    }
}

/// Nor those that come when a reload has made an interval shorter.
#[tokio::test]
async fn a_large_store_has_room_at_once_when_an_interval_is_shorter() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::FixedWindow] {
        let world = FewPlaces::of(1_500);
        let large = |interval| {
            let limit = Limit::new(u64::from(COST) * 2, interval).named("large");
            limit.algorithm(algorithm).keyed(&world.store).unwrap()
        };
        let keyed = large(HOUR);
        for number in 0..1_500 {
            take(&keyed.of(number), 1).await;
        }
        fails(keyed.of("newcomer").try_acquire().await, ErrorKind::Full);
        drop(keyed);
        let keyed = large(SECOND);
        take(&keyed.of(1), 1).await;
        world.clock.advance(SECOND + millis(1));
        let newcomer = keyed.of("newcomer").try_acquire().await;
        assert!(newcomer.is_ok(), "{algorithm:?}: {newcomer:?}");
        fails(keyed.of("another").try_acquire().await, ErrorKind::Full);
    }
}

#[test]
fn idle_limiters_are_forgotten_before_the_store_is_full() {
    let (store, clock, service) = flooded(1_000);
    let send = |user| now(ask(&service, user));
    for user in ["ann", "bob"] {
        assert_eq!(send(user), Answer::Granted);
    }
    clock.advance(millis(INTERVAL / 2));
    assert_eq!([send("cat"), send("cat")], [Answer::Granted; 2]);
    store.forget_idle();
    assert_eq!(store.len(), 3, "their permits are in use");
    clock.advance(millis(INTERVAL / 2));
    store.forget_idle();
    assert_eq!(store.len(), 1);
    assert_eq!(send("cat"), Answer::Refused, "it is counted on");
}

/// Not even when its limiters expire.
#[test]
fn a_list_that_is_an_error_changes_nothing() {
    let store = MemoryStore::builder().clock(ManualClock::new()).build();
    let of = |name| RateLimiter::new(&store, name).unwrap();
    let (kept, unset) = (of("kept"), of("unset"));
    let limit = Limit::per_second(5).keep_alive(secs(60));
    assert!(now(kept.try_set_rate(limit.unwrap())).unwrap());
    assert!(now(kept.expire(secs(600))).unwrap());
    let both = RateLimiter::all([&kept, &unset]).unwrap();
    fails(now(both.try_acquire()), ErrorKind::NotInitialized);
    let left = TimeToLive::Left(secs(600));
    assert_eq!(now(kept.time_to_live()).unwrap(), left);
    assert_eq!(now(kept.available_permits()).unwrap(), 5);
}
