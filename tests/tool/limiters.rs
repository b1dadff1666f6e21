//! Limiters in a real Redis, shown and changed by the command.

use std::{fs, process::Output};

use serde_json::{Value, json};
use tower_ratelimit::key::{Key, KeyExtractor, NoKey};

use crate::{
    assert_documented,
    scene::*,
    support::{Cluster, RedisServer, cluster::MASTERS, unique},
    tool,
};

/// Runs the command against a server. Nothing is a terminal.
fn on(server: &RedisServer, args: &[&str]) -> Output {
    tool()
        .env("REDIS_URL", server.url())
        .args(args)
        .output()
        .unwrap()
}

/// Runs the command, which ends with this status, and returns what it prints.
#[track_caller]
fn said(output: Output, status: i32) -> String {
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{error}");
    match status {
        0 | 1 => String::from_utf8(output.stdout).unwrap(),
        _ => error,
    }
}

#[track_caller]
fn object(output: Output) -> Value {
    let object = serde_json::from_str(&said(output, 0)).unwrap();
    assert_documented(&object);
    object
}

fn shared() -> (RedisServerRef, RedisStore) {
    let server = RedisServer::shared();
    (server, RedisStore::open(server.url()).unwrap())
}

type RedisServerRef = &'static RedisServer;

/// A limiter of ten an hour, of which so many are in use.
async fn in_use(store: &RedisStore, permits: u32) -> RateLimiter {
    let limiter = RateLimiter::new(store, &unique("tool")).unwrap();
    limiter.set_rate(Limit::per_hour(10)).await.unwrap();
    if permits > 0 {
        take(&limiter, permits).await;
    }
    limiter
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_is_shown_and_not_touched() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let keeps = limiter.limit().await.unwrap().unwrap();
    let keeps = keeps.keep_alive(secs(7200)).unwrap();
    limiter.set_or_update_rate(keeps).await.unwrap();
    limiter.expire(secs(7300)).await.unwrap();
    let dumps = || {
        let name = limiter.name();
        let keys = [
            name.to_owned(),
            format!("{{{name}}}:value"),
            format!("{{{name}}}:permits"),
        ];
        keys.map(|key| {
            (
                server.cli(&["DUMP", &key]),
                server.cli(&["PEXPIRETIME", &key]),
            )
        })
    };
    let before = dumps();
    let seen = object(on(server, &["get", limiter.name(), "--json"]));
    assert_eq!(seen["left"], 6);
    assert_eq!(seen["limit"], "10/1h");
    assert_eq!(seen["algorithm"], "sliding-log");
    assert_eq!(seen["granted_in_last_second"].as_u64().unwrap() % 4, 0);
    let next = seen["next_free_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&next), "{next}");
    let expires = seen["expires_ms"].as_u64().unwrap();
    assert!((7_200_000..=7_300_000).contains(&expires), "{expires}");
    let page = said(on(server, &["get", limiter.name()]), 0);
    for line in [
        "left                    6\n",
        "used                    4\n",
        "expires                 7",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let expires = page.lines().find(|line| line.starts_with("expires"));
    assert!(expires.unwrap().ends_with('s'), "in seconds: {page}");
    let watch = ["watch", limiter.name(), "--every", "10ms", "--count", "3"];
    let lines = said(on(server, &watch), 0);
    assert_eq!(
        lines
            .matches("limit 10/1h, left 6, used 4, granted in")
            .count(),
        3,
        "{lines}"
    );
    assert_eq!(lines.matches(", expires 7").count(), 3, "{lines}");
    let objects = said(on(server, &[&watch[..], &["--json"]].concat()), 0);
    let objects: Vec<Value> = objects
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 3);
    for object in objects {
        let names: Vec<_> = object.as_object().unwrap().keys().collect();
        assert_eq!(names, seen.as_object().unwrap().keys().collect::<Vec<_>>());
        assert_eq!((&object["left"], &object["used"]), (&6.into(), &4.into()));
    }
    assert_eq!(dumps(), before);
}

/// A window ends as a whole, and GCRA has its limit where a rule has left it.
#[tokio::test(flavor = "multi_thread")]
async fn each_algorithm_is_recognised() {
    let (server, store) = shared();
    let window = in_use(&store, 0).await.algorithm(Algorithm::FixedWindow);
    take(&window, 3).await;
    let seen = object(on(server, &["get", window.name(), "--json"]));
    assert_eq!(
        (&seen["left"], &seen["algorithm"]),
        (&7.into(), &"fixed-window".into())
    );
    assert!(seen["next_free_ms"].as_u64().unwrap() > 3_500_000);
    let rule = Rule::new("gcra", Limit::per_hour(10), Constant("all"));
    let rule = rule.algorithm(Algorithm::Gcra).cost(2);
    let prefix = unique("tool");
    let store = RedisStore::builder(server.url()).prefix(&prefix);
    let layer = RateLimitLayer::new(&store.build().unwrap(), rule);
    let _ = layer
        .layer(service_fn(serve::<()>))
        .oneshot(Request::new(()))
        .await;
    let by_rule = [
        "get", "--prefix", &prefix, "--rule", "gcra", "--key", "all", "--json",
    ];
    let seen = object(on(server, &by_rule));
    assert_eq!(
        (&seen["left"], &seen["algorithm"]),
        (&8.into(), &"gcra".into())
    );
}

/// By the calendar only what is used is stored, and the date since which it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_shown_and_deleted() {
    let (server, store) = shared();
    let quota = RateLimiter::new(&store, &unique("quota")).unwrap();
    let quota = quota.calendar(Limit::monthly(10)).unwrap();
    take(&quota, 7).await;
    let page = said(on(server, &["get", quota.name()]), 0);
    let words: Vec<_> = page.split_whitespace().collect();
    for row in [
        ["limit", "-"],
        ["left", "-"],
        ["used", "7"],
        ["algorithm", "calendar"],
    ] {
        assert!(words.windows(2).any(|pair| pair == row), "{page}");
    }
    let seen = object(on(server, &["get", quota.name(), "--json"]));
    assert_eq!((&seen["left"], &seen["used"]), (&Value::Null, &7.into()));
    let hour = 3_600_000;
    let until = |field: &str| seen[field].as_u64().unwrap();
    assert_eq!(until("expires_ms") - until("next_free_ms"), hour);
    let said_of = said(on(server, &["diagnose", quota.name()]), 0);
    assert!(said_of.contains("counted by the calendar"), "{said_of}");
    assert!(said_of.contains("Nothing looks wrong."), "{said_of}");
    let watched = on(
        server,
        &["watch", quota.name(), "--every", "10ms", "--count", "1"],
    );
    assert!(said(watched, 0).contains("used 7, "));
    said(on(server, &["delete", quota.name(), "--yes"]), 0);
    assert_eq!(free(&quota).await, 10);
    said(on(server, &["get", quota.name()]), 4);
}

