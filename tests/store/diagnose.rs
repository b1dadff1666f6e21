//! Diagnoses limiters whose keys other clients have spoilt, and repairs them.

use crate::defects::{Keys, START, member_with, redis};
use kit::scene::*;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::{Value, json};
use tower_ratelimit::inspect::Diagnosis;

const CLIENT: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
const OTHER: &str = "0e8d1f3a-2222-4444-8888-0123456789ab";
/// So long that nothing expires on its own while a test runs.
const INTERVAL: i64 = 3_600_000;

/// A limiter of 10 permits an hour, and what a hand does to its keys.
struct Spoilt {
    store: RedisStore,
    name: String,
    keys: Keys,
}

impl Spoilt {
    async fn new() -> Self {
        Self::with(Limit::new(10, HOUR), "diagnose").await
    }

    async fn with(limit: Limit, prefix: &str) -> Self {
        let spoilt = Self::unset(prefix);
        spoilt.limiter().try_set_rate(limit).await.unwrap();
        spoilt
    }

    fn unset(prefix: &str) -> Self {
        let name = unique(prefix);
        Self {
            store: shared_redis().client_id(CLIENT).build().unwrap(),
            keys: Keys::of(&name),
            name,
        }
    }

    fn limiter(&self) -> RateLimiter {
        RateLimiter::new(&self.store, &self.name).unwrap()
    }

    /// Diagnoses, and holds it against the promise to change nothing. Returns the report also as
    /// data.
    async fn diagnose(&self) -> (Diagnosis, Value) {
        let before = self.raw();
        let diagnosis = self.store.diagnose(&self.name).await.unwrap();
        assert_eq!(before, self.raw(), "diagnose has changed something");
        let (page, data) = (diagnosis.to_string(), json!(diagnosis));
        for finding in diagnosis.findings() {
            let line = format!("\n- {}: {finding}", finding.severity());
            assert!(page.contains(&line), "{page}");
            if finding.code() == "limit_vanishes" {
                let left = data["pttl"][0].as_u64().unwrap();
                let said = finding.to_string();
                let expires = format!("expires in {:?}", millis(left));
                assert!(said.contains(&expires), "{said}");
            }
        }
        let debug = format!("{diagnosis:?}");
        assert!(!debug.contains(&self.name), "{debug}");
        (diagnosis, data)
    }

    /// Diagnoses, and compares the codes of what it finds, and how their texts begin.
    async fn finds(&self, expected: &[(&str, &str)]) {
        check(&self.diagnose().await.0, expected);
    }

    /// The keys as the server dumps them, and whether they vanish.
    fn raw(&self) -> Vec<(Reply, bool)> {
        let server = RedisServer::shared();
        let shared = [&self.name, &self.keys.value, &self.keys.log].map(Clone::clone);
        let clients = [CLIENT, OTHER].map(|client| Keys::of_client(&self.name, client));
        let of_clients = clients.into_iter().flat_map(|keys| [keys.value, keys.log]);
        (shared.into_iter().chain(of_clients))
            .map(|key| {
                let dump = server.command(&["DUMP", &key]);
                let vanishes = !matches!(server.command(&["PTTL", &key]), Reply::Int(-1 | -2));
                (dump, vanishes)
            })
            .collect()
    }

    fn set_value(&self, value: &str) {
        redis(&["SET", &self.keys.value, value, "KEEPTTL"]);
    }

    fn plant(&self, size: usize, permits: u32, age: i64) {
        plant(&self.keys, size, permits, age);
    }
}

/// An entry that was granted `age` milliseconds ago, of so many bytes.
fn plant(keys: &Keys, size: usize, permits: u32, age: i64) {
    let now = RedisServer::shared().micros() / 1000 - START;
    keys.plant_member(now - age, &member_with(&[], &vec![7; size - 8], permits));
}

