//! What is so on both stores.

use super::*;

pub async fn algorithms(kinds: Kinds<impl Settles>) {
    let mut ways = own_ways(&kinds.own);
    for way in Way::STORED {
        ways.push(way.limited(&kinds.own, Limit::per_hour(2)).await);
    }
    // In a store of Redisson's format, too, whose GCRA and calendar are our own.
    ways.extend(own_ways(&kinds.redisson));
    for limiter in ways {
        take(&limiter, 1).await;
        take(&limiter, 1).await;
        refused(limiter.try_acquire().await.unwrap());
    }
    let exact = limited(&kinds.own, Limit::per_hour(2)).await;
    for (algorithm, limit) in [
        (Algorithm::Gcra, Limit::per_hour(2)),
        (Algorithm::Calendar, Limit::daily(2)),
    ] {
        let of_code = exact.clone().algorithm(algorithm);
        fails(of_code.try_acquire().await, ErrorKind::Limit);
        let rule = Rule::shared(exact.name()).or_init(limit);
        let layer = RateLimitLayer::builder(&kinds.own).otherwise(rule.algorithm(algorithm));
        assert_eq!(layer.build().unwrap_err().kind(), ConfigErrorKind::Limit);
    }
}

pub async fn limit(kinds: Kinds<impl Settles>) {
    let (five, nine) = (Limit::per_hour(5), Limit::per_hour(9));
    for (store, is_stored) in [(&kinds.own, false), (&kinds.redisson, true)] {
        let name = unique("deployed");
        let of = |limit: Limit| limit.named(&name).keyed(store).unwrap().of("ann");
        let older = of(five);
        take(&older, 5).await;
        refused(older.try_acquire().await.unwrap());
        let exact = RateLimiter::new(store, older.name()).unwrap();
        drop(older);
        let newer = of(nine);
        take(&newer, 4).await;
        refused(newer.try_acquire().await.unwrap());
        let stored = exact.limit().await.unwrap().map(|limit| limit.permits());
        // In memory a name has one state.
        let is_seen = is_stored || kinds.server.is_none();
        assert_eq!(stored, is_seen.then_some(9));
    }
    let one = limited(&kinds.own, five).await;
    let same = RateLimiter::new(&kinds.own, one.name()).unwrap();
    assert!(!same.try_set_rate(nine).await.unwrap());
    assert_eq!(same.limit().await.unwrap(), Some(five));
    take(&same, 5).await;
    refused(one.try_acquire().await.unwrap());
}

pub async fn take_and_wait(kinds: Kinds<impl Settles>) {
    for limiter in kinds.all(Limit::per_hour(2)).await {
        take(&limiter, 2).await;
        refused(limiter.try_acquire_for(1, SECOND).await.unwrap());
        fails(limiter.acquire_many(3).await, ErrorKind::AboveRate);
        let mut waiting = Box::pin(limiter.acquire());
        crate::limiter::pending(&mut waiting, &kinds.clock).await;
        kinds.clock.advance(HOUR);
        waiting.await.unwrap();
        assert_eq!(free(&limiter).await, 1, "{}", limiter.name());
    }
}

/// In memory nothing is fetched ahead.
pub async fn lease(kinds: Kinds<impl Settles>) {
    for limiter in kinds.all(Limit::per_hour(1000)).await {
        let leased = limiter.clone().lease(secs(60)).unwrap();
        let mut of_leases = 0;
        for _ in 0..20 {
            let decision = leased.try_acquire().await.unwrap();
            of_leases += i32::from(decision.source() == Source::Lease);
            granted(decision);
        }
        assert_eq!(of_leases > 0, kinds.server.is_some(), "{}", limiter.name());
    }
}

pub async fn bans(kinds: Kinds<impl Settles>) {
    for (store, rule) in kinds.rules_of_one() {
        let layer = layer_of(store, rule.ban(Ban::after(2).within(HOUR)));
        granted(decision_of(&send(&layer, "ann").await).clone());
        for kind in [RefusalKind::OverLimit, RefusalKind::Banned] {
            let answer = send(&layer, "ann").await;
            assert_eq!(refused(decision_of(&answer).clone()).kind(), kind);
        }
    }
}

