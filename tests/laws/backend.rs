//! A store of one's own: the laws find what is wrong with it, and the guards stand in front of it.
//! The other files here hold on it, too.

use kit::scene::*;
use tower_ratelimit::{
    Ban, Error,
    backend::{Backend, BackendStore, Settings, Swap, failure, laws},
};

use super::{plain::Plain, world::backend};

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
    SwapsWhateverWasThere,
    SwapsInTwoSteps,
    SaysNoAndSwaps,
    SaysYesAndDoesNot,
    GetsWhatWasThereBefore,
    CutsLongValues,
    RemovesNothing,
    IgnoresCase,
    TrimsKeys,
    TakesZerosForTheEnd,
    SwapsSomeOfSeveral,
    SwapsSeveralInTwoSteps,
}

/// A backend with a defect, or none, that changes several values in one step.
#[derive(Debug, Default)]
struct Faulty {
    plain: Plain,
    defect: Option<Defect>,
    /// What the last swap has replaced.
    before: Mutex<Option<Vec<u8>>>,
}

impl Faulty {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn key(&self, key: &str) -> String {
        match self.defect {
            Some(IgnoresCase) => key.to_lowercase(),
            Some(TrimsKeys) => key.replace(' ', ""),
            _ => key.to_owned(),
        }
    }

    fn value(&self, mut value: Vec<u8>) -> Vec<u8> {
        match self.defect {
            Some(CutsLongValues) => value.truncate(255),
            Some(TakesZerosForTheEnd) => while value.pop_if(|last| *last == 0).is_some() {},
            _ => {}
        }
        value
    }
}

impl Backend for Faulty {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let value = self.plain.get(&self.key(key)).await?;
        match self.before.lock().unwrap().take() {
            Some(before) if self.has(GetsWhatWasThereBefore) => Ok(Some(before)),
            _ => Ok(value),
        }
    }

    async fn swap(&self, swap: Swap<'_>) -> Result<bool, Error> {
        let key = self.key(swap.key);
        let stored = self.plain.get(&key).await?;
        if self.has(SwapsInTwoSteps) {
            tokio::task::yield_now().await;
        }
        let new = swap.new.map(|new| self.value(new.to_vec()));
        let old = match self.defect {
            Some(SwapsWhateverWasThere) => stored.as_deref(),
            // As others were a moment ago.
            Some(SwapsInTwoSteps) if stored.as_deref() == swap.old => {
                let now = self.plain.get(&key).await?;
                return self
                    .plain
                    .swap(Swap {
                        key: &key,
                        old: now.as_deref(),
                        new: new.as_deref(),
                    })
                    .await;
            }
            _ => swap.old,
        };
        let is_old = stored.as_deref() == old;
        if self.has(SaysYesAndDoesNot) || self.has(RemovesNothing) && new.is_none() {
            return Ok(is_old);
        }
        self.before.lock().unwrap().clone_from(&stored);
        let swap = Swap {
            key: &key,
            old,
            new: new.as_deref(),
        };
        let swapped = self.plain.swap(swap).await?;
        Ok(swapped && !self.has(SaysNoAndSwaps))
    }

    async fn swap_all(&self, swaps: &[Swap<'_>]) -> Result<Option<bool>, Error> {
        for swap in swaps {
            let stored = self.get(swap.key).await?;
            if stored.as_deref() != swap.old && !self.has(SwapsSomeOfSeveral) {
                return Ok(Some(false));
            }
        }
        if self.has(SwapsSeveralInTwoSteps) {
            tokio::task::yield_now().await;
            for Swap { key, new, .. } in swaps {
                let now = self.plain.get(key).await?;
                let swap = Swap {
                    key,
                    old: now.as_deref(),
                    new: *new,
                };
                self.plain.swap(swap).await?;
            }
            return Ok(Some(true));
        }
        let mut all = true;
        for swap in swaps {
            all &= self.swap(*swap).await?;
        }
        Ok(Some(all))
    }
}

