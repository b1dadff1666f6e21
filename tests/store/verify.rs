//! Verifies servers that are set up as they should be, and servers that are not.

mod words;

use kit::{
    permissions,
    scene::*,
    sentinel::{Watch, Watched, wait_for_replica},
};

use serde_json::{Value, json};
use tower_ratelimit::inspect::{Finding, Severity, Verification};

fn open(url: &str) -> RedisStore {
    patient(RedisStore::builder(url))
}

fn patient(store: RedisStoreBuilder) -> RedisStore {
    patiently(store).build().unwrap()
}

async fn verify(server: &RedisServer) -> Verification {
    open(&server.url()).verify().await.unwrap()
}

/// Returns the findings, except those about the version, which is the machine's.
fn found(verification: &Verification) -> Vec<Finding> {
    let findings = verification.findings().into_iter();
    findings
        .filter(|it| !matches!(it.code(), "old" | "holes"))
        .collect()
}

/// The servers of a report as data.
fn servers(verification: &Verification) -> Vec<Value> {
    json!(verification)["servers"].as_array().unwrap().clone()
}

/// Compares codes and severities, and what the texts have in them.
#[track_caller]
fn check(found: &[Finding], expected: &[(&str, Severity, &str)]) {
    let is_expected = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, (kind, severity, part))| {
                (found.code(), found.severity()) == (*kind, *severity)
                    && found.to_string().contains(part)
            });
    assert!(is_expected, "{found:?} instead of {expected:?}");
}

/// The permissions of the guide.
fn enough() -> Vec<String> {
    permissions().into_iter().map(str::to_owned).collect()
}

async fn verify_with(server: &RedisServer, rules: &[String]) -> Verification {
    server.obeys(&format!("ACL SETUSER limiter reset {}", rules.join(" ")));
    patient(as_user(server)).verify().await.unwrap()
}

fn as_user(server: &RedisServer) -> RedisStoreBuilder {
    let port = server.port();
    RedisStore::builder(format!("redis://limiter:secret@127.0.0.1:{port}/"))
}

/// A finding that the user may not call this command.
fn refused(command: &str) -> (&str, Severity, &str) {
    let severity = match command {
        "DEL" | "RENAME" => Severity::Note,
        _ => Severity::Error,
    };
    ("command_refused", severity, command)
}

/// A finding that the user may not call INFO.
const NO_INFO: (&str, Severity, &str) = ("not_permitted", Severity::Note, "`INFO`");

#[tokio::test]
async fn all_is_well_and_nothing_stays() {
    let server = RedisServer::start();
    server.cli(&["SET", "theirs", "1"]);
    let verification = verify(&server).await;
    assert_eq!(found(&verification), [], "{verification}");
    assert_ne!(verification.worst(), Some(Severity::Error));
    assert_eq!(server.cli(&["KEYS", "*"]), "theirs");

    let servers = servers(&verification);
    assert_eq!(servers.len(), 1, "{verification}");
    let version = servers[0]["version"].as_str().unwrap();
    let info = server.cli(&["INFO", "server"]);
    assert!(
        info.contains(version.split(' ').nth(1).unwrap()),
        "{version}"
    );
    assert!(verification.to_string().starts_with(version));
    assert_eq!(servers[0]["engine"], engine_of(&server));
}

/// The row of the machine's server.
fn engine_of(server: &RedisServer) -> &'static str {
    let is_valkey = server.cli(&["INFO", "server"]).contains("valkey_version");
    if is_valkey { "Valkey" } else { "Redis" }
}

#[tokio::test]
async fn each_command_that_the_user_lacks_is_named() {
    let server = RedisServer::start();
    let mut rules = enough();
    // Of verbs that few call.
    for command in ["+del", "+rename", "+info"] {
        rules.push(command.to_owned());
    }
    let verification = verify_with(&server, &rules).await;
    assert_eq!(found(&verification), [], "{verification}");
    let mut tried = 0;
    for rule in &rules {
        let Some(command) = rule.strip_prefix('+') else {
            continue;
        };
        let without: Vec<_> = rules.iter().filter(|it| *it != rule).cloned().collect();
        let found = found(&verify_with(&server, &without).await);
        match command {
            // `RedisStore::ping` alone needs it.
            "ping" => check(&found, &[]),
            "info" => check(&found, &[NO_INFO]),
            // Without it HSETNX would leave a key behind, so that is not tried.
            command => {
                let command = command.to_uppercase();
                check(&found, &[refused(&command)]);
                let text = found[0].to_string();
                assert!(text.contains(&format!("`ACL SETUSER .. {rule}`")), "{text}");
                assert!(text.split([' ', ',']).any(|it| it == command), "{text}");
            }
        }
        assert_eq!(server.cli(&["DBSIZE"]), "0", "without {command}");
        tried += 1;
    }
    assert!(tried > 25, "{tried}");
}

