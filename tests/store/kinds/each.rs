//! Properties of each algorithm, on both stores.

use super::*;

/// Makes two tests of each law for each kind, one in memory and one in Redis. Those behind the
/// semicolon are about a limit that a store has.
macro_rules! of_every_kind {
    ($($law:ident),+; $($of_stored:ident),+ $(,)?) => {
        of_every_kind!(@ log kit::scene::Way::Log, $($law,)+ $($of_stored),+);
        of_every_kind!(@ slots kit::scene::Way::Slots(10), $($law,)+ $($of_stored),+);
        of_every_kind!(@ own_log kit::scene::Way::OwnLog, $($law),+);
        of_every_kind!(@ own_window kit::scene::Way::OwnWindow, $($law),+);
        of_every_kind!(@ gcra kit::scene::Way::Gcra, $($law),+);
        of_every_kind!(@ window kit::scene::Way::Window, $($law,)+ $($of_stored),+);
    };
    (@ $module:ident $way:expr, $($law:ident),+) => {
        mod $module {
            mod in_memory {
                $(#[tokio::test]
                async fn $law() {
                    let mut store = kit::scene::MemoryStore::builder();
                    if !kit::scene::Way::OWN.contains(&$way) {
                        store = store.redisson();
                    }
                    let store = store.build();
                    crate::kinds::each::$law($way, store).await;
                })+
            }
            mod in_redis {
                $(#[tokio::test]
                async fn $law() {
                    let mut store = crate::kinds::redis_store();
                    if !kit::scene::Way::OWN.contains(&$way) {
                        store = store.redisson();
                    }
                    let store = store.build().unwrap();
                    crate::kinds::each::$law($way, store).await;
                })+
            }
        }
    };
}

of_every_kind!(
    a_layer_counts,
    a_receipt_gives_back_once,
    lists_take_of_all_or_of_none,
    waiters_are_served_as_room_comes;
    a_limiter_is_renamed_with_what_is_in_use,
    a_limiter_expires_and_stays,
    a_keep_alive_time_is_put_off_by_use,
);

async fn a_layer_counts(way: Way, store: impl Settles) {
    let name = unique("rule");
    let rule = || way.rule(Rule::new(&name, Limit::new(2, HOUR), Constant("all")));
    // What no answer charges is given back.
    let layer = RateLimitLayer::new(&store, rule().charge_if(|_| false));
    for _ in 0..5 {
        assert_eq!(send(&layer, "a").await.status(), StatusCode::OK);
        store.settled().await;
    }
    let layer = RateLimitLayer::new(&store, rule());
    for left in [Some(1), Some(0), None] {
        let answer = send(&layer, "a").await;
        let decision = decision_of(&answer);
        assert_eq!(decision.is_allowed(), left.is_some(), "{decision:?}");
        decision.assert_remaining(left.unwrap_or(0));
        let retry_after = answer.headers().get(header::RETRY_AFTER);
        let Some(_) = left else {
            assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
            let seconds: u64 = retry_after.unwrap().to_str().unwrap().parse().unwrap();
            // A slot may be six minutes long.
            let whole = way.third_of_two_an_hour().as_secs();
            assert!((whole - 100..=whole + 361).contains(&seconds), "{seconds}");
            continue;
        };
        assert_eq!((answer.status(), retry_after), (StatusCode::OK, None));
    }
}

async fn a_receipt_gives_back_once(way: Way, store: impl Settles) {
    let limiter = way.hourly(&store, 20).await;
    let grant = take(&limiter, 3).await;
    take(&limiter, 10).await;
    for copy in &vec![grant.clone(); 8] {
        limiter.give_back(copy);
    }
    until("it is given back", async || free(&limiter).await == 10).await;
    // A later one is carried out after all that were sent before.
    let later = take(&limiter, 1).await;
    limiter.give_back(&later);
    limiter.give_back(&grant);
    until("it is given back", async || free(&limiter).await == 10).await;
    // Another limiter's has no effect, and stays good for its own.
    let other = way.hourly(&store, 20).await;
    let grant = take(&other, 4).await;
    limiter.settle(&grant, 9);
    limiter.give_back(&grant);
    assert_eq!((free(&other).await, free(&limiter).await), (16, 10));
    other.give_back(&grant);
    until("it is given back", async || free(&other).await == 20).await;
    store.settled().await;
    assert_eq!((free(&other).await, free(&limiter).await), (20, 10));
}

