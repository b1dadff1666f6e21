//! No public output shows a secret, a password or the identity in a key, however it is printed.

use kit::scene::*;
use std::{collections::BTreeMap, fmt::Debug, fs};

use http::HeaderValue;
use tower_ratelimit::{
    Ban, HeaderStyle, Requests, RuleLimit, Rules, RulesFile, StartingOn,
    key::ForwardedHeader,
    key::FromParts,
    key::Key,
    key::NoKey,
    observe::{Activity, Decided, Metrics, Observer, StateChange, StoreCall},
};

use super::{patient, request};

/// Long enough for a secret, and a word, as it is to be a password, a name and a header, too.
const MARKER: &str = "m4rk3r-0123456789-0123456789-0123456789";

/// The printed texts, by the name of the type.
#[derive(Debug, Default)]
struct Shown(BTreeMap<&'static str, String>);

impl Shown {
    fn show(&mut self, name: &'static str, what: &impl Debug) {
        let shown = self.0.entry(name).or_default();
        shown.push_str(&format!("{what:?}\n{what:#?}\n"));
    }
}

/// Prints what observers are told.
#[derive(Debug, Default)]
struct Told(Mutex<Shown>);

impl Observer for Told {
    fn decided(&self, event: &Decided<'_>) {
        let mut shown = self.0.lock().unwrap();
        shown.show("Decided", event);
        event
            .rules
            .iter()
            .for_each(|rule| shown.show("DecidedRule", rule));
    }

    fn called(&self, event: &StoreCall<'_>) {
        self.0.lock().unwrap().show("StoreCall", event);
    }

    fn changed(&self, event: &StateChange<'_>) {
        self.0.lock().unwrap().show("StateChange", event);
    }
}

/// The types, and whatever else the library exports there.
fn exported(file: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let mut names = Vec::new();
    for exported in text.split("\npub use ").skip(1) {
        let exported = exported.split(';').next().unwrap();
        names.extend(
            exported
                .split(|it: char| !it.is_alphanumeric() && it != '_')
                .map(str::to_owned),
        );
    }
    for declared in ["\npub struct ", "\npub enum "] {
        let declared = text.split(declared).skip(1);
        names.extend(
            declared.map(|rest| rest.split(['<', '(', ' ', ';']).next().unwrap().to_owned()),
        );
    }
    // Modules, functions and what stands for nothing begin otherwise.
    names.retain(|name| name.starts_with(|first: char| first.is_uppercase()));
    names
}

fn secret() -> Secret {
    Secret::new("k1", MARKER).unwrap()
}

fn digested() -> impl KeyExtractor + Clone {
    FromHeader::new("authorization").digest(&secret())
}

/// Prints the values that are built before a request.
fn settings(shown: &mut Shown, store: &RedisStore) {
    shown.show("Secret", &secret());
    shown.show("Digested", &digested());
    let header = FromHeader::credential("x-session");
    shown.show("FromHeader", &header);
    shown.show("KeyTraits", &header.check().unwrap());
    shown.show("Or", &digested().or(PeerIp));
    shown.show("OrSkip", &digested().or_skip());
    shown.show(
        "FromExtension",
        &FromExtension::by(|user: &String| user.clone()),
    );
    let closure = String::from(MARKER);
    shown.show(
        "FromParts",
        &FromParts(move |_: &http::request::Parts| Some(closure.clone())),
    );
    shown.show("Constant", &Constant("all"));
    shown.show("PeerIp", &PeerIp);
    shown.show("PeerAddr", &PeerAddr("192.0.2.1:9".parse().unwrap()));
    shown.show("ClientIp", &ClientIp::behind(["10.0.0.0/8"]));
    shown.show("ForwardedHeader", &ForwardedHeader::Single("x-real-ip"));
    shown.show("Route", &Route::new());
    let mut key = Key::default();
    key.push(MARKER);
    shown.show("Key", &key);
    shown.show("NoKey", &NoKey::missing("authorization"));

    let limit = Limit::per_hour(1);
    let rule = || limit.by(digested()).named("api");
    let tiers = || Tiers::new([("free", limit)], |_| "free");
    let denied = || Requests::with_key(FromHeader::new("x-id"), [MARKER]);
    shown.show("Limit", &limit);
    shown.show("Rule", &rule());
    shown.show("RuleLimit", &RuleLimit::from(tiers()));
    shown.show("RuleLimit", &limit_by(move |_| limit));
    shown.show("Tiers", &tiers());
    shown.show("Requests", &denied());
    shown.show("Rules", &Rules::new().otherwise(rule()).deny(denied()));
    let file = RulesFile::new().secret(&secret()).key("user", digested());
    shown.show("RulesFile", &file);
    shown.show(
        "RateLimitLayerBuilder",
        &RateLimitLayer::builder(store).rules(Rules::new().otherwise(rule()).deny(denied())),
    );
    let layer = RateLimitLayer::new(store, rule());
    shown.show("RateLimitLayer", &layer);
    shown.show("Watch", &layer.watch(file, "/etc/shop/rules.toml"));
    shown.show("FailurePolicy", &FailurePolicy::Local(0.5));
    shown.show("Local", &FailurePolicy::Local(0.5));
    shown.show("MemoryStore", &MemoryStore::new());
    shown.show("MemoryStoreBuilder", &MemoryStore::builder());
    shown.show("RedisStore", store);
    shown.show("ManualClock", &ManualClock::new());
    shown.show("SystemClock", &SystemClock);
    shown.show("HeaderStyle", &HeaderStyle::Draft11);
    shown.show("StartingOn", &StartingOn::Day(15));
    shown.show("Ban", &Ban::after(10).within(secs(60)));
}

/// Prints the results of requests and verbs for an identity that is the marker.
async fn traces(shown: &mut Shown, store: &RedisStore) {
    let named = Limit::per_hour(1).named("named");
    shown.show("RateLimiterBuilder", &named);
    let keyed = named.keyed(store).unwrap();
    shown.show("Keyed", &keyed);
    shown.show("RateLimiter", &keyed.of(MARKER));
    let limiter = RateLimiter::new(store, MARKER).unwrap();
    shown.show("RateLimiter", &limiter);
    shown.show("AllOf", &RateLimiter::all([&limiter]).unwrap());
    limiter.try_set_rate(Limit::per_hour(1)).await.unwrap();
    for allowed in [true, false] {
        let decision = limiter.try_acquire().await.unwrap();
        assert_eq!(decision.is_allowed(), allowed);
        shown.show("LimitState", &decision.limits().next().unwrap());
        match &decision {
            Decision::Allow(grant) => {
                shown.show("Grant", grant);
            }
            Decision::Deny(refusal) => shown.show("Refusal", refusal),
        }
        shown.show("Decision", &decision);
    }
    let diagnosis = store.diagnose(MARKER).await.unwrap();
    shown.show("Diagnosis", &diagnosis);
    shown.show("Finding", &diagnosis.findings());
    shown.show("Health", &store.health());
    shown.show("NodeHealth", &store.health().nodes[0]);
    // None of these is a limiter: the errors are.
    let error = RateLimiter::new(store, &format!("{MARKER}:none"))
        .unwrap()
        .available_permits()
        .await
        .unwrap_err();
    shown.show("Error", &error);

    let mut sent = request("192.0.2.1", "authorization", MARKER.as_bytes());
    sent.headers_mut()
        .insert("x-id", HeaderValue::from_static(MARKER));
    let by = |key: FromHeader, name: &str| Limit::per_hour(1).by(key).named(name);
    let rule = by(FromHeader::new("x-id"), "given").observe_keys();
    let layer = RateLimitLayer::new(store, rule);
    let inner =
        service_fn(async |request: Request<String>| Ok::<_, Infallible>(answer_to(&request, "")));
    let service = layer.layer(inner);
    shown.show("RateLimit", &layer.layer(()));
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let mut copy = Request::new(String::new());
        *copy.headers_mut() = sent.headers().clone();
        let future = service.clone().oneshot(copy);
        let answer = future.await.unwrap();
        assert_eq!(answer.status(), status);
        shown.show("Decision", answer.extensions().get::<Decision>().unwrap());
        shown.show("RateLimitBody", answer.body());
    }
    let mut service = service;
    let future = tower::Service::call(&mut service, sent);
    shown.show("ResponseFuture", &future);
    drop(future);
    let layer = RateLimitLayer::new(store, by(FromHeader::new("x-absent"), "absent"));
    let answer = send(&layer, request("192.0.2.1", "x-id", MARKER.as_bytes())).await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    let Some(Decision::Deny(refusal)) = answer.extensions().get::<Decision>() else {
        panic!("it lacks its key");
    };
    assert_eq!(refusal.missing(), Some("x-absent"));
    shown.show("Missing", &NoKey::missing("x-absent"));
}

