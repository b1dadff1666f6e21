//! Rules as a file: what is read, what is refused and where, and what changes while a service runs.
#![cfg(feature = "config")]

mod bad;
mod cost;
mod reload;
mod unlimited;
mod watch;

use crate::scene::*;

use tower_ratelimit::{Rules, RulesFile};

/// Every field there is.
const GOOD: &str = include_str!("config/good.toml");

#[derive(Clone)]
struct User(&'static str);

/// The names that the files of these tests use.
fn file() -> RulesFile {
    let secret = Secret::new("k1", [7; 32]).unwrap();
    RulesFile::new()
        .key("user", FromExtension::by(|user: &User| user.0))
        .tiers("plan", |parts| match parts.headers.get("x-plan") {
            Some(plan) if plan == "paid" => "paid",
            _ => "free",
        })
        .cost("rows", |parts| {
            let rows = parts.headers.get("x-rows");
            rows.and_then(|rows| rows.to_str().ok()?.parse().ok())
                .unwrap_or(1)
        })
        .charge_if("forbidden", |outcome| outcome.status() == 403)
        .condition("bulk", |parts| parts.headers.contains_key("x-bulk"))
        .secret(&secret)
}

fn layer(rules: Rules) -> RateLimitLayer {
    let store = MemoryStore::new();
    let builder = RateLimitLayer::builder(&store).rules(rules);
    builder.build().unwrap()
}

/// A request from 192.0.2.1; fields are `name: value`.
fn request(method: &str, uri: &str, fields: &[&str]) -> Request<String> {
    let mut request = Request::builder().method(method).uri(uri);
    for field in fields {
        let (name, value) = field.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    let peer = PeerAddr("192.0.2.1:9".parse().unwrap());
    request.extension(peer).body(String::new()).unwrap()
}

/// Answers as `x-answer` says, 200 without.
async fn inner(request: Request<String>) -> Result<Response<String>, Infallible> {
    let status = request.headers().get("x-answer");
    let status = status.map_or("200", |status| status.to_str().unwrap());
    let answer = Response::builder().status(status);
    Ok(answer.body(String::new()).unwrap())
}

/// The answer of such a service behind the layer.
async fn send(layer: &RateLimitLayer, request: Request<String>) -> Response<()> {
    let service = layer.layer(service_fn(inner));
    service.oneshot(request).await.unwrap().map(drop)
}

/// The rules that met a request, each with its permits and what is left of them.
async fn met(layer: &RateLimitLayer, request: Request<String>) -> Vec<(String, u64, u64)> {
    let answer = send(layer, request).await;
    let Some(decision) = answer.extensions().get::<Decision>() else {
        return Vec::new();
    };
    let limits = decision.limits();
    let mut met: Vec<_> = limits
        .map(|limit| {
            let left = limit.remaining().unwrap();
            (limit.name().to_owned(), limit.permits(), left)
        })
        .collect();
    met.sort();
    met
}

fn one(name: &str, permits: u64, left: u64) -> Vec<(String, u64, u64)> {
    vec![(name.to_owned(), permits, left)]
}

/// All of a slot counts until an interval after its end.
#[cfg(feature = "test-util")]
#[tokio::test]
async fn slots_are_those_of_the_file() {
    let rules =
        "[rules.feed]\nrate = \"5/1s\"\nby = \"peer\"\nslots = 10\n[otherwise]\nrules = [\"feed\"]";
    let clock = ManualClock::new();
    clock.set(Duration::from_millis(1_704_153_600_001));
    let store = MemoryStore::new().clock(clock);
    let builder = RateLimitLayer::builder(&store).rules(RulesFile::new().parse(rules).unwrap());
    let answer = send(&builder.build().unwrap(), request("GET", "/", &[])).await;
    let decision = answer.extensions().get::<Decision>().unwrap();
    let reset = decision.limits().next().unwrap().reset_after();
    assert_eq!(reset, Duration::from_millis(1099));
}

#[tokio::test]
async fn every_field_does_what_it_says() {
    let layer = layer(file().parse(GOOD).unwrap());
    let ask = async |method, uri, fields: &[&str]| met(&layer, request(method, uri, fields)).await;

    // Several rules, all or nothing; what succeeds is given back.
    let login = ask("POST", "/login", &[]).await;
    assert_eq!(
        login,
        [one("account", 100, 99), one("login", 5, 4)].concat()
    );
    ask("POST", "/login", &["x-answer: 401"]).await;
    let login = ask("POST", "/login", &[]).await;
    assert_eq!(login[1], one("login", 5, 3)[0]);
    assert!(
        ask("GET", "/login", &[])
            .await
            .iter()
            .all(|met| met.0 != "login")
    );

    // Entries by method, host, gRPC and a condition.
    let hosted = ["host: eu.api.example.com"];
    assert_eq!(ask("HEAD", "/a", &hosted).await, one("hosted", 50, 49));
    assert_eq!(ask("GET", "/a", &hosted).await, one("hosted", 50, 48));
    // One that the rule may skip is skipped.
    let (tenant, other) = (["x-tenant: a"], ["x-tenant: a", hosted[0]]);
    let both = [one("everybody", 5000, 4998), one("rest", 1000, 999)].concat();
    assert_eq!(ask("PUT", "/a", &other).await, both);
    assert_eq!(ask("PUT", "/a", &[]).await, one("everybody", 5000, 4997));
    assert_eq!(
        ask("POST", "/shop.v1.Orders/Create", &[]).await[0].0,
        "orders"
    );
    assert_eq!(ask("GET", "/any", &["x-bulk: 1"]).await[0].0, "bulk");
    assert_eq!(ask("GET", "/health", &[]).await, []);

    // Costs: fixed, by method, by the code.
    assert_eq!(ask("GET", "/export/7", &[]).await, one("export", 100, 90));
    assert_eq!(ask("GET", "/files/a/b", &[]).await, one("files", 20, 19));
    assert_eq!(ask("HEAD", "/files/a/b", &[]).await, one("files", 20, 16));
    assert_eq!(ask("PUT", "/files/a/b", &[]).await, one("files", 20, 11));
    assert_eq!(ask("DELETE", "/files/a/b", &[]).await, one("files", 20, 9));
    assert_eq!(ask("OPTIONS", "/files/a/b", &[]).await, []);
    assert_eq!(
        ask("GET", "/rows", &["x-rows: 30"]).await,
        one("rows", 60, 30)
    );

    // Tiers: the first is for those that are not in the list.
    assert_eq!(ask("GET", "/plan", &[]).await, one("api.free", 10, 9));
    assert_eq!(
        ask("GET", "/plan", &["x-plan: paid"]).await,
        one("api.paid", 20, 19)
    );

    // Lists come before rules: a client's address behind a proxy, a value, and several conditions
    // together.
    let blocked = async |fields: &[&str]| {
        let mut request = request("GET", "/plan", fields);
        let proxy = PeerAddr("10.0.0.1:9".parse().unwrap());
        request.extensions_mut().insert(proxy);
        send(&layer, request).await.status() == 403
    };
    assert!(blocked(&["x-forwarded-for: 203.0.113.7"]).await);
    assert!(!blocked(&["x-forwarded-for: 203.0.112.7"]).await);
    assert!(blocked(&["x-tenant: evil"]).await);
    assert_eq!(ask("POST", "/free", &["x-bulk: 1"]).await, []);
    assert_eq!(ask("GET", "/free", &["x-bulk: 1"]).await[0].0, "bulk");
    // Who waits is let pass when there is room.
    for _ in 0..3 {
        let answer = send(&layer, request("GET", "/patient", &[])).await;
        assert_eq!(answer.status(), 200);
    }
    // A shadow rule refuses nothing.
    for left in [0, 0] {
        assert_eq!(ask("GET", "/tried", &[]).await, one("tried", 1, left));
    }

    // A shared name, with its limit if it has none.
    assert_eq!(ask("GET", "/tenant", &tenant).await, one("tenant", 3, 2));
    assert_eq!(
        send(&layer, request("GET", "/tenant", &[])).await.status(),
        401
    );

    let answer = send(&layer, request("GET", "/plan", &[])).await;
    assert!(answer.headers().contains_key("x-ratelimit-limit"));
    assert!(!answer.headers().contains_key("ratelimit"));
    // A hidden rule is not reported.
    let answer = send(&layer, request("GET", "/any", &["x-bulk: 1"])).await;
    assert!(!answer.headers().contains_key("x-ratelimit-limit"));
}

/// The same rules in a file and in code use the same limiters, so that a rule may move between
/// them.
#[tokio::test]
async fn a_file_counts_where_code_counts() {
    let store = MemoryStore::new();
    let secret = Secret::new("k1", [7; 32]).unwrap();
    let user = FromExtension::by(|user: &User| user.0);
    let token = FromHeader::new("x-api-key").digest(&secret);
    let tenant = FromHeader::new("x-tenant").or_shared();
    let limit = Limit::per_minute(9);
    let coded = RateLimitLayer::builder(&store)
        .on("/a", limit.by(user.or(PeerIp)).named("a"))
        .on("/b", limit.by((PeerIp, Route::new())).named("b"))
        .on("/c", limit.by(token).named("c"))
        .on("/d", limit.by(tenant).named("d"))
        .build()
        .unwrap();
    let fields = ["x-api-key: s"];
    for path in ["/a", "/b", "/c", "/d"] {
        let answer = send(&coded, request("GET", path, &fields)).await;
        assert_eq!(answer.status(), 200, "{path}");
    }
    drop(coded);
    let text = r#"
        [keys.token]
        from = "credential:x-api-key"
        digest = "k1"

        [rules]
        a = { rate = "9/1m", by = "user or peer" }
        b = { rate = "9/m", by = ["peer", "route"] }
        c = { rate = "9/60s", by = "token" }
        d = { rate = "9/1m", by = "header:x-tenant or shared" }

        [[on]]
        route = "/a"
        rules = ["a"]
        [[on]]
        route = "/b"
        rules = ["b"]
        [[on]]
        route = "/c"
        rules = ["c"]
        [[on]]
        route = "/d"
        rules = ["d"]
    "#;
    let filed = RateLimitLayer::builder(&store).rules(file().parse(text).unwrap());
    let filed = filed.build().unwrap();
    for (path, rule) in [("/a", "a"), ("/b", "b"), ("/c", "c"), ("/d", "d")] {
        let met = met(&filed, request("GET", path, &fields)).await;
        assert_eq!(met, one(rule, 9, 7));
    }
}

#[test]
fn a_client_behind_proxies_is_described() {
    for (fields, expected) in [
        ("trusted = ['10.0.0.0/8', 'fd00::/8']", None),
        ("trusted = '10.0.0.1'\nheader = 'Forwarded'", None),
        ("hops = 2\nipv4-prefix = 24\nipv6-prefix = 64", None),
        (
            "hops = 65",
            Some("line 3, keys.client.hops: 1 to 64 proxies"),
        ),
        (
            "hops = -1",
            Some("line 3, keys.client.hops: invalid value: integer `-1`, expected usize"),
        ),
        (
            "trusted = ['10.0.0.0/8', '10.0.0.1/8']",
            Some("line 3, keys.client.trusted[1]: \"10.0.0.1/8\""),
        ),
        (
            "trusted = []",
            Some("line 3, keys.client.trusted: the list is empty"),
        ),
        (
            "hops = 1\nheader = 'x y'",
            Some("line 4, keys.client.header: \"x y\" is not a header's name"),
        ),
        (
            "hops = 1\nipv6-prefix = 20",
            Some("line 4, keys.client.ipv6-prefix: 32 to 128 bits"),
        ),
        (
            "hops = 1\nipv4-prefix = 300",
            Some("line 4, keys.client.ipv4-prefix: invalid value: integer `300`, expected u8"),
        ),
        ("", Some("line 1, keys.client: one of `trusted")),
        (
            "hops = 1\ntrusted = '10.0.0.1'",
            Some("line 1, keys.client: one of `trusted"),
        ),
    ] {
        let text = format!(
            "[keys.client]\nfrom = 'client-ip'\n{fields}\n[rules.a]\nrate = '1/s'\nby = 'client'\n[otherwise]\nrules = ['a']"
        );
        let message = file().parse(&text).err().map(|error| error.to_string());
        match (message, expected) {
            (None, None) => {}
            (Some(message), Some(expected)) => assert!(message.starts_with(expected), "{message}"),
            (message, _) => panic!("{fields}: {message:?}"),
        }
    }
}

/// The known fields in the error for an unknown one are those that the guide describes, and those
/// of the good file.
#[test]
fn every_field_is_described_and_tried() {
    let guide = std::fs::read_to_string("src/docs/guide.md").unwrap();
    let (_, chapter) = guide.split_once("\n## Rules as a file\n").unwrap();
    let chapter = chapter.split("\n## ").next().unwrap();
    let rows: Vec<_> = chapter
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .collect();
    for (header, example) in [
        ("[rules.login]", "rate = \"5/1m\""),
        ("[[on]]", "route = \"/health\""),
        ("[keys.client]", "trusted = [\"10.0.0.0/8\"]"),
        ("[keys.method]", "services = [\"shop.v1.Orders\"]"),
        ("[keys.seen]", "plain = true"),
        ("[[deny]]", "by = \"client\""),
    ] {
        assert!(GOOD.contains(example), "{header}");
        let text = GOOD.replacen(header, &format!("{header}\nxxxxxxxxxx = 1"), 1);
        let message = file().parse(&text).unwrap_err().to_string();
        let (_, known) = message
            .split_once("\"xxxxxxxxxx\": the known ones are ")
            .expect(&message);
        for field in known.split(", ").map(|field| field.trim_matches('`')) {
            let row = rows.iter().any(|row| {
                row.split_once(" | ")
                    .is_some_and(|(fields, _)| format!("`{fields}").contains(&format!("`{field}`")))
            });
            assert!(row || field == "from", "the guide lacks {field}");
            let line = GOOD.lines().any(|line| {
                line.starts_with(&format!("{field} = "))
                    || line.starts_with(&format!("[rules.api.{field}]"))
            });
            assert!(
                line || ["hops", "ipv4-prefix"].contains(&field),
                "no file has {field}"
            );
        }
    }
}

#[test]
fn names_that_code_gives_are_checked() {
    let peer = || PeerIp;
    let parse = |file: RulesFile| file.parse(GOOD).unwrap_err();
    for (file, said) in [
        (
            RulesFile::new().key("peer", peer()),
            "\"peer\" means something else in a rules file",
        ),
        (
            RulesFile::new().key("a b", peer()),
            "a rule's name has one or more of A-Z a-z 0-9 . _ -, not \"a b\"",
        ),
        (
            RulesFile::new().charge_if("failure", |_| true),
            "\"failure\" means something else in a rules file",
        ),
    ] {
        let error = parse(file);
        assert_eq!(error.kind(), ConfigErrorKind::Name);
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn an_unreadable_file_is_an_error() {
    let folder = std::env::temp_dir();
    let load = |path: &std::path::Path| {
        let error = file().load(path).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Unreadable);
        let said = error.to_string();
        let about = format!("the rules file {path:?} cannot be read: ");
        said.strip_prefix(&about).expect("the path").to_owned()
    };
    assert_eq!(load(&folder), "it is not a file");
    let path = folder.join(unique("limits"));
    assert!(load(&path).contains("No such file"));
    std::fs::write(&path, [0xff]).unwrap();
    assert!(load(&path).contains("UTF-8"));
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(load(&path).contains("longer than a mebibyte"));
    std::fs::write(&path, format!("\u{feff}{GOOD}")).unwrap();
    let _ = file().load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
}
