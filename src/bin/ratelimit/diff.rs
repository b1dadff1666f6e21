//! `ratelimit diff`: lists what differs between two rules files, and which callers would notice.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::RandomState},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use toml::de::DeTable;
use tower_ratelimit::Limit;

use crate::{
    Stop,
    access_log::shown_caller,
    assumptions::{Assumptions, FileText},
    dry_run::{DryRun, is_refused},
    needs::needs,
    out::{Format, counted, harmless, in_file, say, table},
    replay::ASSUMED,
    requests::{LogOptions, columns_line, present},
};

/// Why a log does not show that no caller is newly refused.
const NEW: &str = "the new file refuses callers that the old one does not";
const NEW_OF_NONE: &str =
    "the new file refuses requests without a caller that the old one does not";
const NO_REQUESTS: &str = "the log has no requests, so it does not show what the new file refuses";
const WAITING: &str = "requests would wait in the new file: here they take no permits and fill no \
                       queue, so the log does not show what it refuses";
const APPROXIMATE: &str = "the figures are approximate, so they do not show that no caller is \
                           newly refused: log milliseconds";
/// The callers of each kind that are listed.
const LISTED: usize = 10;

/// Compare two rules files, and what each refuses of a log.
///
/// It prints the fields that differ. Each request of a log goes through both files, in the log's
/// time. Newly refused are callers that only the new file refuses at all. Names that only code
/// defines are assumed and listed.
///
/// Example: `ratelimit diff limits.toml new.toml --log access.log --fail-on-newly-refused`.
///
/// Exits with 0 if they were compared, also if they differ; with 1 if more than 1 % of the log's
/// lines were left out, if it lacks what rules ask for, or by `--fail-on-newly-refused`; with 2 if
/// a file has an error or the log's columns are not what their names say.
#[derive(clap::Args)]
pub(crate) struct DiffArguments {
    /// The file in force
    old: PathBuf,
    /// The file that is to replace it
    new: PathBuf,
    /// The access log to send through both
    ///
    /// `-` is the standard input. `ratelimit replay --help` says which logs are read.
    #[arg(long)]
    log: Option<PathBuf>,
    /// The column of the callers
    ///
    /// They are listed by it: what rules count by is in the files. `ip` groups addresses as rules
    /// by `peer` do.
    #[arg(long, default_value = "ip", value_name = "COLUMN")]
    by: String,
    #[command(flatten)]
    columns: LogOptions,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Exit with 1 if a caller is newly refused
    ///
    /// Also if the log does not show it: it has no requests, or lacks what the rules ask for, its
    /// times are too coarse for a rule, or requests would wait for permits in the new file.
    #[arg(long, requires = "log")]
    fail_on_newly_refused: bool,
    /// Show callers by their keys, not by digests
    #[arg(long)]
    show_keys: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &DiffArguments) -> Result<bool, Stop> {
    let (old_path, new_path) = (&arguments.old, &arguments.new);
    let files = [FileText::read(old_path)?, FileText::read(new_path)?];
    let ([old, new], _) = arguments.assumptions.load(files.each_ref())?;
    let dry_runs = [
        DryRun::new(old.map_err(in_file(old_path))?)?,
        DryRun::new(new.map_err(in_file(new_path))?)?,
    ];
    let changes = changes(files.each_ref().map(Compared::of));
    let mut words = table("item field old new", &changes);
    if changes.is_empty() {
        words += "The files mean the same.\n";
    }
    let (mut object, mut answer) = (json!({ "changes": changes }), true);
    if let Some(log) = &arguments.log {
        let (text, effect, is_good) = send(arguments, log, dry_runs, &files, changes.is_empty())?;
        (object["log"], answer) = (effect, is_good);
        words += &text;
    }
    arguments.format.print(&words, object)?;
    Ok(answer)
}

/// By caller, the requests that the old and the new file refuse.
type RefusalCounts = HashMap<Box<str>, [u64; 2]>;