/// In a list with a log or a window, which may be another call in Redis, all or none are taken. The
/// call for more permits comes first, and each of the two is tested as that.
pub async fn lists(kinds: Kinds<impl Settles>) {
    let mut limiters = kinds.by_ways(9).await;
    limiters.push(kinds.by_calendar(9).remove(0));
    for limiter in limiters {
        for other in [Way::Log, Way::Window, Way::OwnLog] {
            let other = other.limited(&kinds.own, Limit::per_hour(3)).await;
            let all = RateLimiter::all([&limiter, &other]).unwrap();
            take(&other, 1).await;
            let before = free(&limiter).await;
            for costs in [[4, 3], [1, 3]] {
                let refusal = refused(all.try_acquire_each(&costs).await.unwrap());
                let by = refusal.limits().next().unwrap();
                assert!(other.name().ends_with(by.name()));
                kinds.settled().await;
                assert_eq!((free(&limiter).await, free(&other).await), (before, 2));
            }
            let grant = granted(all.try_acquire().await.unwrap());
            assert_eq!((free(&limiter).await, free(&other).await), (before - 1, 1));
            all.give_back(&grant);
            kinds.settled().await;
            assert_eq!((free(&limiter).await, free(&other).await), (before, 2));
        }
    }
}

pub async fn shadow_rules(kinds: Kinds<impl Settles>) {
    for (store, rule) in kinds.rules_of_one() {
        let layer = layer_of(store, rule.shadow());
        for has_room in [true, false] {
            let answer = send(&layer, "ann").await;
            let grant = granted(decision_of(&answer).clone());
            let limit = grant.limits().next().unwrap();
            assert_eq!((limit.is_shadow(), limit.is_refused()), (true, !has_room));
            assert_eq!(limit.remaining(), Some(0));
        }
    }
}

pub async fn settle_and_give_back(kinds: Kinds<impl Settles>) {
    let others = kinds.nine().await;
    for (limiter, other) in kinds.nine().await.into_iter().zip(others) {
        let has_free = async |permits| {
            kinds.settled().await;
            assert_eq!(free(&limiter).await, permits, "{}", limiter.name());
        };
        let grant = take(&limiter, 5).await;
        // Another limiter's has no effect, and stays good for its own.
        other.settle(&grant, 9);
        other.give_back(&grant);
        limiter.settle(&grant, 2);
        has_free(7).await;
        let grant = take(&limiter, 3).await;
        // Once, at the same time and later.
        for copy in &vec![grant.clone(); 8] {
            limiter.give_back(copy);
        }
        has_free(7).await;
        limiter.give_back(&grant);
        has_free(7).await;
        assert_eq!(limiter.release(1).await.unwrap(), 1, "{}", limiter.name());
        has_free(8).await;
        let debt = take(&limiter, 1).await;
        limiter.settle(&debt, 15);
        has_free(0).await;
        assert_eq!(limiter.release(8).await.unwrap(), 8, "{}", limiter.name());
        has_free(1).await;
        assert_eq!(free(&other).await, 9, "{}", other.name());
    }
}

pub async fn what_is_read(kinds: Kinds<impl Settles>) {
    for limiter in kinds.nine().await {
        take(&limiter, 2).await;
        assert_eq!(free(&limiter).await, 7, "{}", limiter.name());
        let limit = limiter.limit().await.unwrap().unwrap();
        let by_hour = (limit.permits(), limit.interval()) == (9, HOUR);
        assert!(by_hour || limit == by_day(9), "{limit}");
        assert!(limiter.exists().await.unwrap());
        let left = limiter.time_to_live().await.unwrap();
        assert_ne!(left, TimeToLive::Missing);
    }
}