#[tokio::test]
async fn forbidden_keys_are_reported() {
    let server = RedisServer::start();
    let verification = verify_with(&server, &enough()).await;
    let mut seen = found(&verification);
    seen.retain(|it| it.code() != "not_permitted");
    check(&seen, &[refused("DEL"), refused("RENAME")]);

    let store = patient(as_user(&server).prefix("shop"));
    let verification = store.verify().await.unwrap();
    let of_keys = |it: &Finding| it.code() == "keys_forbidden";
    let forbidden = found(&verification).into_iter().find(of_keys).unwrap();
    let text =
        "the user may not access the keys under shop: allow them with `ACL SETUSER .. ~shop:*`";
    assert_eq!(forbidden.to_string(), text);

    // An exact name has keys that begin with a brace.
    let store = patient(as_user(&server));
    fails(store.diagnose("orders").await, ErrorKind::Rejected);
    let enough = enough().join(" ");
    server.obeys(&format!(
        "ACL SETUSER limiter {enough} ~orders ~{{orders}}*"
    ));
    store.diagnose("orders").await.unwrap();
}

#[tokio::test]
async fn what_a_server_is_started_with_is_reported() {
    let remedy =
        "by allkeys-lru, and limits start over: use a server with `maxmemory-policy noeviction`";
    let evicts = |severity| ("evicts", severity, remedy);
    let no_replica = ("cannot_write", Severity::Warning, "replicas");
    let limited = "--maxmemory-policy allkeys-lru --maxmemory 100mb";
    // In place of SCRIPT LOAD there is EVAL.
    let no_eval = "--rename-command EVAL other";
    let neither = "--rename-command EVAL other --rename-command SCRIPT other2";
    for (settings, expected) in [
        ("--rename-command INFO other", vec![NO_INFO]),
        ("--rename-command EVALSHA other", vec![refused("EVALSHA")]),
        ("--rename-command ZADD other", vec![refused("ZADD")]),
        (no_eval, vec![]),
        (neither, vec![refused("SCRIPT|LOAD")]),
        (
            "--maxmemory-policy allkeys-lru",
            vec![evicts(Severity::Note)],
        ),
        (limited, vec![evicts(Severity::Warning)]),
        ("--min-replicas-to-write 1", vec![no_replica]),
    ] {
        println!("{settings}");
        let settings: Vec<_> = settings.split(' ').collect();
        let server = RedisServer::start_with(&settings);
        check(&found(&verify(&server).await), &expected);
    }
}

/// What Memorystore for Redis blocks, by its documentation.
const BLOCKED: &str = "ACL BGREWRITEAOF BGSAVE CLIENT CLUSTER COMMAND CONFIG DEBUG LASTSAVE MIGRATE \
                       MONITOR OBJECT SHUTDOWN REPLICAOF SAVE";

#[tokio::test]
async fn what_a_service_blocks_is_not_needed() {
    let server = RedisServer::start();
    let mut rules = ["on", ">secret", "~*", "+@all"].map(str::to_owned).to_vec();
    rules.extend(BLOCKED.split(' ').map(|command| format!("-{command}")));
    let verification = verify_with(&server, &rules).await;
    assert_eq!(found(&verification), [], "{verification}");
    let store = patient(as_user(&server));
    assert_eq!(granted_of_three(&store).await, [true, true, false]);
}

/// Takes permits of a limit of two, of a rule.
async fn granted_of_three(store: &RedisStore) -> [bool; 3] {
    let rule = Rule::new(&unique("two"), Limit::per_hour(2), Constant("all"));
    let layer = layer_of(store, rule.on_failure(FailurePolicy::Deny));
    let mut granted = [false; 3];
    for each in &mut granted {
        *each = decide(&layer, asking("GET /", &[])).await.is_allowed();
    }
    granted
}

/// ElastiCache Serverless does, by reports of its users.
#[tokio::test]
async fn without_time_in_scripts_there_is_one_way() {
    let server = RedisServer::start();
    let without: Vec<_> = enough().into_iter().filter(|it| it != "+time").collect();
    let verification = verify_with(&server, &without).await;
    let mut seen = found(&verification);
    seen.retain(|it| it.severity() == Severity::Error);
    check(&seen, &[refused("TIME")]);
    let store = patient(as_user(&server).client_clock(SystemClock));
    assert_eq!(granted_of_three(&store).await, [false; 3]);
    let store = patient(as_user(&server).client_clock(SystemClock).redisson());
    assert_eq!(granted_of_three(&store).await, [true, true, false]);
}

