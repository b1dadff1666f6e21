//! What stands in Redis: the state of Redisson 3.7.1 to 3.13.2, by the description of it and not by this crate's code.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, Decision, ErrorKind, ExpireWhen, Limit, RateLimiter, RedisStore, TimeToLive,
};

use super::{
    HOUR, free, hourly, named,
    support::{RedisServer, Reply, unique},
    take,
};

struct State {
    limiter: RateLimiter,
    store: RedisStore,
}

impl State {
    async fn new(permits: u64) -> Self {
        let store = super::redis_store().build().unwrap();
        let limiter = hourly(&store, permits).await;
        Self { limiter, store }
    }

    fn key(&self, suffix: &str) -> String {
        match suffix {
            "" => self.limiter.name().to_owned(),
            suffix => format!("{{{}}}:{suffix}", self.limiter.name()),
        }
    }

    fn ask(&self, verb: &str, suffix: &str, arguments: &[&str]) -> String {
        let key = self.key(suffix);
        RedisServer::shared().cli(&[&[verb, &key], arguments].concat())
    }

    fn value(&self) -> String {
        self.ask("GET", "value", &[])
    }

    fn left(&self, suffix: &str) -> i64 {
        self.ask("PTTL", suffix, &[]).parse().unwrap()
    }

    fn has_window_of(&self, life: Duration) {
        let life = i64::try_from(life.as_millis()).unwrap();
        let left = self.left("value");
        assert!((life - 60_000..=life).contains(&left), "{left} of {life}");
        assert_eq!(self.ask("EXISTS", "permits", &[]), "0");
    }
}