/// In a list with a log or a window, which may be another call in Redis, all or none are taken. The
/// call for more permits comes first, and each of the two is tested as that.
async fn lists_take_of_all_or_of_none(way: Way, store: impl Settles) {
    for other in [Way::Log, Way::Window, Way::OwnLog] {
        let (limiter, other) = (way.hourly(&store, 20).await, other.hourly(&store, 3).await);
        let all = RateLimiter::all([&limiter, &other]).unwrap();
        for _ in 0..2 {
            assert!(all.try_acquire().await.unwrap().is_allowed());
        }
        for costs in [[6, 2], [1, 2]] {
            let refusal = refused(all.try_acquire_each(&costs).await.unwrap());
            let by = refusal.limits().next().unwrap();
            assert!(other.name().ends_with(by.name()));
            store.settled().await;
            assert_eq!((free(&limiter).await, free(&other).await), (18, 1));
        }
        assert!(all.try_acquire().await.unwrap().is_allowed());
        assert_eq!((free(&limiter).await, free(&other).await), (17, 0));
    }
}

/// Those who wait are served in order, as room comes.
async fn waiters_are_served_as_room_comes(way: Way, store: impl Settles) {
    let spent = way.hourly(&store, 2).await;
    take(&spent, 2).await;
    let hopeless = spent.try_acquire_for(2, millis(5)).await;
    let refusal = refused(hopeless.unwrap());
    assert!(refusal.retry_after() > Some(millis(5)));
    let limiter = way.limited(&store, Limit::new(2, millis(200))).await;
    // Before the reply, which may be late.
    let begun = Instant::now();
    take(&limiter, 2).await;
    let waiters: Vec<_> = [(); 5]
        .map(|()| limiter.clone())
        .map(|limiter| tokio::spawn(async move { limiter.acquire().await }))
        .into();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    // In two intervals there is room for four of them, or for one more with each of its halves. The
    // clock here is not the one that counts, which may know whole milliseconds only.
    let fifth = match way.third_of_two_an_hour() {
        HOUR => millis(400),
        _ => millis(490),
    };
    assert!(begun.elapsed() > fifth, "{:?}", begun.elapsed());
}

async fn a_limiter_is_renamed_with_what_is_in_use(way: Way, store: impl Settles) {
    let (limiter, target) = (way.hourly(&store, 5).await, way.hourly(&store, 50).await);
    take(&limiter, 2).await;
    take(&target, 20).await;
    let renamed = limiter.rename(target.name()).await.unwrap();
    assert!(!limiter.exists().await.unwrap());
    assert_eq!(free(&renamed).await, 3);
    take(&renamed, 1).await;
    assert_eq!(free(&renamed).await, 2);
    fails(limiter.rename("x").await, ErrorKind::NotInitialized);
    fails(renamed.rename("a{b").await, ErrorKind::Name);
}

/// Asserts that a limiter has this time left, or up to a minute less.
async fn lives(limiter: &RateLimiter, life: Duration) {
    let left = limiter.time_to_live().await.unwrap();
    let fresh = life - secs(60)..=life;
    let is_expected = matches!(left, TimeToLive::Left(left) if fresh.contains(&left));
    assert!(is_expected, "{left:?} of {life:?}");
}