#[track_caller]
fn check(diagnosis: &Diagnosis, expected: &[(&str, &str)]) {
    let found = diagnosis.findings();
    let is_expected = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, (kind, begin))| {
            found.code() == *kind && found.to_string().starts_with(begin)
        });
    assert!(is_expected, "{found:?} instead of {expected:?}");
}

#[tokio::test]
async fn each_way_to_count_is_recognised() {
    let store = shared_redis().build().unwrap();
    for way in Way::ALL {
        let limiter = way.limited(&store, Limit::new(10, HOUR)).await;
        take(&limiter, 1).await;
        let seen = store.diagnose(limiter.name()).await.unwrap();
        assert_eq!(seen.algorithm(), way.algorithm(), "{way:?}: {seen}");
        assert_eq!(seen.findings(), [], "{way:?}: {seen}");
        let data = json!(seen);
        assert_eq!((&data["left"], &data["used"]), (&json!(9), &json!(1)));
        assert_eq!(data["stored"]["rate"], "10", "{way:?}: {seen}");
    }
}

#[tokio::test]
async fn a_limiter_in_order_has_nothing_wrong() {
    let mut looks = 0;
    let (spoilt, diagnosis, mut data) = loop {
        let spoilt = Spoilt::new().await;
        assert_eq!(spoilt.diagnose().await.1["drift"], 0);
        take(&spoilt.limiter(), 3).await;
        take(&spoilt.limiter(), 1).await;
        let (diagnosis, data) = spoilt.diagnose().await;
        // A busy machine may look when that is longer ago than a second.
        looks += 1;
        if data["granted_in_last_second"] == 4 {
            break (spoilt, diagnosis, data);
        }
        assert!(looks < 100, "{data}");
    };
    assert_eq!(diagnosis.findings(), []);
    assert_eq!(diagnosis.name(), spoilt.name);
    // Of the server that others use, too.
    data["redisson"].take();
    let expected = json!({
        "name": spoilt.name, "limit": "10/1h", "algorithm": "sliding-log", "left": 6, "used": 4,
        "granted_in_last_second": 4, "next_free_ms": data["next_free_ms"], "expires_ms": null,
        "stored": { "rate": "10", "interval": "3600000", "type": "0", "keepAliveTime": "0" },
        "value": "6", "pttl": [-1, -1, -2, -1, -2], "in_own_format": false, "unseen": null,
        "settled": true, "entries": 2, "entries_by_size": { "21": 2 }, "expired_entries": 0, "foreign_entries": 0,
        "live_permits": 4, "drift": 0, "entries_ahead": 0, "furthest_ahead_ms": 0,
        "banned_ms": null, "strikes": 0, "other_clients": [], "scanned_all": true, "redisson": null,
        "findings": [],
    });
    assert_eq!(data, expected);
    let page = diagnosis.to_string();
    assert!(page.ends_with("Nothing looks wrong."), "{page}");
    assert!(page.contains(&spoilt.keys.log), "{page}");

    // Nor has repair anything to do.
    let before = spoilt.raw();
    assert_eq!(spoilt.limiter().repair().await.unwrap(), 0);
    assert_eq!(spoilt.raw(), before);
}

/// A step of `spoilt.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Step {
    take: Option<u32>,
    redis: Option<Vec<String>>,
    /// Size, permits and age of entries, and how many of them
    plant: Option<(usize, u32, i64, usize)>,
    clear_expire: bool,
    /// The codes of what is found, and how their texts begin
    finds: Option<Vec<(String, String)>>,
    seen: Option<Figures>,
    repair: Option<i64>,
    cannot_repair: Option<String>,
    value: Option<String>,
    log_is_empty: bool,
    free: Option<u64>,
}

/// Figures of a report.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Figures {
    entries: u64,
    expired: u64,
    foreign: u64,
    live: u64,
    drift: Option<i64>,
    sizes: Vec<(usize, u64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The rate, by the hour
    rate: Option<u64>,
    keep_alive: Option<u64>,
    steps: Vec<Step>,
}

