//! Reads TOML into structs by serde, and finds the line and the field of a mistake.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    marker::PhantomData,
    ops::Range,
    slice,
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use strsim::levenshtein;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::values::{
    error::{ConfigError, ConfigErrorKind},
    name::is_word,
};

/// A place in a text, and the mistake there.
pub(super) struct Mistake(Range<usize>, String);

impl Mistake {
    /// Returns the error that names the line and the field.
    pub(super) fn in_text(self, text: &str) -> ConfigError {
        let Self(at, reason) = self;
        // The list of the `[[on]]` tables and its first table have the same span. The mistake is in
        // the table, unless a table is missing there.
        let innermost = !reason.starts_with("invalid type: sequence");
        let table = DeTable::parse(text).map(|table| DeValue::Table(table.into_inner()));
        let field = table
            .ok()
            .and_then(|table| field_at("", &table, &at, innermost));
        let line = line_at(text, at.start);
        let place = match field {
            Some(field) => format!("line {line}, {field}"),
            None => format!("line {line}"),
        };
        ConfigErrorKind::File.error(reason).at(Some(place))
    }
}

impl From<toml::de::Error> for Mistake {
    fn from(error: toml::de::Error) -> Self {
        Self(error.span().unwrap_or_default(), reason_of(error.message()))
    }
}

/// Creates a [`Mistake`] at the place of a value.
pub(super) trait Fail {
    fn fail(&self, reason: impl Display) -> Mistake;

    /// Returns the error of a check as one at this place.
    fn at_this<T>(&self, checked: Result<T, impl Display>) -> Result<T, Mistake> {
        checked.map_err(|error| self.fail(error))
    }
}

impl Fail for Range<usize> {
    fn fail(&self, reason: impl Display) -> Mistake {
        Mistake(self.clone(), reason.to_string())
    }
}

impl<T> Fail for Spanned<T> {
    fn fail(&self, reason: impl Display) -> Mistake {
        self.span().fail(reason)
    }
}

/// Returns the place of a field, if it is present.
pub(super) fn span<T>(field: &Option<Spanned<T>>) -> Option<Range<usize>> {
    field.as_ref().map(Spanned::span)
}

/// Refuses a field whose `owner`, the setting that it belongs to, is not there.
pub(super) fn only_with(
    has_owner: bool,
    owner: &str,
    field: Option<Range<usize>>,
) -> Result<(), Mistake> {
    match field {
        Some(field) if !has_owner => Err(field.fail(format!("it belongs to {owner}"))),
        _ => Ok(()),
    }
}

/// Reads a text, which must not begin with a byte order mark.
pub(super) fn table_of<T: for<'t> Deserialize<'t>>(text: &str) -> Result<T, Mistake> {
    let table = DeTable::parse(text)?;
    let (span, table) = (table.span(), DeValue::Table(table.into_inner()));
    let document = Spanned::new(span, table);
    Ok(T::deserialize(toml::de::ValueDeserializer::from(document))?)
}

/// Returns the line of the byte at this offset, counted from 1.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    let before = text.bytes().take(at);
    before.filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the innermost or the outermost field whose name or value is at a place, as in
/// `rules.login.rate`.
fn field_at(path: &str, value: &DeValue<'_>, at: &Range<usize>, innermost: bool) -> Option<String> {
    let below = |path: String, value: &Spanned<DeValue<'_>>, is_here: bool| {
        let deeper = field_at(&path, value.get_ref(), at, innermost);
        let here = (is_here || value.span() == *at).then_some(path);
        if innermost {
            deeper.or(here)
        } else {
            here.or(deeper)
        }
    };
    match value {
        DeValue::Table(table) => table.iter().find_map(|(field, value)| {
            let name = field.get_ref();
            let dot = if path.is_empty() { "" } else { "." };
            let path = if is_word(name) {
                format!("{path}{dot}{name}")
            } else {
                format!("{path}{dot}{name:?}")
            };
            below(path, value, field.span() == *at)
        }),
        DeValue::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let path = format!("{path}[{index}]");
            below(path, item, false)
        }),
        _ => None,
    }
}

