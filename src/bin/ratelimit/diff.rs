//! `ratelimit diff`: what differs between two files of rules, and who would notice.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::RandomState},
    hash::BuildHasher,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tower_ratelimit::{ConfigError, Limit, Rules};

use crate::{
    Stop, impact,
    out::{Field, Format, columns, harmless, objects, say, table},
    replay::ASSUMED,
    rules::{Assumptions, read_toml},
    traffic::{Columns, Stage},
};

/// The callers of each kind that are listed.
const LISTED: usize = 10;

/// Compare two files of rules, also by what they refuse of a log.
///
/// Each request of the log goes through both, in the log's time. Newly refused are callers that
/// only the new file refuses at all. Names that only code defines are assumed and listed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file in force
    old: PathBuf,
    /// The file that is to replace it
    new: PathBuf,
    /// The log to send through both
    ///
    /// `-` is the standard input.
    #[arg(long)]
    log: Option<PathBuf>,
    /// The column of the callers
    ///
    /// `ip` groups addresses as rules by `peer` do.
    #[arg(long, default_value = "ip", value_name = "COLUMN")]
    by: String,
    #[command(flatten)]
    columns: Columns,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Exit with 1 if a caller is newly refused
    #[arg(long, requires = "log")]
    fail_on_newly_refused: bool,
    /// Show callers by their keys, not by digests
    #[arg(long)]
    show_keys: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Stop> {
    let files = [&*arguments.old, &*arguments.new];
    let [old, new] = arguments.assumptions.load(files)?.rules;
    let stage = |rules: Result<Rules, ConfigError>, path: &Path| {
        let rules = rules.map_err(|error| Stop::usage(format!("{}: {error}", path.display())))?;
        Ok::<_, Stop>(Stage::new(rules)?)
    };
    let stages = [stage(old, files[0])?, stage(new, files[1])?];
    let changes = changes(&items(&arguments.old)?, &items(&arguments.new)?);
    let mut object = json!({ "changes": changes });
    let mut words = text(&changes);
    let mut answer = true;
    if let Some(log) = &arguments.log {
        let impact = impact::send(&arguments.columns, log, Some(&arguments.by), stages)?;
        let refused = impact.effects.each_ref().map(|effect| effect.refused);
        let callers = [[true, false], [false, true]].map(|refusing| {
            let is_it = |refused: &[u64; 2]| refused.map(|it| it == 0) == refusing;
            let callers = impact.callers.iter().filter(|(_, refused)| is_it(refused));
            let callers = callers.map(|(caller, of)| (&**caller, of[0] + of[1]));
            shown(callers, arguments.show_keys)
        });
        words += &log_text(impact.read.requests(), refused, &callers);
        let [newly_refused, let_through] = &callers;
        object["log"] = impact.read.object();
        object["log"]["refused"] = json!(refused);
        object["log"]["newly_refused"] = objects(newly_refused);
        object["log"]["newly_let_through"] = objects(let_through);
        let rules = impact.effects.iter().flat_map(|effect| &effect.rules);
        answer = impact.read.report(rules);
        if arguments.fail_on_newly_refused && !newly_refused.is_empty() {
            say("the new file refuses callers that the old one does not");
            answer = false;
        }
    }
    arguments.format.print(&words, object)?;
    Ok(answer)
}

/// Parts of a file, such as `rules.login`, with the texts of their fields.
type Items = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the parts of a file that is known to be good.
fn items(path: &Path) -> Result<Items, Stop> {
    let mut items = Items::new();
    add(&mut items, "", &read_toml(path)?);
    Ok(items)
}

