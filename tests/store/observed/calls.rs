//! Calls and changes as a store's observers receive them, and mistakes of an observer.

use std::collections::BTreeSet;

use super::{by_key, request_of};
use crate::log::Log;
use kit::scene::*;
use tower_ratelimit::observe::{Decided, Observer, StateChange, StoreCall};
use tracing_subscriber::filter::LevelFilter;

/// The events of a store, as text.
#[derive(Debug, Default)]
struct Recorded(Mutex<Vec<String>>);

impl Recorded {
    fn say(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn has(&self, text: &str) -> bool {
        self.0
            .lock()
            .unwrap()
            .iter()
            .any(|said| said.starts_with(text))
    }

    fn all(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().iter().cloned().collect()
    }
}

impl Observer for Recorded {
    fn decided(&self, event: &Decided<'_>) {
        let error = event.error.map_or("-", ErrorKind::as_str);
        self.say(format!(
            "{} {} {error}",
            event.result.as_str(),
            event.source.as_str()
        ));
    }

    fn called(&self, event: &StoreCall<'_>) {
        assert!(event.node.is_some_and(|node| !node.contains("secret")));
        let result = event.result.map_or_else(ErrorKind::as_str, |()| "ok");
        self.say(format!(
            "call {} {} {result}",
            event.operation, event.callers
        ));
    }

    fn changed(&self, event: &StateChange<'_>) {
        self.say(match event {
            StateChange::Breaker { open, .. } => format!("breaker {open}"),
            StateChange::Connection { connected, .. } => format!("connected {connected}"),
            StateChange::Managed { verb, rule, by, .. } => {
                format!("managed {verb} {} {by:?}", rule.unwrap_or("-"))
            }
            StateChange::Lost { receipt, .. } => format!("lost receipt {receipt}"),
            StateChange::Settled { taken, charged, .. } => format!("settled {taken} {charged}"),
            StateChange::Limiters { .. } | StateChange::Remembered { .. } => return,
            other => format!("{other:?}"),
        });
    }
}

#[tokio::test]
async fn each_call_is_reported_with_the_requests_that_share_it() {
    let recorded = Arc::new(Recorded::default());
    let store = shared_redis().observe(recorded.clone()).build().unwrap();
    let limiter = limited(&store, Limit::per_hour(100)).await;
    let grant = take(&limiter, 3).await;
    let together = (0..20).map(|_| {
        let limiter = limiter.clone();
        async move { limiter.try_acquire().await }
    });
    together.collect::<JoinSet<_>>().join_all().await;
    limiter.settle(&grant, 1);
    store.close().await;
    let _ = limiter.limit().await.unwrap();
    let all = recorded.all();
    for expected in [
        "connected true",
        "call sliding_log/verbs 0 ok",
        "call sliding_log/acquire 1 ok",
        "call HMGET 0 ok",
        "managed try_set_rate - Code",
        "settled 3 1",
        "allow store -",
    ] {
        assert!(all.contains(expected), "{expected}: {all:#?}");
    }
    let callers = |said: &String| {
        let mut words = said.strip_prefix("call sliding_log/acquire ")?.split(' ');
        words.next()?.parse::<usize>().ok()
    };
    let of_calls: usize = recorded.0.lock().unwrap().iter().filter_map(callers).sum();
    assert_eq!(of_calls, 21, "{all:#?}");
}

#[tokio::test]
async fn an_outage_is_reported_with_what_decided_instead() {
    let mut server = RedisServer::start();
    let recorded = Arc::new(Recorded::default());
    let store = hasty(server.url(), millis(100))
        .breaker(2)
        .observe(recorded.clone());
    let store = store.build().unwrap();
    let layer = |name: &str, policy| layer_of(&store, by_key(2).named(name).on_failure(policy));
    let layers = [
        layer("open", FailurePolicy::Allow),
        layer("shut", FailurePolicy::Deny),
        layer("half", FailurePolicy::Local(1.0)),
    ];
    let request = || request_of("a");
    // Also where a busy machine has opened it before.
    for layer in &layers {
        let by_redis = async || decide(layer, request()).await.source() == Source::Store;
        until("Redis decides", by_redis).await;
    }
    recorded.0.lock().unwrap().clear();
    server.stop_process();
    for expected in [
        "breaker true",
        "allow policy -",
        "unavailable policy timeout",
        "unavailable policy unavailable",
        "deny local -",
        "call packed/decide 1 timeout",
    ] {
        until(expected, async || {
            for layer in &layers {
                let _ = decide(layer, request()).await;
            }
            recorded.has(expected)
        })
        .await;
    }
    server.resume();
    until("the breaker closes", async || {
        for layer in &layers {
            let _ = decide(layer, request()).await;
        }
        recorded.has("breaker false")
    })
    .await;
    server.kill();
    until("the connection is lost", async || {
        let _ = decide(&layers[0], request()).await;
        recorded.has("connected false")
    })
    .await;
}

/// Counts its calls, and panics at one of its methods.
#[derive(Debug, Default)]
struct Panics {
    at: usize,
    called: AtomicUsize,
}

impl Panics {
    fn call(&self, method: usize) {
        self.called.fetch_add(1, Ordering::SeqCst);
        assert!(method != self.at, "an observer's mistake");
    }
}

impl Observer for Panics {
    fn decided(&self, _: &Decided<'_>) {
        self.call(0);
    }