fn faulty(defect: Option<Defect>) -> Faulty {
    Faulty {
        defect,
        ..Faulty::default()
    }
}

#[test]
fn the_laws_find_each_defect() {
    for defect in DEFECTS {
        let check = thread::spawn(|| {
            let faulty = faulty(Some(*defect));
            runtime().block_on(laws::swaps(&faulty, 1));
        });
        assert!(check.join().is_err(), "{defect:?} is not found");
    }
}

#[tokio::test]
async fn the_laws_find_nothing_else() {
    laws::swaps(&faulty(None), 1).await;
    laws::swaps(&Plain::default(), 1).await;
    let clock = ManualClock::new();
    for store in [
        backend(faulty(None), clock.clone()),
        backend(Plain::default(), clock.clone()),
    ] {
        laws::check(&store, &clock, 1, 200).await;
    }
}

/// A backend that several processes share, and that lets others go first before each step.
#[derive(Clone, Debug, Default)]
struct Contended {
    plain: Arc<Plain>,
    swaps: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Backend for Contended {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        tokio::task::yield_now().await;
        self.plain.get(key).await
    }

    async fn swap(&self, swap: Swap<'_>) -> Result<bool, Error> {
        tokio::task::yield_now().await;
        let swapped = self.plain.swap(swap).await?;
        self.swaps.fetch_add(1, Ordering::SeqCst);
        self.refused
            .fetch_add(usize::from(!swapped), Ordering::SeqCst);
        Ok(swapped)
    }
}

/// Processes that come between each other's steps grant no more than there is, of one limit and of
/// several, and lose nothing: an interval later all is there again.
#[tokio::test]
async fn processes_that_come_between_each_other_grant_no_more_than_there_is() {
    let (clock, shared) = (ManualClock::new(), Contended::default());
    let stores: Vec<_> = (0..4)
        .map(|_| backend(shared.clone(), clock.clone()))
        .collect();
    let limiter = |store: &BackendStore, name: &str, algorithm| {
        let keyed = Limit::per_minute(40).named(name).algorithm(algorithm);
        keyed.keyed(store).unwrap().of("all")
    };
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let mut callers = JoinSet::new();
        for number in 0..120 {
            let store = &stores[number % 4];
            let mut names = ["b", "a"];
            names.rotate_left(number / 4 % 2);
            let pair =
                names.map(|name| limiter(store, &format!("{name}-{algorithm:?}"), algorithm));
            let all = RateLimiter::all(&pair[..1 + number / 8 % 2]).unwrap();
            callers.spawn(async move {
                let decision = all.try_acquire().await.unwrap();
                decision
                    .is_allowed()
                    .then_some((number / 8 % 2 == 1, number / 4 % 2 == 0))
            });
        }
        let mut granted = [0, 0];
        for (is_list, is_b) in callers.join_all().await.into_iter().flatten() {
            granted[0] += u64::from(is_list || !is_b);
            granted[1] += u64::from(is_list || is_b);
        }
        assert!(
            granted.iter().all(|granted| *granted <= 40),
            "{algorithm:?}: {granted:?}"
        );
        for (name, granted) in ["a", "b"].into_iter().zip(granted) {
            let limiter = limiter(&stores[0], &format!("{name}-{algorithm:?}"), algorithm);
            // What a list gives back is settled in the background.
            until("what was not granted is free", async || {
                free(&limiter).await == 40 - granted
            })
            .await;
        }
        clock.advance(secs(120));
        let all = limiter(&stores[1], &format!("a-{algorithm:?}"), algorithm);
        all.try_acquire_many(40).await.unwrap().assert_allowed();
    }
    let refused = shared.refused.load(Ordering::SeqCst);
    assert!(refused > 0, "no process came between another's steps");
}

/// A backend that answers a millisecond later.
#[derive(Clone, Debug, Default)]
struct Far(Contended);

impl Backend for Far {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        tokio::time::sleep(millis(1)).await;
        self.0.get(key).await
    }

    async fn swap(&self, swap: Swap<'_>) -> Result<bool, Error> {
        tokio::time::sleep(millis(1)).await;
        self.0.swap(swap).await
    }
}

