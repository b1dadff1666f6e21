//! A store of one's own: the laws find what is wrong with it, and the guards stand in front of it.

use kit::{guards::Guards, scene::*};
use tower_ratelimit::{
    Error,
    backend::{
        Answer, Backend, BackendStore, Demand, Name, Op, OpResult, Settings, Settle, failure, laws,
    },
};

use super::{plain::Plain, world::World};

macro_rules! defects {
    ($($name:ident),+ $(,)?) => {
        /// A mistake in a backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Defect { $($name),+ }

        use Defect::*;

        const DEFECTS: &[Defect] = &[$($name),+];
    };
}

defects! {
    WaitsTooShort,
    WaitsTooLong,
    CountsOneMore,
    RefusalsCost,
    ListsTakeHalf,
    LosesGrants,
    GrantsLastLonger,
    GrantsEndEarlier,
    IgnoresSettlements,
    GivesBackTwice,
    ForgetsDebts,
    ForgetsWithTheLimit,
    NeverForgets,
    KeepsTheOldLimit,
    LosesWhatComesAtTheSameTime,
}

/// A backend with a defect, or none.
#[derive(Debug)]
struct Faulty(Plain, Option<Defect>);

impl Faulty {
    fn has(&self, defect: Defect) -> bool {
        self.1 == Some(defect)
    }
}

impl Backend for Faulty {
    async fn acquire(&self, demand: &Demand) -> Result<Vec<Answer>, Error> {
        if self.has(LosesWhatComesAtTheSameTime) {
            let before = self.0.limiters.lock().unwrap().clone();
            tokio::task::yield_now().await;
            *self.0.limiters.lock().unwrap() = before;
        }
        let mut answers = self.0.acquire(demand).await?;
        let (now, mut all) = (self.0.clock.now(), self.0.limiters.lock().unwrap());
        let is_list = answers.len() > 1;
        let refused = answers.iter().any(|answer| answer.wait.is_some());
        for (charge, answer) in demand.charges().zip(&mut answers) {
            let log = all.get_mut(charge.name().as_str()).unwrap();
            let last = log.grants.len().saturating_sub(1);
            match (self.1, answer.wait) {
                (Some(WaitsTooShort), Some(wait)) => answer.wait = Some(wait / 2),
                (Some(WaitsTooLong), Some(wait)) => answer.wait = Some(wait + millis(1)),
                (Some(CountsOneMore), _) => answer.remaining += 1,
                (Some(RefusalsCost), Some(_)) => log.grants.push((now, [0; 16], 1)),
                (Some(ListsTakeHalf), None) if is_list && refused => {
                    log.grants.push((now, demand.id(), charge.permits().into()));
                }
                (Some(LosesGrants), None) if log.grants.len() > 3 => drop(log.grants.remove(0)),
                (Some(GrantsLastLonger), None) if !refused => log.grants[last].0 += millis(1),
                (Some(GrantsEndEarlier), None) if !refused => log.grants[last].0 -= millis(1),
                _ => {}
            }
        }
        Ok(answers)
    }

    async fn settle(&self, name: &Name, settle: Settle) -> Result<(), Error> {
        match settle {
            _ if self.has(IgnoresSettlements) => return Ok(()),
            Settle::Charge(..) if self.has(ForgetsDebts) => return Ok(()),
            Settle::Keep(..) if self.has(GivesBackTwice) => {
                // Whatever it was that was granted first.
                let mut all = self.0.limiters.lock().unwrap();
                let log = all.get_mut(name.as_str());
                if let Some((.., permits)) = log.and_then(|log| log.grants.first_mut()) {
                    *permits = permits.saturating_sub(1);
                }
            }
            _ => {}
        }
        self.0.settle(name, settle).await
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        if let Op::SetRate {
            limit,
            keep,
            existing,
        } = op
        {
            let (limit, existing) = (*limit, *existing);
            let keep = match self.1 {
                Some(KeepsTheOldLimit) => return Ok(OpResult::Changed(true)),
                Some(ForgetsWithTheLimit) => false,
                Some(NeverForgets) => true,
                _ => *keep,
            };
            let op = Op::SetRate {
                limit,
                keep,
                existing,
            };
            return self.0.manage(name, &op).await;
        }
        self.0.manage(name, op).await
    }
}

