//! The metrics, as Prometheus scrapes them.

use std::collections::{BTreeMap, BTreeSet};

use super::{by_key, request_of};
use kit::{
    listed::{Listed, listed, metric_of},
    scene::*,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use tower_ratelimit::{Rules, key::Secret, observe::Metrics};

fn recorder() -> PrometheusRecorder {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &[0.001, 1.0])
        .and_then(|it| {
            it.set_buckets_for_metric(Matcher::Suffix("_callers".to_owned()), &[1.0, 8.0])
        });
    builder.unwrap().build_recorder()
}

/// Runs a scenario on this thread, whose metrics go to a recorder of its own.
pub(super) fn recorded(scenario: impl AsyncFnOnce(&PrometheusRecorder)) {
    let recorder = recorder();
    metrics::with_local_recorder(&recorder, || runtime().block_on(scenario(&recorder)));
}

/// The samples of a scrape, each with its labels in their order.
pub(super) fn samples(recorder: &PrometheusRecorder) -> BTreeMap<String, f64> {
    let text = recorder.handle().render();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

fn rule(name: &str) -> Rule {
    by_key(2).named(name)
}

/// Layers are built when a service starts, perhaps before it installs a recorder. What requests of
/// each kind are counted as, `super::each_is_reported_once` says.
#[test]
fn a_recorder_that_comes_after_the_layer_is_built_counts() {
    let store = MemoryStore::builder()
        .observe(Arc::new(Metrics::new()))
        .build();
    let both = Limit::per_second(10).and(Limit::per_hour(500));
    let layer = layer_of(&store, [rule("a"), both.by(Constant("all")).named("b")]);
    recorded(async |recorder| {
        let _ = decide(&layer, request_of("ann")).await;
        let samples = samples(recorder);
        for (name, value) in [
            (r#"requests_total{result="allow",source="store"}"#, 1.0),
            (r#"rule_requests_total{rule="a",result="taken"}"#, 1.0),
            (r#"permits_total{rule="a",kind="taken"}"#, 1.0),
            (r#"limit_permits{rule="a"}"#, 2.0),
            (r#"limit_interval_seconds{rule="a"}"#, 3600.0),
            (r#"limit_permits{rule="b"}"#, 10.0),
            (r#"limit_interval_seconds{rule="b"}"#, 1.0),
            (r#"limit_permits{rule="b.1h"}"#, 500.0),
            (r#"limit_interval_seconds{rule="b.1h"}"#, 3600.0),
            ("limiters", 2.0),
        ] {
            let found = samples.get(&format!("ratelimit_{name}"));
            assert_eq!(found, Some(&value), "{name}: {samples:#?}");
        }
    });
}

/// However many servers there are, 66 have a label of their own.
#[test]
fn a_flood_of_servers_makes_few_series() {
    recorded(async |recorder| {
        let metrics = Arc::new(Metrics::new());
        for port in 1..=70 {
            // Nothing answers there.
            let store = patient(format!("redis://secret:pass@127.0.0.1:{port}"));
            let store = store.observe(metrics.clone()).build().unwrap();
            store.ping().await.unwrap_err();
        }
        let samples = samples(recorder);
        let nodes = samples.keys().filter(|name| name.contains("node="));
        let nodes: Vec<_> = nodes.collect();
        assert_eq!(nodes.len(), 67, "{nodes:#?}");
        assert!(samples.contains_key("ratelimit_connected{node=\"others\"}"));
        assert!(
            nodes.iter().all(|name| !name.contains("pass")),
            "{nodes:#?}"
        );
    });
}

/// Remembers what metrics are described as.
#[derive(Debug, Default)]
struct Described(Mutex<BTreeMap<String, (&'static str, Option<Unit>)>>);

impl Described {
    fn describe(&self, name: &KeyName, kind: &'static str, unit: Option<Unit>) {
        let mut all = self.0.lock().unwrap();
        all.insert(name.as_str().to_owned(), (kind, unit));
    }
}

impl Recorder for Described {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, "counter", unit);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, "gauge", unit);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, "histogram", unit);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn each_metric_is_described_with_its_unit() {
    let described = Described::default();
    metrics::with_local_recorder(&described, || {
        runtime().block_on(async {
            let store = MemoryStore::builder()
                .observe(Arc::new(Metrics::new()))
                .build();
            let _ = decide(&layer_of(&store, rule("a")), request_of("ann")).await;
        });
    });
    let described = described.0.into_inner().unwrap();
    let listed = listed();
    assert_eq!(
        described.keys().collect::<Vec<_>>(),
        listed.keys().collect::<Vec<_>>()
    );
    for (name, (kind, unit)) in described {
        assert_eq!(kind, listed[&name].0, "{name}");
        let expected = if name.ends_with("_seconds") {
            Unit::Seconds
        } else {
            Unit::Count
        };
        assert_eq!(unit, Some(expected), "{name}");
    }
}

/// Of all stores of an observer together; a clone is no other store.
#[test]
fn gauges_say_what_is_kept_in_memory() {
    recorded(async |recorder| {
        let metrics = Arc::new(Metrics::new());
        let is = |name: &str, value: f64| {
            let samples = samples(recorder);
            assert_eq!(samples.get(name), Some(&value), "{name}: {samples:#?}");
        };
        let stores = [(); 2].map(|()| MemoryStore::builder().observe(metrics.clone()).build());
        let layers = stores.each_ref().map(|store| layer_of(store, rule("a")));
        for key in ["ann", "bob", "ann", "ann"] {
            let _ = decide(&layers[0], request_of(key)).await;
        }
        let _ = decide(&layers[1].clone(), request_of("ann")).await;
        is("ratelimit_limiters", 3.0);
        let bob = layers[0].limiter("a", ["bob"]).unwrap();
        assert!(bob.delete().await.unwrap());
        is("ratelimit_limiters", 2.0);
        assert_eq!(stores.map(|store| store.len()), [1, 1]);

        let store = shared_redis()
            .deny_cache(secs(60))
            .observe(metrics)
            .build()
            .unwrap();
        let layer = layer_of(&store, rule("b"));
        for key in ["ann", "bob", "bob", "bob", "bob", "ann", "ann", "ann"] {
            let _ = decide(&layer, request_of(key)).await;
        }
        is("ratelimit_remembered", 2.0);
        is("ratelimit_limiters", 2.0);
    });
}

/// Neither callers nor what they send make series, also where their keys are secrets.
#[test]
fn a_flood_of_keys_makes_no_series() {
    recorded(async |recorder| {
        let store = MemoryStore::builder()
            .max_limiters(1_000)
            .observe(Arc::new(Metrics::new()))
            .build();
        let secret = Secret::new("k1", "a secret of these tests and of no user").unwrap();
        let digested = Limit::per_hour(1).by(FromHeader::new("x-key").digest(&secret));
        let layer = layer_of(&store, [rule("a"), digested.named("digested")]);
        let ask = async |place: u64| {
            send(&layer, request_of(&format!("caller-{place}\"}}{{x="))).await;
        };
        for place in 0..100_000 {
            ask(place).await;
        }
        let after: BTreeSet<_> = samples(recorder).into_keys().collect();
        assert!(after.len() < 40, "{}", after.len());
        assert!(
            after.iter().all(|name| !name.contains("caller")),
            "{after:#?}"
        );
    });
}

/// Has everything happen that is counted, and returns the scrape.
async fn everything(recorder: &PrometheusRecorder) -> String {
    let mut server = RedisServer::start();
    let metrics = Arc::new(Metrics::new());
    let store = hasty(server.url(), millis(50))
        .breaker(2)
        .observe(metrics.clone());
    let store = store.build().unwrap();
    let rules = || {
        Rules::new()
            .on("/wait", rule("wait").wait(secs(7200)))
            .on("/refund", rule("refund").charge_if(|_| false))
            .on("/open", rule("open").on_failure(FailurePolicy::Allow))
            .otherwise(rule("a"))
    };
    // On a busy machine the hasty store does not answer each of the first requests.
    let calm = patient(server.url()).observe(metrics.clone());
    let calm = calm.build().unwrap();
    let layer_of = |store| RateLimitLayer::builder(store).rules(rules()).build();
    let [calm, layer] = [&calm, &store].map(|store| layer_of(store).unwrap());
    let ask = async |layer: &RateLimitLayer, path: &str| {
        let mut request = request_of("ann");
        *request.uri_mut() = path.parse().unwrap();
        send(layer, request).await
    };
    layer.reload(rules()).unwrap();
    for _ in 0..3 {
        let _ = ask(&calm, "/").await;
    }
    let _ = ask(&calm, "/refund").await;
    let in_memory = MemoryStore::builder().observe(metrics).build();
    let _ = limited(&in_memory, Limit::per_hour(1)).await;
    for _ in 0..3 {
        let _ = tokio::time::timeout(millis(200), ask(&calm, "/wait")).await;
    }
    let direct = patient(server.url()).build().unwrap();
    let direct = limited(&direct, Limit::per_hour(5_000)).await;
    let limiter = RateLimiter::new(&store, direct.name()).unwrap();
    let mut grants = Vec::new();
    for _ in 0..1_100 {
        grants.push(take(&direct, 1).await);
    }
    // More at once than may be in flight.
    let burst: Vec<_> = (0..2_000)
        .map(|place| {
            let (layer, key) = (layer.clone(), format!("key-{place}"));
            tokio::spawn(async move { send(&layer, request_of(&key)).await })
        })
        .collect();
    for request in burst {
        request.await.unwrap();
    }
    server.stop_process();
    for grant in &grants {
        limiter.settle(grant, 0);
    }
    until("receipts are lost, and the breaker opens", async || {
        let _ = ask(&layer, "/open").await;
        let text = recorder.handle().render();
        text.contains("ratelimit_lost_total") && text.contains("ratelimit_breaker_open")
    })
    .await;
    server.resume();
    recorder.handle().render()
}

#[test]
fn a_recorder_that_comes_before_the_first_request_has_everything() {
    recorded(async |recorder| {
        let text = everything(recorder).await;
        let listed = listed();
        for (name, (kind, _)) in &listed {
            assert!(
                text.contains(&format!("# TYPE {name} {kind}\n")),
                "{name}: {text}"
            );
            assert!(text.contains(&format!("# HELP {name} ")), "{name}: {text}");
        }
        let series = samples(recorder).into_keys();
        let scraped: BTreeSet<_> = series.map(|series| family(&series, &listed)).collect();
        let of_page: BTreeSet<_> = listed
            .into_iter()
            .map(|(name, (_, labels))| (name, labels))
            .collect();
        assert_eq!(scraped, of_page);
    });
}

/// The metric of a sample, and its labels.
fn family(sample: &str, listed: &Listed) -> (String, BTreeSet<String>) {
    let (series, labels) = sample.split_once('{').unwrap_or((sample, ""));
    let metric = metric_of(series, listed).unwrap_or_else(|| panic!("{series} is not listed"));
    let labels = labels
        .split(',')
        .filter_map(|label| label.split_once('='))
        .map(|(label, _)| label);
    let labels = labels.filter(|label| *label != "le").map(str::to_owned);
    (metric.to_owned(), labels.collect())
}
