//! Permits taken ahead, on real servers: what they save, and that they change no law.

use kit::scene::*;

/// A limiter that permits are leased of, and its store.
async fn leased(store: &RedisStore, limit: Limit, lease: Duration) -> RateLimiter {
    let limiter = limited(store, limit).await;
    limiter.lease(lease).unwrap()
}

/// A store on the shared server by a clock, and a limiter that permits are leased of.
async fn leased_by_clock(limit: Limit, lease: Duration) -> (RedisStore, ManualClock, RateLimiter) {
    let clock = ManualClock::new();
    let store = shared_by_clock(&clock).deny_cache(secs(60)).build();
    let store = store.unwrap();
    let limiter = leased(&store, limit, lease).await;
    (store, clock, limiter)
}

/// Takes single permits until one comes out of a lease, and tells how many.
async fn warm(limiter: &RateLimiter) -> u64 {
    for taken in 1..20 {
        if limiter.try_acquire().await.unwrap().source() == Source::Lease {
            return taken;
        }
    }
    panic!("no lease");
}

#[tokio::test]
async fn a_lease_is_an_entry_scored_at_its_end() {
    let (_store, clock, limiter) = leased_by_clock(Limit::per_second(1000), millis(80)).await;
    warm(&limiter).await;
    let log = format!("{{{}}}:permits", limiter.name());
    let entries = RedisServer::shared().entries(&log);
    let (score, member) = entries.last().expect("an entry");
    let now = Clock::now(&clock).as_millis();
    assert_eq!(u128::try_from(*score).unwrap(), now + 80);
    assert!(kit::permits_of(member) > 1);

    // No longer than a tenth of the interval that is stored.
    let long = limiter.clone().lease(secs(9)).unwrap();
    clock.advance(millis(200));
    warm(&long).await;
    clock.advance(millis(99));
    assert_eq!(long.try_acquire().await.unwrap().source(), Source::Lease);
    clock.advance(millis(1));
    assert_eq!(long.try_acquire().await.unwrap().source(), Source::Store);
}

/// The deny cache is asked before the lease. What gives a lease enough for a question drops the
/// refusals of that.
#[tokio::test]
async fn a_known_refusal_hides_no_permits_in_hand() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = || {
        let store = by_clock(&server, &clock).deny_cache(secs(60));
        store.build().unwrap()
    };
    let (ours, other) = (store(), store());
    let limiter = leased(&ours, Limit::per_hour(1000), secs(300)).await;
    warm(&limiter).await;
    // Of the four permits of the lease two are left.
    let decision = limiter.try_acquire().await.unwrap();
    assert_eq!(decision.source(), Source::Lease);
    let grant = granted(decision);
    let other = RateLimiter::new(&other, limiter.name()).unwrap();
    let rest = u32::try_from(free(&other).await).unwrap();
    take(&other, rest).await;
    let asks = async |permits, allowed, source| {
        let decision = limiter.try_acquire_many(permits).await.unwrap();
        let said = (decision.is_allowed(), decision.source());
        assert_eq!(said, (allowed, source), "{permits}");
    };
    asks(3, false, Source::Store).await;
    asks(3, false, Source::Cache).await;
    limiter.give_back(&grant);
    let calls = server.scripts_called();
    asks(3, true, Source::Lease).await;
    assert_eq!(server.scripts_called(), calls);
    // A refusal of more ends no lease, and is repeated while there is one.
    limiter.give_back(&grant);
    asks(1, false, Source::Store).await;
    asks(1, false, Source::Cache).await;
}

#[tokio::test]
async fn a_dropped_store_gives_back_unused_permits() {
    let [observer, store] = [(); 2].map(|()| patient(RedisServer::shared().url()).build().unwrap());
    let limiter = leased(&store, Limit::per_hour(1000), HOUR / 10).await;
    let observed = RateLimiter::new(&observer, limiter.name()).unwrap();
    let taken = warm(&limiter).await;
    drop((limiter, store));
    // In the background.
    kit::traffic::is_free(&observed, 1000 - taken).await;
}

#[tokio::test]
async fn a_store_that_is_closed_gives_back_more_than_is_queued_at_a_time() {
    let [observer, store] = [(); 2].map(|()| patient(RedisServer::shared().url()).build().unwrap());
    let mut limiters = Vec::new();
    for _ in 0..1200 {
        let limiter = leased(&store, Limit::per_hour(1000), HOUR / 10).await;
        let taken = warm(&limiter).await;
        limiters.push((limiter, taken));
    }
    store.settled().await;
    for (limiter, taken) in limiters {
        let observed = RateLimiter::new(&observer, limiter.name()).unwrap();
        assert_eq!(free(&observed).await, 1000 - taken);
    }
}

