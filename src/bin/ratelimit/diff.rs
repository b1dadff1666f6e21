//! `ratelimit diff`: what differs between two files of rules, and who would notice.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    hash::BuildHasher,
    path::{Path, PathBuf},
};

use serde_json::{Value as Json, json};
use toml::{Table, Value};
use tower_ratelimit::Limit;

use crate::{
    Answer, Stop, print, replay,
    rules::Assumptions,
    say,
    traffic::{Columns, Event, Read, Rule, Stage, columns},
};

/// The callers of each kind that are listed.
const LISTED: usize = 10;

/// Compare two files of rules, and the callers that they refuse in an access log.
///
/// Each request of the log goes through both, in the log's time. Newly refused are callers that
/// only the new file refuses at all. Names that only code defines are assumed and listed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file in force
    old: PathBuf,
    /// The file that is to replace it
    new: PathBuf,
    /// The log to send through both; `-` is the standard input
    #[arg(long)]
    log: Option<PathBuf>,
    /// The column of the log that tells callers apart, as it is written
    #[arg(long, default_value = "ip", value_name = "COLUMN")]
    by: String,
    #[command(flatten)]
    columns: Columns,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Exit with 1 if a caller is newly refused
    #[arg(long, requires = "log")]
    fail_on_newly_refused: bool,
    /// Show callers by their keys instead of by digests
    #[arg(long)]
    show_keys: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Stop> {
    let files = [&*arguments.old, &*arguments.new];
    let loaded = arguments.assumptions.load(files)?;
    let changes = changes(&items(&loaded[0].table), &items(&loaded[1].table));
    let [old, new] = loaded.map(|file| file.rules);
    let in_file = |path: &PathBuf| {
        let path = path.display().to_string();
        move |error| Stop::Usage(format!("{path}: {error}"))
    };
    let stages = [
        Stage::new(old.map_err(in_file(&arguments.old))?)?,
        Stage::new(new.map_err(in_file(&arguments.new))?)?,
    ];
    let Some(log) = &arguments.log else {
        print(&match arguments.json {
            true => format!("{:#}\n", object(&changes)),
            false => text(&changes),
        })?;
        return Ok(Answer::Yes);
    };
    let callers = Callers::of(arguments, log, stages)?;
    print(&match arguments.json {
        true => {
            let mut object = object(&changes);
            object["log"] = callers.object();
            format!("{object:#}\n")
        }
        false => format!("{}\n{}", text(&changes), callers.text()),
    })?;
    if let Answer::No = callers.read.report(&callers.rules) {
        return Ok(Answer::No);
    }
    if arguments.fail_on_newly_refused && callers.kind(Kind::NewlyRefused).next().is_some() {
        say("the new file refuses callers that the old one does not");
        return Ok(Answer::No);
    }
    Ok(Answer::Yes)
}

/// A part of a file, such as `rules.login`, with its fields.
type Items = BTreeMap<String, BTreeMap<String, Value>>;

/// Returns the parts of a file.
fn items(file: &Table) -> Items {
    let mut items = Items::new();
    for (section, value) in file {
        match value {
            Value::Table(named) if section != "otherwise" => {
                for (name, item) in named {
                    let fields = item.as_table().cloned().unwrap_or_default();
                    items.insert(format!("{section}.{name}"), fields.into_iter().collect());
                }
            }
            Value::Table(fields) => {
                items.insert(section.clone(), fields.clone().into_iter().collect());
            }
            Value::Array(entries) if section != "headers" => {
                for entry in entries.iter().filter_map(Value::as_table) {
                    // An entry is known by what it matches.
                    let (rules, matches): (BTreeMap<_, _>, BTreeMap<_, _>) = entry
                        .clone()
                        .into_iter()
                        .partition(|(name, _)| name == "rules");
                    items.insert(format!("{section} {}", fields_text(&matches)), rules);
                }
            }
            _ => {
                let field = (String::new(), value.clone());
                items.insert(section.clone(), BTreeMap::from([field]));
            }
        }
    }
    items
}

