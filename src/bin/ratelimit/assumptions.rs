//! Reads rules files, with stand-ins for what only the code of a service defines.

use std::{collections::BTreeSet, fs, path::Path};

use http::request::Parts;
use serde_json::Value;
use strsim::osa_distance;
use tower_ratelimit::{
    ConfigError, ConfigErrorKind, Rules, RulesFile,
    key::{FromParts, Secret},
};

use crate::{
    Stop,
    out::{in_file, say},
    parsers::fixed,
};

/// Values in place of those that code defines: assumed and listed, or fixed.
#[derive(clap::Args)]
pub(crate) struct Assumptions {
    /// Refuse names of the code that no option fixes
    #[arg(long)]
    strict: bool,
    /// A name that the code has, as in `user`
    ///
    /// Of a key, an outcome or a secret. Without this option, a name that is one letter away from a
    /// word that is defined, as `pear` from `peer`, is an error. Repeat it for others.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    defined: Vec<String>,
    /// The tier that code chooses, as in `plan=paid`
    ///
    /// Default: the first one of each rule. Repeat it for other choosers.
    #[arg(long, value_parser = fixed::<String>, value_name = "NAME=TIER")]
    tier: Vec<(String, String)>,
    /// A condition of the code, as in `beta=true`
    ///
    /// Default: it does not hold. Repeat it for others.
    #[arg(long, value_parser = fixed::<bool>, value_name = "NAME=BOOL")]
    when: Vec<(String, bool)>,
    /// A cost that code calculates, as in `rows=20`
    ///
    /// In permits. Default: 1. Repeat it for others.
    #[arg(long, value_parser = fixed::<u32>, value_name = "NAME=PERMITS")]
    cost: Vec<(String, u32)>,
}