/// Sends a log through both files. Returns what they do in words and as an object, and whether the
/// answer is yes. `same` is set if both mean the same.
fn send(
    arguments: &DiffArguments,
    log: &Path,
    mut dry_runs: [DryRun; 2],
    files: &[FileText; 2],
    same: bool,
) -> Result<(String, Value, bool), Stop> {
    let mut callers = RefusalCounts::new();
    // Newly refused, of no caller.
    let mut of_none = 0;
    let (columns, by) = (&arguments.columns, Some(&*arguments.by));
    let read = columns.read((log, u64::MAX), by, |time, request, caller| {
        let results = dry_runs.each_mut().map(|it| it.send(time, request.clone()));
        let refused = results.map(|result| u64::from(is_refused(result)));
        match present(caller) {
            _ if refused == [0, 0] => {}
            Some(caller) => {
                let sums = callers.entry(caller).or_default();
                *sums = [sums[0] + refused[0], sums[1] + refused[1]];
            }
            None => of_none += u64::from(refused == [0, 1]),
        }
    })?;
    let effects = dry_runs.map(DryRun::end);
    let kinds = [[true, false], [false, true]];
    let [newly_refused, let_through] =
        kinds.map(|never| newly(&callers, never, arguments.show_keys));
    let [old, new] = effects.each_ref().map(|effect| effect.refused);
    let waiting = effects.each_ref().map(|effect| effect.waiting);
    let requests = counted(read.rows.requests, "request");
    let mut words = format!("\n{}\n", columns_line(&read.rows));
    words += &format!("Refused of {requests}: {old} -> {new}.\n");
    if waiting != [0, 0] {
        let [old, new] = waiting;
        words += &format!("Would wait for permits, not counted further: {old} -> {new}.\n");
    }
    words += &list("refused", &newly_refused);
    words += &list("let through", &let_through);
    words += ASSUMED;
    let mut object = json!(read.rows);
    (object["refused"], object["waiting"]) = (json!([old, new]), json!(waiting));
    object["newly_refused"] = json!(newly_refused);
    object["newly_let_through"] = json!(let_through);
    let needs = files.iter().flat_map(|file| needs(&file.toml)).collect();
    let is_enough = read.report(effects.iter().flat_map(|effect| &effect.rules), &needs);
    let coarse = effects[1].rules.iter().any(|rule| read.is_too_coarse(rule));
    let objections = [
        (!newly_refused.is_empty(), NEW),
        (of_none > 0, NEW_OF_NONE),
        (read.rows.requests == 0, NO_REQUESTS),
        (waiting[1] > 0 && !same, WAITING),
        (coarse && !same, APPROXIMATE),
    ];
    let objection = objections.iter().find(|(applies, _)| *applies);
    let objection = objection.filter(|_| arguments.fail_on_newly_refused);
    if let Some((_, reason)) = objection {
        say(reason);
    }
    Ok((words, object, is_enough && objection.is_none()))
}

/// The fields of a file, each with its text: the part, such as `rules.login`, and the name.
type Items = BTreeMap<[String; 2], String>;

/// What is compared of a file.
#[derive(Default)]
struct Compared {
    items: Items,
    /// The entries of `on`, in the order in which a request is compared with them.
    entries: Vec<String>,
}

impl Compared {
    /// Returns what is compared of a file that is known to be good.
    fn of(file: &FileText) -> Self {
        let mut compared = Self::default();
        compared.add(&[], &file.toml);
        compared.add_first_tiers(file.unmarked());
        compared
    }

    fn add(&mut self, path: &[&str], table: &Value) {
        for (name, value) in table.as_object().into_iter().flatten() {
            match value {
                Value::Object(_) => self.add(&[path, &[name]].concat(), value),
                Value::Array(entries) if entries.iter().any(Value::is_object) => {
                    let entries = entries.iter().cloned();
                    entries.for_each(|entry| self.add_entry(name, entry));
                }
                _ => {
                    let is_limit = match path {
                        ["rules", _] => ["rate", "init"].contains(&&**name),
                        _ => matches!(path, ["rules", _, "tiers"]),
                    };
                    let limit = value.as_str().filter(|_| is_limit);
                    // Limits that mean the same, as 60/1m and 60/60s do, have the same words.
                    let text = match limit.map(str::parse::<Limit>) {
                        Some(Ok(limit)) => limit.to_string(),
                        _ => text_of(value),
                    };
                    let field = [harmless(&path.join(".")), harmless(name)];
                    self.items.insert(field, text);
                }
            }
        }
    }