fn add(items: &mut Items, item: &str, table: &Value) {
    for (name, value) in table.as_object().into_iter().flatten() {
        let name = harmless(name);
        let dot = if item.is_empty() { "" } else { "." };
        match value {
            Value::Object(_) => add(items, &format!("{item}{dot}{name}"), value),
            Value::Array(entries) if entries.iter().any(Value::is_object) => {
                for mut entry in entries.iter().cloned() {
                    let rules = entry.as_object_mut().and_then(|it| it.remove("rules"));
                    // An entry is known by what it matches.
                    let fields = items
                        .entry(format!("{name} {}", text_of(&entry)))
                        .or_default();
                    fields.extend(rules.map(|rules| ("rules".to_owned(), text_of(&rules))));
                }
            }
            _ => {
                let fields = items.entry(item.to_owned()).or_default();
                fields.insert(name, text_of(value));
            }
        }
    }
}

/// Returns a value as words, harmless for a terminal: the same for values that mean the same, as
/// 60/1m and 60/60s do.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => match text.parse::<Limit>() {
            Ok(limit) => limit.to_string(),
            Err(_) => harmless(text),
        },
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(text_of).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| format!("{} {}", harmless(name), text_of(value));
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// Returns the parts that differ, each with the fields that do.
fn changes(old: &Items, new: &Items) -> Vec<Value> {
    let mut changes = Vec::new();
    for item in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (old.get(item), new.get(item));
        let what = match (before, after) {
            (Some(_), Some(_)) => "changed",
            (None, _) => "added",
            (_, None) => "gone",
        };
        let names = before.into_iter().chain(after).flat_map(BTreeMap::keys);
        let fields = names
            .collect::<BTreeSet<_>>()
            .into_iter()
            .filter_map(|name| {
                let [old, new] = [before, after].map(|fields| fields?.get(name));
                (old != new).then(|| json!({ "field": name, "old": old, "new": new }))
            });
        let fields: Vec<_> = fields.collect();
        if before.is_none() || after.is_none() || !fields.is_empty() {
            changes.push(json!({ "change": what, "item": item, "fields": fields }));
        }
    }
    changes
}

fn text(changes: &[Value]) -> String {
    if changes.is_empty() {
        return "The files mean the same.\n".to_owned();
    }
    let rows = changes.iter().map(|change| {
        let of = |value: &Value| value.as_str().unwrap_or("(none)").to_owned();
        let fields = change["fields"].as_array().into_iter().flatten().map(|it| {
            let (name, old, new) = (of(&it["field"]), of(&it["old"]), of(&it["new"]));
            match change["change"].as_str() {
                Some("added") => format!("{name} {new}"),
                Some("gone") => format!("{name} {old}"),
                _ => format!("{name} {old} -> {new}"),
            }
        });
        let fields = fields.collect::<Vec<_>>().join(", ");
        vec![of(&change["change"]), of(&change["item"]), fields]
    });
    columns(&rows.collect::<Vec<_>>())
}

/// Returns callers, the most refused first.
fn shown<'c>(callers: impl Iterator<Item = (&'c str, u64)>, keys: bool) -> Vec<Vec<Field>> {
    let secret = RandomState::new();
    let mut callers: Vec<_> = callers.collect();
    callers.sort_by(|one, other| (other.1, one.0).cmp(&(one.1, other.0)));
    let shown = callers.into_iter().map(|(caller, requests)| {
        let caller = match keys {
            true => harmless(caller),
            false => format!("{:016x}", secret.hash_one(caller)),
        };
        vec![("caller", json!(caller)), ("requests", json!(requests))]
    });
    shown.collect()
}

fn log_text(requests: u64, [old, new]: [u64; 2], callers: &[Vec<Vec<Field>>; 2]) -> String {
    let mut text = format!("\nRefused of {requests} requests: {old} -> {new}.\n");
    for (words, callers) in ["refused", "let through"].into_iter().zip(callers) {
        let listed = callers.get(..LISTED).unwrap_or(callers);
        text += &format!("Callers newly {words}: {}\n", callers.len());
        text += &table(listed);
        if callers.len() > LISTED {
            text += &format!("and {} more\n", callers.len() - LISTED);
        }
    }
    text + ASSUMED
}
