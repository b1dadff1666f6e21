//! Files of rules, and what only the code of a service defines in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use http::request::Parts;
use toml::{Table, Value};
use tower_ratelimit::{
    ConfigError, Rules, RulesFile,
    key::{Key, KeyExtractor, NoKey, Secret},
};

use crate::{Stop, say};

/// What code defines: assumed and listed, or fixed.
#[derive(clap::Args)]
pub(crate) struct Assumptions {
    /// Refuse names that only code defines, and that no option fixes
    #[arg(long)]
    strict: bool,
    /// Fix the tier that code chooses, as in `plan=paid`; else the first one
    #[arg(long, value_parser = fixed::<String>, value_name = "NAME=TIER")]
    tier: Vec<(String, String)>,
    /// Fix a condition of the code, as in `beta=true`; else it does not hold
    #[arg(long, value_parser = fixed::<bool>, value_name = "NAME=BOOL")]
    when: Vec<(String, bool)>,
    /// Fix a cost that code calculates, as in `rows=20`; else 1
    #[arg(long, value_parser = fixed::<u32>, value_name = "NAME=PERMITS")]
    cost: Vec<(String, u32)>,
}

/// Reads `name=value`.
pub(crate) fn fixed<T: std::str::FromStr>(text: &str) -> Result<(String, T), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let fixed = parts.and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    fixed.ok_or_else(|| "write a name and its value, as in the help".to_owned())
}

/// A file of rules.
pub(crate) struct Loaded {
    pub(crate) rules: Result<Rules, ConfigError>,
    /// The keys that code has.
    pub(crate) keys: BTreeSet<String>,
}

impl Assumptions {
    /// Reads files, which have all names that options fix, and lists what it assumes.
    pub(crate) fn load<const N: usize>(&self, paths: [&Path; N]) -> Result<[Loaded; N], Stop> {
        let mut all = Names::default();
        let tables = paths.map(table);
        tables.iter().for_each(|table| all.add(table));
        self.check(&all)?;
        let mut known = all;
        if self.strict {
            known = Names {
                tiers: fixed_of(&self.tier, known.tiers),
                ..Names::default()
            };
            known
                .conditions
                .extend(self.when.iter().map(|(name, _)| name.clone()));
            known
                .costs
                .extend(self.cost.iter().map(|(name, _)| name.clone()));
        }
        let file = self.file(&known);
        let mut paths = paths.iter();
        let loaded = tables.map(|_| Loaded {
            rules: file.load(paths.next().copied().unwrap_or(Path::new(""))),
            keys: known.keys.clone(),
        });
        if loaded.iter().all(|file| file.rules.is_ok()) {
            self.list(&known);
        }
        Ok(loaded)
    }

    /// Returns whether an option is given.
    pub(crate) fn is_any(&self) -> bool {
        self.strict || !(self.tier.is_empty() && self.when.is_empty() && self.cost.is_empty())
    }

