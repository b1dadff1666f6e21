//! What is so in Redis: keys, calls, and what two processes do.

use super::*;
use kit::{calendar_key, state_key};
use std::collections::BTreeSet;

const CROWD: usize = 64;

/// Asks for a crowd while the server stands still, and returns how many scripts that takes. Once it
/// knows them, the first is alone, and all others share what they can.
async fn crowd<F: Future<Output = Grant> + Send + 'static>(
    server: &mut RedisServer,
    ask: impl Fn() -> F,
) -> u64 {
    let before = server.scripts_called();
    server.stop_process();
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(ask());
        settle().await;
    }
    server.resume();
    crowd.join_all().await;
    server.scripts_called() - before
}

/// Each says in its last bytes what it is.
pub async fn states_of_algorithms(kinds: Kinds<RedisStore>) {
    let mut says = BTreeSet::new();
    for limiter in own_ways(&kinds.own) {
        take(&limiter, 1).await;
        let key = match &*kinds.suffixes(limiter.name()).concat() {
            "~" => state_key(limiter.name()),
            _ => calendar_key(limiter.name()),
        };
        let server = kinds.server.as_ref().unwrap();
        let state = server.command(&["GETRANGE", &key, "-2", "-1"]).into_bytes();
        assert_eq!(state.len(), 2, "{key}");
        says.insert(state);
    }
    assert_eq!(says.len(), 4, "{says:?}");
}

/// Two processes with different limits in the code.
pub async fn limits_side_by_side(kinds: Kinds<RedisStore>) {
    let server = kinds.server.as_ref().unwrap();
    for is_stored in [false, true] {
        let [five, nine] = [5, 9].map(|permits| {
            let store = by_clock(server, &kinds.clock).deny_cache(Duration::ZERO);
            let store = if is_stored { store.redisson() } else { store };
            let limit = Limit::per_hour(permits).named("both");
            limit.single(&store.build().unwrap()).unwrap()
        });
        let permits = async |limiter: &RateLimiter| {
            let grant = take(limiter, 1).await;
            grant.limits().next().unwrap().permits()
        };
        assert_eq!(permits(&five).await, 5);
        assert_eq!(permits(&nine).await, 9);
        assert_eq!(permits(&five).await, 5);
        // Each has rewritten the stored one, and does so no more for a minute.
        let last = if is_stored { 5 } else { 9 };
        assert_eq!(permits(&nine).await, last);
        assert_eq!(free(&five).await, 1);
    }
}

pub async fn keys_in_redis(kinds: Kinds<RedisStore>) {
    const OF_LOG: &[&str] = &["", ":permits", ":value"];
    const OF_WINDOW: &[&str] = &["", ":value"];
    const OURS: &[&str] = &["~"];
    const OF_CALENDAR: &[&str] = &["~:calendar"];
    let own = own_ways(&kinds.own).into_iter();
    let of_redisson = own_ways(&kinds.redisson).into_iter();
    let own = own.zip([OURS, OURS, OURS, OF_CALENDAR]);
    let mut all: Vec<_> = own
        .chain(of_redisson.zip([OF_LOG, OF_WINDOW, OURS, OF_CALENDAR]))
        .collect();
    for (way, suffixes) in Way::STORED.into_iter().zip([OF_LOG, OF_LOG, OF_WINDOW]) {
        let limiter = way.limited(&kinds.own, Limit::per_hour(2)).await;
        all.push((limiter, suffixes));
    }
    for (limiter, suffixes) in all {
        take(&limiter, 1).await;
        assert_eq!(kinds.suffixes(limiter.name()), suffixes, "{limiter:?}");
    }
}

/// Those that there are after a refusal, or while a caller is banned.
pub async fn keys_of_bans(kinds: Kinds<RedisStore>) {
    const OF_OWN: &[&str] = &["~:ban"];
    const OF_REDISSONS: &[&str] = &[":ban~"];
    let expected = [OF_OWN, OF_REDISSONS, OF_REDISSONS];
    for ((store, rule), expected) in kinds.rules(Limit::per_hour(1)).into_iter().zip(expected) {
        let layer = layer_of(store, rule.ban(Ban::after(2).within(HOUR)));
        let name = name_of(&layer);
        send(&layer, "ann").await;
        let before = kinds.suffixes(&name);
        let mut seen = BTreeSet::new();
        for kind in [RefusalKind::OverLimit, RefusalKind::Banned] {
            let answer = send(&layer, "ann").await;
            assert_eq!(refused(decision_of(&answer).clone()).kind(), kind);
            let new = kinds.suffixes(&name).into_iter();
            seen.extend(new.filter(|suffix| !before.contains(suffix)));
        }
        assert!(seen.iter().eq(expected), "{name}: {seen:?}");
    }
}