#[tokio::test]
async fn what_is_spoilt_is_found_and_repaired() {
    let mut cases: HashMap<String, Vec<Case>> =
        toml::from_str(include_str!("spoilt.toml")).unwrap();
    for case in cases.remove("case").unwrap() {
        let spoilt = match (case.rate, case.keep_alive) {
            (None, _) => Spoilt::unset("diagnose"),
            (Some(rate), None) => Spoilt::with(Limit::new(rate, HOUR), "diagnose").await,
            (Some(rate), Some(life)) => {
                let limit = Limit::new(rate, HOUR).keep_alive(millis(life));
                Spoilt::with(limit.unwrap(), "diagnose").await
            }
        };
        for (place, step) in case.steps.iter().enumerate() {
            spoilt
                .step(&format!("{}, step {place}", case.name), step)
                .await;
        }
    }
}

impl Spoilt {
    async fn step(&self, what: &str, step: &Step) {
        let limiter = self.limiter();
        if let Some(permits) = step.take {
            take(&limiter, permits).await;
        }
        if let Some(words) = &step.redis {
            self.keys.run(words);
        }
        if let Some((size, permits, age, count)) = step.plant {
            (0..count).for_each(|_| self.plant(size, permits, age));
        }
        if step.clear_expire {
            assert!(limiter.clear_expire().await.unwrap(), "{what}");
        }
        if let Some(finds) = &step.finds {
            let findings = self.diagnose().await.0.findings();
            let codes: Vec<_> = findings.iter().map(|it| it.code()).collect();
            let expected: Vec<_> = finds.iter().map(|(code, _)| code.as_str()).collect();
            assert_eq!(codes, expected, "{what}");
            for (finding, (_, begin)) in findings.iter().zip(finds) {
                assert!(finding.to_string().starts_with(begin), "{what}: {finding}");
            }
        }
        if let Some(seen) = &step.seen {
            let (_, data) = self.diagnose().await;
            let number = |member: &str| data[member].as_u64().unwrap();
            let sizes = data["entries_by_size"].as_object().unwrap().iter();
            let size =
                |(size, count): (&String, &Value)| (size.parse().unwrap(), count.as_u64().unwrap());
            let found = Figures {
                entries: number("entries"),
                expired: number("expired_entries"),
                foreign: number("foreign_entries"),
                live: number("live_permits"),
                drift: data["drift"].as_i64(),
                sizes: sizes
                    .map(size)
                    .collect::<BTreeMap<_, _>>()
                    .into_iter()
                    .collect(),
            };
            assert_eq!(data["settled"], true, "{what}");
            assert_eq!(found, *seen, "{what}");
        }
        let (before, log) = (self.raw(), self.keys.entries());
        if let Some(lost) = step.repair {
            assert_eq!(limiter.repair().await.unwrap(), lost, "{what}");
        }
        if let Some(kind) = &step.cannot_repair {
            let error = limiter.repair().await.unwrap_err();
            assert_eq!(format!("{:?}", error.kind()), *kind, "{what}");
            assert_eq!(self.raw(), before, "{what}");
        }
        if let Some(value) = &step.value {
            assert_eq!(redis(&["GET", &self.keys.value]), *value, "{what}");
            let left = if step.log_is_empty { vec![] } else { log };
            assert_eq!(self.keys.entries(), left, "{what}");
        }
        if let Some(permits) = step.free {
            assert_eq!(free(&limiter).await, permits, "{what}");
        }
    }
}