    /// Adds an entry, which is known by what it matches.
    fn add_entry(&mut self, list: &str, mut entry: Value) {
        let rules = entry.as_object_mut().and_then(|it| it.remove("rules"));
        let fields = entry.as_object().into_iter().flatten();
        let fields = fields.map(|(name, value)| format!("{} {}", harmless(name), text_of(value)));
        let item = format!("{list} {}", fields.collect::<Vec<_>>().join(", "));
        let (field, text) = match rules {
            Some(rules) => {
                self.entries.push(item.clone());
                ("rules", text_of(&rules))
            }
            // Of `deny` or `allow`, in which the order does not count.
            None => ("entry", "present".to_owned()),
        };
        self.items.insert([item, field.to_owned()], text);
    }

    /// Adds the first tier of each rule, which stands for those that the rule lacks. Only the text
    /// has their order.
    fn add_first_tiers(&mut self, text: &str) {
        let Ok(file) = DeTable::parse(text) else {
            return;
        };
        let rules = file.get_ref().get("rules");
        let rules = rules.and_then(|it| it.get_ref().as_table());
        for (rule, fields) in rules.into_iter().flatten() {
            let tiers = fields.get_ref().get("tiers");
            let tiers = tiers.and_then(|it| it.get_ref().as_table());
            let names = tiers.into_iter().flat_map(|tiers| tiers.keys());
            if let Some(first) = names.min_by_key(|name| name.span().start) {
                let item = format!("rules.{}", harmless(rule.get_ref()));
                let field = [item, "first tier".to_owned()];
                self.items.insert(field, harmless(first.get_ref()));
            }
        }
    }
}

/// Returns a value as words, harmless for a terminal. Different values have different words: a text
/// that could be taken for something else, or for several things, is in quotes.
fn text_of(value: &Value) -> String {
    let is_plain = |text: &str| {
        let is_other = text.is_empty() || serde_json::from_str::<Value>(text).is_ok();
        !is_other && !text.contains([',', '"', '\\', '[', '{'])
    };
    match value {
        Value::String(text) if is_plain(text) => harmless(text),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(text_of).collect();
            format!("[{}]", values.join(", "))
        }
        value => harmless(&value.to_string()),
    }
}

/// Adds the position of each entry of `on` among those that both files have. The first that matches
/// a request counts.
fn add_positions(files: &mut [Compared; 2]) {
    let [old, new] = files.each_ref().map(|file| file.entries.clone());
    for (file, other) in files.iter_mut().zip([new, old]) {
        let both = file.entries.iter().filter(|it| other.contains(it));
        for (entry, position) in both.zip(1..) {
            let field = [entry.clone(), "position".to_owned()];
            file.items.insert(field, position.to_string());
        }
    }
}

/// Returns the fields that differ.
fn changes(mut files: [Compared; 2]) -> Vec<Value> {
    add_positions(&mut files);
    let [old, new] = files.map(|file| file.items);
    let all = old.keys().chain(new.keys()).collect::<BTreeSet<_>>();
    let differ = all.into_iter().filter(|it| old.get(*it) != new.get(*it));
    let rows = differ.map(|key| {
        let [item, field] = key;
        json!({ "item": item, "field": field, "old": old.get(key), "new": new.get(key) })
    });
    rows.collect()
}

/// Returns the callers that each file never refuses where `never` is set, and refuses at least once
/// where it is not; the most refused first.
fn newly(callers: &RefusalCounts, never: [bool; 2], keys: bool) -> Vec<Value> {
    let secret = RandomState::new();
    let newly = callers.iter();
    let newly = newly.filter(|(_, of)| of.map(|it| it == 0) == never);
    let mut newly: Vec<_> = newly.map(|(it, of)| (Reverse(of[0] + of[1]), it)).collect();
    newly.sort();
    let rows = newly.into_iter().map(|(Reverse(requests), caller)| {
        json!({ "caller": shown_caller(caller, keys, &secret), "requests": requests })
    });
    rows.collect()
}

/// Returns the number of the callers for which something is new, and the first of them.
fn list(new: &str, callers: &[Value]) -> String {
    let listed = table("caller requests", callers.get(..LISTED).unwrap_or(callers));
    let text = format!("Callers newly {new}: {}\n{listed}", callers.len());
    match callers.len().saturating_sub(LISTED) {
        0 => text,
        more => text + &format!("and {more} more\n"),
    }
}