    /// Checks that each option fixes something.
    fn check(&self, names: &Names) -> Result<(), String> {
        for (name, tier) in &self.tier {
            let Some(tiers) = names.tiers.get(name) else {
                return Err(format!(
                    "no rule has `tier-by = {name:?}`, which `--tier` fixes"
                ));
            };
            if !tiers.contains(tier) {
                let has = tiers.iter().cloned().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "no rule by {name:?} has the tier {tier:?}: there are {has}"
                ));
            }
        }
        let when = self
            .when
            .iter()
            .find(|(name, _)| !names.conditions.contains(name));
        if let Some((name, _)) = when {
            return Err(format!(
                "no entry has `when = {name:?}`, which `--when` fixes"
            ));
        }
        let cost = self
            .cost
            .iter()
            .find(|(name, _)| !names.costs.contains(name));
        if let Some((name, _)) = cost {
            return Err(format!(
                "no rule has `cost = {name:?}`, which `--cost` fixes"
            ));
        }
        Ok(())
    }

    /// Lists what no option fixes.
    fn list(&self, names: &Names) {
        let assumed = |what: &str, name: &String, value: &str| {
            say(format!(
                "assumed that the code has the {what} {name:?}{value}"
            ));
        };
        names.keys.iter().for_each(|it| assumed("key", it, ""));
        let tiers = names.tiers.keys();
        let tiers = tiers.filter(|it| value_of(&self.tier, it).is_none());
        tiers.for_each(|it| assumed("choice of a tier", it, ", which is the first"));
        let costs = names.costs.iter();
        let costs = costs.filter(|it| value_of(&self.cost, it).is_none());
        costs.for_each(|it| assumed("cost", it, ", which is 1"));
        let charges = names.charges.iter();
        charges.for_each(|it| assumed("outcome", it, ", which is charged"));
        let conditions = names.conditions.iter();
        let conditions = conditions.filter(|it| value_of(&self.when, it).is_none());
        conditions.for_each(|it| assumed("condition", it, ", which does not hold"));
        names
            .secrets
            .iter()
            .for_each(|it| assumed("secret", it, ""));
    }

    /// Returns a reader of files to which these names are known.
    fn file(&self, names: &Names) -> RulesFile {
        let mut file = RulesFile::new();
        for name in names.keys.iter().filter(|name| is_name(name)) {
            file = file.key(name, Coded(name.clone()));
        }
        for name in names.tiers.keys().filter(|name| is_name(name)) {
            // Not a tier of any rule, and so the first one of each.
            let tier: &'static str = match value_of(&self.tier, name) {
                // A service has its tiers in its code; here they live as long as the process.
                Some(tier) => Box::leak(tier.clone().into_boxed_str()),
                None => "",
            };
            file = file.tiers(name, move |_| tier);
        }
        for name in names.costs.iter().filter(|name| is_name(name)) {
            let cost = value_of(&self.cost, name).copied().unwrap_or(1);
            file = file.cost(name, move |_| cost);
        }
        for name in names.charges.iter().filter(|name| is_name(name)) {
            file = file.charge_if(name, |_| true);
        }
        for name in names.conditions.iter().filter(|name| is_name(name)) {
            let holds = value_of(&self.when, name).copied().unwrap_or(false);
            file = file.condition(name, move |_| holds);
        }
        for id in &names.secrets {
            if let Ok(secret) = Secret::new(id, [0; 32]) {
                file = file.secret(&secret);
            }
        }
        file
    }
}

fn value_of<'f, T>(fixed: &'f [(String, T)], name: &str) -> Option<&'f T> {
    let mut fixed = fixed.iter().rev();
    fixed.find(|(it, _)| it == name).map(|(_, value)| value)
}

fn fixed_of(
    fixed: &[(String, String)],
    mut tiers: BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, BTreeSet<String>> {
    tiers.retain(|name, _| value_of(fixed, name).is_some());
    tiers
}

/// What a request's extensions hold in place of what code finds: names of keys, and values.
#[derive(Clone, Default)]
pub(crate) struct Found(pub(crate) Vec<(String, String)>);

/// A key that code defines.
#[derive(Debug)]
struct Coded(String);

impl KeyExtractor for Coded {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let found = parts.extensions.get::<Found>();
        let value = found.and_then(|found| value_of(&found.0, &self.0));
        key.push(value.ok_or(NoKey::missing("what code finds"))?);
        Ok(())
    }
}

/// The names in files that code may define.
#[derive(Default)]
struct Names {
    keys: BTreeSet<String>,
    /// With the tiers of their rules.
    tiers: BTreeMap<String, BTreeSet<String>>,
    costs: BTreeSet<String>,
    charges: BTreeSet<String>,
    conditions: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

/// Reads a file. One that cannot be read has nothing, and is an error when it is loaded.
fn table(path: &Path) -> Table {
    let is_file = fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= 1 << 20);
    let text = is_file.then(|| fs::read_to_string(path).ok()).flatten();
    let text = text.unwrap_or_default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    text.parse().unwrap_or_default()
}

impl Names {
    fn add(&mut self, file: &Table) {
        let own: BTreeSet<_> = tables(file, "keys").map(|(name, _)| name).collect();
        for (_, key) in tables(file, "keys") {
            self.add_keys(key.get("from"), &own);
            self.secrets.extend(text_of(key.get("digest")));
        }
        for (_, rule) in tables(file, "rules") {
            self.add_keys(rule.get("by"), &own);
            if let Some(name) = text_of(rule.get("tier-by")) {
                let tiers = rule.get("tiers").and_then(Value::as_table);
                let tiers = tiers.into_iter().flat_map(Table::keys);
                self.tiers.entry(name).or_default().extend(tiers.cloned());
            }
            self.costs.extend(text_of(rule.get("cost")));
            let charge = text_of(rule.get("charge-if"));
            let is_known = |name: &String| ["success", "failure"].contains(&name.as_str());
            self.charges.extend(charge.filter(|name| !is_known(name)));
        }
        for list in ["on", "deny", "allow"] {
            for (_, entry) in tables(file, list) {
                self.add_keys(entry.get("by"), &own);
                self.conditions.extend(text_of(entry.get("when")));
            }
        }
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
