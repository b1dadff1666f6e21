//! `ratelimit explain`: the rules that a request meets.

use std::{path::PathBuf, time::Duration};

use http::{HeaderName, HeaderValue};
use serde_json::json;
use toml::{Table, Value};
use tower_ratelimit::observe::{RequestResult, RuleResult};

use crate::{
    Answer, Stop, print, replay,
    rules::{Assumptions, fixed},
    traffic::{Met, Rule, Stage, columns, request},
};

/// Show which rules a request meets, and what each of them counts.
///
/// Names that only code defines are assumed and listed. Exits with 1 if the request would be
/// refused, whatever was counted before.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file of rules, in TOML
    file: PathBuf,
    /// The method
    #[arg(long, default_value = "GET")]
    method: String,
    /// The path, or the whole address
    #[arg(long)]
    path: String,
    /// The host
    #[arg(long)]
    host: Option<String>,
    /// The address of the peer
    #[arg(long, default_value = "192.0.2.1", value_name = "ADDRESS")]
    ip: std::net::IpAddr,
    /// A header field, as in `x-api-key: abc`
    #[arg(long, value_parser = header)]
    header: Vec<(String, String)>,
    /// A key that code defines, as in `user=ann`
    #[arg(long, value_parser = fixed::<String>, value_name = "NAME=VALUE")]
    key: Vec<(String, String)>,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let parts = text
        .split_once(':')
        .map(|(name, value)| (name.trim(), value.trim()));
    let valid = parts.filter(|(name, value)| {
        HeaderName::try_from(*name).is_ok() && HeaderValue::try_from(*value).is_ok()
    });
    let valid = valid.map(|(name, value)| (name.to_owned(), value.to_owned()));
    valid.ok_or_else(|| "write a header field as `name: value`".to_owned())
}

/// A rule, as it is shown.
struct Shown {
    rule: String,
    limit: String,
    cost: u32,
    algorithm: String,
    key: Option<String>,
    shadow: bool,
    missing: bool,
    /// Its other fields in the file.
    fields: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Stop> {
    let [loaded] = arguments.assumptions.load([&arguments.file])?;
    if let Some((name, _)) = arguments
        .key
        .iter()
        .find(|(name, _)| !loaded.keys.contains(name))
    {
        return Err(Stop::Usage(format!(
            "no rule counts by a key {name:?} of the code"
        )));
    }
    let mut stage = Stage::new(loaded.rules?)?;
    let ip = arguments.ip.to_string();
    let given = [
        Some(&ip),
        Some(&arguments.method),
        Some(&arguments.path),
        arguments.host.as_ref(),
        None,
    ];
    let others = arguments.header.iter().chain(&arguments.key);
    let others = others.map(|(name, value)| (name.as_str(), Some(value.as_str())));
    let request = request(given.map(|text| text.map(String::as_str)), others);
    let request = request.ok_or_else(|| {
        Stop::Usage(format!(
            "HTTP has no request {:?} {:?}",
            arguments.method, arguments.path
        ))
    })?;
    let (parts, ()) = request.clone().into_parts();
    let keys: Vec<_> = stage
        .layer
        .limiters_of(&parts)
        .iter()
        .map(|it| it.name().to_owned())
        .collect();
    let mut decided = None;
    stage.send(Duration::ZERO, request, (), &mut |(), event| {
        decided = Some(event);
    });
    let event = decided.ok_or_else(|| Stop::usage("the request would wait"))?;
    let known = stage.rules();
    let rules = event.rules.iter().filter_map(|met| {
        let rule = known.get(met.rule)?;
        Some(shown(rule, met, &keys, &loaded.table))
    });
    let rules: Vec<_> = rules.collect();
    print(&if arguments.json {
        object(event.result, &rules)
    } else {
        text(event.result, &rules)
    })?;
    Ok(if event.is_refused() {
        Answer::No
    } else {
        Answer::Yes
    })
}

fn shown(of: &Rule, met: &Met, keys: &[String], table: &Table) -> Shown {
    let rule = of.name.clone();
    let rules = table.get("rules").and_then(Value::as_table);
    let fields = rules.and_then(|rules| {
        let tier = || rules.get(rule.rsplit_once('.')?.0);
        rules.get(&rule).or_else(tier)?.as_table()
    });
    let algorithm = fields.and_then(|it| it.get("algorithm")?.as_str());
    // Shown in columns of their own.
    const KNOWN: [&str; 6] = ["rate", "tiers", "by", "cost", "algorithm", "shadow"];
    let others = fields.into_iter().flatten();
    let others = others.filter(|(name, _)| !KNOWN.contains(&name.as_str()));
    let others = others.map(|(name, value)| format!("{name} {}", crate::diff::text_of(value)));
    let end = format!("}}:{rule}");
    let mut keys = keys
        .iter()
        .filter_map(|key| Some(key.strip_suffix(&end)?.split_once(":{")?.1));
    let missing = met.result == RuleResult::MissingKey;
    Shown {
        limit: of.limit(),
        cost: met.permits,
        algorithm: algorithm.unwrap_or("sliding-log").to_owned(),
        key: keys.next().map(|key| key.escape_debug().collect()),
        shadow: met.shadow,
        missing,
        fields: others.collect::<Vec<_>>().join(", "),
        rule,
    }
}

fn text(result: RequestResult, rules: &[Shown]) -> String {
    let verdict = match result {
        RequestResult::Allow => "The request passes while these rules have permits.",
        RequestResult::NoRule => "The request meets no rule, and passes.",
        RequestResult::AllowedByList => "A list lets the request pass; no rule counts it.",
        RequestResult::DeniedByList => "A list refuses the request.",
        RequestResult::MissingKey => "The request is refused: it lacks the key of a rule.",
        RequestResult::AboveRate => "The request is refused: it costs more than a limit has.",
        _ => "The request is refused.",
    };
    let mut rows = vec![
        ["rule", "limit", "cost", "algorithm", "key", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(rules.iter().map(|it| {
        let mut notes = it.fields.clone();
        if it.shadow {
            notes = format!("shadow {notes}");
        }
        let none = if it.missing { "(missing)" } else { "(all)" };
        let key = it.key.clone().unwrap_or_else(|| none.to_owned());
        vec![
            it.rule.clone(),
            it.limit.clone(),
            it.cost.to_string(),
            it.algorithm.clone(),
            key,
            notes,
        ]
    }));
    match rules.is_empty() {
        true => format!("{verdict}\n"),
        false => format!("{}\n{verdict}\n", columns(&rows)),
    }
}

fn object(result: RequestResult, rules: &[Shown]) -> String {
    let rules = rules.iter().map(|it| {
        json!({
            "rule": it.rule, "limit": it.limit, "cost": it.cost, "algorithm": it.algorithm,
            "key": it.key, "missing_key": it.missing, "shadow": it.shadow, "fields": it.fields,
        })
    });
    let rules: Vec<_> = rules.collect();
    let object = json!({ "schema": replay::SCHEMA, "result": result.as_str(), "rules": rules });
    format!("{object:#}\n")
}
