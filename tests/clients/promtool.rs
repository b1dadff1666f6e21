//! Prometheus' own tool reads the alerts, tries them, and reads what the dashboard asks for.

use std::{fs, path::Path};

use super::run;

const INSTALL: &str = "prometheus, which has promtool";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

async fn promtool(arguments: &[&str], file: &Path) {
    let arguments = [arguments, &[file.to_str().unwrap()]].concat();
    run(INSTALL, "promtool", &arguments).await;
}

#[tokio::test]
async fn alerts_fire_when_they_should() {
    let alerts = root().join("examples/prometheus-alerts.yml");
    promtool(&["check", "rules"], &alerts).await;
    promtool(&["test", "rules"], &root().join("tests/clients/alerts.yml")).await;
}

#[tokio::test]
async fn prometheus_reads_what_the_dashboard_asks_for() {
    let dashboard = fs::read(root().join("examples/grafana/ratelimit.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    // Each as a recording rule.
    let rules: Vec<_> = targets
        .enumerate()
        .map(|(place, target)| {
            let record = format!("panel:{place}");
            serde_json::json!({ "record": record, "expr": target["expr"] })
        })
        .collect();
    assert!(rules.len() > 12, "{rules:#?}");
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    // JSON is YAML.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard.yml");
    fs::write(&file, groups.to_string()).unwrap();
    promtool(&["check", "rules"], &file).await;
}
