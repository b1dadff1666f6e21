//! Prometheus' own tool reads the alerts, tries them, and reads what the dashboard asks for.

use std::{fs, path::Path};

use super::run;

const INSTALL: &str = "prometheus, which has promtool";

async fn promtool(arguments: &[&str], file: &Path) {
    let arguments = [arguments, &[file.to_str().unwrap()]].concat();
    run(INSTALL, "promtool", &arguments).await;
}

#[tokio::test]
async fn alerts_fire_when_they_should() {
    let alerts = kit::root().join("examples/prometheus-alerts.yml");
    promtool(&["check", "rules"], &alerts).await;
    promtool(
        &["test", "rules"],
        &kit::root().join("tests/clients/alerts.yml"),
    )
    .await;
}

#[tokio::test]
async fn prometheus_reads_what_the_dashboard_and_the_page_ask_for() {
    let dashboard = fs::read(kit::root().join("examples/grafana/ratelimit.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut asked: Vec<_> = targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(asked.len() > 12, "{asked:#?}");
    let page = include_str!("../../src/docs/operations.md");
    let (_, page) = page.split_once("## What to watch").unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let lines = blocks.filter(|block| block.starts_with("text"));
    let lines = lines.flat_map(|block| block.trim_start_matches("text").lines());
    for line in lines.filter(|line| !line.is_empty()) {
        if line.starts_with(' ') {
            asked.last_mut().unwrap().push_str(line);
        } else {
            asked.push(line.to_owned());
        }
    }
    // Each as a recording rule.
    let rules: Vec<_> = (0..)
        .zip(asked)
        .map(
            |(place, expr)| serde_json::json!({ "record": format!("asked:{place}"), "expr": expr }),
        )
        .collect();
    let groups = serde_json::json!({ "groups": [{ "name": "asked", "rules": rules }] });
    // JSON is YAML.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("asked.yml");
    fs::write(&file, groups.to_string()).unwrap();
    promtool(&["check", "rules"], &file).await;
}
