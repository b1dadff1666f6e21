//! Names, headers, policy names and files: the contents of requests choose only the limiter, and
//! appear nowhere.

use kit::scene::*;
use std::cell::Cell;

use http_body_util::BodyExt;
use proptest::prelude::*;
use sfv::Parser;
use tower_ratelimit::key::Key;
use tracing_subscriber::filter::LevelFilter;

use super::{keys, log::Log, patient, request};

/// A mark that is easy to find in a log, plain and in the encoding of names.
const MARKER: &str = "m4rk3r";

/// Returns values that a client may put into a header. Bytes with a meaning in logs, fields, names
/// and addresses are likely.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let marks = [
        "\t", " ", "\"", "\\", ",", ";", ":", "{", "}", "%", "=", "'", "*",
    ];
    let words = "%0d%0a for= ::1 10.0.0.1 \u{1b}[2J é ${jndi: <script>".split(' ');
    let pieces: Vec<_> = marks.into_iter().chain(words).collect();
    let piece = prop_oneof![
        prop::sample::select(pieces).prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| {
        let mut bytes = [pieces.concat(), MARKER.as_bytes().to_vec(), pieces.concat()].concat();
        // As HTTP has it: visible, blank, tab, or beyond ASCII.
        bytes.retain(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f));
        bytes
    })
}

/// Rules that look at all that requests say, with one permit.
fn layers(store: &RedisStore) -> Vec<RateLimitLayer> {
    let forwarded = || ClientIp::behind(["192.0.2.0/24"]);
    let rule = |name, key: &dyn Fn(Limit) -> Rule| key(Limit::per_hour(1)).named(name);
    let rules = [
        rule("header", &|limit| limit.by(FromHeader::new("x-id"))),
        rule("address", &|limit| limit.by(forwarded())),
        rule("peer", &|limit| limit.by(PeerIp)),
        rule("both", &|limit| {
            limit.by((FromHeader::new("x-id"), Route::new()))
        }),
        rule("absent", &|limit| limit.by(FromHeader::new("x-absent"))),
        rule("tried", &|limit| limit.by(FromHeader::new("x-id")).shadow()),
    ];
    let layer = |rule: Rule| RateLimitLayer::new(store, rule);
    let memory = MemoryStore::new();
    let mut layers: Vec<_> = rules.into_iter().map(layer).collect();
    layers.push(RateLimitLayer::new(
        &memory,
        Limit::per_hour(1).by(FromHeader::new("x-id")).named("here"),
    ));
    layers
}

/// Each response is well-formed and contains nothing that was sent, and neither does a line above
/// debug.
fn tells_nothing(layers: &[RateLimitLayer], log: &Log, value: &[u8]) {
    let runtime = runtime();
    for layer in layers {
        for _ in 0..2 {
            let mut request = request("192.0.2.1", "x-id", value);
            for name in ["x-forwarded-for", "forwarded", "user-agent", "grpc-timeout"] {
                let value = request.headers()["x-id"].clone();
                request.headers_mut().insert(name, value);
            }
            let answer = runtime.block_on(send(layer, request));
            let (head, body) = answer.into_parts();
            let body = runtime.block_on(body.collect()).unwrap().to_bytes();
            let output = format!("{head:?} {}", String::from_utf8_lossy(&body));
            assert!(!output.contains(MARKER), "{output}");
            for field in head.headers.get_all("ratelimit-policy") {
                let parsed = Parser::new(field.as_bytes()).parse::<sfv::List>();
                assert!(parsed.is_ok(), "{field:?}");
            }
        }
    }
    assert!(!log.text().contains(MARKER), "{}", log.text());
}

#[test]
fn nothing_in_a_request_is_repeated_or_logged() {
    let server = RedisServer::start();
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::INFO);
    let layers = layers(&patient(&server));
    let sent = Cell::new(0);
    let config = ProptestConfig::with_cases(60);
    proptest!(config, |(value in value())| {
        sent.set(sent.get() + 1);
        tells_nothing(&layers, &log, &value);
    });
    assert!(sent.get() >= 60);
    // It was logged, and names were made of what was sent.
    assert!(
        log.text().contains("lack the key of the rule"),
        "{}",
        log.text()
    );
    let names = keys(&server);
    assert!(
        names.iter().any(|(name, _)| name.contains(MARKER)),
        "{names:#?}"
    );
    // `ratelimit:{..}:<rule>` with a suffix: no sent text has moved a brace or ended a name.
    for (name, ttl) in &names {
        let rest = name.strip_prefix("ratelimit:{").expect(name);
        let (identity, rule) = rest.split_once("}:").expect(name);
        assert!(
            identity
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._~-%,!+".contains(&byte)),
            "{name}"
        );
        assert!(
            rule.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b":~".contains(&byte)),
            "{name}"
        );
        assert!(*ttl > 0, "{name}: {ttl}");
    }
}