#[tokio::test]
async fn no_debug_output_shows_a_secret() {
    let server = RedisServer::start();
    let password = format!(">{MARKER}");
    let user = ["ACL", "SETUSER", "shop", &password, "~*", "+@all", "on"];
    assert_eq!(server.cli(&user), "OK");
    let url = format!("redis://shop:{MARKER}@127.0.0.1:{}/", server.port());
    let told = Arc::new(Told::default());
    let builder = patiently(RedisStore::builder(url.clone())).observe(told.clone());
    let mut shown = Shown::default();
    shown.show("RedisStoreBuilder", &builder);
    let store = builder.build().unwrap();
    store.ping().await.unwrap();

    settings(&mut shown, &store);
    traces(&mut shown, &store).await;
    shown.0.append(&mut told.0.lock().unwrap().0);
    shown.show("Activity", &Activity::new());
    shown.show("Metrics", &Metrics::new());

    let verification = store.verify().await.unwrap();
    shown.show("Verification", &verification);
    shown.show("Verification", &verification.to_string());
    shown.show("Verification", &serde_json::json!(verification));
    shown.show("Finding", &verification.findings());

    // Errors: of a password that is wrong, of addresses that cannot be read, of settings.
    let wrong = format!("redis://shop:{MARKER}-wrong@127.0.0.1:{}/", server.port());
    let refused = fails(
        RedisStore::open(wrong).unwrap().ping().await,
        ErrorKind::Rejected,
    );
    shown.show("Error", &refused);
    shown.show("Error", &refused.to_string());
    for url in [
        format!("http://shop:{MARKER}@127.0.0.1/"),
        format!("redis://shop:{MARKER}@127.0.0.1:port/"),
        format!("redis://shop:{MARKER}@127.0.0.1/database"),
        format!("redis://shop:{MARKER}@[::1/"),
        format!("redis:/shop:{MARKER}"),
        format!("redis+unix:///tmp/x?pass={MARKER}&db=x"),
        MARKER.to_owned(),
    ] {
        if let Err(error) = RedisStore::open(url.clone()) {
            shown.show("ConfigError", &error);
            shown.show("ConfigError", &error.to_string());
        }
        if let Err(error) = RedisStore::cluster([url]).build() {
            shown.show("ConfigError", &error);
        }
    }
    for error in [
        Secret::new("k1", &MARKER[..20]).err(),
        Secret::new(MARKER, "short").err(),
    ] {
        let error: ConfigError = error.unwrap();
        shown.show("ConfigError", &error);
        shown.show("ConfigError", &error.to_string());
        shown.show("ConfigErrorKind", &error.kind());
    }
    assert!(patient(&server).ping().await.is_ok());

    // Traits, and what holds words and numbers of ours alone.
    let bare = "Algorithm BreakerState Clock ConnectionState Cost ErrorKind ExpireWhen \
                IntoRules KeyExtractor Layer LimiterKey Observer Origin Outcome RefusalKind \
                RequestResult RuleResult Severity Source Store TimeToLive";
    let bare: Vec<_> = bare.split(' ').collect();
    let files = [
        "src/lib.rs",
        "src/inspect/mod.rs",
        "src/observe.rs",
        "src/web/key/mod.rs",
    ];
    let mut missing = files.map(exported).concat();
    missing.retain(|name| !bare.contains(&&**name) && !shown.0.contains_key(&**name));
    assert!(missing.is_empty(), "not looked at: {missing:?}");

    let part = &MARKER[..16];
    for (name, text) in &shown.0 {
        assert!(!text.is_empty(), "{name}");
        assert!(!text.contains(part), "{name} shows it: {text}");
    }
}