/// Callers of one process who share a limit besides one of their own do not come between each
/// other, and what they give back all at once comes back.
#[tokio::test]
async fn callers_who_share_one_of_their_limits_are_all_decided() {
    let far = Far::default();
    let store = backend(far.clone(), SystemClock);
    for algorithm in [Algorithm::SlidingLog, Algorithm::Gcra] {
        let keyed = |name: &str, permits| {
            let limit = Limit::per_day(permits).named(name).algorithm(algorithm);
            limit.keyed(&store).unwrap()
        };
        let (global, own) = (
            keyed(&format!("global-{algorithm:?}"), 1000),
            keyed("own", 5),
        );
        let mut callers = JoinSet::new();
        for user in 0..300 {
            let key = format!("{algorithm:?}-{user}");
            let pair = RateLimiter::all([&global.of("all"), &own.of(key)]).unwrap();
            callers.spawn(async move { pair.try_acquire().await.unwrap() });
        }
        let decisions = callers.join_all().await;
        let before = far.0.swaps.load(Ordering::SeqCst);
        let global = global.of("all");
        assert_eq!(free(&global).await, 700);
        for decision in decisions {
            global.give_back(&granted(decision));
        }
        until("all is back", async || free(&global).await == 1000).await;
        let swaps = far.0.swaps.load(Ordering::SeqCst) - before;
        assert!(swaps < 30, "{swaps} swaps for 300 that are given back");
    }
    let refused = far.0.refused.load(Ordering::SeqCst);
    assert_eq!(
        refused, 0,
        "so often a call of this process came between another's"
    );
}

/// A backend whose next swap is done and then fails.
#[derive(Clone, Debug, Default)]
struct Lossy(Arc<Plain>, Arc<AtomicUsize>);

impl Backend for Lossy {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        self.0.get(key).await
    }

    async fn swap(&self, swap: Swap<'_>) -> Result<bool, Error> {
        let swapped = self.0.swap(swap).await?;
        if self.1.fetch_sub(1, Ordering::SeqCst) == 1 {
            return Err(ErrorKind::Unavailable.into());
        }
        Ok(swapped)
    }
}

/// Of a list whose second swap is done, and whose answer is lost, both are given back where grants
/// have entries; without, the first is, and the second stays in use.
#[tokio::test]
async fn what_is_written_of_a_call_that_fails_is_given_back() {
    for (algorithm, left) in [(Algorithm::SlidingLog, 0), (Algorithm::Gcra, 1)] {
        let lossy = Lossy::default();
        let store = backend(lossy.clone(), ManualClock::new());
        let pair = ["a", "b"].map(|name| {
            let limit = Limit::per_day(5).named(name).algorithm(algorithm);
            limit.keyed(&store).unwrap().of("all")
        });
        lossy.1.store(2, Ordering::SeqCst);
        let all = RateLimiter::all(&pair).unwrap();
        fails(all.try_acquire().await, ErrorKind::Unavailable);
        until("it is given back", async || {
            free(&pair[0]).await == 5 && free(&pair[1]).await == 5 - left
        })
        .await;
    }
}