/// A table with the fields of `T`. serde alone would also accept a list, and take its items as the
/// fields in their order.
pub(super) struct Table<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor(PhantomData))
    }
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
    type Value = Table<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Table)
    }
}

/// Values by name.
pub(super) type ByName<T> = BTreeMap<Spanned<String>, Spanned<T>>;

/// Returns values in the order in which they were written.
pub(super) fn in_order<T>(values: ByName<T>) -> Vec<(Spanned<String>, Spanned<T>)> {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by_key(|(name, _)| name.span().start);
    values
}

/// A text, or a list of texts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "it is neither a text nor a list of texts")]
pub(super) enum Texts {
    One(String),
    Many(Vec<String>),
}

/// Returns the texts of a list, or a single text.
pub(super) fn one_or_more(texts: &Spanned<Texts>) -> Result<&[String], Mistake> {
    match texts.get_ref() {
        Texts::One(one) => Ok(slice::from_ref(one)),
        Texts::Many(many) if many.is_empty() => {
            Err(texts.fail("the list is empty: leave the field out, or name something"))
        }
        Texts::Many(many) => Ok(many),
    }
}

/// Returns a field that a table must have.
pub(super) fn need<T>(
    field: Option<T>,
    table: &impl Fail,
    name: &str,
    example: &str,
) -> Result<T, Mistake> {
    field.ok_or_else(|| table.fail(format!("it lacks `{name}`, as in `{name} = {example}`")))
}

/// Returns what a name stands for among the known ones, of the file or of the code.
pub(super) fn given<T>(
    at: &impl Fail,
    what: &str,
    name: &str,
    known: impl IntoIterator<Item = (impl AsRef<str>, T)>,
) -> Result<T, Mistake> {
    let mut known: Vec<_> = known.into_iter().collect();
    match known.iter().position(|(it, _)| it.as_ref() == name) {
        Some(index) => Ok(known.swap_remove(index).1),
        None => {
            let known: Vec<_> = known.iter().map(|(it, _)| it.as_ref()).collect();
            Err(at.fail(no_such(what, name, &known)))
        }
    }
}

/// Returns serde's message on one line, with a suggestion for an unknown field.
fn reason_of(message: &str) -> String {
    let unknown = message.strip_prefix("unknown field `");
    match unknown.and_then(|rest| rest.rsplit_once("`, expected ")) {
        Some((name, wanted)) => {
            // Each known name is between a pair of backticks.
            let known: Vec<_> = wanted.split('`').skip(1).step_by(2).collect();
            no_such("field", name, &known)
        }
        // The parser's own message may have several lines, and a log line must not.
        None => message.replace('\n', ", "),
    }
}

/// Returns a message that a name is unknown, with the known or nearest names.
///
/// The command finds out by these words which names of the code a file needs: what the callers in
/// this folder give for `what` are the `KINDS` of `bin/ratelimit/assumptions.rs`.
pub(super) fn no_such(what: &str, given: &str, known: &[&str]) -> String {
    // A very long text would take long.
    let near = (known.iter().filter(|_| given.len() <= 64))
        .map(|name| (levenshtein(given, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4);
    match near.min() {
        Some((_, near)) => format!("there is no {what} {given:?}: did you mean `{near}`?"),
        None if known.is_empty() => format!("there is no {what} {given:?}, and none is defined"),
        None => format!(
            "there is no {what} {given:?}: the known ones are `{}`",
            known.join("`, `")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_name_is_suggested() {
        let known = ["rate", "keep-alive"];
        assert!(no_such("field", "rates", &known).ends_with("did you mean `rate`?"));
        assert!(no_such("field", "keep_alive", &known).ends_with("did you mean `keep-alive`?"));
        assert!(no_such("field", "burst", &known).ends_with("ones are `rate`, `keep-alive`"));
    }
}