    fn called(&self, _: &StoreCall<'_>) {
        self.call(1);
    }

    fn changed(&self, _: &StateChange<'_>) {
        self.call(2);
    }
}

/// After any method of an observer has panicked, the store and its layers call none of its methods
/// any more; one warning says so, and other observers go on.
#[tokio::test]
async fn an_observer_that_panics_is_off_and_logged_once() {
    for at in 0..3 {
        let log = Log::default();
        let _capturing = log.capture(LevelFilter::WARN);
        let panics = Arc::new(Panics {
            at,
            ..Panics::default()
        });
        let recorded = Arc::new(Recorded::default());
        let store = shared_redis().observe(panics.clone());
        let store = store.observe(recorded.clone()).build().unwrap();
        let layers = ["one", "other"].map(|name| layer_of(&store, by_key(9).named(name)));
        let mut called = Vec::new();
        for _ in 0..2 {
            for layer in &layers {
                assert!(decide(layer, request_of("a")).await.is_allowed());
            }
            let limiter = layers[0].limiter("one", ["a"]).unwrap();
            assert!(limiter.delete().await.unwrap());
            called.push(panics.called.load(Ordering::SeqCst));
        }
        assert_eq!(called[0], called[1], "{at}");
        let decided = recorded
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|it| *it == "allow store -")
            .count();
        assert_eq!(decided, 4, "{at}");
        let said = log.text();
        let warnings = said.matches("an observer has panicked").count();
        assert_eq!((warnings, said.matches(" WARN ").count()), (1, 1), "{said}");
    }
}