#[tokio::test]
async fn a_value_with_an_end_and_no_log() {
    let state = State::new(5).await;
    assert_eq!(free(&state.limiter).await, 5);
    assert_eq!(
        state.ask("EXISTS", "value", &[]),
        "0",
        "counting opens none"
    );
    take(&state.limiter, 2).await;
    assert_eq!(state.value(), "3");
    assert_eq!(state.ask("TYPE", "value", &[]), "string");
    state.has_window_of(HOUR);
    assert_eq!(state.left(""), -1);
    let fields = ["rate", "interval", "type", "keepAliveTime"];
    let fields =
        RedisServer::shared().command(&[&["HMGET", &*state.key("")], &fields[..]].concat());
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let expected = ["5", "3600000", "0", "0"].map(bulk);
    assert_eq!(fields, Reply::Array(expected.into()));

    // Later takes leave the end alone.
    state.ask("PEXPIRE", "value", &["1800000"]);
    take(&state.limiter, 1).await;
    assert!(
        !state
            .limiter
            .try_acquire_many(3)
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(state.value(), "2");
    state.has_window_of(HOUR / 2);
}

/// What an old Redisson does: SET value rate PX interval, then DECRBY, and a refusal where value is below.
#[tokio::test]
async fn an_old_redisson_shares_the_window() {
    let state = State::new(5).await;
    state.ask("SET", "value", &["5", "PX", "3600000"]);
    state.ask("DECRBY", "value", &["3"]);
    assert_eq!(free(&state.limiter).await, 2);
    take(&state.limiter, 1).await;
    assert_eq!(state.ask("DECRBY", "value", &["1"]), "0");
    let Decision::Deny(refusal) = state.limiter.try_acquire().await.unwrap() else {
        panic!("there was room");
    };
    let wait = i64::try_from(refusal.retry_after().unwrap().as_millis()).unwrap();
    assert!((0..=2000).contains(&(wait - 1 - state.left("value"))));
}

#[tokio::test]
async fn limits_per_client_have_a_window_each() {
    let state = State::new(5).await;
    let limit = Limit::new(5, HOUR).per_client();
    state.limiter.set_rate(limit).await.unwrap();
    take(&state.limiter, 2).await;
    assert_eq!(state.ask("EXISTS", "value", &[]), "0");
    assert_eq!(state.ask("GET", "value:7d9", &[]), "3");
    let other = super::redis_store().client_id("8e0").build().unwrap();
    assert_eq!(free(&named(&other, state.limiter.name())).await, 5);
    assert!(state.limiter.delete().await.unwrap());
    assert_eq!(state.ask("EXISTS", "value:7d9", &[]), "0");
}

#[tokio::test]
async fn a_window_without_an_end_gets_one() {
    for verb in ["take", "count", "release", "repair", "update"] {
        let state = State::new(5).await;
        // A sliding log, whose value outlives its entries.
        let logged = RateLimiter::new(&state.store, state.limiter.name()).unwrap();
        take(&logged, 2).await;
        assert_eq!((state.left("value"), state.left("permits")), (-1, -1));
        let limiter = &state.limiter;
        match verb {
            "take" => drop(take(limiter, 1).await),
            "count" => assert_eq!(free(limiter).await, 3),
            "release" => assert_eq!(limiter.release(1).await.unwrap(), 1),
            "repair" => assert_eq!(limiter.repair().await.unwrap(), 0),
            _ => assert!(limiter.update_rate(Limit::new(6, HOUR)).await.unwrap()),
        }
        state.has_window_of(HOUR);
    }
    // As the keep-alive time of a sliding log leaves it.
    let state = State::new(5).await;
    take(&state.limiter, 1).await;
    state.ask("PEXPIRE", "value", &["99999999"]);
    assert_eq!(free(&state.limiter).await, 4);
    state.has_window_of(HOUR);
}

#[tokio::test]
async fn more_than_the_rate_is_mended() {
    let state = State::new(5).await;
    take(&state.limiter, 1).await;
    state.ask("SET", "value", &["9", "KEEPTTL"]);
    assert_eq!(free(&state.limiter).await, 5);
    assert_eq!(state.limiter.repair().await.unwrap(), -4);
    assert_eq!(state.value(), "5");
    state.has_window_of(HOUR);
}

#[tokio::test]
async fn a_limit_is_changed_within_the_window() {
    let state = State::new(5).await;
    let limiter = &state.limiter;
    take(limiter, 4).await;
    assert!(limiter.update_rate(Limit::new(2, HOUR)).await.unwrap());
    assert_eq!(state.value(), "-2");
    assert_eq!(free(limiter).await, 0);
    assert!(limiter.update_rate(Limit::new(9, HOUR / 4)).await.unwrap());
    assert_eq!(state.value(), "5");
    state.has_window_of(HOUR / 4);
    assert!(limiter.update_rate(Limit::new(9, HOUR)).await.unwrap());
    state.has_window_of(HOUR / 4);
    assert!(limiter.reset_rate(Limit::new(3, HOUR)).await.unwrap());
    assert_eq!(state.ask("EXISTS", "value", &[]), "0");
    assert_eq!(free(limiter).await, 3);
}

#[tokio::test]
async fn permits_are_released_to_the_open_window_alone() {
    let state = State::new(5).await;
    assert_eq!(state.limiter.release(3).await.unwrap(), 0);
    take(&state.limiter, 4).await;
    assert_eq!(state.limiter.release(1).await.unwrap(), 1);
    assert_eq!(state.limiter.release(u32::MAX).await.unwrap(), 3);
    assert_eq!(state.limiter.release(1).await.unwrap(), 0);
    assert_eq!(state.value(), "5");
}

#[tokio::test]
async fn a_window_keeps_its_end_whatever_the_limiters_life() {
    let state = State::new(5).await;
    let limiter = &state.limiter;
    take(limiter, 1).await;
    assert!(limiter.expire(10 * HOUR).await.unwrap());
    state.has_window_of(HOUR);
    let less = limiter.expire_when(HOUR / 2, ExpireWhen::Less).await;
    assert!(less.unwrap());
    state.has_window_of(HOUR / 2);
    let more = limiter.expire_when(HOUR, ExpireWhen::Less).await;
    assert!(!more.unwrap());
    assert!(limiter.clear_expire().await.unwrap());
    assert!(!limiter.clear_expire().await.unwrap());
    assert_eq!(limiter.time_to_live().await.unwrap(), TimeToLive::Lasting);
    state.has_window_of(HOUR / 2);

    // A limiter that is to vanish takes a window along that is opened later.
    state.ask("DEL", "value", &[]);
    limiter.expire(HOUR / 4).await.unwrap();
    take(limiter, 1).await;
    state.has_window_of(HOUR / 4);

    let vanishing = Limit::new(5, HOUR).keep_alive(3 * HOUR).unwrap();
    limiter.set_rate(vanishing).await.unwrap();
    take(limiter, 1).await;
    let (left, hours) = (state.left(""), 3_600_000);
    assert!((3 * hours - 60_000..=3 * hours).contains(&left), "{left}");
    // More than half of its life, and more than a window, is left.
    for (life, after) in [(2 * hours, 2 * hours), (hours, 3 * hours)] {
        state.ask("PEXPIRE", "", &[&life.to_string()]);
        take(limiter, 1).await;
        let left = state.left("");
        assert!((after - 60_000..=after).contains(&left), "{left}");
    }
    state.has_window_of(HOUR);
}

#[tokio::test]
async fn a_limiter_is_renamed_with_its_window() {
    let state = State::new(5).await;
    take(&state.limiter, 2).await;
    let renamed = state.limiter.rename(&unique("renamed")).await.unwrap();
    assert_eq!(free(&renamed).await, 3);
    take(&renamed, 3).await;
    let key = format!("{{{}}}:permits", renamed.name());
    assert_eq!(RedisServer::shared().cli(&["EXISTS", &key]), "0");
}

#[tokio::test]
async fn what_cannot_be_counted_with_is_an_error() {
    let state = State::new(5).await;
    for (field, value) in [("interval", "0"), ("interval", "1.5"), ("rate", "many")] {
        state.ask("HSET", "", &["rate", "5", "interval", "1000"]);
        state.ask("HSET", "", &[field, value]);
        let error = state.limiter.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ForeignState, "{field} {value}");
    }
    let state = State::new(5).await;
    state.ask("SADD", "value", &["a set"]);
    let error = state.limiter.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignState);
    let unset = named(&state.store, &unique("unset"));
    let error = unset.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialized);
}

