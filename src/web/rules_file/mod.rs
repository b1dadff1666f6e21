//! Reads a rules file: [`RulesFile`] turns TOML into the [`Rules`] that code builds.

mod entries;
mod keys;
mod reader;
mod rule_fields;
pub(crate) mod watch;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::Path,
    sync::Arc,
};

use http::request::Parts;
use serde::Deserialize;
use toml::Spanned;

use self::reader::{ByName, Fail, Mistake, Table, given};
use super::{
    answer::{Fields, HeaderStyle},
    charge::{Outcome, charge_if},
    key::{AnyKey, KeyExtractor, Secret},
    rule::{CompiledRules, CostBy, RuleSettings, Rules, limits::ChooseTier, pattern::Condition},
};
use crate::{
    macros::opaque,
    store::{MemoryStore, rule_names::NameHolder, sealed::Sealed},
    values::{
        compiled_limit::ChargeIf,
        error::{ConfigError, config_error},
        name::check_rule_name,
    },
};

/// The length of the longest file, so that a wrong path cannot fill the memory.
const LONGEST: u64 = 1 << 20;

/// Reads rules from TOML. Things that only code can provide, such as the user, the plan that was
/// paid for, or secrets, are registered here by name.
///
/// The [guide](crate::docs::guide) describes the format field by field. A file is checked like
/// rules in code: every error is a [`ConfigError`] with the line and the field, or the line of its
/// rule, and what to write instead. An unknown field, a rule that no entry uses and a file without
/// rules are errors too, because a missing limit is easily overlooked.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{MemoryStore, RateLimitLayer, RulesFile, key::FromExtension};
///
/// #[derive(Clone)]
/// struct User {
///     id: String,
///     paying: bool,
/// }
///
/// let file = RulesFile::new()
///     .key("user", FromExtension::by(|user: &User| user.id.clone()))
///     .tiers("plan", |parts| match parts.extensions.get::<User>() {
///         Some(user) if user.paying => "paid",
///         _ => "free",
///     });
/// let rules = file.parse(r#"
///     [rules.login]
///     rate = "5/1m"
///     by = "peer"
///     on-failure = "deny"
///     charge-if = "failure"
///
///     [rules.api]
///     tier-by = "plan"
///     tiers = { free = "1000/1h", paid = "100000/1h" }
///     by = "user or peer"
///
///     [[on]]
///     route = "POST /login"
///     rules = ["login"]
///
///     [otherwise]
///     rules = ["api"]
/// "#)?;
/// let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(rules).build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "it does nothing until it reads a file"]
pub struct RulesFile {
    keys: BTreeMap<String, AnyKey>,
    tiers: BTreeMap<String, ChooseTier>,
    costs: BTreeMap<String, CostBy>,
    charges: BTreeMap<String, ChargeIf>,
    conditions: BTreeMap<String, Condition>,
    secrets: BTreeMap<String, Secret>,
    /// The error of the first name that is not valid.
    invalid_name: Option<ConfigError>,
}

impl RulesFile {
    /// Creates a reader without names from code.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets files say `by = "<name>"`, which counts requests by this key.
    ///
    /// Names here and in the other methods have the characters `A-Z a-z 0-9 . _ -` and must not
    /// have another meaning in a file, as `peer` and `route` have, nor be registered twice in one
    /// of them. Otherwise reading returns a [`ConfigError`].
    pub fn key(mut self, name: &str, key: impl KeyExtractor) -> Self {
        self.register(name, &keys::RESERVED, |it| &mut it.keys, AnyKey::new(key));
        self
    }

    /// Lets files say `tier-by = "<name>"`. The closure returns the tier of a request; a tier that
    /// the rule does not have is treated as its first.
    pub fn tiers(
        mut self,
        name: &str,
        choose: impl Fn(&Parts) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        let choose: ChooseTier = Arc::new(choose);
        self.register(name, &[], |it| &mut it.tiers, choose);
        self
    }

    /// Lets files say `cost = "<name>"`: see [`Rule::cost_by`](crate::Rule::cost_by).
    pub fn cost(
        mut self,
        name: &str,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        let cost: CostBy = Arc::new(cost);
        self.register(name, &[], |it| &mut it.costs, cost);
        self
    }

    /// Lets files say `charge-if = "<name>"`: see [`Rule::charge_if`](crate::Rule::charge_if).
    pub fn charge_if(
        mut self,
        name: &str,
        counts: impl Fn(&Outcome) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.register(
            name,
            &rule_fields::OUTCOMES,
            |it| &mut it.charges,
            charge_if(counts),
        );
        self
    }