/// A part that differs, with its fields: old and new.
struct Change {
    what: &'static str,
    item: String,
    fields: Vec<(String, Option<String>, Option<String>)>,
}

fn changes(old: &Items, new: &Items) -> Vec<Change> {
    let mut changes = Vec::new();
    let none = BTreeMap::new();
    let all = old
        .keys()
        .chain(new.keys().filter(|item| !old.contains_key(*item)));
    for item in all {
        let (before, after) = (old.get(item), new.get(item));
        let what = match (before, after) {
            (Some(_), Some(_)) => "changed",
            (None, _) => "added",
            (_, None) => "gone",
        };
        let (before, after) = (before.unwrap_or(&none), after.unwrap_or(&none));
        let fields = before
            .keys()
            .chain(after.keys().filter(|field| !before.contains_key(*field)));
        let fields = fields.filter_map(|field| {
            let (old, new) = (before.get(field), after.get(field));
            let differs = !old.zip(new).is_some_and(|(old, new)| are_equal(old, new));
            let text = |value: Option<&Value>| value.map(text_of);
            differs.then(|| (field.clone(), text(old), text(new)))
        });
        let (item, fields) = (item.clone(), fields.collect::<Vec<_>>());
        if what != "changed" || !fields.is_empty() {
            changes.push(Change { what, item, fields });
        }
    }
    changes
}

/// Returns whether two values mean the same: 60/1m is 60/60s.
fn are_equal(old: &Value, new: &Value) -> bool {
    let limit = |value: &Value| value.as_str()?.parse::<Limit>().ok();
    match (old.as_table(), new.as_table()) {
        (Some(old), Some(new)) => {
            let both = |(name, value): (&String, &Value)| {
                new.get(name).is_some_and(|other| are_equal(value, other))
            };
            old.len() == new.len() && old.iter().all(both)
        }
        _ => old == new || limit(old).is_some_and(|old| limit(new) == Some(old)),
    }
}

/// Returns a value as words, harmless for a terminal.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.escape_debug().collect(),
        Value::Array(values) => {
            let values = values.iter().map(text_of).collect::<Vec<_>>();
            format!("[{}]", values.join(", "))
        }
        Value::Table(fields) => {
            let fields = fields.clone().into_iter().collect();
            format!("{{ {} }}", fields_text(&fields))
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is) => is.to_string(),
        Value::Datetime(time) => time.to_string(),
    }
}

fn fields_text(fields: &BTreeMap<String, Value>) -> String {
    let fields = fields
        .iter()
        .map(|(name, value)| format!("{name} {}", text_of(value)));
    fields
        .collect::<Vec<_>>()
        .join(", ")
        .escape_debug()
        .collect()
}

fn text(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "The files mean the same.\n".to_owned();
    }
    let rows = changes.iter().map(|change| {
        let fields = change
            .fields
            .iter()
            .map(|(field, old, new)| match (old, new) {
                (Some(old), Some(new)) => format!("{field} {old} -> {new}"),
                (None, Some(new)) if change.what == "added" => format!("{field} {new}"),
                (None, Some(new)) => format!("{field} (none) -> {new}"),
                (Some(old), None) if change.what == "gone" => format!("{field} {old}"),
                (old, _) => format!("{field} {} -> (none)", old.as_deref().unwrap_or_default()),
            });
        let fields = fields.collect::<Vec<_>>().join(", ");
        let item = change.item.escape_debug().collect();
        vec![change.what.to_owned(), item, fields.trim_start().to_owned()]
    });
    columns(&rows.collect::<Vec<_>>())
}

fn object(changes: &[Change]) -> Json {
    let changes = changes.iter().map(|change| {
        let fields = change.fields.iter();
        let fields =
            fields.map(|(field, old, new)| json!({ "field": field, "old": old, "new": new }));
        json!({ "change": change.what, "item": change.item, "fields": fields.collect::<Vec<_>>() })
    });
    json!({ "schema": replay::SCHEMA, "changes": changes.collect::<Vec<_>>() })
}

/// How a caller fares with the new file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    NewlyRefused,
    LetThrough,
    RefusedMore,
    RefusedLess,
}