async fn a_limiter_expires_and_stays(way: Way, store: impl Settles) {
    let limiter = way.hourly(&store, 5).await;
    take(&limiter, 1).await;
    assert_eq!(limiter.time_to_live().await.unwrap(), TimeToLive::Lasting);
    for (hours, when, done) in [
        (1, ExpireWhen::Set, false),
        (1, ExpireWhen::Greater, false),
        (1, ExpireWhen::NotSet, true),
        (1, ExpireWhen::NotSet, false),
        (2, ExpireWhen::Greater, true),
        (3, ExpireWhen::Less, false),
        (1, ExpireWhen::Less, true),
    ] {
        let set = limiter.expire_when(hours * HOUR, when).await.unwrap();
        assert_eq!(set, done, "{hours} {when:?}");
    }
    lives(&limiter, HOUR).await;
    assert!(limiter.clear_expire().await.unwrap());
    assert!(!limiter.clear_expire().await.unwrap());
    assert_eq!(limiter.time_to_live().await.unwrap(), TimeToLive::Lasting);
    assert!(limiter.expire(HOUR).await.unwrap());
    // Only setting a limit without a keep-alive time makes it stay again.
    limiter.set_rate(Limit::new(5, HOUR)).await.unwrap();
    assert_eq!(limiter.time_to_live().await.unwrap(), TimeToLive::Lasting);
}

async fn a_keep_alive_time_is_put_off_by_use(way: Way, store: impl Settles) {
    let limit = Limit::new(5, HOUR).keep_alive(3 * HOUR).unwrap();
    let limiter = way.limited(&store, limit).await;
    assert_eq!(limiter.limit().await.unwrap(), Some(limit));
    assert!(limiter.expire(HOUR).await.unwrap());
    take(&limiter, 1).await;
    lives(&limiter, 3 * HOUR).await;
}

/// The server has lost its scripts: what did not run is sent again, with its text, and only that.
async fn a_server_without_the_script_credits_once(way: Way, server: &RedisServer) {
    let store = patient(server.url()).build().unwrap();
    let limiter = way.hourly(&store, 20).await;
    let mut grants = Vec::new();
    for _ in 0..6 {
        grants.push(take(&limiter, 2).await);
    }
    server.command(&["SCRIPT", "FLUSH"]);
    for grant in &grants[..5] {
        limiter.give_back(grant);
    }
    store.settled().await;
    assert_eq!(free(&limiter).await, 18);
}

async fn what_is_no_value_is_an_error(way: Way) {
    let state = State::new(way, 5).await;
    let in_own_format = Way::OWN.contains(&way);
    let suffix = if in_own_format { "~" } else { "value" };
    state.ask("SADD", suffix, &["a set"]);
    fails(state.limiter.try_acquire().await, ErrorKind::ForeignState);
    let unset = RateLimiter::new(&state.store, &unique("unset")).unwrap();
    let kind = match way {
        Way::Gcra => ErrorKind::Limit,
        _ => ErrorKind::NotInitialized,
    };
    fails(way.limiter(unset).try_acquire().await, kind);
}

async fn limits_per_client_have_a_value_each(way: Way) {
    let state = State::new(way, 5).await;
    take(&state.limiter, 1).await;
    let limit = Limit::new(5, HOUR).per_client();
    state.limiter.set_rate(limit).await.unwrap();
    assert!(!state.exists("value"), "of the other type");
    take(&state.limiter, 2).await;
    assert!(!state.exists("value"));
    assert_eq!(state.ask("GET", "value:7d9", &[]), "3");
    let other = redis_store().client_id("8e0").build().unwrap();
    let other = RateLimiter::new(&other, state.limiter.name()).unwrap();
    assert_eq!(free(&way.limiter(other)).await, 5);
    assert!(state.limiter.delete().await.unwrap());
    assert!(!state.exists("value:7d9"));
}

#[tokio::test]
async fn scripts_that_a_server_lost_cost_none_of_them_permits() {
    let server = RedisServer::start();
    for way in Way::ALL {
        println!("{way:?}");
        a_server_without_the_script_credits_once(way, &server).await;
    }
}

#[tokio::test]
async fn state_and_leaving_in_redis_for_each_algorithm() {
    for way in Way::ALL {
        println!("{way:?}");
        what_is_no_value_is_an_error(way).await;
    }
    for way in Way::STORED {
        println!("{way:?}");
        limits_per_client_have_a_value_each(way).await;
    }
}