/// One that is not used is whole, and nothing is stored.
pub async fn unused(kinds: Kinds<impl Settles>) {
    for limiter in [own_ways(&kinds.own), own_ways(&kinds.redisson)].concat() {
        assert_eq!(free(&limiter).await, 2, "{}", limiter.name());
        assert_eq!(limiter.release(1).await.unwrap(), 0, "{}", limiter.name());
        assert_eq!(limiter.repair().await.unwrap(), 0, "{}", limiter.name());
        let left = limiter.time_to_live().await.unwrap();
        assert_eq!(left, TimeToLive::Missing, "{}", limiter.name());
        assert!(!limiter.exists().await.unwrap(), "{}", limiter.name());
        assert!(!limiter.delete().await.unwrap(), "{}", limiter.name());
        take(&limiter, 2).await;
        let left = limiter.time_to_live().await.unwrap();
        assert!(matches!(left, TimeToLive::Left(_)), "{left:?}");
        assert_eq!(limiter.release(1).await.unwrap(), 1, "{}", limiter.name());
        assert_eq!(free(&limiter).await, 1, "{}", limiter.name());
        assert!(limiter.delete().await.unwrap(), "{}", limiter.name());
        assert_eq!(free(&limiter).await, 2, "{}", limiter.name());
    }
}

pub async fn delete_and_ban(kinds: Kinds<impl Settles>) {
    for limiter in kinds.nine().await {
        take(&limiter, 2).await;
        limiter.ban_for(HOUR).await.unwrap();
        assert!(limiter.banned_until().await.unwrap().is_some());
        assert_eq!(limiter.release(1).await.unwrap(), 1, "whatever is left");
        assert!(limiter.unban().await.unwrap());
        assert!(!limiter.unban().await.unwrap());
        assert_eq!(limiter.banned_until().await.unwrap(), None);
        assert!(limiter.delete().await.unwrap(), "{}", limiter.name());
        assert!(!limiter.exists().await.unwrap(), "{}", limiter.name());
        assert!(!limiter.delete().await.unwrap(), "{}", limiter.name());
    }
}

fn says_where_it_is(set: Result<bool, tower_ratelimit::Error>) {
    let said = fails(set, ErrorKind::Limit).to_string();
    let where_it_is = "it is in the code alone: `Limit::named(";
    assert!(said.contains(where_it_is), "{said}");
}

pub async fn what_changes_a_limit(kinds: Kinds<impl Settles>) {
    let (nine, ten) = (Limit::per_hour(9), Limit::per_hour(10));
    let of_code = [
        kinds.of_own(nine),
        kinds.of_redisson(nine),
        kinds.by_calendar(9),
    ];
    for limiter in of_code.concat() {
        take(&limiter, 2).await;
        says_where_it_is(limiter.try_set_rate(ten).await);
        fails(limiter.set_rate(ten).await, ErrorKind::Limit);
        fails(limiter.set_or_update_rate(ten).await, ErrorKind::Limit);
        fails(limiter.update_rate(ten).await, ErrorKind::Limit);
        fails(limiter.reset_rate(ten).await, ErrorKind::Limit);
        fails(limiter.expire(HOUR).await, ErrorKind::Limit);
        fails(limiter.clear_expire().await, ErrorKind::Limit);
        fails(limiter.rename("renamed").await, ErrorKind::Limit);
        assert_eq!(free(&limiter).await, 7, "{}", limiter.name());
    }
    for way in Way::STORED {
        let limiter = way.limited(&kinds.own, nine).await;
        take(&limiter, 2).await;
        let monthly = Limit::monthly(9);
        says_where_it_is(limiter.try_set_rate(monthly).await);
        fails(limiter.set_rate(monthly).await, ErrorKind::Limit);
        fails(limiter.update_rate(monthly).await, ErrorKind::Limit);
        assert!(!limiter.try_set_rate(ten).await.unwrap());
        assert!(limiter.update_rate(ten).await.unwrap());
        assert_eq!(free(&limiter).await, 8);
        limiter.set_or_update_rate(nine).await.unwrap();
        assert_eq!(free(&limiter).await, 7);
        let target = way.limited(&kinds.own, Limit::per_hour(50)).await;
        take(&target, 20).await;
        let renamed = limiter.rename(target.name()).await.unwrap();
        assert!(!limiter.exists().await.unwrap());
        assert_eq!(free(&renamed).await, 7);
        take(&renamed, 1).await;
        assert_eq!(free(&renamed).await, 6);
        fails(limiter.rename("x").await, ErrorKind::NotInitialized);
        fails(renamed.rename("a{b").await, ErrorKind::Name);
        assert!(renamed.reset_rate(ten).await.unwrap());
        assert_eq!(free(&renamed).await, 10);
        expires_and_stays(&renamed, ten).await;
    }
}