impl Kind {
    const ALL: [(Self, &str, &str); 4] = [
        (Self::NewlyRefused, "newly_refused", "newly refused"),
        (Self::LetThrough, "newly_let_through", "newly let through"),
        (Self::RefusedMore, "refused_more", "refused more often"),
        (Self::RefusedLess, "refused_less", "refused less often"),
    ];

    fn of(old: u64, new: u64) -> Option<Self> {
        match (old, new) {
            (0, 1..) => Some(Self::NewlyRefused),
            (1.., 0) => Some(Self::LetThrough),
            _ if old < new => Some(Self::RefusedMore),
            _ if old > new => Some(Self::RefusedLess),
            _ => None,
        }
    }
}

/// The callers of a log that one of the files refuses.
struct Callers {
    read: Read,
    /// The rules of both files that were met.
    rules: Vec<Rule>,
    /// The requests that each file refuses, of all callers.
    refused: [u64; 2],
    /// The same by caller, or its digest.
    callers: Vec<(String, [u64; 2])>,
}

impl Callers {
    /// Sends a log through both files.
    fn of(
        arguments: &Arguments,
        log: &Path,
        [mut old, mut new]: [Stage<Option<Box<str>>>; 2],
    ) -> Result<Self, Stop> {
        let mut refused = [0; 2];
        let mut callers = HashMap::<Box<str>, [u64; 2]>::new();
        let mut count = |file: usize, caller: Option<Box<str>>, event: &Event| {
            if !event.is_refused() {
                return;
            }
            refused[file] += 1;
            if let Some(caller) = caller.filter(|caller| !matches!(&**caller, "" | "-")) {
                callers.entry(caller).or_default()[file] += 1;
            }
        };
        let read = arguments.columns.read(log, Some(&arguments.by), |line| {
            let (time, request, caller) = (line.time, line.request, line.caller);
            let again = (request.clone(), caller.clone());
            old.send(time, request, caller, &mut |caller, event| {
                count(0, caller, &event);
            });
            new.send(time, again.0, again.1, &mut |caller, event| {
                count(1, caller, &event);
            });
        })?;
        let secret = RandomState::new();
        let named = callers.into_iter().map(|(caller, refused)| {
            let shown = match arguments.show_keys {
                true => caller.escape_debug().collect(),
                false => format!("{:016x}", secret.hash_one(&caller)),
            };
            (shown, refused)
        });
        let mut callers: Vec<_> = named.collect();
        callers.sort_by_key(|(caller, [old, new])| (Reverse(old.abs_diff(*new)), caller.clone()));
        let rules = [old.rules(), new.rules()].concat();
        Ok(Self {
            read,
            rules,
            refused,
            callers,
        })
    }

    fn kind(&self, kind: Kind) -> impl Iterator<Item = &(String, [u64; 2])> {
        let callers = self.callers.iter();
        callers.filter(move |(_, [old, new])| Kind::of(*old, *new) == Some(kind))
    }

    fn text(&self) -> String {
        let [old, new] = self.refused;
        let requests = self.read.rows.requests - self.read.invalid;
        let mut text = format!("Refused of {requests} requests: {old} -> {new}.\n");
        for (kind, _, words) in Kind::ALL {
            let count = self.kind(kind).count();
            text.push_str(&format!("Callers {words}: {count}\n"));
            let rows = self.kind(kind).take(LISTED).map(|(caller, [old, new])| {
                vec![format!("  {caller}"), format!("{old} -> {new} requests")]
            });
            text.push_str(&columns(&rows.collect::<Vec<_>>()));
            if count > LISTED {
                text.push_str(&format!("  and {} more\n", count - LISTED));
            }
        }
        text.push_str(
            "Callers would have sent the same requests had they been refused: that is assumed.\n",
        );
        text
    }

    fn object(&self) -> Json {
        let mut object = self.read.object();
        object["refused"] = json!(self.refused);
        for (kind, name, _) in Kind::ALL {
            let callers = self.kind(kind);
            let callers =
                callers.map(|(caller, refused)| json!({ "caller": caller, "refused": refused }));
            object[name] = callers.collect();
        }
        object
    }
}