#[tokio::test]
async fn scores_from_the_future_are_found() {
    let spoilt = Spoilt::new().await;
    // A tenth is what a lease or a slot may lead by.
    spoilt.plant(21, 1, -(INTERVAL / 10 - 60_000));
    spoilt.set_value("9");
    spoilt.finds(&[]).await;
    spoilt.plant(21, 1, -(INTERVAL / 10 + 60_000));
    spoilt.plant(21, 1, -2 * INTERVAL);
    spoilt.set_value("7");
    let (diagnosis, data) = spoilt.diagnose().await;
    assert_eq!(data["entries_ahead"], 2);
    let furthest = millis(data["furthest_ahead_ms"].as_u64().unwrap());
    let least = millis(7_140_000);
    assert!(
        furthest > least && furthest <= millis(7_200_000),
        "{furthest:?}"
    );
    let text = format!("2 entries are ahead of the server's clock, up to {furthest:?}");
    check(&diagnosis, &[("scores_ahead", &text)]);
}

/// The keys of its bans and of the calendar begin as its own do.
#[tokio::test]
async fn our_own_format_has_no_keys_of_other_clients() {
    let store = patient(RedisServer::shared().url()).build().unwrap();
    let limit = Limit::per_hour(10).named(&unique("own"));
    let limiter = limit.single(&store).unwrap();
    take(&limiter, 1).await;
    limiter.ban_for(HOUR).await.unwrap();
    let diagnosis = store.diagnose(limiter.name()).await.unwrap();
    let data = json!(diagnosis);
    assert_eq!(data["in_own_format"], true);
    assert_eq!(data["other_clients"], json!([]));
}

#[tokio::test]
async fn what_other_clients_left_is_found() {
    // A name that, as a pattern, would match another one's keys.
    let spoilt = Spoilt::with(Limit::new(10, HOUR).per_client(), "l?ak*[a]").await;
    let lookalike = spoilt.name.replace('?', "e");
    redis(&["SET", &format!("{{{lookalike}}}:value:{OTHER}"), "3"]);
    let _ = spoilt.limiter().try_acquire().await.unwrap();
    let (diagnosis, data) = spoilt.diagnose().await;
    assert_eq!(diagnosis.findings(), []);
    assert_eq!(data["other_clients"], json!([]));
    let figures = ["live_permits", "drift"].map(|member| &data[member]);
    assert_eq!(figures, [1, 0]);

    let others = Keys::of_client(&spoilt.name, OTHER);
    others.plant_value("7");
    plant(&others, 21, 3, 10);
    let (_, data) = spoilt.diagnose().await;
    let other = json!([{ "id": OTHER, "live_entries": 1, "pttl": -1 }]);
    assert_eq!(data["other_clients"], other);
    spoilt.finds(&[]).await; // It is alive.

    redis(&["DEL", &others.log]);
    plant(&others, 21, 3, INTERVAL + 10);
    spoilt.finds(&[("left_behind", "1 other")]).await;
    let before = spoilt.raw();
    assert_eq!(spoilt.limiter().repair().await.unwrap(), 0);
    assert_eq!(spoilt.raw(), before, "the other client's are its own");

    redis(&["PEXPIRE", &others.value, "3600000"]);
    redis(&["PEXPIRE", &others.log, "3600000"]);
    spoilt.finds(&[]).await; // They vanish.

    // Of another rate type.
    spoilt.set_value("10");
    spoilt.finds(&[("other_rate_type", "there are")]).await;
}

#[tokio::test]
async fn a_log_that_moves_is_not_drift() {
    let spoilt = Spoilt::with(Limit::new(1_000_000, HOUR), "diagnose").await;
    for _ in 0..20_000 {
        spoilt.plant(21, 1, 10);
    }
    spoilt.set_value("980000");
    let busy = tokio::spawn({
        let limiter = spoilt.limiter();
        async move {
            loop {
                let _ = limiter.try_acquire().await.unwrap();
            }
        }
    });
    let diagnosis = spoilt.store.diagnose(&spoilt.name).await.unwrap();
    busy.abort();
    // Both share a connection, so each page is followed by grants.
    let data = json!(diagnosis);
    assert_eq!(data["settled"], false, "{diagnosis}");
    assert_eq!(data["drift"], Value::Null);
    check(&diagnosis, &[("moved", "it moved")]);
}