async fn expires_and_stays(limiter: &RateLimiter, limit: Limit) {
    let left = async || limiter.time_to_live().await.unwrap();
    // Set less than a minute ago.
    let lives = async |time: Duration| match left().await {
        TimeToLive::Left(left) => assert!(left <= time && time - left < secs(60), "{left:?}"),
        other => panic!("{other:?}"),
    };
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
    lives(HOUR).await;
    assert!(limiter.clear_expire().await.unwrap());
    assert!(!limiter.clear_expire().await.unwrap());
    assert_eq!(left().await, TimeToLive::Lasting);
    assert!(limiter.expire(HOUR).await.unwrap());
    // Only setting a limit without a keep-alive time makes it stay again.
    limiter.set_rate(limit).await.unwrap();
    assert_eq!(left().await, TimeToLive::Lasting);
    // One with it is put off by use.
    let kept = limit.keep_alive(3 * HOUR).unwrap();
    limiter.set_rate(kept).await.unwrap();
    assert_eq!(limiter.limit().await.unwrap(), Some(kept));
    assert!(limiter.expire(HOUR).await.unwrap());
    take(limiter, 1).await;
    lives(3 * HOUR).await;
}

pub async fn repair(kinds: Kinds<impl Settles>) {
    for limiter in kinds.nine().await {
        take(&limiter, 2).await;
        assert_eq!(limiter.repair().await.unwrap(), 0, "{}", limiter.name());
        assert_eq!(free(&limiter).await, 7, "{}", limiter.name());
    }
}

/// A rule's, and what has them without HTTP.
pub async fn settings(kinds: Kinds<impl Settles>) {
    let hour = Limit::per_hour(9);
    let kept = hour.keep_alive(3 * HOUR).unwrap();
    let slots = |rule: Rule| rule.slots(100);
    let as_it_is = |rule: Rule| rule;
    for (limit, set) in [
        (hour, slots as fn(Rule) -> Rule),
        (kept, as_it_is),
        (hour.per_client(), as_it_is),
    ] {
        let [own, exact, redisson] = kinds.rules(limit).map(|(store, rule)| {
            let layer = RateLimitLayer::builder(store).otherwise(set(rule));
            layer.build()
        });
        assert_eq!(own.unwrap_err().kind(), ConfigErrorKind::Limit);
        for layer in [exact, redisson] {
            granted(decision_of(&send(&layer.unwrap(), "ann").await).clone());
        }
        if limit != hour {
            let name = unique("set");
            let keyed = limit.named(&name).keyed(&kinds.own);
            assert_eq!(keyed.unwrap_err().kind(), ConfigErrorKind::Limit);
            let keyed = limit.named(&name).keyed(&kinds.redisson).unwrap();
            take(&keyed.of("ann"), 1).await;
            let exact = limited(&kinds.own, limit).await;
            assert_eq!(exact.limit().await.unwrap(), Some(limit));
        }
    }
    let own = kinds.of_own(hour).remove(0);
    assert_eq!(own.slots(100).unwrap_err().kind(), ConfigErrorKind::Limit);
    for limiter in kinds.of_exact(hour).await {
        take(&limiter.slots(100).unwrap(), 1).await;
    }
}
