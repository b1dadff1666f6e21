//! Walks what the TOML parser has read, and knows of each value its line and its place.

use std::{fmt::Display, ops::Range};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use crate::{
    error::{ConfigError, ConfigErrorKind},
    name::is_word,
};

/// A text, and what it says.
pub(crate) struct Source<'a> {
    lines: Lines,
    table: Spanned<DeTable<'a>>,
}

/// The places at which the lines of a text end.
///
/// Each value is asked for its line, so that counting from the start would be quadratic in the
/// text.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(end, _)| end).collect())
    }

    /// Returns the line of the byte at this place, counted from 1.
    fn line(&self, at: usize) -> usize {
        self.0.partition_point(|end| *end < at) + 1
    }
}

impl<'a> Source<'a> {
    pub(crate) fn new(text: &'a str) -> Result<Self, ConfigError> {
        // Editors of another system begin a file with it, and TOML does not know it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = Lines::new(text);
        match DeTable::parse(text) {
            Ok(table) => Ok(Self { lines, table }),
            Err(error) => Err(fail(
                lines.line(error.span().map_or(0, |span| span.start)),
                "",
                // Its own words may have several lines; one is for a log.
                error.message().replace('\n', ", "),
            )),
        }
    }

    pub(crate) fn root(&self) -> Table<'_> {
        Table {
            lines: &self.lines,
            path: String::new(),
            line: 1,
            table: self.table.get_ref(),
        }
    }
}

/// A value and its place.
#[derive(Clone)]
pub(crate) struct Node<'a> {
    lines: &'a Lines,
    path: String,
    line: usize,
    value: &'a DeValue<'a>,
}

/// A table and its place.
#[derive(Clone)]
pub(crate) struct Table<'a> {
    lines: &'a Lines,
    path: String,
    line: usize,
    table: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    /// # Errors
    ///
    /// A field that is none of these: the first, with the one that was probably meant.
    pub(crate) fn known(&self, names: &[&str]) -> Result<(), ConfigError> {
        for (name, node) in self.fields() {
            if !names.contains(&name) {
                return Err(node.fail(no_such("field", name, names)));
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Node<'a>> {
        let mut fields = self.table.iter();
        fields
            .find(|(field, _)| field.get_ref() == name)
            .map(|(field, value)| self.node(field, value))
    }

    pub(crate) fn need(&self, name: &str, example: &str) -> Result<Node<'a>, ConfigError> {
        self.get(name)
            .ok_or_else(|| self.fail(format!("it lacks `{name}`, as in `{name} = {example}`")))
    }

    /// The fields in the order in which they were written.
    pub(crate) fn fields(&self) -> Vec<(&'a str, Node<'a>)> {
        let mut fields: Vec<_> = self
            .table
            .iter()
            .map(|(field, value)| {
                let name = field.get_ref().as_ref();
                (field.span().start, name, self.node(field, value))
            })
            .collect();
        fields.sort_by_key(|(start, ..)| *start);
        fields
            .into_iter()
            .map(|(_, name, node)| (name, node))
            .collect()
    }

    fn node(&self, field: &Spanned<DeString<'a>>, value: &'a Spanned<DeValue<'a>>) -> Node<'a> {
        let name = field.get_ref().as_ref();
        let path = match (self.path.as_str(), is_word(name)) {
            ("", true) => name.to_owned(),
            ("", false) => format!("{name:?}"),
            (path, true) => format!("{path}.{name}"),
            (path, false) => format!("{path}.{name:?}"),
        };
        Node::new(self.lines, path, &field.span(), value)
    }

    pub(crate) fn line(&self) -> usize {
        self.line
    }

    pub(crate) fn fail(&self, reason: impl Display) -> ConfigError {
        fail(self.line, &self.path, reason)
    }
}

impl<'a> Node<'a> {
    fn new(
        lines: &'a Lines,
        path: String,
        at: &Range<usize>,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Self {
        Self {
            lines,
            path,
            line: lines.line(at.start),
            value: value.get_ref(),
        }
    }

    pub(crate) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(crate) fn is_text(&self) -> bool {
        self.value.is_str()
    }

    pub(crate) fn text(&self) -> Result<&'a str, ConfigError> {
        self.value.as_str().ok_or_else(|| self.other("a text"))
    }

    pub(crate) fn flag(&self) -> Result<bool, ConfigError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.other("true or false"))
    }

    /// A whole number that `T` can hold.
    pub(crate) fn number<T: TryFrom<u64>>(&self) -> Result<T, ConfigError> {
        let number = self
            .value
            .as_integer()
            .ok_or_else(|| self.other("a whole number"))?;
        u64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.fail(format!("{} is out of range", number.as_str())))
    }

    /// A number, whole or not.
    pub(crate) fn fraction(&self) -> Result<f64, ConfigError> {
        let whole = || self.value.as_integer().map(|number| number.as_str());
        let text = self.value.as_float().map(|number| number.as_str());
        let text = text.or_else(whole).ok_or_else(|| self.other("a number"))?;
        // What TOML writes otherwise, in another base say, is no share of anything.
        text.parse()
            .map_err(|_| self.fail(format!("{text} is no number such as 0.25")))
    }

    pub(crate) fn table(&self) -> Result<Table<'a>, ConfigError> {
        Ok(Table {
            lines: self.lines,
            path: self.path.clone(),
            line: self.line,
            table: self.value.as_table().ok_or_else(|| self.other("a table"))?,
        })
    }

    pub(crate) fn items(&self) -> Result<Vec<Self>, ConfigError> {
        let array = self.value.as_array().ok_or_else(|| self.other("a list"))?;
        let items = array.iter().enumerate();
        Ok(items
            .map(|(place, item)| {
                let path = format!("{}[{place}]", self.path);
                Self::new(self.lines, path, &item.span(), item)
            })
            .collect())
    }

    /// The items of a list, or the one that stands there alone.
    pub(crate) fn one_or_more(&self) -> Result<Vec<Self>, ConfigError> {
        if self.is_text() {
            return Ok(vec![self.clone()]);
        }
        let items = self.items()?;
        if items.is_empty() {
            return Err(self.fail("the list is empty: leave the field out, or name something"));
        }
        Ok(items)
    }

    /// What one of these words stands for.
    pub(crate) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.fail(no_such("value", text, &words))
        })
    }

    pub(crate) fn fail(&self, reason: impl Display) -> ConfigError {
        fail(self.line, &self.path, reason)
    }

    fn other(&self, wanted: &str) -> ConfigError {
        let found = match self.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.fail(format!("here stands {found}, and not {wanted}"))
    }
}