/// Values that are no limiter's are refused and named, whatever the policy, and left as they are.
#[tokio::test]
async fn a_value_that_is_not_ours_is_refused_and_left_alone() {
    let shared = Contended::default();
    let plain = Arc::clone(&shared.plain);
    let store = backend(shared, ManualClock::new());
    let rule = Limit::per_minute(5).by(Constant("all")).named("r");
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Allow));
    assert_eq!(send(&layer, Request::new(())).await.status(), 200);
    let write = async |key: &str, old: Option<&[u8]>, new: &[u8]| {
        let swap = Swap {
            key,
            old,
            new: Some(new),
        };
        assert!(plain.swap(swap).await.unwrap());
    };
    let is_foreign = async |identity: &str| {
        let limiter = layer.limiter("r", [identity]).unwrap();
        fails(limiter.available_permits().await, ErrorKind::ForeignState);
    };
    let (key, other) = ("ratelimit:{all}:r", "ratelimit:{other}:r");
    let good = plain.get(key).await.unwrap().unwrap();
    let changed = (0..good.len()).map(|place| {
        let mut changed = good.clone();
        changed[place] ^= 0x10;
        changed
    });
    let others = [
        b"hello".to_vec(),
        Vec::new(),
        good[..good.len() - 1].to_vec(),
    ];
    let mut old = good.clone();
    for value in others.into_iter().chain(changed) {
        write(key, Some(&old), &value).await;
        let answer = send(&layer, Request::new(())).await;
        assert_eq!(answer.status(), 503, "{value:?}");
        is_foreign("all").await;
        assert_eq!(plain.get(key).await.unwrap().as_ref(), Some(&value));
        old = value;
    }
    // One that was moved to another name is none of that.
    write(other, None, &good).await;
    is_foreign("other").await;
}

/// The first six bytes say when a value may be removed: not while it counts.
#[tokio::test]
async fn a_value_says_when_it_may_be_removed() {
    let (shared, clock) = (Contended::default(), ManualClock::new());
    let plain = Arc::clone(&shared.plain);
    let store = backend(shared, clock.clone());
    let ends = async |name: &str| {
        let value = plain.get(name).await.unwrap()?;
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&value[..6]);
        Some(u64::from_be_bytes(millis))
    };
    let now = || u64::try_from(clock.now().as_millis()).unwrap();
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let limit = Limit::per_minute(1).named("k").algorithm(algorithm);
        let limiter = limit.keyed(&store).unwrap().of(format!("{algorithm:?}"));
        limiter.try_acquire().await.unwrap().assert_allowed();
        let ends = ends(limiter.name()).await.unwrap();
        let least = now() + 60_000;
        assert!(
            (least..=least + 130_000).contains(&ends),
            "{algorithm:?}: {}",
            ends - now()
        );
        clock.advance(secs(61));
    }
    // Given back whole, a log says nothing, and is gone.
    let limit = Limit::per_minute(1).named("k").keyed(&store).unwrap();
    let limiter = limit.of("given back");
    limiter.give_back(&take(&limiter, 1).await);
    until("it is gone", async || ends(limiter.name()).await.is_none()).await;
    // A limit that was set stays.
    let orders = RateLimiter::new(&store, "orders").unwrap();
    orders.try_set_rate(Limit::per_second(1)).await.unwrap();
    assert_eq!(ends("orders").await, Some((1 << 48) - 1));
}

/// A backend that does not answer, or only with errors.
#[derive(Debug, Default)]
struct Gone {
    answers: Option<ErrorKind>,
    calls: Arc<AtomicUsize>,
}

impl Backend for Gone {
    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.answers {
            Some(kind) => Err(failure(kind, std::io::Error::other("gone"))),
            None => std::future::pending().await,
        }
    }

    async fn swap(&self, _: Swap<'_>) -> Result<bool, Error> {
        Err(ErrorKind::Unavailable.into())
    }
}