/// Records its name when it is called.
#[derive(Debug)]
struct Order(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Observer for Order {
    fn decided(&self, _: &Decided<'_>) {
        self.1.lock().unwrap().push(self.0);
    }
}

/// Those of the layer first, and one that is of both once. Another layer's requests are the store's
/// as well.
#[tokio::test]
async fn observers_are_called_in_the_order_in_which_they_were_added() {
    let called = Arc::default();
    let order = |name| Arc::new(Order(name, Arc::clone(&called)));
    let of_both = order("both");
    let redis = shared_redis()
        .observe(order("store"))
        .observe(of_both.clone())
        .observe(order("its third"));
    let memory = MemoryStore::builder()
        .observe(order("store"))
        .observe(of_both.clone())
        .observe(order("its third"))
        .build();
    let redis = redis.build().unwrap();
    for builder in [
        RateLimitLayer::builder(&redis),
        RateLimitLayer::builder(&memory),
    ] {
        let other = builder.clone().otherwise(by_key(9).named("other"));
        let layer = builder.otherwise(by_key(9)).observe(order("layer"));
        let layer = layer.observe(of_both.clone()).build();
        for (layer, expected) in [
            (layer.unwrap(), &["layer", "both", "store", "its third"][..]),
            (other.build().unwrap(), &["store", "both", "its third"]),
        ] {
            let _ = decide(&layer, request_of("a")).await;
            let called = std::mem::take(&mut *called.lock().unwrap());
            assert_eq!(called, expected);
        }
    }
}

/// Keeps events as their `Debug` shows them, and the hashes of keys.
#[derive(Debug, Default)]
struct Shown(Mutex<(String, Vec<u64>)>);

impl Shown {
    fn keep(&self, event: &dyn std::fmt::Debug) {
        let mut shown = self.0.lock().unwrap();
        shown.0 += &format!("{event:?} {event:#?}");
    }
}

impl Observer for Shown {
    fn decided(&self, event: &Decided<'_>) {
        self.keep(event);
        let hashes = event.rules.iter().map(|rule| rule.key_hash());
        self.0.lock().unwrap().1.extend(hashes);
    }

    fn called(&self, event: &StoreCall<'_>) {
        self.keep(event);
    }

    fn changed(&self, event: &StateChange<'_>) {
        self.keep(event);
    }
}

#[tokio::test]
async fn events_show_no_key_and_a_hash_tells_callers_apart() {
    let shown = Arc::new(Shown::default());
    let store = shared_redis().observe(shown.clone()).build().unwrap();
    let layer = layer_of(&store, by_key(2).named("login").wait(millis(1)));
    let (ann, bob) = (unique("ann"), unique("bob"));
    for key in [Some(&ann), Some(&bob), Some(&ann), Some(&ann), None] {
        let request = key.map_or_else(|| Request::new(()), |key| request_of(key));
        let _ = decide(&layer, request).await;
    }
    let limiter = layer.limiter("login", [&bob]).unwrap();
    limiter.release(1).await.unwrap();
    let (text, hashes) = &*shown.0.lock().unwrap();
    for event in ["Decided {", "StoreCall {", "Managed {", "Waiting {"] {
        assert!(text.contains(event), "{event}: {text}");
    }
    assert!(!text.contains(&ann) && !text.contains(&bob), "{text}");
    let [first, other, second, third, missing] = hashes[..] else {
        panic!("{hashes:?}");
    };
    assert!(
        first == second && second == third && first != other,
        "{hashes:?}"
    );
    assert!(missing == 0 && first != 0, "{hashes:?}");
}

#[test]
fn rules_that_are_applied_or_refused_are_reported() {
    let recorded = Arc::new(Recorded::default());
    let layer = RateLimitLayer::builder(&MemoryStore::new())
        .otherwise(by_key(1))
        .observe(recorded.clone())
        .build()
        .unwrap();
    let rules = tower_ratelimit::Rules::new();
    assert!(layer.reload(rules.clone()).is_err());
    layer.reload(rules.otherwise(Limit::per_hour(2))).unwrap();
    let said = recorded.0.lock().unwrap().clone();
    assert!(said[0].contains("refused: Some("), "{said:?}");
    assert_eq!(said[1], "Rules { refused: None, by: Code }");
}

async fn changes_are_reported_without_keys<S: Store>(store: S, recorded: &Recorded) {
    let name = unique("ann");
    let layer = layer_of(&store, by_key(1).named("login"));
    let request = || request_of(&name);
    assert!(decide(&layer, request()).await.is_allowed());
    let limiter = layer.limiter("login", [&name]).unwrap();
    limiter.available_permits().await.unwrap();
    limiter.release(1).await.unwrap();
    let (parts, ()) = request().into_parts();
    let by_request = layer.limiters_of(&parts).remove(0).by_tool();
    by_request.delete().await.unwrap();
    let own = limited(&store, Limit::per_hour(1)).await.by_tool();
    let renamed = own.rename(&format!("{}2", own.name())).await.unwrap();
    take(&renamed, 1).await;
    renamed.delete().await.unwrap();
    assert!(renamed.delete().await.is_ok_and(|deleted| !deleted));
    renamed.release(1).await.unwrap_err();
    let said = recorded.0.lock().unwrap().clone();
    let granted = said.iter().filter(|it| *it == "allow store -").count();
    assert_eq!(granted, 2, "also under a new name: {said:#?}");
    let managed: Vec<_> = said.iter().filter(|it| it.starts_with("managed")).collect();
    assert_eq!(
        managed,
        [
            "managed release login Code",
            "managed delete login Tool",
            "managed try_set_rate - Code",
            "managed rename - Tool",
            "managed delete - Tool",
            "managed delete - Tool",
        ]
    );
    assert!(!format!("{said:?}").contains(&name), "{said:#?}");
}

#[tokio::test]
async fn changes_of_a_limiter_are_reported_without_keys() {
    let recorded = [(); 2].map(|()| Arc::new(Recorded::default()));
    let store = MemoryStore::builder().observe(recorded[0].clone()).build();
    changes_are_reported_without_keys(store, &recorded[0]).await;
    let store = shared_redis().observe(recorded[1].clone());
    changes_are_reported_without_keys(store.build().unwrap(), &recorded[1]).await;
}

#[tokio::test]
async fn a_line_in_the_log_says_what_was_refused() {
    let log = Log::default();
    let _capturing = log.capture(LevelFilter::INFO);
    let store = shared_redis().summary(millis(20)).build().unwrap();
    let silent = shared_redis().summary(millis(20)).summary(None);
    let silent = silent.build().unwrap();
    let layer = layer_of(&store, by_key(1).named("login"));
    let silent = layer_of(&silent, by_key(1).named("silent"));
    until("two lines are there", async || {
        let _ = decide(&layer, request_of("a")).await;
        let _ = decide(&silent, request_of("a")).await;
        let said = log.lines();
        let lines = said.iter().filter(|line| {
            line.contains("rate limits, last 0 s: login")
                && line.contains("(1 caller)")
                && line.contains("store p99")
        });
        lines.count() > 1
    })
    .await;
    assert!(!log.text().contains("silent"));
}
