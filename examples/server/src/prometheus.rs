//! What the limits count, as Prometheus reads it.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Installs the recorder. Without buckets, histograms would be rendered as summaries.
pub(crate) fn record() -> Result<PrometheusHandle, BuildError> {
    let seconds = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
    ];
    let callers = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let recorded = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &seconds)?
        .set_buckets_for_metric(Matcher::Suffix("_callers".to_owned()), &callers)?
        .install_recorder()?;
    let upkeep = recorded.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorded)
}