fn gone(answers: Option<ErrorKind>) -> (BackendStore, Arc<AtomicUsize>) {
    let calls = Arc::default();
    let gone = Gone {
        answers,
        calls: Arc::clone(&calls),
    };
    let settings = Settings {
        deadline: millis(20),
        ..Settings::default()
    };
    (BackendStore::new(gone, settings).unwrap(), calls)
}
/// Errors and silence meet the failure policy, and the breaker soon keeps calls away.
#[tokio::test]
async fn a_backend_that_is_gone_is_answered_by_policy_and_left_alone() {
    for answers in [Some(ErrorKind::Unavailable), Some(ErrorKind::Timeout), None] {
        let ((store, calls), began) = (gone(answers), Instant::now());
        let policies = [
            (FailurePolicy::Allow, 200),
            (FailurePolicy::Deny, 503),
            (FailurePolicy::Local(1.0), 200),
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
        // Those that open it, and one after each pause.
        let most = 6 + began.elapsed().as_millis() as usize / 50;
        assert!(
            // Those behind one that is silent wait for it.
            (1..=most).contains(&calls),
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

/// What only Redisson counts is refused: when a layer is built, or whatever the policy. All else
/// that a store in memory does, this one does.
#[tokio::test]
async fn it_counts_all_but_limits_per_client() {
    let store = backend(Plain::default(), ManualClock::new());
    let per_client = Limit::per_hour(100).per_client();
    let shared = Rule::shared("orders").or_init(per_client);
    let said = "rule \"orders\" is per client, which a store of your own cannot count";
    mistake(
        RateLimitLayer::builder(&store).otherwise(shared).build(),
        ConfigErrorKind::Rule,
        said,
    );
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    fails(limiter.try_set_rate(per_client).await, ErrorKind::Limit);
    fails(limiter.try_acquire().await, ErrorKind::NotInitialized);
    limiter.try_set_rate(Limit::per_hour(3)).await.unwrap();
    limiter.try_acquire_many(3).await.unwrap().assert_allowed();
    assert_eq!(limiter.release(2).await.unwrap(), 2);
    let renamed = limiter.rename("others").await.unwrap();
    assert_eq!(
        (free(&renamed).await, limiter.exists().await.unwrap()),
        (2, false)
    );
    assert!(renamed.expire(secs(5)).await.unwrap());
    assert_eq!(
        renamed.time_to_live().await.unwrap(),
        TimeToLive::Left(secs(5))
    );
    assert!(renamed.delete().await.unwrap() && !renamed.exists().await.unwrap());
    // A ban by hand, of a caller that has nothing in use.
    let limit = Limit::per_hour(1).named("k");
    let limit = limit.ban(Ban::after(2).lasting(secs(60)));
    let banned = limit.keyed(&store).unwrap().of(7);
    banned.ban_for(secs(60)).await.unwrap();
    let refusal = refused(banned.try_acquire().await.unwrap());
    assert_eq!(refusal.kind(), RefusalKind::Banned);
    assert!(banned.unban().await.unwrap() && !banned.unban().await.unwrap());
    take(&banned, 1).await;
    let (plain, prefix) = (Gone::default(), "a b".to_owned());
    let settings = Settings {
        prefix,
        ..Settings::default()
    };
    let error = BackendStore::new(plain, settings).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Name);
}

/// A lease changes no answer, and callers wait in their order.
#[tokio::test]
async fn leases_and_waits() {
    let clock = ManualClock::new();
    let store = backend(Plain::default(), clock.clone());
    let rule = Limit::per_minute(3).by(Constant("all")).lease(secs(1));
    let layer = layer_of(&store, rule);
    for status in [200, 200, 200, 429] {
        assert_eq!(send(&layer, Request::new(())).await.status(), status);
    }
    let limiter = limited(&store, Limit::per_second(1)).await;
    take(&limiter, 1).await;
    let mut first = pin!(limiter.acquire());
    begin(first.as_mut()).await;
    until("it waits", async || clock.sleepers() > 0).await;
    clock.advance(SECOND);
    first.await.unwrap();
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

#[test]
fn a_printed_swap_shows_no_key() {
    let (key, value) = ("ann", Some(&b"ann"[..]));
    let (old, new) = (value, value);
    assert_eq!(format!("{:?}", Swap { key, old, new }), "Swap { .. }");
}

/// A call has as many limiters as its list, however many these are.
#[tokio::test]
async fn a_long_list_loses_no_state() {
    let store = backend(Plain::default(), ManualClock::new());
    let keyed = Limit::per_hour(2).named("k").keyed(&store).unwrap();
    let all: Vec<_> = (1000..2100).map(|number| keyed.of(number)).collect();
    for limiter in &all {
        take(limiter, 1).await;
    }
    take(&all[1099], 1).await;
    let list = RateLimiter::all(&all).unwrap();
    refused(list.try_acquire().await.unwrap());
    assert_eq!(free(&all[0]).await, 1);
    assert_eq!(free(&all[1099]).await, 0);
}