fn store(backend: impl Backend, deadline: Duration, clock: Option<&ManualClock>) -> BackendStore {
    let settings = Settings {
        deadline,
        clock: clock.map(|clock| Arc::new(clock.clone()) as Arc<dyn Clock>),
        ..Settings::default()
    };
    BackendStore::new(backend, settings).unwrap()
}

fn faulty(defect: Option<Defect>) -> (BackendStore, ManualClock) {
    let clock = ManualClock::new();
    let plain = Plain {
        clock: clock.clone(),
        limiters: Mutex::default(),
    };
    (store(Faulty(plain, defect), LONG, Some(&clock)), clock)
}

#[test]
fn the_laws_find_each_defect() {
    // All at once, as it takes seconds to see that a settlement does not come.
    let begin = |defect| {
        thread::spawn(move || {
            let (store, clock) = faulty(Some(defect));
            runtime().block_on(laws::check(&store, &clock, 1, 200));
        })
    };
    let checks: Vec<_> = DEFECTS.iter().copied().map(begin).collect();
    for (defect, check) in DEFECTS.iter().zip(checks) {
        assert!(check.join().is_err(), "{defect:?} is not found");
    }
}

#[tokio::test]
async fn the_laws_find_nothing_else() {
    let (store, clock) = faulty(None);
    laws::check(&store, &clock, 1, 200).await;
}

/// The crate's own stores keep them, too.
#[test]
fn the_laws_hold_in_memory_and_in_redis() {
    let world = World::memory(1_000_000);
    world.run(laws::check(&world.store, &world.clock, 1, 200));
    for guards in Guards::all() {
        let world = World::redis(guards);
        world.run(laws::check(&world.store, &world.clock, 1, 10));
    }
}

/// A backend that does not answer, or only with errors.
#[derive(Debug, Default)]
struct Gone {
    answers: Option<ErrorKind>,
    calls: Arc<AtomicUsize>,
}

impl Backend for Gone {
    async fn acquire(&self, _: &Demand) -> Result<Vec<Answer>, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.answers {
            Some(kind) => Err(failure(kind, std::io::Error::other("gone"))),
            None => std::future::pending().await,
        }
    }

    async fn settle(&self, _: &Name, _: Settle) -> Result<(), Error> {
        Err(ErrorKind::Unavailable.into())
    }

    async fn manage(&self, _: &Name, _: &Op) -> Result<OpResult, Error> {
        Err(ErrorKind::Unavailable.into())
    }
}

fn gone(answers: Option<ErrorKind>) -> (BackendStore, Arc<AtomicUsize>) {
    let calls = Arc::default();
    let gone = Gone {
        answers,
        calls: Arc::clone(&calls),
    };
    (store(gone, millis(20), None), calls)
}

/// Errors and silence meet the failure policy, and the breaker soon keeps calls away.
#[tokio::test]
async fn a_backend_that_is_gone_is_answered_by_policy_and_left_alone() {
    for answers in [Some(ErrorKind::Unavailable), Some(ErrorKind::Timeout), None] {
        let (store, calls) = gone(answers);
        let policies = [
            (FailurePolicy::Allow, 200),
            (FailurePolicy::Deny, 503),
            (FailurePolicy::local(1.0), 200),
        ];
        for (number, (policy, status)) in policies.into_iter().enumerate() {
            let rule = Limit::per_hour(5)
                .by(Constant("all"))
                .named(&format!("r{number}"));
            let layer = RateLimitLayer::new(&store, rule.on_failure(policy));
            for _ in 0..5 {
                let answer = send(&layer, Request::new(())).await;
                assert_eq!(answer.status().as_u16(), status, "{answers:?} {policy:?}");
            }
        }
        let calls = calls.load(Ordering::SeqCst);
        assert!(
            (5..15).contains(&calls),
            "{answers:?}: {calls} of 15 called"
        );
        let limiter = RateLimiter::new(&store, "orders").unwrap();
        let error = limiter.try_acquire().await.unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Timeout
        ));
    }
}