pub async fn repair_of_what_is_lost(kinds: Kinds<RedisStore>) {
    let nine = Limit::per_hour(9);
    let exact = kinds.of_exact(nine).await;
    for limiter in [exact, kinds.of_redisson(nine)].concat() {
        take(&limiter, 2).await;
        let value = kit::companion(limiter.name(), "value");
        kinds.cli(&["SET", &value, "3"]);
        assert_eq!(limiter.repair().await.unwrap(), 4, "{}", limiter.name());
        assert_eq!(free(&limiter).await, 7, "{}", limiter.name());
    }
}

/// What the settings do.
pub async fn keys_of_settings(kinds: Kinds<RedisStore>) {
    let hour = Limit::per_hour(9);
    for (store, rule) in kinds.rules(hour).into_iter().skip(1) {
        let layer = layer_of(store, rule.slots(10));
        for _ in 0..3 {
            send(&layer, "ann").await;
        }
        let log = kit::companion(&name_of(&layer), "permits");
        assert_eq!(kinds.cli(&["ZCARD", &log]), "1");
    }
    let kept = hour.keep_alive(9 * HOUR).unwrap();
    for (store, rule) in kinds.rules(kept).into_iter().skip(1) {
        let layer = layer_of(store, rule);
        send(&layer, "ann").await;
        let left: u64 = kinds.cli(&["PTTL", &name_of(&layer)]).parse().unwrap();
        assert!(left > 8 * 3_600_000, "{left}");
    }
    for (store, rule) in kinds.rules(hour.per_client()).into_iter().skip(1) {
        let layer = layer_of(store, rule);
        send(&layer, "ann").await;
        let name = name_of(&layer);
        let suffixes = kinds.suffixes(&name);
        assert_eq!(suffixes.len(), 3, "{suffixes:?}");
        // A client id is 36 characters.
        assert!(suffixes[1].starts_with(":permits:") && suffixes[1].len() == 45);
    }
}

pub async fn many_callers(mut kinds: Kinds<RedisStore>) {
    for limiter in kinds.all(Limit::per_hour(1000)).await {
        let server = kinds.server.as_mut().unwrap();
        let ask = || {
            let limiter = limiter.clone();
            async move { granted(limiter.try_acquire().await.unwrap()) }
        };
        // The server learns the scripts.
        crowd(server, ask).await;
        assert_eq!(crowd(server, ask).await, 2, "{}", limiter.name());
        assert_eq!(free(&limiter).await, 1000 - 2 * CROWD as u64);
    }
}

pub async fn many_keys(mut kinds: Kinds<RedisStore>) {
    let orders = Limit::per_hour(9).named("orders");
    let [own, redissons] =
        [&kinds.own, &kinds.redisson].map(|store| orders.clone().keyed(store).unwrap());
    for (keyed, in_own_format) in [(own, true), (redissons, false)] {
        let server = kinds.server.as_mut().unwrap();
        let mut scripts = 0;
        // In the first round the server learns the scripts.
        for _ in 0..2 {
            let next = AtomicUsize::new(0);
            let ask = || {
                let limiter = keyed.of(next.fetch_add(1, Ordering::Relaxed) as u64);
                async move { granted(limiter.try_acquire().await.unwrap()) }
            };
            scripts = crowd(server, ask).await;
        }
        // Eight in flight, and one for all others.
        assert_eq!(scripts, if in_own_format { 9 } else { CROWD as u64 });
    }
}

pub async fn what_java_looks_for(kinds: Kinds<RedisStore>) {
    let limit = Limit::per_hour(9);
    for limiter in kinds.of_own(limit) {
        take(&limiter, 1).await;
        assert_eq!(kinds.suffixes(limiter.name()), ["~"]);
    }
    let exact = kinds.of_exact(limit).await;
    for limiter in [exact, kinds.of_redisson(limit)].concat() {
        take(&limiter, 1).await;
        let hash = ["HMGET", limiter.name(), "rate", "interval", "type"];
        assert_eq!(kinds.cli(&hash), "9\n3600000\n0", "{}", limiter.name());
    }
}

/// The server has lost its scripts: what did not run is sent again, with its text, and only that.
#[tokio::test]
async fn scripts_that_a_server_lost_cost_no_permits() {
    let kinds = Kinds::server();
    for way in Way::ALL {
        let limiter = way.limited(&kinds.own, Limit::per_hour(20)).await;
        let mut grants = Vec::new();
        for _ in 0..6 {
            grants.push(take(&limiter, 2).await);
        }
        kinds.cli(&["SCRIPT", "FLUSH"]);
        for grant in &grants[..5] {
            limiter.give_back(grant);
        }
        kinds.settled().await;
        assert_eq!(free(&limiter).await, 18, "{way:?}");
    }
}