/// A key of several components.
#[derive(Debug)]
struct Two;

impl KeyExtractor for Two {
    fn extract(&self, _: &http::request::Parts, key: &mut Key) -> Result<(), NoKey> {
        ["a b", "{c}"]
            .into_iter()
            .for_each(|component| key.push(component));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_and_a_key_name_the_limiter_that_requests_meet() {
    let (server, _) = shared();
    let prefix = unique("tool");
    let store = RedisStore::builder(server.url())
        .prefix(&prefix)
        .build()
        .unwrap();
    let bytes = "0123456789abcdef0123456789abcdef";
    let secret = Secret::new("k1", bytes).unwrap();
    let file = std::env::temp_dir().join(unique("secret"));
    fs::write(&file, format!("{bytes}\n")).unwrap();
    let limit = Limit::per_hour(10);
    let rules = [
        Rule::new("plain", limit, Two).cost(3),
        Rule::new("digested", limit, Two.digest(&secret)).cost(4),
    ];
    let layer = RateLimitLayer::builder(&store)
        .otherwise(rules)
        .build()
        .unwrap();
    let _ = layer
        .layer(service_fn(serve::<()>))
        .oneshot(Request::new(()))
        .await;
    let ask = |rule: &str, more: &[&str]| {
        let mut args = vec!["get", "--json", "--prefix", &prefix, "--rule", rule];
        args.extend(["--key", "a b", "--key", "{c}"]);
        args.extend(more);
        object(on(server, &args))["left"].clone()
    };
    assert_eq!(ask("plain", &[]), 7);
    let secret = format!("k1={}", file.display());
    assert_eq!(ask("digested", &["--secret", &secret]), 6);
    fs::remove_file(file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_without_a_yes() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let name = limiter.name();
    for args in [
        vec!["set-rate", name, "--rate", "20/1h"],
        vec!["delete", name],
        vec!["repair", name],
        vec!["ban", name, "--for", "15m"],
        vec!["unban", name],
    ] {
        let refused = said(on(server, &args), 2);
        assert!(refused.contains("add `--yes`"), "{refused}");
        let dry = [&args[..], &["--dry-run"]].concat();
        assert_eq!(said(on(server, &dry), 0), "");
    }
    assert_eq!(limiter.limit().await.unwrap(), Some(Limit::per_hour(10)));
    assert_eq!(limiter.available_permits().await.unwrap(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_changed_and_keeps_what_it_has_besides() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let name = limiter.name();
    let kept = Limit::per_hour(10).keep_alive(secs(7200)).unwrap();
    limiter.set_or_update_rate(kept).await.unwrap();
    let printed = said(
        on(server, &["set-rate", name, "--rate", "20/1h", "--yes"]),
        0,
    );
    assert!(printed.contains("10/1h"), "{printed}");
    let limit = limiter.limit().await.unwrap().unwrap();
    assert_eq!(
        (limit.permits(), limit.keep_alive_time()),
        (20, Some(secs(7200)))
    );
    assert_eq!(limiter.available_permits().await.unwrap(), 16);
    said(
        on(
            server,
            &["set-rate", name, "--rate", "5/1m", "--reset", "--yes"],
        ),
        0,
    );
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    said(on(server, &["delete", name, "--yes"]), 0);
    assert!(!limiter.exists().await.unwrap());
    let gone = said(on(server, &["delete", name, "--yes"]), 4);
    assert!(gone.contains("there is no limiter"), "{gone}");
    let wrong = said(
        on(server, &["set-rate", name, "--rate", "0/1m", "--yes"]),
        2,
    );
    assert!(wrong.contains("0/1m"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_banned_and_let_in_again() {
    let (server, store) = shared();
    let prefix = unique("tool");
    let store_of_rule = patient(server.url()).prefix(&prefix);
    let rule = Limit::per_hour(9)
        .by(FromHeader::new("x-key"))
        .named("login");
    let layer = layer_of(
        &store_of_rule.build().unwrap(),
        rule.ban(tower_ratelimit::Ban::after(3)),
    );
    let limiter = layer.limiter("login", ["ann"]).unwrap();
    let which = [
        "--prefix", &prefix, "--rule", "login", "--key", "ann", "--yes",
    ];
    let run = |args: &[&str]| on(server, &[args, &which].concat());
    let banned = said(run(&["ban", "--for", "15m"]), 0);
    assert!(banned.ends_with("\nbanned  900.0s\n"), "{banned}");
    let request = Request::builder().header("x-key", "ann").body(()).unwrap();
    let refusal = refused(decide(&layer, request).await);
    assert_eq!(refusal.kind(), RefusalKind::Banned);
    assert!(limiter.banned_until().await.unwrap().is_some());
    let seen = store.diagnose(limiter.name()).await.unwrap();
    assert!(seen.banned_for > secs(800), "{seen}");
    assert!(seen.to_string().contains("banned for"), "{seen}");
    said(run(&["unban"]), 0);
    assert_eq!(limiter.banned_until().await.unwrap(), None);
    let again = said(run(&["unban"]), 4);
    assert!(again.contains("is not banned"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_found_and_mended() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let name = limiter.name();
    said(on(server, &["diagnose", name]), 0);
    server.cli(&["SET", &format!("{{{name}}}:value"), "3"]);
    let found = said(on(server, &["diagnose", name]), 1);
    assert!(found.contains("What looks wrong"), "{found}");
    let json = said(on(server, &["diagnose", name, "--json"]), 1);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_documented(&json);
    assert_eq!(json["findings"][0]["kind"], "Drift");
    assert_eq!(json["left"], 3, "what a caller would find");
    let mended = object(on(server, &["repair", name, "--yes", "--json"]));
    assert_eq!(mended["lost"], 3);
    assert_eq!(limiter.available_permits().await.unwrap(), 6);
}

#[test]
fn a_server_that_cannot_be_asked_is_told_from_a_wrong_command() {
    let server = RedisServer::start();
    server.cli(&["CONFIG", "SET", "requirepass", "hunter2&/@"]);
    let bare = format!("redis://{}", server.address());
    let file = std::env::temp_dir().join(unique("password"));
    fs::write(&file, "hunter2&/@\n").unwrap();
    let ask = |password: Option<&str>| {
        let mut command = tool();
        command.args(["get", "nothing", "--redis", &bare]);
        if let Some(password) = password {
            command.env("REDIS_PASSWORD", password);
        }
        command
    };
    let refused = said(ask(None).output().unwrap(), 3);
    assert!(refused.contains("NOAUTH"), "{refused}");
    let refused = said(ask(Some("wrong-one")).output().unwrap(), 3);
    assert!(!refused.contains("wrong-one"), "{refused}");
    said(ask(Some("hunter2&/@")).output().unwrap(), 4);
    let file = file.to_str().unwrap();
    said(
        ask(None).args(["--password-file", file]).output().unwrap(),
        4,
    );
    fs::remove_file(file).unwrap();
    let nowhere = tool()
        .args(["get", "a", "--redis", "redis://127.0.0.1:1"])
        .output();
    said(nowhere.unwrap(), 3);
    for wrong in [
        &["get", "a"][..],
        &["get", "--redis", "redis://127.0.0.1:1"],
        &["get", "--rule", "a", "--redis", "redis://127.0.0.1:1"],
        &["get", "a", "--redis", "ftp://127.0.0.1"],
        &[
            "get",
            "a",
            "--redis",
            "redis://127.0.0.1:1,redis://127.0.0.1:2",
        ],
    ] {
        said(tool().args(wrong).output().unwrap(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_asked_by_its_nodes() {
    let cluster = Cluster::start();
    let store = RedisStore::cluster(cluster.urls()).build().unwrap();
    let urls = cluster.urls().join(",");
    let ask = |args: &[&str]| {
        let cluster = ["--cluster", "--json", "--redis", &urls];
        tool().args(args).args(cluster).output().unwrap()
    };
    // Each master has one of them.
    for node in 0..MASTERS {
        let limiter = RateLimiter::new(&store, &cluster.name_on(node)).unwrap();
        limiter.set_rate(Limit::per_hour(10)).await.unwrap();
        take(&limiter, 4).await;
        let name = limiter.name();
        assert_eq!(object(ask(&["get", name]))["left"], 6);
        let watched = said(ask(&["watch", name, "--every", "1ms", "--count", "2"]), 0);
        assert_eq!(watched.matches("\"left\":6").count(), 2, "{watched}");
        assert_eq!(object(ask(&["diagnose", name]))["findings"], json!([]));
        let value = format!("{{{name}}}:value");
        cluster.node_of(&value).cli(&["SET", &value, "3"]);
        said(ask(&["diagnose", name]), 1);
        assert_eq!(object(ask(&["repair", name, "--yes"]))["lost"], 3);
        object(ask(&["set-rate", name, "--rate", "20/1h", "--yes"]));
        assert_eq!(limiter.available_permits().await.unwrap(), 16);
        object(ask(&["delete", name, "--yes"]));
        assert!(!limiter.exists().await.unwrap());
        said(ask(&["get", name]), 4);
    }
    let verified = tool()
        .args(["verify", "--cluster", "--redis", &urls])
        .output();
    let verified = verified.unwrap();
    assert!(
        matches!(verified.status.code(), Some(0 | 1)),
        "{verified:?}"
    );
    let page = String::from_utf8(verified.stdout).unwrap();
    for url in cluster.urls() {
        let (_, address) = url.split_once("://").unwrap();
        assert!(page.contains(address.trim_end_matches('/')), "{page}");
    }
}

#[test]
fn a_server_is_verified() {
    let server = RedisServer::start();
    // Old and Holes are of the machine's version.
    let kinds = |output: Output| {
        let status = output.status.code();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["schema"], 1);
        assert_documented(&object);
        let findings = object["findings"].as_array().unwrap();
        for finding in findings {
            let has = |name: &str| finding[name].as_str().is_some_and(|it| !it.is_empty());
            assert!(has("kind") && has("severity") && has("text"), "{finding}");
        }
        assert_eq!(status, Some(i32::from(!findings.is_empty())), "{object}");
        let kinds = findings
            .iter()
            .map(|it| it["kind"].as_str().unwrap().to_owned());
        kinds
            .filter(|kind| !["Old", "Holes"].contains(&kind.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(on(&server, &["verify", "--json"])), [""; 0]);
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert_eq!(kinds(on(&server, &["verify", "--json"])), ["Evicts"]);
    let page = said(on(&server, &["verify"]), 1);
    assert!(page.contains("allkeys-lru"), "{page}");
    // Nothing stays.
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}
