//! Law O8: observers receive each request once, with the result of its answer.

mod again;
mod calls;
mod metrics;
mod traces;

use std::collections::{BTreeMap, BTreeSet};

use kit::{
    observed::Observed,
    random::{Random, seed},
    scene::*,
};
use metrics_exporter_prometheus::PrometheusRecorder;
use tower_ratelimit::{
    Cost, Requests,
    key::{Constant, FromHeader},
    observe::{Decided, Metrics, Observer, RequestResult, RuleResult, StateChange},
};

type Counts = BTreeMap<(String, &'static str), u64>;

/// The sums of all that an observer receives.
#[derive(Debug, Default)]
pub struct Sheet(Mutex<Sums>);

#[derive(Clone, Debug, Default)]
struct Sums {
    /// By result and source.
    requests: Counts,
    /// By rule and result.
    rules: Counts,
    /// By rule: `taken`, `refunded` and `owed`.
    permits: Counts,
    waiting: i64,
}

impl Sums {
    /// The permits that a rule has taken, less those that were released.
    fn net(&self, rule: &str) -> u64 {
        let kind = |kind| self.permits.get(&(rule.to_owned(), kind)).unwrap_or(&0);
        kind("taken") + kind("owed") - kind("refunded")
    }

    /// The series that `Metrics` must have of this.
    fn series(&self) -> BTreeMap<String, f64> {
        let mut series = BTreeMap::new();
        for (metric, one, other, counts) in [
            ("requests", "result", "source", &self.requests),
            ("rule_requests", "rule", "result", &self.rules),
            ("permits", "rule", "kind", &self.permits),
        ] {
            for ((first, second), count) in counts.iter().filter(|((first, _), _)| first != "-") {
                let labels = format!("{one}=\"{first}\",{other}=\"{second}\"");
                let name = format!("ratelimit_{metric}_total{{{labels}}}");
                series.insert(name, *count as f64);
            }
        }
        series
    }
}

impl Observer for Sheet {
    fn decided(&self, event: &Decided<'_>) {
        let mut sums = self.0.lock().unwrap();
        let (result, source) = (event.result.as_str(), event.source.as_str());
        count(&mut sums.requests, result, source);
        for rule in event.rules {
            let name = rule.rule.unwrap_or("-");
            count(&mut sums.rules, name, rule.result.as_str());
            if rule.result == RuleResult::Taken {
                add(&mut sums.permits, name, "taken", rule.permits.into());
            }
        }
    }

    fn changed(&self, event: &StateChange<'_>) {
        let mut sums = self.0.lock().unwrap();
        match *event {
            StateChange::Settled {
                rule: Some(rule),
                taken,
                charged,
                ..
            } => {
                let kind = if charged < taken { "refunded" } else { "owed" };
                let permits = charged.abs_diff(taken);
                add(&mut sums.permits, rule, kind, permits.into());
            }
            StateChange::Waiting { ended, .. } => {
                sums.waiting += if ended.is_some() { -1 } else { 1 };
            }
            _ => {}
        }
    }
}

fn count(counts: &mut Counts, first: &str, second: &'static str) {
    add(counts, first, second, 1);
}

fn add(counts: &mut Counts, first: &str, second: &'static str, by: u64) {
    *counts.entry((first.to_owned(), second)).or_default() += by;
}

const KEYS: [&str; 3] = ["ann", "bob", "eve"];

fn by_key(permits: u64) -> Rule {
    Limit::per_hour(permits).by(FromHeader::new("x-key"))
}

/// A request of the caller that these rules know by its key.
fn request_of(key: &str) -> Request<()> {
    asking("GET /", &[("x-key", key)]).map(drop)
}

/// Rules of each kind. Nothing becomes free while the test runs.
fn rules(builder: tower_ratelimit::RateLimitLayerBuilder) -> RateLimitLayer {
    let cost = |parts: &http::request::Parts| {
        let cost = parts.headers.get("x-cost");
        cost.map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
    };
    let rules = tower_ratelimit::Rules::new()
        .allow(Requests::on("/health"))
        .deny(Requests::on("/blocked"))
        .on("/one", by_key(40).named("one"))
        .on(
            "/two",
            [by_key(30).named("a").cost(2), by_key(20).named("b")],
        )
        .on(
            "/shadow",
            [by_key(5).named("s").shadow(), by_key(60).named("t")],
        )
        .on("/refund", by_key(30).named("refund").charge_if(|_| false))
        .on("/owed", by_key(4_000).named("owed"))
        .on("/lease", by_key(4_000).named("lease").lease(secs(60)))
        .on("/above", by_key(4).named("above").cost_by(cost))
        .on("/wait", by_key(3).named("wait").wait(secs(7200)).queue(2));
    builder.rules(rules).skip_preflight().build().unwrap()
}

/// The rules whose permits are compared with the store's.
const RULES: [(&str, u64); 10] = [
    ("one", 40),
    ("a", 30),
    ("b", 20),
    ("s", 5),
    ("t", 60),
    ("refund", 30),
    ("owed", 4_000),
    ("lease", 4_000),
    ("above", 4),
    ("wait", 3),
];

/// The result that a request must have been reported with.
fn expected(path: &str, answer: &Response<RateLimitBody<String>>) -> (&'static str, &'static str) {
    let Some(decision) = answer.extensions().get::<Decision>() else {
        let passed = match path {
            "/health" => RequestResult::AllowedByList,
            "/preflight" => RequestResult::Preflight,
            _ => RequestResult::NoRule,
        };
        return (passed.as_str(), "none");
    };
    let result = match decision {
        Decision::Allow(_) => "allow",
        Decision::Deny(refusal) => match refusal.kind() {
            RefusalKind::OverLimit => "deny",
            RefusalKind::AboveRate => "above_rate",
            RefusalKind::MissingKey => "missing_key",
            RefusalKind::Blocked => "denied_by_list",
            RefusalKind::QueueFull => "queue_full",
            RefusalKind::Unavailable => "unavailable",
            other => panic!("{other:?}"),
        },
    };
    (result, decision.source().as_str())
}

fn request(path: &str, random: &mut Random) -> Request<String> {
    let mut request = Request::builder().uri(path);
    if !random.one_in(12) {
        request = request.header("x-key", random.of(&KEYS));
    }
    match path {
        "/above" => request = request.header("x-cost", random.of(&["1", "9"])),
        "/preflight" => {
            request = request
                .method("OPTIONS")
                .header("origin", "https://a.example")
                .header("access-control-request-method", "PUT");
        }
        _ => {}
    }
    request.body(String::new()).unwrap()
}

const PATHS: &str = "/health /blocked /none /preflight /one /two /shadow /refund /owed /lease \
                     /above /wait /wait";

/// Takes two permits more on one path.
async fn serve(request: Request<String>) -> Result<Response<String>, Infallible> {
    let mut answer = answer_to(&request, "");
    if request.uri().path() == "/owed" {
        answer.extensions_mut().insert(Cost(3));
    }
    Ok(answer)
}

/// Sends requests of all kinds, some of whose callers leave, and compares what the observer and the
/// metrics have with the answers, and with the store unless that `estimates`.
async fn each_is_reported_once<S: Settles>(
    (store, ledger, recorder): (S, &Sheet, &PrometheusRecorder),
    requests: u64,
    estimates: bool,
) {
    let direct = limited(&store, Limit::per_hour(30)).await;
    let other = limited(&store, Limit::per_hour(20)).await;
    let both = RateLimiter::all([&direct, &other]).unwrap();
    let layer = rules(RateLimitLayer::builder(&store));
    let paths: Vec<_> = PATHS.split(' ').collect();
    let mut random = Random(seed());
    let mut own = Counts::new();
    let mut waiting = Vec::new();
    for _ in 0..requests {
        if random.one_in(10) {
            let decision = if random.one_in(3) {
                both.try_acquire().await.unwrap()
            } else {
                direct.try_acquire().await.unwrap()
            };
            let result = if decision.is_allowed() {
                "allow"
            } else {
                "deny"
            };
            count(&mut own, result, decision.source().as_str());
            continue;
        }
        let path = random.of(&paths);
        let request = request(path, &mut random);
        let waits = path == "/wait";
        let mut answer = Box::pin(layer.layer(service_fn(serve)).oneshot(request));
        if waits {
            // None of them gets a permit any more, once three have.
            let answered = tokio::time::timeout(millis(5), &mut answer).await;
            match answered {
                Ok(answer) => {
                    let (result, source) = expected(path, &answer.unwrap());
                    count(&mut own, result, source);
                }
                Err(_) => waiting.push(answer),
            }
            if random.one_in(4) && !waiting.is_empty() {
                drop(waiting.swap_remove(random.place(waiting.len())));
                count(&mut own, "cancelled", "none");
            }
            continue;
        }
        let answer = answer.await.unwrap();
        let (result, source) = expected(path, &answer);
        count(&mut own, result, source);
    }
    assert!(ledger.0.lock().unwrap().waiting >= waiting.len() as i64);
    for answer in waiting.drain(..) {
        drop(answer);
        count(&mut own, "cancelled", "none");
    }
    store.settled().await;
    let sums = ledger.0.lock().unwrap().clone();
    assert_eq!(sums.requests, own);
    assert_eq!(sums.requests.values().sum::<u64>(), requests);
    assert_eq!(sums.waiting, 0);
    let counted: BTreeMap<_, _> = metrics::samples(recorder)
        .into_iter()
        .filter(|(series, count)| series.contains("_total{") && *count > 0.0)
        .collect();
    assert_eq!(counted, sums.series());
    for (rule, permits) in RULES.into_iter().filter(|_| !estimates) {
        let mut used = 0;
        for key in KEYS {
            let limiter = layer.limiter(rule, [key]).unwrap();
            used += permits - free(&limiter).await;
        }
        assert_eq!(sums.net(rule), used, "{rule}: {:?}", sums.rules);
    }
    println!("{:?}\n{:?}", sums.requests, sums.rules);
    // Without each of these there would be something not to see.
    let kinds: BTreeSet<_> = sums.permits.keys().map(|(_, kind)| *kind).collect();
    assert_eq!(kinds, all("taken refunded owed"));
    let results: BTreeSet<_> = sums.requests.keys().map(|(it, _)| &**it).collect();
    let expected = all("allow deny above_rate missing_key cancelled queue_full");
    assert!(results.is_superset(&expected), "{results:?}");
    let results: BTreeSet<_> = sums.rules.keys().map(|(_, it)| *it).collect();
    let expected = all("taken deny not_taken shadow_deny missing_key above_rate");
    assert!(results.is_superset(&expected), "{results:?}");
}

fn all(words: &str) -> BTreeSet<&str> {
    words.split(' ').collect()
}

/// Only rules that say so show keys, encoded as in Redis, in each store.
#[tokio::test]
async fn keys_are_shown_where_the_rule_says_so() {
    let keys = Observed::by(|decided| {
        let rules = decided.rules.iter();
        let shown = rules.map(|it| format!("{} {:?}", it.rule.unwrap_or("-"), it.key()));
        shown.collect::<Vec<_>>()
    });
    let on_redis = patient(RedisServer::shared().url()).prefix(&unique("keys"));
    let shared = Rule::shared(&format!("{}:<key>:b", unique("own")));
    let shared = shared.or_init(Limit::per_hour(9)).named("shared");
    let layers = [
        RateLimitLayer::builder(&MemoryStore::new()),
        RateLimitLayer::builder(&on_redis.build().unwrap()),
    ];
    let long = "k".repeat(200);
    for builder in layers {
        let rules = [
            by_key(1).named("seen").observe_keys(),
            by_key(1).named("unseen"),
            shared
                .clone()
                .by((Constant("a:b"), FromHeader::new("x-key")))
                .observe_keys(),
        ];
        let layer = builder
            .otherwise(rules)
            .observe(keys.clone())
            .build()
            .unwrap();
        for key in ["ann {x}", "ann {x}", &long] {
            let _ = decide(&layer, request_of(key)).await;
        }
        let _ = decide(&layer, Request::new(())).await;
        // printf 'k%.0s' {1..200} | sha256sum | cut -c 1-32
        let digest = "!6de3c288691037361962041f2273f381";
        let ann = [
            r#"seen Some("ann%20%7Bx%7D")"#,
            "unseen None",
            r#"shared Some("a%3Ab,ann%20%7Bx%7D")"#,
        ];
        let seen = keys.take().concat();
        assert_eq!(seen[..6], [ann, ann].concat());
        assert!(
            seen[6].starts_with(&format!("seen Some(\"{digest}")),
            "{seen:?}"
        );
        assert_eq!(seen[7], "unseen None");
        assert_eq!(seen[9..], ["seen None"], "its key is missing");
    }
}

/// Observed by the metrics, too.
fn both_observers(ledger: &Arc<Sheet>) -> [Arc<dyn Observer>; 2] {
    [ledger.clone(), Arc::new(Metrics::new())]
}

#[test]
fn each_request_on_a_store_in_memory_is_reported_once() {
    for (most, is_full) in [(100_000, false), (6, true)] {
        metrics::recorded(async |recorder| {
            let ledger = Arc::new(Sheet::default());
            let [own, metrics] = both_observers(&ledger);
            let store = MemoryStore::builder().observe(own).observe(metrics);
            let store = store.max_limiters(most).build();
            each_is_reported_once((store, &ledger, recorder), 3_000, is_full).await;
            let sums = ledger.0.lock().unwrap();
            let mut sources = sums.requests.keys().map(|(_, source)| *source);
            assert_eq!(sources.any(|source| source == "estimate"), is_full);
        });
    }
}

#[test]
fn each_request_on_redis_is_reported_once() {
    metrics::recorded(async |recorder| {
        let ledger = Arc::new(Sheet::default());
        let prefix = unique("o8");
        let [own, metrics] = both_observers(&ledger);
        let store = patient(RedisServer::shared().url()).prefix(&prefix);
        let store = store.observe(own).observe(metrics).build().unwrap();
        each_is_reported_once((store, &ledger, recorder), 3_000, false).await;
        let sums = ledger.0.lock().unwrap();
        let sources: BTreeSet<_> = sums.requests.keys().map(|(_, source)| *source).collect();
        assert!(
            sources.is_superset(&all("store cache lease")),
            "{sources:?}"
        );
    });
}
