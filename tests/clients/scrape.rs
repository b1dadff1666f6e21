//! Prometheus' own parser reads what the metrics render.

use std::{future::ready, net::SocketAddr, sync::Arc};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tower_ratelimit::{Limit, RateLimitLayer, key::PeerIp, observe::Metrics};

use super::{RedisServer, RedisStore, listen, run, unique, with_grpcio::python};

#[tokio::test]
async fn a_scrape_is_read() {
    let recorded = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &[0.001, 1.0])
        .and_then(PrometheusBuilder::install_recorder)
        .unwrap();
    let store = RedisStore::builder(RedisServer::shared().url())
        .prefix(&unique("t"))
        .deadline(super::PATIENCE)
        .observe(Arc::new(Metrics::new()))
        .build()
        .unwrap();
    // What a name may hold, and no label may break.
    let rule = Limit::per_hour(1).by(PeerIp).named("of-peers_0.9");
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(&store, rule))
        .route("/metrics", get(move || ready(recorded.render())));
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    let url = format!("http://{address}");
    for _ in 0..2 {
        run("curl", "curl", &["-s", &url]).await;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/scrape.py");
    let arguments = [script, &format!("{url}/metrics")];
    let python = python("prometheus_client").await;
    let printed = run("prometheus_client", python.to_str().unwrap(), &arguments).await;
    let mut families: Vec<_> = printed.lines().collect();
    families.sort_unstable();
    assert_eq!(
        families,
        [
            "ratelimit_connected gauge node",
            "ratelimit_limit_interval_seconds gauge rule",
            "ratelimit_limit_permits gauge rule",
            "ratelimit_permits counter kind rule",
            "ratelimit_requests counter result source",
            "ratelimit_rule_requests counter result rule",
            "ratelimit_store_callers summary quantile",
            "ratelimit_store_seconds histogram operation result",
        ]
    );
}