#[tokio::test]
async fn a_sentinel_is_reported() {
    let watched = Watched::start(&Watch::default());
    let verification = open(&watched.sentinel.url()).verify().await.unwrap();
    let expected = ("sentinel", Severity::Error, "`RedisStore::sentinel`");
    check(&found(&verification)[..1], &[expected]);
}

#[tokio::test]
async fn a_replica_is_reported() {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    wait_for_replica(&replica);
    let verification = verify(&replica).await;
    let expected = ("replica", Severity::Error, "use the master's address");
    check(&found(&verification), &[expected]);
    assert_eq!(verification.worst(), Some(Severity::Error));
}

/// The system's time, and an hour.
#[derive(Debug)]
struct Wrong;

impl Clock for Wrong {
    fn now(&self) -> Duration {
        SystemClock.now() + HOUR
    }
}

#[tokio::test]
async fn a_wrong_clock_is_reported_if_limits_count_by_it() {
    let server = RedisServer::start();
    let store = patient(RedisStore::builder(server.url()).client_clock(Wrong));
    let verification = store.verify().await.unwrap();
    let expected = (
        "clocks_apart",
        Severity::Warning,
        "limits count by the latter",
    );
    check(&found(&verification), &[expected]);
    let behind = -servers(&verification)[0]["clock_ahead_ms"]
        .as_i64()
        .unwrap();
    let behind = millis(u64::try_from(behind).unwrap());
    assert!(behind.abs_diff(HOUR) < secs(60), "{behind:?}");
    assert_eq!(verification.worst(), Some(Severity::Warning));
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_is_an_error() {
    let mut server = RedisServer::start();
    let store = open(&server.url());
    server.kill();
    fails(store.verify().await, ErrorKind::Unavailable);

    let server = RedisServer::start();
    server.configure("requirepass", "secret");
    let error = fails(open(&server.url()).verify().await, ErrorKind::Rejected);
    assert!(error.to_string().contains("password"), "{error}");
    let wrong = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    fails(open(&wrong).verify().await, ErrorKind::Rejected);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_master_of_a_cluster_is_looked_at() {
    let cluster = kit::Cluster::start();
    let store = patient(RedisStore::cluster(cluster.urls()));
    let verification = store.verify().await.unwrap();
    assert_eq!(found(&verification), [], "{verification}");
    let seen = servers(&verification);
    assert_eq!(seen.len(), 3);
    let engine = engine_of(&cluster.nodes[0]);
    assert!(seen.iter().all(|it| it["engine"] == engine), "{seen:?}");
    for node in &cluster.nodes {
        let address = format!("127.0.0.1:{}", node.port());
        assert!(seen.iter().any(|server| server["address"] == address));
        assert_eq!(node.cli(&["DBSIZE"]), "0");
    }

    // One of them evicts; one wants all slots.
    let [first, second, third] = &*cluster.nodes else {
        panic!("three masters");
    };
    first.configure("maxmemory-policy", "allkeys-lfu");
    second.configure("cluster-require-full-coverage", "yes");
    let verification = store.verify().await.unwrap();
    assert_eq!(found(&verification).len(), 2, "{verification}");
    for (node, expected) in [(first, "allkeys-lfu"), (second, "require-full-coverage")] {
        let address = format!("127.0.0.1:{}", node.port());
        let servers = servers(&verification);
        let server = servers.iter().find(|it| it["address"] == address).unwrap();
        let said = server["findings"].to_string();
        assert!(said.contains(expected), "{server}");
    }
    second.configure("cluster-require-full-coverage", "no");

    // Taken for all of Redis.
    let verification = verify(third).await;
    let is_node = |it: &Finding| it.code() == "node_of_cluster";
    assert!(found(&verification).iter().any(is_node), "{verification}");
    assert_eq!(verification.worst(), Some(Severity::Error));

    // A hash slot without an owner.
    for node in &cluster.nodes {
        assert_eq!(node.cli(&["CLUSTER", "DELSLOTS", "77"]), "OK");
    }
    let store = patient(RedisStore::cluster(cluster.urls()));
    let verification = store.verify().await.unwrap();
    let expected = ("slots_without_master", Severity::Error, "1 hash slots");
    // The worst comes first: one of them still evicts.
    check(&found(&verification)[..1], &[expected]);
}