/// A part that only code defines: its kind in the words of errors, and its name.
pub(crate) type CodePart = (&'static str, String);

/// The kinds, and what is assumed of each.
const KINDS: [(&str, &str); 6] = [
    ("key", ""),
    ("chooser of tiers", ", which chooses the first"),
    ("cost", ", which is 1"),
    ("outcome", ", which is charged"),
    ("condition", ", which does not hold"),
    ("secret", ""),
];

/// Returns whether a name is all that can be said of a part.
fn is_bare((kind, _): &CodePart) -> bool {
    ["key", "outcome", "secret"].contains(kind)
}

/// The rules of files, and the parts that these name and code defines.
pub(crate) type Loaded<const N: usize> = ([Result<Rules, ConfigError>; N], BTreeSet<CodePart>);

/// A rules file in one state, of which all is made: another program may be writing it.
pub(crate) struct FileText {
    pub(crate) text: String,
    /// Null if it is no TOML: no rules are made of it then.
    pub(crate) toml: Value,
}

impl FileText {
    pub(crate) fn read(path: &Path) -> Result<Self, Stop> {
        // What a service cannot read has an error in its words.
        let loaded = RulesFile::new().load(path).err();
        if let Some(error) = loaded.filter(|it| it.kind() == ConfigErrorKind::Unreadable) {
            return Err(error.into());
        }
        let text = fs::read_to_string(path).map_err(in_file(path))?;
        let toml = toml::from_str(without_mark(&text)).unwrap_or_default();
        Ok(Self { text, toml })
    }

    /// Returns the text without its byte order mark.
    pub(crate) fn unmarked(&self) -> &str {
        without_mark(&self.text)
    }
}

fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns what a file names and nothing defines, and whether that looks like a misspelt word which
/// is defined. The reason of an error begins with it.
fn missing(
    file: &FileText,
    error: &ConfigError,
    code: &BTreeSet<CodePart>,
) -> Option<(CodePart, bool)> {
    let reason = error.reason().strip_prefix("there is no ")?;
    let (kind, rest) = reason.split_once(" \"")?;
    let (kind, _) = KINDS.into_iter().find(|(known, _)| *known == kind)?;
    let (name, hint) = rest.split_once('"')?;
    let near = hint.strip_prefix(": did you mean `");
    let near = near.and_then(|near| near.strip_suffix("`?"));
    // Code may have names that are similar. The usual one, `user`, is two letters from `peer`.
    let is_word = |near: &&str| !code.contains(&(kind, (*near).to_owned()));
    let is_misspelt = near
        .filter(is_word)
        .is_some_and(|near| osa_distance(name, near) == 1);
    // The file itself defines it further down, which is too late.
    let is_late = kind == "key" && !file.toml["keys"][name].is_null();
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    // Code can define no other names.
    let is_of_code = !is_late && !name.is_empty() && name.bytes().all(is_part);
    let part = (kind, name.to_owned());
    (is_of_code && !code.contains(&part)).then_some((part, is_misspelt))
}

impl Assumptions {
    /// Makes rules of files, with all that their code defines, and lists what is assumed of it.
    pub(crate) fn load<const N: usize>(&self, files: [&FileText; N]) -> Result<Loaded<N>, String> {
        let mut code = BTreeSet::new();
        let rules = loop {
            let reader = self.reader(&code);
            let rules = files.map(|file| reader.parse(&file.text));
            let errors = files.iter().zip(&rules);
            let missing = errors.filter_map(|(file, it)| missing(file, it.as_ref().err()?, &code));
            let missing: BTreeSet<_> = missing.collect();
            let may = |(part, is_misspelt): &&(CodePart, bool)| {
                self.fixes(part) || !(self.strict || *is_misspelt)
            };
            let Some((part, _)) = missing.iter().find(may) else {
                for ((kind, name), _) in missing {
                    let option = match kind {
                        "chooser of tiers" => format!("--tier {name}=TIER"),
                        "condition" => format!("--when {name}=BOOL"),
                        "cost" => format!("--cost {name}=PERMITS"),
                        _ => format!("--defined {name}"),
                    };
                    say(format!(
                        "if the code has the {kind} {name:?}, add `{option}`"
                    ));
                }
                break rules;
            };
            code.insert(part.clone());
        };
        if rules.iter().all(Result::is_ok) {
            self.check(&code, &files)?;
            for (kind, name) in code.iter().filter(|name| !self.fixes(name)) {
                let (_, how) = KINDS.iter().find(|(it, _)| it == kind).unwrap_or(&KINDS[0]);
                let part = format!("{kind} {name:?}{how}");
                say(format!("assumed that the code has the {part}"));
            }
        }
        Ok((rules, code))
    }

    /// Returns whether an option is given.
    pub(crate) fn is_any(&self) -> bool {
        self.strict || !self.defined.is_empty() || self.fixed().next().is_some()
    }

    /// Returns what options fix.
    fn fixed(&self) -> impl Iterator<Item = CodePart> {
        let tiers = self.tier.iter().map(|it| ("chooser of tiers", &it.0));
        let when = self.when.iter().map(|it| ("condition", &it.0));
        let costs = self.cost.iter().map(|it| ("cost", &it.0));
        let all = tiers.chain(when).chain(costs);
        all.map(|(kind, name)| (kind, name.clone()))
    }

    fn fixes(&self, part: &CodePart) -> bool {
        is_bare(part) && self.defined.contains(&part.1) || self.fixed().any(|fixed| fixed == *part)
    }

    /// Checks that each option fixes something.
    fn check(&self, code: &BTreeSet<CodePart>, files: &[&FileText]) -> Result<(), String> {
        if let Some((kind, name)) = self.fixed().find(|it| !code.contains(it)) {
            return Err(format!("no file names a {kind} {name:?} to fix"));
        }
        let is_unknown = |name: &&String| {
            let mut bare = code.iter().filter(|part| is_bare(part));
            bare.all(|(_, it)| it != *name)
        };
        if let Some(name) = self.defined.iter().find(is_unknown) {
            return Err(format!("no file names {name:?}, which code would define"));
        }
        for (name, tier) in &self.tier {
            let rules = files.iter().flat_map(|file| file.toml["rules"].as_object());
            let rules = rules.flatten().map(|(_, rule)| rule);
            let rules = rules.filter(|rule| rule["tier-by"] == **name);
            let tiers = rules.flat_map(|rule| rule["tiers"].as_object());
            let tiers: BTreeSet<_> = tiers.flatten().map(|(tier, _)| tier).collect();
            if !tiers.contains(tier) {
                return Err(format!(
                    "no rule has the tier {tier:?} of {name:?}: there are {tiers:?}"
                ));
            }
        }
        Ok(())
    }

    /// Returns a reader of files whose code has these names.
    pub(crate) fn reader(&self, code: &BTreeSet<CodePart>) -> RulesFile {
        let mut file = RulesFile::new();
        for (kind, name) in code {
            file = match *kind {
                "key" => {
                    let known = name.clone();
                    let key = move |parts: &Parts| {
                        let found = parts.extensions.get::<CodeKeys>()?;
                        value_of(&found.0, &known).cloned()
                    };
                    file.key(name, FromParts(key))
                }
                "chooser of tiers" => {
                    let fixed = value_of(&self.tier, name).cloned().unwrap_or_default();
                    // A service has its tiers in its code; here they live as long as the process.
                    // An empty one is none of any rule, and so the first of each.
                    let tier: &'static str = fixed.leak();
                    file.tiers(name, move |_| tier)
                }
                "cost" => {
                    let cost = value_of(&self.cost, name).copied().unwrap_or(1);
                    file.cost(name, move |_| cost)
                }
                "outcome" => file.charge_if(name, |_| true),
                "condition" => {
                    let holds = value_of(&self.when, name).copied().unwrap_or(false);
                    file.condition(name, move |_| holds)
                }
                _ => match Secret::new(name, [0; 32]) {
                    Ok(secret) => file.secret(&secret),
                    Err(_) => file,
                },
            };
        }
        file
    }
}

fn value_of<'f, T>(fixed: &'f [(String, T)], name: &str) -> Option<&'f T> {
    let mut fixed = fixed.iter().rev();
    fixed.find(|(it, _)| it == name).map(|(_, value)| value)
}

/// Keys in a request's extensions in place of those that code finds: names and values.
#[derive(Clone, Default)]
pub(crate) struct CodeKeys(pub(crate) Vec<(String, String)>);
