//! Rules as a file: what is read, what is refused and where, and what changes while a service runs.
#![cfg(feature = "config")]

mod bad;
#[cfg(all(feature = "calendar", feature = "test-util"))]
mod calendar;
mod cost;
mod reload;
mod watch;

use kit::scene::*;
use std::collections::HashMap;

use serde::Deserialize;
use tower_ratelimit::{Requests, Rules, RulesFile};

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
    let store = MemoryStore::builder().redisson().build();
    layer_by(&store, rules)
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
    let mut answer = answer_to(&request, "");
    *answer.status_mut() = status.parse().unwrap();
    Ok(answer)
}

/// The answer of such a service behind the layer.
async fn send(layer: &RateLimitLayer, request: Request<String>) -> Response<()> {
    let service = layer.layer(service_fn(inner));
    service.oneshot(request).await.unwrap().map(drop)
}

/// The rules that met a request, each with its permits and what is left of them.
fn met_by(answer: &Response<()>) -> Vec<(String, u64, u64)> {
    let decision = answer.extensions().get::<Decision>();
    let limits = decision.into_iter().flat_map(Decision::limits);
    let met = limits.map(|limit| {
        let left = limit.remaining().unwrap();
        (limit.name().to_owned(), limit.permits(), left)
    });
    let mut met: Vec<_> = met.collect();
    met.sort();
    met
}

async fn met(layer: &RateLimitLayer, request: Request<String>) -> Vec<(String, u64, u64)> {
    met_by(&send(layer, request).await)
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
    let (store, clock) = MemoryStore::builder().redisson().build_manual();
    clock.set(Duration::from_millis(1_704_153_600_001));
    let builder = RateLimitLayer::builder(&store).rules(RulesFile::new().parse(rules).unwrap());
    let answer = send(&builder.build().unwrap(), request("GET", "/", &[])).await;
    let decision = answer.extensions().get::<Decision>().unwrap();
    let reset = decision.limits().next().unwrap().reset_after();
    assert_eq!(reset, Duration::from_millis(1099));
}

/// A request to the layer of the good file, see `met.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    ask: String,
    #[serde(default)]
    fields: Vec<String>,
    peer: Option<String>,
    /// The rules that met it, each with its permits and what is left of them
    met: Option<Vec<(String, u64, u64)>>,
    status: Option<u16>,
    limit_field: Option<bool>,
}

#[tokio::test]
async fn every_field_does_what_it_says() {
    let layer = layer(file().parse(GOOD).unwrap());
    let mut steps: HashMap<String, Vec<Step>> =
        toml::from_str(include_str!("config/met.toml")).unwrap();
    for (place, step) in steps.remove("step").unwrap().into_iter().enumerate() {
        let what = format!("step {place}, {}", step.ask);
        let (method, uri) = step.ask.split_once(' ').unwrap();
        let fields: Vec<_> = step.fields.iter().map(String::as_str).collect();
        let mut request = request(method, uri, &fields);
        if let Some(peer) = step.peer {
            let peer = PeerAddr(peer.parse().unwrap());
            request.extensions_mut().insert(peer);
        }
        let answer = send(&layer, request).await;
        if let Some(met) = step.met {
            assert_eq!(met_by(&answer), met, "{what}");
        }
        if let Some(status) = step.status {
            assert_eq!(answer.status(), status, "{what}");
        }
        if let Some(is_there) = step.limit_field {
            let fields = answer.headers();
            assert_eq!(fields.contains_key("x-ratelimit-limit"), is_there, "{what}");
            assert!(!fields.contains_key("ratelimit"), "{what}");
        }
    }
}

/// The same rules in a file and in code use the same limiters, so that a rule may move between
/// them.
#[tokio::test]
async fn a_file_counts_where_code_counts() {
    let store = MemoryStore::builder().redisson().build();
    let secret = Secret::new("k1", [7; 32]).unwrap();
    let user = FromExtension::by(|user: &User| user.0);
    let token = FromHeader::new("x-api-key").digest(&secret);
    let tenant = FromHeader::new("x-tenant").or_shared();
    let limit = Limit::per_minute(9);
    let token_of_file = "[keys.token]\nfrom = \"credential:x-api-key\"\ndigest = \"k1\"";
    for (coded, key, by) in [
        (limit.by(user.or(PeerIp)), "", "\"user or peer\""),
        (
            limit.by((PeerIp, Route::new())),
            "",
            "[\"peer\", \"route\"]",
        ),
        (limit.by(token), token_of_file, "\"token\""),
        (limit.by(tenant), "", "\"header:x-tenant or shared\""),
    ] {
        let name = unique("rule");
        let filed = format!(
            "{key}\n[rules.{name}]\nrate = \"9/60s\"\nby = {by}\n[otherwise]\nrules = [\"{name}\"]"
        );
        let coded = Rules::new().otherwise(coded.named(&name));
        for (rules, left) in [(coded, 8), (file().parse(&filed).unwrap(), 7)] {
            let layer = RateLimitLayer::builder(&store).rules(rules).build();
            let request = request("GET", "/", &["x-api-key: s"]);
            let met = met(&layer.unwrap(), request).await;
            assert_eq!(met, one(&name, 9, left), "{by}");
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
                line || ["hops", "ipv6-prefix"].contains(&field),
                "no file has {field}"
            );
        }
    }
}

#[test]
fn names_that_code_gives_are_checked() {
    let key = |name| RulesFile::new().key(name, PeerIp);
    let failure = RulesFile::new().charge_if("failure", |_| true);
    for (file, said) in [
        (key("peer"), "\"peer\" means something else in a rules file"),
        (
            key("a b"),
            "a rule's name has one or more of A-Z a-z 0-9 . _ -, not \"a b\"",
        ),
        (failure, "\"failure\" means something else in a rules file"),
    ] {
        let error = file.parse(GOOD).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Name);
        assert_eq!(error.to_string(), said);
    }
    // The second would silently take the place of the first.
    let secret = Secret::new("k1", [8; 32]).unwrap();
    for (twice, name) in [
        (file().key("user", PeerIp), "user"),
        (file().tiers("plan", |_| "free"), "plan"),
        (file().cost("rows", |_| 1), "rows"),
        (file().charge_if("forbidden", |_| true), "forbidden"),
        (file().condition("bulk", |_| true), "bulk"),
        (file().secret(&secret), "k1"),
    ] {
        let error = twice.parse(GOOD).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Name);
        let said = format!("{name:?} is registered twice for a rules file");
        assert!(error.to_string().starts_with(&said), "{error}");
    }
    // One name of two sorts is two names.
    let _ = file().cost("user", |_| 1).parse(GOOD).unwrap();
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
