//! What Redisson knows nothing of, in keys other than its own: bans, and limits by the calendar.
//! And the limiters of rules, which it knows where a store keeps them in its format.

use tower_ratelimit::Ban;

use super::{
    oracle::{self, Answer, JavaClock, Oracle, versions},
    raw::companion,
};
use kit::{calendar_key, label_and_used, scene::*, state_key};

/// Java, by the jars as they are, and Rust on one server, which has no other keys.
struct Both {
    server: RedisServer,
    java: Oracle,
    store: RedisStore,
    name: String,
}

impl Both {
    fn new(version: &str) -> Self {
        let server = RedisServer::start();
        let java = Oracle::start(version, server.port(), JavaClock::System);
        let store = patient(server.url()).deny_cache(Duration::ZERO);
        Self {
            java,
            store: store.build().unwrap(),
            name: unique("both"),
            server,
        }
    }

    fn ask_java(&mut self, verb: &str, permits: i64) -> Answer {
        let request = oracle::Request::new(verb).text("name", &self.name);
        let request = request.text("to", &format!("{}-new", self.name));
        let hourly = request
            .number("interval", 3_600_000)
            .number("rate", permits);
        self.java.ask(&hourly.number("n", permits))
    }

    /// Asks for permits, or sets so many an hour.
    #[track_caller]
    fn java(&mut self, verb: &str, permits: i64, answer: &str) {
        assert_eq!(
            self.ask_java(verb, permits).as_deref(),
            Ok(answer),
            "{verb}"
        );
    }

    /// Asserts that these keys are all: no suffix is the hash, `-new` the one that Java renames it
    /// to.
    #[track_caller]
    fn keys(&self, suffixes: &[&str]) {
        let key = |suffix: &&str| match *suffix {
            "" | "-new" => format!("{}{suffix}", self.name),
            "~" => state_key(&self.name),
            "~:calendar" => calendar_key(&self.name),
            suffix => companion(&self.name, suffix, ""),
        };
        let mut expected: Vec<_> = suffixes.iter().map(key).collect();
        let keys = self.server.cli(&["KEYS", "*"]);
        let mut keys: Vec<_> = keys.lines().map(str::to_owned).collect();
        keys.sort();
        expected.sort();
        assert_eq!(keys, expected);
    }
}

/// Java's refusals count for nothing, a ban refuses nothing of Java, and Java removes neither.
#[tokio::test]
async fn java_knows_no_bans() {
    for version in versions() {
        println!("Redisson {version}");
        let mut both = Both::new(&version);
        let rule = Rule::shared(&both.name).or_init(Limit::per_hour(9));
        let rule = rule.named("api").ban(Ban::after(2).within(HOUR));
        let layer = layer_of(&both.store, rule);
        let refusal = async || refused(decide(&layer, Request::new(())).await).kind();

        both.java("trySetRate", 3, "true");
        both.java("tryAcquire", 2, "true");
        granted(decide(&layer, Request::new(())).await);
        for strikes in [&[][..], &["ban~"]] {
            for _ in 0..3 {
                both.java("tryAcquire", 1, "false");
            }
            both.keys(&[&["", "value", "permits"], strikes].concat());
            if strikes.is_empty() {
                assert_eq!(refusal().await, RefusalKind::OverLimit);
            }
        }
        both.java("delete", 0, "true");
        both.keys(&["ban~"]);

        // The refusal before Java's delete is the first of two.
        both.java("trySetRate", 1, "true");
        both.java("tryAcquire", 1, "true");
        assert_eq!(refusal().await, RefusalKind::Banned);
        both.keys(&["", "value", "permits", "ban~"]);
        both.java("setRate", 5, "null");
        both.java("tryAcquire", 4, "true");
        assert_eq!(refusal().await, RefusalKind::Banned);
        both.java("available", 0, "1");

        both.java("delete", 0, "true");
        both.keys(&["ban~"]);
        both.java("trySetRate", 5, "true");
        both.java("rename", 0, "null");
        both.keys(&["-new", "ban~"]);
        let ours = RateLimiter::new(&both.store, &both.name).unwrap();
        assert!(ours.banned_until().await.unwrap().is_some());
        ours.delete().await.unwrap();
        both.keys(&["-new"]);
    }
}

