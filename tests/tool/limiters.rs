//! Limiters in a real Redis, shown and changed by the command.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Output, Stdio},
};

use serde_json::{Value, json};
use tower_ratelimit::key::{Key, KeyExtractor, NoKey};

use crate::{assert_documented, contains, tool, words};
use kit::{Cluster, RedisServer, cluster::MASTERS, scene::*, unique, wait_until};

/// Runs the command against a server. Nothing is a terminal.
pub(crate) fn on(server: &RedisServer, line: &str) -> Output {
    let mut tool = tool();
    let tool = tool.env("REDIS_URL", server.url()).args(words(line));
    tool.output().unwrap()
}

/// Runs the command, which ends with this status, and returns what it prints.
#[track_caller]
pub(crate) fn said(output: Output, status: i32) -> String {
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{error}");
    match status {
        0 | 1 => String::from_utf8(output.stdout).unwrap(),
        _ => error,
    }
}

#[track_caller]
pub(crate) fn object(output: Output) -> Value {
    let object = serde_json::from_str(&said(output, 0)).unwrap();
    assert_documented(&object);
    object
}

pub(crate) fn shared() -> (RedisServerRef, RedisStore) {
    let server = RedisServer::shared();
    (server, patient(server.url()).build().unwrap())
}

pub(crate) type RedisServerRef = &'static RedisServer;

