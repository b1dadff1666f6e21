//! What is no state of ours, by each way to count whose limit is in the code: written by hand, cut
//! short, of a later version, or no string at all.

use super::*;

/// Rules of nine permits, by each of the ways.
fn rules() -> [Rule; 4] {
    let by_key = |limit: Limit| limit.by(FromHeader::new("x-key"));
    let monthly = Limit::monthly(9).in_zone(zone_by_day()).unwrap();
    let [log, window, gcra] = Way::OWN.map(|way| way.rule(by_key(Limit::per_hour(9))));
    [log, window, gcra, by_key(monthly)]
}

async fn refuses_foreign(layer: &RateLimitLayer, limiter: &RateLimiter) {
    fails(limiter.try_acquire().await, ErrorKind::ForeignState);
    fails(limiter.available_permits().await, ErrorKind::ForeignState);
    fails(limiter.release(1).await, ErrorKind::ForeignState);
    // Whatever a policy says.
    assert_eq!(
        send(layer, "a").await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn a_state_that_is_not_ours_is_named_and_left() {
    let server = RedisServer::shared();
    for (rule, key) in rules()
        .into_iter()
        .zip([state_key, state_key, state_key, calendar_key])
    {
        let name = unique("foreign");
        let store = shared_redis().build().unwrap();
        let rule = rule.named(&name).on_failure(FailurePolicy::Allow);
        let layer = RateLimitLayer::new(&store, rule);
        let limiter = layer.limiter(&name, ["a"]).unwrap();
        let key = key(limiter.name());
        let mut grants = Vec::new();
        for _ in 0..8 {
            grants.push(take(&limiter, 1).await);
        }
        let state = server.command(&["GET", &key]).into_bytes();
        let last = state.len() - 1;
        let (mut later, mut other_magic) = (state.clone(), state.clone());
        later[last - 1] += 16;
        other_magic[last] -= 1;
        let forty = b"a text of forty bytes that is no limiter";
        for foreign in [
            &b""[..],
            b"3",
            forty,
            &state[..last],
            &state[1..],
            &later,
            &other_magic,
        ] {
            server.command(&[b"SET", key.as_bytes(), foreign]);
            refuses_foreign(&layer, &limiter).await;
            // One by the calendar is not looked at.
            if !key.ends_with(":calendar") {
                fails(limiter.ban_for(HOUR).await, ErrorKind::ForeignState);
            }
            // Each grant is settled once.
            limiter.give_back(&grants.pop().unwrap());
            store.settled().await;
            let left = server.command(&["GET", &key]);
            assert_eq!(left, Reply::Bulk(foreign.into()), "{key}");
        }
        server.command(&["DEL", &key]);
        server.command(&["RPUSH", &key, "many"]);
        refuses_foreign(&layer, &limiter).await;
        limiter.give_back(&grants.pop().unwrap());
        store.settled().await;
        assert_eq!(server.cli(&["LRANGE", &key, "0", "-1"]), "many");
        assert!(limiter.delete().await.unwrap());
        assert_eq!(free(&limiter).await, 9);
        assert!(send(&layer, "a").await.status().is_success());
    }
}