/// Java finds no limiter of that name, or one of its own beside it: neither changes the other.
#[tokio::test]
async fn java_knows_no_calendar() {
    for version in versions() {
        println!("Redisson {version}");
        let mut both = Both::new(&version);
        let quota = Limit::monthly(10).named("quota").single(&both.store);
        let quota = quota.unwrap();
        quota.name().clone_into(&mut both.name);
        take(&quota, 3).await;
        both.keys(&["~:calendar"]);
        both.java("exists", 0, "false");
        for verb in ["tryAcquire", "available"] {
            let thrown = both.ask_java(verb, 1).unwrap_err();
            assert!(
                thrown.contains("RateLimiter is not initialized"),
                "{thrown}"
            );
        }
        both.keys(&["~:calendar"]);

        both.java("trySetRate", 5, "true");
        both.java("tryAcquire", 4, "true");
        take(&quota, 2).await;
        both.java("available", 0, "1");
        both.java("tryAcquire", 2, "false");
        both.keys(&["", "value", "permits", "~:calendar"]);
        let stored = both.server.command(&["GET", &calendar_key(&both.name)]);
        let (label, used) = label_and_used(&stored.into_bytes());
        assert!(label > 20_000_000 && used == 5, "{label} {used}");
        both.java("delete", 0, "true");
        both.keys(&["~:calendar"]);
        both.java("trySetRate", 5, "true");
        both.java("rename", 0, "null");
        both.keys(&["-new", "~:calendar"]);
        assert_eq!(free(&quota).await, 5);
        assert!(quota.delete().await.unwrap());
        both.keys(&["-new"]);

        // What Java is to share is in Redis, and cannot be by the calendar.
        let ours = RateLimiter::new(&both.store, &both.name).unwrap();
        fails(ours.set_rate(Limit::monthly(10)).await, ErrorKind::Limit);
        let shared = Rule::shared(&both.name).or_init(Limit::monthly(10));
        let layer = RateLimitLayer::builder(&both.store).otherwise(shared.named("quota"));
        let said = "rule \"quota\" cannot share a limit by the calendar";
        mistake(layer.build(), ConfigErrorKind::Limit, said);
    }
}

/// As the page on names has it, for a store that says so; of another, Java finds nothing.
#[tokio::test]
async fn java_spends_the_limiters_of_rules_in_its_format() {
    for version in versions() {
        println!("Redisson {version}");
        let mut both = Both::new(&version);
        let store = patient(both.server.url()).deny_cache(Duration::ZERO);
        let store = store.redisson().build().unwrap();
        let rule = || {
            let limit = Limit::per_hour(5).by(FromHeader::new("x-key"));
            limit.named("api")
        };
        let [shared, own] = [&store, &both.store].map(|store| layer_of(store, rule()));
        let left = async |layer: &RateLimitLayer| {
            let request = Request::builder().header("x-key", "ann").body(()).unwrap();
            let grant = granted(decide(layer, request).await);
            grant.limits().next().unwrap().remaining()
        };
        "ratelimit:{ann}:api".clone_into(&mut both.name);
        assert_eq!(left(&own).await, Some(4));
        both.keys(&["~"]);
        assert_eq!(left(&shared).await, Some(4));
        both.keys(&["", "value", "permits", "~"]);
        both.java("available", 0, "4");
        both.java("tryAcquire", 3, "true");
        assert_eq!(left(&shared).await, Some(0));
        both.java("tryAcquire", 1, "false");
        assert_eq!(left(&own).await, Some(3));
        both.java("delete", 0, "true");
        both.keys(&["~"]);
    }
}