/// A limiter of ten an hour with this many in use.
pub(crate) async fn in_use(store: &RedisStore, permits: u32) -> RateLimiter {
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
    let name = limiter.name();
    let dumps = || {
        let companions = ["value", "permits"].map(|end| format!("{{{name}}}:{end}"));
        let keys = [&[name.to_owned()][..], &companions].concat();
        let asked = keys
            .iter()
            .flat_map(|key| [["DUMP", key], ["PEXPIRETIME", key]]);
        asked
            .map(|command| server.cli(&command))
            .collect::<Vec<_>>()
    };
    let before = dumps();
    let seen = object(on(server, &format!("get {name} --json")));
    assert_eq!(seen["left"], 6);
    assert_eq!(seen["limit"], "10/1h");
    assert_eq!(seen["algorithm"], "sliding-log");
    assert_eq!(seen["granted_in_last_second"].as_u64().unwrap() % 4, 0);
    let next = seen["next_free_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&next), "{next}");
    let expires = seen["expires_ms"].as_u64().unwrap();
    assert!((7_200_000..=7_300_000).contains(&expires), "{expires}");
    let page = said(on(server, &format!("get {name}")), 0);
    contains(&page, "left                    6\n");
    contains(&page, "used                    4\n");
    contains(&page, "expires                 7");
    let expires = page.lines().find(|line| line.starts_with("expires"));
    assert!(expires.unwrap().ends_with('s'), "in seconds: {page}");
    let watch = format!("watch {name} --every 10ms --count 3");
    let lines = said(on(server, &watch), 0);
    for part in ["limit 10/1h, left 6, used 4, granted in", ", expires 7"] {
        assert_eq!(lines.matches(part).count(), 3, "{part}: {lines}");
    }
    let objects = said(on(server, &format!("{watch} --json")), 0);
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

/// As `head -1` does, a reader leaves after the first line.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_nobody_reads_it() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let line = format!(
        "watch {} --every 10ms --redis {}",
        limiter.name(),
        server.url()
    );
    let watch = tool().args(words(&line)).stdout(Stdio::piped()).spawn();
    let mut watch = watch.unwrap();
    let mut first = String::new();
    let mut reader = BufReader::new(watch.stdout.take().unwrap());
    reader.read_line(&mut first).unwrap();
    contains(&first, "left 6");
    drop(reader);
    let mut ended = None;
    wait_until("the watch ends", || {
        ended = watch.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
}

/// A window ends as a whole, and GCRA has its limit where a rule has left it.
#[tokio::test(flavor = "multi_thread")]
async fn each_algorithm_is_recognised() {
    let (server, store) = shared();
    let window = in_use(&store, 0).await.algorithm(Algorithm::FixedWindow);
    take(&window, 3).await;
    let seen = object(on(server, &format!("get {} --json", window.name())));
    assert_eq!(seen["left"], 7);
    assert_eq!(seen["algorithm"], "fixed-window");
    assert!(seen["next_free_ms"].as_u64().unwrap() > 3_500_000);
    let rule = Rule::new("gcra", Limit::per_hour(10), Constant("all"));
    let rule = rule.algorithm(Algorithm::Gcra).cost(2);
    let prefix = unique("tool");
    let store = patient(server.url()).prefix(&prefix);
    let layer = RateLimitLayer::new(&store.build().unwrap(), rule);
    send(&layer, Request::new(())).await;
    let by_rule = format!("get --prefix {prefix} --rule gcra --key all --json");
    let seen = object(on(server, &by_rule));
    assert_eq!(seen["left"], 8);
    assert_eq!(seen["limit"], "10/1h");
    assert_eq!(seen["algorithm"], "gcra");
    // What needs no limit goes on by the name.
    let which = format!("--prefix {prefix} --rule gcra --key all");
    let set = on(server, &format!("set-rate {which} --rate 9/1h --yes"));
    contains(&said(set, 2), "it is in the code alone");
    let watched = on(server, &format!("watch {which} --every 10ms --count 1"));
    contains(&said(watched, 0), "left 8, used 2, ");
    let diagnosed = said(on(server, &format!("diagnose {which}")), 0);
    contains(&diagnosed, "counted by GCRA");
    let mended = object(on(server, &format!("repair {which} --yes --json")));
    assert_eq!(mended["lost"], 0);
    said(on(server, &format!("ban {which} --for 15m --yes")), 0);
    said(on(server, &format!("unban {which} --yes")), 0);
    said(on(server, &format!("delete {which} --yes")), 0);
    said(on(server, &format!("get {which}")), 4);
}

/// The tightest says how many permits are left, and the longest how many are in use.
#[tokio::test(flavor = "multi_thread")]
async fn several_limits_of_a_name_are_all_shown() {
    let (server, store) = shared();
    let several = Limit::per_hour(10).and(Limit::per_minute(6));
    let limiter = several.named(&unique("several")).single(&store).unwrap();
    take(&limiter, 4).await;
    let name = limiter.name();
    let seen = object(on(server, &format!("get {name} --json")));
    assert_eq!(seen["limit"], "6/1m and 10/1h");
    assert_eq!((&seen["left"], &seen["used"]), (&2.into(), &4.into()));
    assert!(seen["next_free_ms"].as_u64().unwrap() <= 60_000, "{seen}");
    let page = said(on(server, &format!("diagnose {name}")), 0);
    contains(
        &page,
        "limit: rate 10 interval 3600000 type 0 and rate 6 interval 60000\n",
    );
    contains(&page, "Nothing looks wrong.");
}

/// By the calendar only what is used is stored, and the date since which it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_shown_and_deleted() {
    let (server, store) = shared();
    let quota = Limit::monthly(10).named(&unique("quota"));
    let quota = quota.single(&store).unwrap();
    take(&quota, 7).await;
    let name = quota.name();
    let page = said(on(server, &format!("get {name}")), 0);
    let words: Vec<_> = page.split_whitespace().collect();
    for row in [
        ["limit", "-"],
        ["left", "-"],
        ["used", "7"],
        ["algorithm", "calendar"],
    ] {
        assert!(words.windows(2).any(|pair| pair == row), "{page}");
    }
    let seen = object(on(server, &format!("get {name} --json")));
    assert_eq!((&seen["left"], &seen["used"]), (&Value::Null, &7.into()));
    let hour = 3_600_000;
    let until = |field: &str| seen[field].as_u64().unwrap();
    assert_eq!(until("expires_ms") - until("next_free_ms"), hour);
    let said_of = said(on(server, &format!("diagnose {name}")), 0);
    contains(&said_of, "counted by the calendar");
    contains(&said_of, "Nothing looks wrong.");
    let watched = on(server, &format!("watch {name} --every 10ms --count 1"));
    contains(&said(watched, 0), "used 7, ");
    let set = on(server, &format!("set-rate {name} --rate 9/1h --yes"));
    contains(&said(set, 2), "it is in the code alone");
    said(on(server, &format!("delete {name} --yes")), 0);
    assert_eq!(free(&quota).await, 10);
    said(on(server, &format!("get {name}")), 4);
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
    let store = patient(server.url()).prefix(&prefix);
    let bytes = "0123456789abcdef0123456789abcdef";
    let secret = Secret::new("k1", bytes).unwrap();
    let file = std::env::temp_dir().join(unique("secret"));
    fs::write(&file, format!("{bytes}\n")).unwrap();
    let limit = Limit::per_hour(10);
    let rules = [
        Rule::new("plain", limit, Two).cost(3),
        Rule::new("digested", limit, Two.digest(&secret)).cost(4),
    ];
    let layer = layer_of(&store.build().unwrap(), rules);
    send(&layer, Request::new(())).await;
    let ask = |rule: &str| {
        let get = format!("get --json --prefix {prefix} --key 'a b' --key {{c}}");
        object(on(server, &format!("{get} --rule {rule}")))["left"].clone()
    };
    assert_eq!(ask("plain"), 7);
    let secret = format!("--secret 'k1={}'", file.display());
    assert_eq!(ask(&format!("digested {secret}")), 6);
    fs::remove_file(file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_without_a_yes() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let name = limiter.name();
    for (command, more) in [
        ("set-rate", "--rate 20/1h"),
        ("delete", ""),
        ("repair", ""),
        ("ban", "--for 15m"),
        ("unban", ""),
    ] {
        let line = format!("{command} {name} {more}");
        contains(&said(on(server, &line), 2), "add `--yes`");
        let dry = on(server, &format!("{line} --dry-run"));
        assert_eq!(said(dry, 0), "");
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
    let set = |rate: &str| on(server, &format!("set-rate {name} --yes --rate {rate}"));
    contains(&said(set("20/1h"), 0), "10/1h");
    let limit = limiter.limit().await.unwrap().unwrap();
    assert_eq!(limit.permits(), 20);
    assert_eq!(limit.keep_alive_time(), Some(secs(7200)));
    assert_eq!(free(&limiter).await, 16);
    said(set("5/1m --reset"), 0);
    assert_eq!(free(&limiter).await, 5);
    let delete = || on(server, &format!("delete {name} --yes"));
    said(delete(), 0);
    assert!(!limiter.exists().await.unwrap());
    contains(&said(delete(), 4), "there is no limiter");
    contains(&said(set("0/1m"), 2), "0/1m");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_found_and_mended() {
    let (server, store) = shared();
    let limiter = in_use(&store, 4).await;
    let name = limiter.name();
    let diagnose = format!("diagnose {name}");
    said(on(server, &diagnose), 0);
    server.cli(&["SET", &format!("{{{name}}}:value"), "3"]);
    contains(&said(on(server, &diagnose), 1), "What looks wrong");
    let json = said(on(server, &format!("{diagnose} --json")), 1);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_documented(&json);
    assert_eq!(json["findings"][0]["kind"], "drift");
    assert_eq!(json["left"], 3, "what a caller would find");
    let mended = object(on(server, &format!("repair {name} --yes --json")));
    assert_eq!(mended["lost"], 3);
    assert_eq!(limiter.available_permits().await.unwrap(), 6);
}

#[test]
fn an_unreachable_server_and_a_wrong_command_have_their_own_status() {
    let server = RedisServer::start();
    server.configure("requirepass", "hunter2,&/@");
    let bare = format!("redis://{}", server.address());
    let file = std::env::temp_dir().join(unique("password"));
    fs::write(&file, "hunter2,&/@\n").unwrap();
    let ask = |password: Option<&str>| {
        let mut command = tool();
        command.args(["get", "nothing", "--redis", &bare]);
        if let Some(password) = password {
            command.env("REDIS_PASSWORD", password);
        }
        command
    };
    contains(&said(ask(None).output().unwrap(), 3), "NOAUTH");
    let refused = said(ask(Some("wrong-one")).output().unwrap(), 3);
    assert!(!refused.contains("wrong-one"), "{refused}");
    said(ask(Some("hunter2,&/@")).output().unwrap(), 4);
    let file = file.to_str().unwrap();
    let by_file = ask(None).args(["--password-file", file]).output();
    said(by_file.unwrap(), 4);
    fs::remove_file(file).unwrap();
    // No address begins at a comma of the password.
    let with_password = bare.replace("//", "//:hunter2,%26%2F%40@");
    let by_address = ["get", "nothing", "--redis", &with_password];
    said(tool().args(by_address).output().unwrap(), 4);
    for (line, status) in [
        ("get a --redis redis://127.0.0.1:1", 3),
        ("get a", 2),
        ("get --redis redis://127.0.0.1:1", 2),
        ("get --rule a --redis redis://127.0.0.1:1", 2),
        ("get a --redis ftp://127.0.0.1", 2),
        ("get a --redis redis://127.0.0.1:1,redis://127.0.0.1:2", 2),
    ] {
        said(tool().args(words(line)).output().unwrap(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_asked_by_its_nodes() {
    let cluster = Cluster::start();
    let store = RedisStore::cluster(cluster.urls());
    let store = patiently(store).build().unwrap();
    let urls = cluster.urls().join(",");
    let ask = |line: &str| {
        let line = format!("{line} --cluster --json --redis {urls}");
        tool().args(words(&line)).output().unwrap()
    };
    // Each master has one of them.
    for node in 0..MASTERS {
        let limiter = RateLimiter::new(&store, &cluster.name_on(node)).unwrap();
        limiter.set_rate(Limit::per_hour(10)).await.unwrap();
        take(&limiter, 4).await;
        let name = limiter.name();
        assert_eq!(object(ask(&format!("get {name}")))["left"], 6);
        let watched = said(ask(&format!("watch {name} --every 1ms --count 2")), 0);
        assert_eq!(watched.matches("\"left\":6").count(), 2, "{watched}");
        let diagnose = format!("diagnose {name}");
        assert_eq!(object(ask(&diagnose))["findings"], json!([]));
        let value = format!("{{{name}}}:value");
        cluster.node_of(&value).cli(&["SET", &value, "3"]);
        said(ask(&diagnose), 1);
        assert_eq!(object(ask(&format!("repair {name} --yes")))["lost"], 3);
        object(ask(&format!("set-rate {name} --rate 20/1h --yes")));
        assert_eq!(free(&limiter).await, 16);
        object(ask(&format!("delete {name} --yes")));
        assert!(!limiter.exists().await.unwrap());
        said(ask(&format!("get {name}")), 4);
    }
    let verify = ["verify", "--cluster", "--redis", &urls];
    let verified = tool().args(verify).output().unwrap();
    let ended = matches!(verified.status.code(), Some(0 | 1));
    assert!(ended, "{verified:?}");
    let page = String::from_utf8(verified.stdout).unwrap();
    for url in cluster.urls() {
        let (_, address) = url.split_once("://").unwrap();
        contains(&page, address.trim_end_matches('/'));
    }
}

#[test]
fn a_server_is_verified() {
    let server = RedisServer::start();
    // `old` and `holes` are of the machine's version.
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
            .filter(|kind| !["old", "holes"].contains(&kind.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(on(&server, "verify --json")), [""; 0]);
    server.configure("maxmemory", "100mb");
    server.configure("maxmemory-policy", "allkeys-lru");
    assert_eq!(kinds(on(&server, "verify --json")), ["evicts"]);
    contains(&said(on(&server, "verify"), 1), "allkeys-lru");
    // Nothing stays.
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}
