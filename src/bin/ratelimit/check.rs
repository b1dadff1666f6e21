//! `ratelimit check`: what a service would say of a file of rules.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};
use tower_ratelimit::{
    ConfigErrorKind, RulesFile,
    key::{FromExtension, Secret},
};

use crate::{Answer, print, say};

/// Check a file of rules as a service does that reads it.
///
/// Names that only code defines, such as keys, tiers and secrets, are assumed and listed. Exits
/// with 1 if the file has an error.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file, in TOML
    file: PathBuf,
    /// Refuse names that only code defines
    #[arg(long)]
    strict: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Answer, String> {
    let path = &arguments.file;
    let names = if arguments.strict {
        Names::default()
    } else {
        Names::of(path)
    };
    match names.file().load(path) {
        Ok(_) => {}
        Err(error) if error.kind() == ConfigErrorKind::Unreadable => return Err(error.to_string()),
        Err(error) => {
            print(&format!("{}: {error}\n", path.display()))?;
            return Ok(Answer::No);
        }
    }
    for (what, names) in names.listed() {
        for name in names {
            say(format!("assumed that the code has the {what} {name:?}"));
        }
    }
    print(&format!("{}: no errors\n", path.display()))?;
    Ok(Answer::Yes)
}

/// A request's extension that stands for what the code of a service finds in it.
#[derive(Clone)]
struct Assumed(String);

/// The names in a file that code may define.
#[derive(Default)]
struct Names {
    keys: BTreeSet<String>,
    tiers: BTreeSet<String>,
    costs: BTreeSet<String>,
    charges: BTreeSet<String>,
    conditions: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

impl Names {
    /// Finds them. What cannot be read has none, and is an error when the file is checked.
    fn of(path: &Path) -> Self {
        let mut names = Self::default();
        let is_file = fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= 1 << 20);
        let text = is_file.then(|| fs::read_to_string(path).ok()).flatten();
        let text = text.unwrap_or_default();
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let Ok(file) = text.parse::<Table>() else {
            return names;
        };
        let own: BTreeSet<_> = tables(&file, "keys").map(|(name, _)| name).collect();
        for (_, key) in tables(&file, "keys") {
            names.add_keys(key.get("from"), &own);
            names.secrets.extend(text_of(key.get("digest")));
        }
        for (_, rule) in tables(&file, "rules") {
            names.add_keys(rule.get("by"), &own);
            names.tiers.extend(text_of(rule.get("tier-by")));
            names.costs.extend(text_of(rule.get("cost")));
            let charge = text_of(rule.get("charge-if"));
            let is_known = |name: &String| ["success", "failure"].contains(&name.as_str());
            names.charges.extend(charge.filter(|name| !is_known(name)));
        }
        for list in ["on", "deny", "allow"] {
            for (_, entry) in tables(&file, list) {
                names.add_keys(entry.get("by"), &own);
                names.conditions.extend(text_of(entry.get("when")));
            }
        }
        names
    }

    /// Adds the keys of one expression, or of several.
    fn add_keys(&mut self, by: Option<&Value>, own: &BTreeSet<&str>) {
        const KNOWN: [&str; 5] = ["peer", "client-ip", "route", "shared", "skip"];
        let texts = match by {
            Some(Value::Array(texts)) => texts.as_slice(),
            Some(text) => std::slice::from_ref(text),
            None => &[],
        };
        let terms = texts.iter().filter_map(Value::as_str);
        for term in terms.flat_map(|text| text.split(" or ")).map(str::trim) {
            if !term.contains(':') && !KNOWN.contains(&term) && !own.contains(term) {
                self.keys.insert(term.to_owned());
            }
        }
    }

    fn listed(&self) -> [(&str, &BTreeSet<String>); 6] {
        [
            ("key", &self.keys),
            ("choice of a tier", &self.tiers),
            ("cost", &self.costs),
            ("outcome", &self.charges),
            ("condition", &self.conditions),
            ("secret", &self.secrets),
        ]
    }

    /// Returns a reader of files to which all of them are known.
    fn file(&self) -> RulesFile {
        let mut file = RulesFile::new();
        for name in self.keys.iter().filter(|name| is_name(name)) {
            file = file.key(name, FromExtension::by(|key: &Assumed| key.0.clone()));
        }
        for name in self.tiers.iter().filter(|name| is_name(name)) {
            // Not a tier of any rule, and so the first one of each.
            file = file.tiers(name, |_| "");
        }
        for name in self.costs.iter().filter(|name| is_name(name)) {
            file = file.cost(name, |_| 1);
        }
        for name in self.charges.iter().filter(|name| is_name(name)) {
            file = file.charge_if(name, |_| true);
        }
        for name in self.conditions.iter().filter(|name| is_name(name)) {
            file = file.condition(name, |_| true);
        }
        for id in &self.secrets {
            if let Ok(secret) = Secret::new(id, [0; 32]) {
                file = file.secret(&secret);
            }
        }
        file
    }
}

/// Returns whether code can define this name: others are errors where the file has them.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// Returns the tables below a table, or in a list.
fn tables<'f>(file: &'f Table, name: &str) -> impl Iterator<Item = (&'f str, &'f Table)> {
    let below = file.get(name);
    let named = below.and_then(Value::as_table).into_iter().flatten();
    let named = named.filter_map(|(name, table)| Some((name.as_str(), table.as_table()?)));
    let listed = below.and_then(Value::as_array).into_iter().flatten();
    named.chain(listed.filter_map(|table| Some(("", table.as_table()?))))
}

fn text_of(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}