pub(crate) fn fail(line: usize, path: &str, reason: impl Display) -> ConfigError {
    let place = match path {
        "" => format!("line {line}"),
        path => format!("line {line}, {path}"),
    };
    ConfigErrorKind::File
        .error(reason.to_string())
        .at(Some(place))
}

/// Says that there is no such thing, and what there is instead.
pub(crate) fn no_such(what: &str, given: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|name| (distance(given, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .min();
    match near {
        Some((_, near)) => format!("there is no {what} {given:?}: did you mean `{near}`?"),
        None if known.is_empty() => format!("there is no {what} {given:?}, and none was named"),
        None => format!("there is no {what} {given:?}, but `{}`", known.join("`, `")),
    }
}

/// How many characters must be added, left out or replaced.
fn distance(from: &str, to: &str) -> usize {
    // Whatever is that long was not meant to be one of ours.
    if from.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (place, given) in from.chars().enumerate() {
        let mut diagonal = place;
        let mut left = place + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, wanted) in row.iter_mut().skip(1).zip(to.chars()) {
            let replaced = diagonal + usize::from(given != wanted);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probably_meant_is_told() {
        for (one, other, expected) in [
            ("", "", 0),
            ("rate", "rate", 0),
            ("rat", "rate", 1),
            ("raet", "rate", 2),
            ("", "rate", 4),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
        let known = ["rate", "keep-alive"];
        assert!(no_such("field", "rates", &known).ends_with("did you mean `rate`?"));
        assert!(no_such("field", "keep_alive", &known).ends_with("did you mean `keep-alive`?"));
        assert!(no_such("field", "burst", &known).ends_with("but `rate`, `keep-alive`"));
    }
}