#[tokio::test]
async fn other_kinds_of_keys_are_an_error() {
    let spoilt = Spoilt::unset("diagnose");
    redis(&["SET", &spoilt.name, "something"]);
    fails(
        spoilt.store.diagnose(&spoilt.name).await,
        ErrorKind::ForeignState,
    );
    fails(spoilt.store.diagnose("a{b").await, ErrorKind::Name);
}

#[tokio::test]
async fn a_user_that_may_not_scan_gets_the_rest() {
    let server = RedisServer::start();
    server.obeys(
        "ACL SETUSER looker on >secret ~* -@all +evalsha +eval +time +hmget +pttl +get +zrange \
         +zcard +hello +hset +hsetnx",
    );
    let url = format!("redis://looker:secret@127.0.0.1:{}/", server.port());
    let store = patient(url).build().unwrap();
    server.command(&[
        "HSET", "orders", "rate", "1", "interval", "1000", "type", "0",
    ]);
    let diagnosis = store.diagnose("orders").await.unwrap();
    check(&diagnosis, &[("not_permitted", "other clients")]);
    let data = json!(diagnosis);
    let unknown = ["other_clients", "redisson"].map(|member| data[member].is_null());
    assert_eq!(unknown, [true; 2]);

    server.obeys("ACL SETUSER looker +scan +zcount +script|exists");
    let diagnosis = store.diagnose("orders").await.unwrap();
    assert_eq!(diagnosis.findings(), []);
    assert_eq!(json!(diagnosis)["redisson"], json!([]));

    // Whoever shares limits with Java alone may not read what is in our own format.
    assert_eq!(diagnosis.unseen(), None);
    server.obeys("ACL SETUSER looker resetkeys ~orders ~{orders}:*");
    let diagnosis = store.diagnose("orders").await.unwrap();
    assert!(diagnosis.has_state());
    assert_eq!(diagnosis.unseen(), Some("our own format"));
    check(
        &diagnosis,
        &[("not_permitted", "what Redis has of it in our own")],
    );
    server.obeys("ACL SETUSER looker resetkeys ~{orders}~*");
    let diagnosis = store.diagnose("orders").await.unwrap();
    assert!(!diagnosis.exists());
    assert_eq!(diagnosis.unseen(), Some("Redisson's format"));
    check(
        &diagnosis,
        &[("not_permitted", "what Redis has of it in Redisson's")],
    );
    server.obeys("ACL SETUSER looker resetkeys ~others");
    fails(store.diagnose("orders").await, ErrorKind::Rejected);
}

/// Of either format, with a state of the other beside it or with none.
#[tokio::test]
async fn a_ban_is_found_whatever_else_there_is() {
    for (has_state, in_own_format) in [(false, false), (false, true), (true, false), (true, true)] {
        let spoilt = if has_state {
            Spoilt::new().await
        } else {
            Spoilt::unset("diagnose")
        };
        let limiter = if in_own_format {
            RateLimiter::of_rule(&spoilt.store, &spoilt.name).unwrap()
        } else {
            spoilt.limiter()
        };
        let (diagnosis, _) = spoilt.diagnose().await;
        assert_eq!(diagnosis.exists(), has_state);
        assert_eq!(diagnosis.banned_for(), None);
        limiter.ban_for(HOUR).await.unwrap();
        let (diagnosis, data) = spoilt.diagnose().await;
        assert!(diagnosis.exists());
        assert_eq!(diagnosis.has_state(), has_state);
        let left = diagnosis.banned_for().unwrap();
        assert!(left > HOUR / 2 && left <= HOUR, "{left:?}");
        assert!(data["banned_ms"].as_u64() > Some(1_800_000), "{data}");
        let page = diagnosis.to_string();
        assert!(page.contains("`unban` ends it"), "{page}");
        assert_eq!(diagnosis.in_own_format(), in_own_format && !has_state);
        assert_eq!(diagnosis.findings(), []);
    }
}