/// What a backend does not count is refused: when a layer is built, or whatever the policy.
#[tokio::test]
async fn what_it_cannot_count_is_an_error() {
    let (store, _) = faulty(None);
    let rule = || Limit::per_hour(100).by(Constant("all")).named("r");
    let per_client = Limit::per_hour(100).per_client();
    for rule in [
        rule().algorithm(Algorithm::Gcra),
        rule().algorithm(Algorithm::FixedWindow),
    ] {
        let layer = RateLimitLayer::builder(&store).otherwise(rule);
        let error = layer.build().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Rule);
        assert!(
            error.to_string().contains("use `Algorithm::SlidingLog`"),
            "{error}"
        );
    }
    let ban = tower_ratelimit::Ban::after(9);
    for keyed in [
        Limit::per_hour(2).named("k").algorithm(Algorithm::Gcra),
        Limit::per_hour(2).named("k").ban(ban),
    ] {
        let said = "rule \"k\" needs what a store of your own does not have";
        mistake(keyed.keyed(&store), ConfigErrorKind::Rule, said);
    }
    for rule in [rule().slots(10), per_client.by(Constant("all")).named("r")] {
        let layer = RateLimitLayer::builder(&store).otherwise(rule);
        mistake(layer.build(), ConfigErrorKind::Limit, "");
    }
    let keyed = Limit::per_hour(2).named("k").keyed(&store).unwrap();
    keyed
        .of(7)
        .try_acquire_many(2)
        .await
        .unwrap()
        .assert_allowed();
    assert!(!keyed.of(7).try_acquire().await.unwrap().is_allowed());
    keyed.of(8).try_acquire().await.unwrap().assert_allowed();
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    for limiter in [
        limiter.clone().algorithm(Algorithm::Gcra),
        limiter.clone().slots(10).unwrap(),
    ] {
        let error = limiter.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
    let unset = limiter.try_acquire().await.unwrap_err();
    assert_eq!(unset.kind(), ErrorKind::NotInitialized);
    limiter.try_set_rate(Limit::per_second(1)).await.unwrap();
    let unknown = limiter.release(1).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Rejected);
    // A tier that a request chooses is not known before.
    let by_request = Rule::new("r2", limit_by(move |_| per_client), Constant("all"));
    let by_request = by_request.on_failure(FailurePolicy::Allow);
    let layer = RateLimitLayer::new(&store, by_request);
    assert_eq!(send(&layer, Request::new(())).await.status(), 503);
    let (plain, prefix) = (Gone::default(), "a b".to_owned());
    let settings = Settings {
        prefix,
        ..Settings::default()
    };
    let error = BackendStore::new(plain, settings).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Name);
}

/// A lease changes no answer, callers wait in their order, and shadow rules refuse nothing.
#[tokio::test]
async fn leases_waits_and_shadows() {
    let (store, clock) = faulty(None);
    let key = || Constant("all");
    let rules = [
        Limit::per_minute(3).by(key()).named("r").lease(secs(1)),
        Limit::per_minute(1).by(key()).named("tried").shadow(),
    ];
    let layer = layer_of(&store, rules);
    for status in [200, 200, 200, 429] {
        assert_eq!(send(&layer, Request::new(())).await.status(), status);
    }
    let tried = layer.limiter("tried", ["all"]).unwrap();
    assert_eq!(free(&tried).await, 0);
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    limiter.try_set_rate(Limit::per_second(1)).await.unwrap();
    limiter.try_acquire().await.unwrap().assert_allowed();
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await.is_ok() }
    });
    until("it waits", async || clock.sleepers() > 0).await;
    clock.advance(SECOND);
    assert!(first.await.unwrap());
    limiter
        .try_acquire()
        .await
        .unwrap()
        .assert_retry_after(SECOND);
    // Dropped while it waits: it leaves nothing taken.
    let left = tokio::time::timeout(millis(20), limiter.acquire()).await;
    assert!(left.is_err());
    clock.advance(SECOND);
    assert_eq!(free(&limiter).await, 1);
}