    /// Lets entries say `when = "<name>"`: see [`Rules::on_request`].
    pub fn condition(
        mut self,
        name: &str,
        matches: impl Fn(&Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        let matches: Condition = Arc::new(matches);
        self.register(name, &[], |it| &mut it.conditions, matches);
        self
    }

    /// Lets keys say `digest = "<id>"`, with the id of this secret: see [`KeyExtractor::digest`].
    /// The secret itself must not be in a file.
    pub fn secret(mut self, secret: &Secret) -> Self {
        self.register(&secret.id, &[], |it| &mut it.secrets, secret.clone());
        self
    }

    /// Reads rules from a text.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] with the line and the field, or the line of a rule, or for an
    /// invalid name registered by code.
    pub fn parse(&self, text: &str) -> Result<Rules, ConfigError> {
        if let Some(invalid_name) = &self.invalid_name {
            return Err(invalid_name.clone());
        }
        // Editors on other systems write a byte order mark, which TOML does not allow.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rules = self.read(text).map_err(|mistake| mistake.in_text(text))?;
        // Also runs the checks of a layer, so that a file can be checked without one.
        // What a real store refuses besides, such as slots outside of Redisson's format, is found
        // when its layer is built.
        let store = MemoryStore::builder().in_any_format().build().handle().0;
        let settings = RuleSettings::default();
        CompiledRules::new(rules.clone(), &*store, settings, NameHolder::default())?;
        rules.check_formats()?;
        Ok(rules)
    }

    /// Reads rules from a file. Blocks while it reads; [`watch`](crate::RateLimitLayer::watch) does
    /// not.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Unreadable`](crate::ConfigErrorKind::Unreadable) if the path is
    /// not a file, is not UTF-8 or is longer than a mebibyte, and the errors of
    /// [`parse`](Self::parse).
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Rules, ConfigError> {
        self.parse(&read_text(path.as_ref())?)
    }

    fn read(&self, text: &str) -> Result<Rules, Mistake> {
        let document: Document = reader::table_of(text)?;
        let keys = keys::Keys::read(self, document.keys)?;
        let named = rule_fields::named_rules(self, &keys, text, document.rules)?;
        let mut rules =
            entries::read(self, text, named, &document.on, document.otherwise.as_ref())?;
        for entry in &document.deny {
            rules = rules.deny(entries::listed(self, &keys, entry, false)?);
        }
        for entry in &document.allow {
            rules = rules.allow(entries::listed(self, &keys, entry, true)?);
        }
        if let Some(headers) = document.headers {
            let styles = headers.get_ref().iter().map(header_style);
            let styles: Vec<_> = styles.collect::<Result<_, _>>()?;
            headers.at_this(Fields::new(&styles))?;
            rules = rules.headers(styles);
        }
        rules.of_file = Some(rules.counts());
        Ok(rules)
    }

    /// Adds a name to the others `of` its sort.
    fn register<T>(
        &mut self,
        name: &str,
        reserved: &[&str],
        of: impl Fn(&mut Self) -> &mut BTreeMap<String, T>,
        value: T,
    ) {
        let earlier = of(self).insert(name.to_owned(), value);
        let checked = if reserved.contains(&name) {
            Err(config_error!(Name: "{name:?} means something else in a rules file"))
        } else if earlier.is_some() {
            Err(
                config_error!(Name: "{name:?} is registered twice for a rules file: choose another \
                name for one of the two"),
            )
        } else {
            check_rule_name(name)
        };
        if let Err(invalid_name) = checked {
            self.invalid_name.get_or_insert(invalid_name);
        }
    }
}

opaque!(RulesFile);

/// A whole rules file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    headers: Option<Spanned<Vec<Spanned<String>>>>,
    keys: ByName<Table<keys::KeyFields>>,
    rules: Option<Spanned<ByName<Table<rule_fields::RuleFields>>>>,
    on: Vec<Spanned<Table<entries::EntryFields>>>,
    otherwise: Option<Spanned<Table<entries::OtherwiseFields>>>,
    deny: Vec<Spanned<Table<entries::EntryFields>>>,
    allow: Vec<Spanned<Table<entries::EntryFields>>>,
}

fn header_style(style: &Spanned<String>) -> Result<HeaderStyle, Mistake> {
    let styles = [
        ("draft-11", HeaderStyle::Draft11),
        ("draft-6", HeaderStyle::Draft6),
        ("legacy-epoch", HeaderStyle::LegacyEpoch),
        ("legacy-delta", HeaderStyle::Legacy),
    ];
    given(style, "value", style.get_ref(), styles)
}

/// Returns the text of a file.
fn read_text(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |reason: String| {
        let path = path.display().to_string();
        config_error!(Unreadable: "the rules file {path:?} cannot be read: {reason}")
    };
    // Before it is opened: opening a pipe would wait for its writer.
    let kind = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    if !kind.is_file() {
        return Err(unreadable("it is not a file".to_owned()));
    }
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text))
        .map_err(|error| unreadable(error.to_string()))?;
    if text.len() as u64 > LONGEST {
        return Err(unreadable("it is longer than a mebibyte".to_owned()));
    }
    Ok(text)
}
