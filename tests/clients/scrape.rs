//! Prometheus' own parser reads what the example server renders.

use std::collections::BTreeSet;

use super::{run, with_grpcio::python};
use kit::{
    RedisServer,
    listed::{listed, metric_of},
    running::Running,
};

#[tokio::test]
async fn a_scrape_is_read() {
    // Its own, because limits that other tests leave behind would be met here.
    let redis = RedisServer::start();
    let server = Running::start("server", Some(&redis));
    let url = format!("http://127.0.0.1:{}", server.port());
    for path in ["/", "/data", "/patient", "/patient"] {
        run("curl", "curl", &["-s", &format!("{url}{path}")]).await;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/scrape.py");
    let arguments = [script, &format!("{url}/metrics")];
    let python = python("prometheus_client").await;
    let printed = run("prometheus_client", python.to_str().unwrap(), &arguments).await;
    let listed = listed();
    let mut seen = BTreeSet::new();
    for series in printed.lines() {
        let mut words = series.split(' ');
        let (kind, name) = (words.next().unwrap(), words.next().unwrap());
        let metric = metric_of(name, &listed).unwrap_or_else(|| panic!("not listed: {series}"));
        let (listed_kind, labels) = &listed[metric];
        assert_eq!(kind, listed_kind, "{series}");
        let found: BTreeSet<_> = words
            .map(|label| label.split_once('=').unwrap().0.to_owned())
            .filter(|label| label != "le")
            .collect();
        assert_eq!(found, *labels, "{series}");
        seen.insert(metric);
    }
    let expected = [
        "ratelimit_connected",
        "ratelimit_limit_interval_seconds",
        "ratelimit_limit_permits",
        "ratelimit_permits_total",
        "ratelimit_remembered",
        "ratelimit_requests_total",
        "ratelimit_rule_requests_total",
        "ratelimit_rules_applied_timestamp_seconds",
        "ratelimit_rules_reloads_total",
        "ratelimit_store_callers",
        "ratelimit_store_seconds",
    ];
    assert_eq!(seen, BTreeSet::from(expected), "{printed}");
    for series in [
        "counter ratelimit_requests_total result=deny source=store",
        "counter ratelimit_rule_requests_total result=deny rule=patient",
        "counter ratelimit_rule_requests_total result=missing_key rule=key",
        "histogram ratelimit_store_seconds_bucket le=0.0005 operation=packed/decide result=ok",
    ] {
        assert!(
            printed.lines().any(|line| line == series),
            "{series}: {printed}"
        );
    }
}
