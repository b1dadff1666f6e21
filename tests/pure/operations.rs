//! The dashboard, the alerts and the page of operations agree with each other and with the metrics.

use std::{collections::BTreeSet, fs};

use kit::listed::{Listed, PAGE, listed, metric_of};

/// The labels that Prometheus adds.
const OF_TARGET: [&str; 2] = ["instance", "job"];

/// What an expression asks for.
#[derive(Debug, Default)]
struct Asked {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
    groupings: BTreeSet<String>,
    values: BTreeSet<String>,
    /// The labels that are shown beside the result.
    shown: BTreeSet<String>,
}

/// The texts between two others.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    let rests = text.split(begin).skip(1);
    rests.map(move |rest| rest.split_once(end).expect("an end").0)
}

fn asked(text: &str, listed: &Listed) -> Asked {
    let mut asked = Asked::default();
    for (at, _) in text.match_indices("ratelimit_") {
        let is_name = |it: char| it.is_ascii_lowercase() || it == '_';
        let end = text[at..].find(|it| !is_name(it)).expect("an end");
        let (series, rest) = text[at..].split_at(end);
        let metric = metric_of(series, listed).unwrap_or_else(|| panic!("{series}: {text}"));
        asked.metrics.insert(metric.to_owned());
        let Some(rest) = rest.strip_prefix('{') else {
            continue;
        };
        let (matchers, _) = rest.split_once('}').expect("an end");
        for matcher in matchers.split(',') {
            let (label, _) = matcher
                .trim_start()
                .split_once(['=', '!'])
                .expect("an operator");
            assert!(listed[metric].1.contains(label), "{label} of {series}");
            let values = matcher.split('"').nth(1).expect("a value");
            asked.values.extend(values.split('|').map(str::to_owned));
        }
    }
    for metric in &asked.metrics {
        asked.labels.extend(listed[metric].1.iter().cloned());
    }
    let groupings = between(text, " by (", ")").flat_map(|labels| labels.split(", "));
    asked.groupings = groupings.map(str::to_owned).collect();
    let shown = between(text, "{{", "}}").map(|label| label.trim().trim_start_matches("$labels."));
    asked.shown = shown.map(str::to_owned).collect();
    asked
}

#[test]
fn what_operators_ask_for_is_there() {
    let read = |path: &str| fs::read_to_string(path).unwrap();
    let dashboard = read("examples/grafana/ratelimit.json").replace("\\\"", "\"");
    let alerts = read("examples/prometheus-alerts.yml");
    let (_, page) = PAGE.split_once("## What to watch").unwrap();
    let listed = listed();
    let targets = dashboard.split("\"refId\"");
    let queries = page.split("```").skip(1).step_by(2);
    let mut met = BTreeSet::new();
    for text in targets.chain(alerts.split("- alert:")).chain(queries) {
        let asked = asked(text, &listed);
        for value in &asked.values {
            assert!(PAGE.contains(&format!("`{value}`")), "{value}: {text}");
        }
        for label in &asked.groupings {
            let is_known = asked.labels.contains(label) || OF_TARGET.contains(&label.as_str());
            let is_bound = label == "le" && text.contains("_bucket");
            assert!(is_known || is_bound, "{label}: {text}");
        }
        assert!(asked.shown.is_subset(&asked.groupings), "{asked:?}");
        met.extend(asked.metrics);
    }
    let unused: Vec<_> = listed.keys().filter(|name| !met.contains(*name)).collect();
    assert!(unused.is_empty(), "listed, and not asked for: {unused:?}");
    for alert in between(&alerts, "- alert: ", "\n") {
        assert!(PAGE.contains(&format!("`{alert}`")), "what to do: {alert}");
    }
    // The page's prose names whole metrics.
    for prose in PAGE.split("```").step_by(2) {
        for name in between(prose, "`ratelimit_", "`") {
            let end = name.find('{').unwrap_or(name.len());
            let name = format!("ratelimit_{}", &name[..end]);
            assert!(listed.contains_key(&name), "{name} is not listed");
        }
    }
}