#[tokio::test]
async fn a_release_after_the_lease_drops_cached_refusals() {
    let (store, clock, limiter) = leased_by_clock(Limit::per_second(100), millis(100)).await;
    // All but what is in hand is taken by another process.
    warm(&limiter).await;
    let mut leased = None;
    for _ in 0..4 {
        let decision = limiter.try_acquire().await.unwrap();
        if let (Source::Lease, Decision::Allow(grant)) = (decision.source(), decision) {
            leased = Some(grant);
        }
    }
    let other = shared_by_clock(&clock).build().unwrap();
    let other = RateLimiter::new(&other, limiter.name()).unwrap();
    let left = u32::try_from(free(&other).await).unwrap();
    take(&other, left).await;
    while limiter.try_acquire().await.unwrap().is_allowed() {}
    let again = limiter.try_acquire().await.unwrap();
    assert_eq!(again.source(), Source::Cache);
    // Its lease is over, so the release goes to the store, which drops the cached refusal.
    limiter.give_back(&leased.unwrap());
    store.close().await;
    take(&limiter, 1).await;
    assert!(!limiter.try_acquire().await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_reset_by_others_leaves_one_lease_of_each_process() {
    let clock = ManualClock::new();
    let store = || shared_by_clock(&clock).build().unwrap();
    let limit = Limit::per_second(800);
    let ours = leased(&store(), limit, millis(100)).await;
    let theirs = RateLimiter::new(&store(), ours.name()).unwrap();
    for _ in 0..60 {
        take(&ours, 1).await;
    }
    theirs.set_rate(limit).await.unwrap();
    let mut granted = 0;
    let mut in_hand = 0;
    while let Decision::Allow(grant) = ours.try_acquire().await.unwrap() {
        granted += 1;
        // Until the store is asked again.
        if in_hand + 1 == granted && Decision::Allow(grant).source() == Source::Lease {
            in_hand += 1;
        }
    }
    println!(
        "{in_hand} in hand, {granted} granted of {}",
        limit.permits()
    );
    assert!(in_hand > 0);
    assert!(in_hand <= limit.permits() / 8);
    assert_eq!(granted, limit.permits() + in_hand);
    // By the same store nothing is left of it.
    ours.set_rate(limit).await.unwrap();
    let mut granted = 0;
    while ours.try_acquire().await.unwrap().is_allowed() {
        granted += 1;
    }
    assert_eq!(granted, limit.permits());
}

#[tokio::test]
async fn leased_permits_are_granted_until_the_lease_ends_while_redis_is_gone() {
    let (mut server, clock) = (RedisServer::start(), ManualClock::new());
    let store = by_clock(&server, &clock).build().unwrap();
    let limiter = leased(&store, Limit::per_second(10_000), millis(100)).await;
    warm(&limiter).await;
    // So that the next lease has enough.
    for _ in 0..30 {
        take(&limiter, 1).await;
    }
    server.kill();
    clock.advance(millis(99));
    let decision = limiter.try_acquire().await.unwrap();
    assert_eq!(decision.source(), Source::Lease);
    clock.advance(millis(1));
    fails(limiter.try_acquire().await, ErrorKind::Unavailable);
}

/// In Redisson's format, a call that finds the limit of another process writes its own, and grants
/// by that no permits of before.
#[tokio::test]
async fn a_lease_ends_when_a_call_finds_the_limit_rewritten() {
    for rewritten in [false, true] {
        let (clock, prefix) = (ManualClock::new(), unique("lease"));
        let store = shared_by_clock(&clock).prefix(&prefix).redisson();
        let store = store.build().unwrap();
        let cost = |parts: &http::request::Parts| parts.uri.path()[1..].parse().unwrap();
        let rule = Rule::new("api", Limit::per_second(1000), Constant("all"));
        let layer = RateLimitLayer::new(&store, rule.lease(millis(100)).cost_by(cost));
        let ask = async |cost| decide(&layer, asking(&format!("GET /{cost}"), &[])).await;
        while ask(1).await.source() != Source::Lease {}
        if rewritten {
            let other = patient(RedisServer::shared().url()).build().unwrap();
            let other = RateLimiter::new(&other, &format!("{prefix}:{{all}}:api")).unwrap();
            other.set_rate(Limit::per_second(500)).await.unwrap();
        }
        // More than the lease has, so that Redis is called.
        let decision = ask(100).await;
        assert_eq!(decision.source(), Source::Store);
        assert_eq!(decision.limits().next().unwrap().permits(), 1000);
        let source = ask(1).await.source();
        assert_eq!(source == Source::Lease, !rewritten, "{source:?}");
    }
}
