//! A store that fails on purpose, and decisions made by hand: what users test their handlers with.

use super::*;
use tower_ratelimit::LimitState;

const KINDS: [ErrorKind; 13] = [
    ErrorKind::NotInitialized,
    ErrorKind::RateTypeDiffers,
    ErrorKind::ForeignState,
    ErrorKind::Permits,
    ErrorKind::AboveRate,
    ErrorKind::Name,
    ErrorKind::OtherSlot,
    ErrorKind::Timeout,
    ErrorKind::Unavailable,
    ErrorKind::Rejected,
    ErrorKind::Tls,
    ErrorKind::Full,
    ErrorKind::Limit,
];

fn policies() -> impl Strategy<Value = FailurePolicy> {
    prop_oneof![
        Just(FailurePolicy::Allow),
        Just(FailurePolicy::Deny),
        (1..=4u32).prop_map(|parts| FailurePolicy::Local(1.0 / f64::from(parts))),
    ]
}

/// How many of the first requests pass: all, none, or a share of the limit.
fn passes(kind: ErrorKind, policy: FailurePolicy, permits: u64) -> u64 {
    // Whatever the policy: to pass would open the gate for as long as the set-up is wrong.
    let refuses_anyway = matches!(
        kind,
        ErrorKind::NotInitialized | ErrorKind::Full | ErrorKind::Limit | ErrorKind::ForeignState
    );
    match policy {
        _ if refuses_anyway => 0,
        FailurePolicy::Allow => u64::MAX,
        FailurePolicy::Local(share) => ((permits as f64 * share + 1e-9) as u64).max(1),
        _ => 0,
    }
}

/// Of several limits, each process has its share of each.
#[tokio::test]
async fn a_share_is_one_of_each_limit() {
    let store = MemoryStore::builder().failing(ErrorKind::Timeout);
    let (store, clock) = store.build_manual();
    let limit = Limit::new(4, SECOND).and(Limit::new(6, 60 * SECOND));
    let rule = limit.by(FromHeader::new("x-key")).named("r");
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Local(0.5)));
    let service = layer.layer(Inner::default());
    for (pause, wait) in [(0, None), (0, None), (0, Some(1)), (1, None), (0, Some(59))] {
        clock.advance(pause * SECOND);
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        let said = answer.headers().get(header::RETRY_AFTER);
        let said = said.map(|said| said.to_str().unwrap().parse().unwrap());
        assert_eq!(said, wait);
    }
}

proptest! {
    /// Each kind of failure is answered by the rule's policy, as if a server failed: with a share
    /// of the limit, exactly that many requests pass in an interval, and the wait is right.
    #[test]
    fn requests_meet_their_policy(
        kind in proptest::sample::select(&KINDS[..]),
        policy in policies(),
        permits in 1..8u64,
    ) {
        let store = MemoryStore::builder().failing(kind).max_limiters(10);
        let (store, clock) = store.build_manual();
        let rule = Limit::new(permits, SECOND).by(FromHeader::new("x-key")).named("r");
        let service = RateLimitLayer::new(&store, rule.on_failure(policy)).layer(Inner::default());
        let passes = passes(kind, policy, permits);
        runtime().block_on(async {
            for round in 0..2 {
                for number in 0..permits + 2 {
                    let answer = service.clone().oneshot(request("a")).await.unwrap();
                    let status = answer.status().as_u16();
                    if number < passes {
                        assert_eq!(status, 200, "{number} {round}");
                        continue;
                    }
                    let decision = Decision::of(&answer);
                    if passes == 0 {
                        assert_eq!(status, 503);
                        decision.assert_refused_as(RefusalKind::Unavailable);
                        let error = refused(decision.clone()).error().map(Error::kind);
                        assert_eq!(error, Some(kind));
                    } else {
                        assert_eq!(status, 429);
                        decision.assert_refused_as(RefusalKind::OverLimit);
                        decision.assert_retry_after(SECOND);
                        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
                    }
                }
                clock.advance(SECOND);
            }
        });
    }

    /// Without a rule there is no policy: each method of a limiter returns the error.
    #[test]
    fn limiters_return_the_error(kind in proptest::sample::select(&KINDS[..])) {
        let store = MemoryStore::builder().failing(kind).build();
        let limiter = RateLimiter::new(&store, "orders").unwrap();
        runtime().block_on(async {
            let of = |error: Error| error.kind();
            assert_eq!(limiter.try_acquire().await.map_err(of).err(), Some(kind));
            assert_eq!(limiter.acquire().await.map_err(of).err(), Some(kind));
            let set = limiter.try_set_rate(Limit::per_second(1)).await;
            assert_eq!(set.map_err(of), Err(kind));
            assert_eq!(limiter.available_permits().await.map_err(of), Err(kind));
        });
    }

    /// Decisions made by hand have what was put in, and the order of real ones.
    #[test]
    fn decisions_are_made_by_hand(
        limits in proptest::collection::vec((1..9u64, 0..5u64, 0..100u64), 0..4),
    ) {
        let minute = |permits| Limit::per_minute(permits);
        let mut grant = Grant::for_test();
        let mut refusal = Refusal::for_test(RefusalKind::OverLimit);
        for (permits, left, wait) in &limits {
            grant = grant.with_limit("l", minute(*permits), *left.min(permits));
            refusal = refusal.with_limit("l", minute(*permits), secs(*wait));
        }
        let longest = limits.iter().map(|(_, _, wait)| secs(*wait)).max();
        prop_assert_eq!(refusal.retry_after(), longest);
        prop_assert_eq!(refusal.limits().next().and_then(|it| it.retry_after()), longest);
        prop_assert!(refusal.limits().all(|it| it.is_refused() && it.name() == "l"));
        let part = |it: &LimitState| {
            it.remaining().unwrap() as f64 / it.permits() as f64
        };
        let parts: Vec<_> = grant.limits().map(|it| part(&it)).collect();
        prop_assert!(parts.is_sorted(), "{:?}", parts);
        prop_assert_eq!(permits_taken(&grant).len(), 0);
    }
}

/// Refusals made by hand say what a layer's own do.
#[tokio::test]
async fn refusals_made_by_hand_are_as_real_ones() {
    let missing = FromHeader::new("x-api-key").plain().max_len(64);
    let layer = layer_of(&MemoryStore::new(), Limit::per_minute(1).by(missing));
    let ask = async |request: Request<String>| refused(decide(&layer, request).await);
    let shown = |refusal: &Refusal| {
        let decision = Decision::Deny(refusal.clone());
        (refusal.kind(), refusal.missing(), decision.source())
    };
    let lacks = ask(Request::new(String::new())).await;
    let long = Request::builder().header("x-api-key", "k".repeat(5000));
    let long = ask(long.body(String::new()).unwrap()).await;
    for (real, kind) in [
        (lacks, RefusalKind::MissingKey),
        (long, RefusalKind::KeyTooLong),
    ] {
        assert_eq!(shown(&real), shown(&Refusal::for_test(kind)));
    }
    let unavailable = Refusal::for_test(RefusalKind::Unavailable);
    let kind = unavailable.error().map(Error::kind);
    assert_eq!(kind, Some(ErrorKind::Unavailable));
    let above = Refusal::for_test(RefusalKind::AboveRate);
    assert_eq!(above.kind(), RefusalKind::AboveRate);
    assert_eq!(above.retry_after(), None);
}