/// A Redis that fails, in each possible way, is reported without the identity of the caller.
#[tokio::test]
async fn no_failure_names_the_caller() {
    let unknown = RedisServer::start_with(&[
        "--rename-command",
        "EVALSHA",
        "",
        "--rename-command",
        "EVAL",
        "",
    ]);
    let forbidden = RedisServer::start();
    forbidden.cli(&["ACL", "SETUSER", "default", "resetkeys", "-@all", "+ping"]);
    let scripts = RedisServer::start();
    scripts.cli(&["ACL", "SETUSER", "default", "-getrange"]);
    let readonly = RedisServer::start_with(&["--replicaof", "127.0.0.1", "1"]);
    let mut gone = RedisServer::start();
    gone.kill();
    let foreign = RedisServer::start();
    let state = format!("ratelimit:{{{MARKER}}}:api~");
    foreign.cli(&["LPUSH", &state, "x"]);
    for server in [&unknown, &forbidden, &scripts, &readonly, &gone, &foreign] {
        let log = Log::default();
        let _capturing = log.capture(LevelFilter::INFO);
        let store = patient(server);
        let rule = Limit::per_hour(1).by(FromHeader::new("x-id")).named("api");
        let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Deny));
        let answer = send(&layer, request("192.0.2.1", "x-id", MARKER.as_bytes())).await;
        assert_eq!(answer.status(), 503, "{}", log.text());
        let output = format!("{answer:?} {}", log.text());
        // A key that is something else is no failure of the store.
        let of_store = server.port() != foreign.port();
        let fails = output.contains("rate limit store failing");
        assert_eq!(fails, of_store, "{output}");
        let lacks = output.contains("the server does not know the command");
        assert_eq!(lacks, server.port() == unknown.port(), "{output}");
        assert!(!output.contains(MARKER), "{output}");
        let limiter = RateLimiter::new(&store, MARKER).unwrap();
        let error = limiter.try_set_rate(Limit::per_hour(1)).await.err();
        if let Some(error) = error {
            let output = format!("{error} {error:?}");
            assert!(!output.contains(MARKER), "{output}");
        }
    }
}

#[derive(Debug)]
struct Said(Vec<u8>);

impl KeyExtractor for Said {
    fn extract(
        &self,
        _: &http::request::Parts,
        key: &mut Key,
    ) -> Result<(), tower_ratelimit::key::NoKey> {
        key.push(&self.0);
        Ok(())
    }
}

/// A rule's name goes into names, fields, logs and answers: only a word does.
fn policy_name_is_a_word(name: &str) -> Result<(), TestCaseError> {
    let store = MemoryStore::new();
    let rule = Limit::per_hour(1).by(Said(b"x".to_vec())).named(name);
    let built = RateLimitLayer::builder(&store).otherwise(rule).build();
    let word = !name.is_empty()
        && name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || b"._-".contains(&it));
    match built {
        Ok(layer) => {
            prop_assert!(word, "{:?}", name);
            let answer = runtime().block_on(send(&layer, request("192.0.2.1", "x-id", b"x")));
            let field = answer.headers()["ratelimit-policy"].to_str().unwrap();
            let begins = format!("\"{name}\";");
            prop_assert!(field.starts_with(&begins), "{}", field);
        }
        Err(error) => {
            prop_assert!(!word, "{:?}", name);
            prop_assert_eq!(error.kind(), ConfigErrorKind::Name);
            let said = format!("a rule's name has one or more of A-Z a-z 0-9 . _ -, not {name:?}");
            prop_assert_eq!(error.to_string(), said);
        }
    }
    prop_assert_eq!(
        RedisStore::builder("redis://127.0.0.1/")
            .client_id(name)
            .build()
            .is_ok(),
        word
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_policys_name_is_a_word(name in prop_oneof!["[ -~]{0,6}", "[A-Za-z0-9._-]{1,8}", any::<String>()]) {
        policy_name_is_a_word(&name)?;
    }

    /// The operator chooses names. An invalid one is refused where it is given, and none splits a
    /// command.
    #[test]
    fn any_name_is_one_limiters_or_refused(name in prop_oneof!["[a{}:\r\n ]{0,8}", any::<String>()]) {
        let store = MemoryStore::new();
        match RateLimiter::new(&store, &name) {
            Ok(limiter) => prop_assert_eq!(limiter.name(), name),
            Err(error) => {
                prop_assert_eq!(error.kind(), ConfigErrorKind::Name);
                let said = format!("{name:?} cannot name a limiter: ");
                prop_assert!(error.to_string().starts_with(&said), "{}", error);
            }
        }
    }
}