#[cfg(feature = "inspect")]
#[tokio::test]
async fn a_look_at_a_window_misses_no_log() {
    use tower_ratelimit::Finding;

    let state = State::new(5).await;
    take(&state.limiter, 2).await;
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm, Algorithm::FixedWindow);
    let findings = diagnosis.findings();
    let about_the_log = |finding: &Finding| {
        matches!(
            finding,
            Finding::Drift(_) | Finding::LogMissing(_) | Finding::ValueMissing
        )
    };
    assert!(!findings.iter().any(about_the_log), "{findings:?}");
    assert!(diagnosis.to_string().contains("counted by a fixed window"));
    // A lost log looks different: such a value has no end.
    state.ask("PERSIST", "value", &[]);
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm, Algorithm::SlidingLog);
    assert!(diagnosis.findings().iter().any(about_the_log));
}

/// README: the smallest set of permissions.
#[tokio::test]
async fn the_permissions_of_the_readme_suffice() {
    let server = RedisServer::start();
    let readme = std::fs::read_to_string("README.md").unwrap();
    let line = readme.split("ACL SETUSER limiter ").nth(1).unwrap();
    let line = line
        .split("```")
        .next()
        .unwrap()
        .replace(">secret", "nopass");
    let rules = line.split_whitespace().collect::<Vec<_>>();
    server.command(&[&["ACL", "SETUSER", "limiter"], &rules[..]].concat());
    let names = ["~orders", "~{orders}:*"];
    server.command(&[&["ACL", "SETUSER", "limiter"], &names[..]].concat());
    let url = server.url().replace("redis://", "redis://limiter:any@");
    let store = RedisStore::open(url).unwrap();
    let limiter = named(&store, "orders");
    assert!(limiter.try_set_rate(Limit::new(5, HOUR)).await.unwrap());
    let grant = take(&limiter, 2).await;
    limiter.give_back(&grant.receipts()[0]);
    store.close().await;
    assert_eq!(store.lost_receipts(), 0);
    assert_eq!(free(&limiter).await, 5);
    take(&limiter, 4).await;
    assert_eq!(limiter.release(1).await.unwrap(), 1);
    assert_eq!(limiter.repair().await.unwrap(), 0);
    assert!(limiter.update_rate(Limit::new(4, HOUR)).await.unwrap());
    limiter.set_rate(Limit::new(4, HOUR)).await.unwrap();
    assert!(limiter.expire(HOUR).await.unwrap());
    assert!(limiter.clear_expire().await.unwrap());
}
