//! Finds the columns of a line: in the common and combined formats, JSON, CSV and its like with a
//! header, and words with blanks between them, by number or as `name=value`.

mod find;
mod suggest;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::Value;
use smallvec::SmallVec;

pub(super) use self::suggest::{rival, suggestion};
use super::{address::ip_of, kind::Kind, time};

/// The columns of the combined format with a virtual host before it, which it also has without;
/// others have numbers alone.
const VHOST_COMBINED: &[&str] = &[
    "host", "ip", "ident", "user", "time", "request", "status", "bytes", "referer", "agent",
];
/// What is before the names in a header of the W3C's extended format.
pub(super) const FIELDS: &str = "#Fields:";

/// A column that a log lacks: what it would hold, and the text of an error.
pub(super) type Lack = (Kind, String);

/// The texts of a line, by column.
pub(super) type Cells<'a> = SmallVec<[Option<Cow<'a, str>>; 8]>;

/// The place of one word or member of a line.
#[derive(Clone, Debug)]
enum ColumnPart {
    Number(usize),
    /// In JSON, or before an equals sign.
    Name(String),
}

/// The place of a column in a line.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// More than one for a time whose parts stand in several.
    parts: SmallVec<[ColumnPart; 1]>,
    /// The word of a request line that it is: 0 is the method, 1 the path.
    pub(super) word: Option<usize>,
    /// Its name or its number, as an option takes it.
    pub(super) place: String,
}

/// A line, taken apart.
#[allow(
    clippy::large_enum_variant,
    reason = "a line is read and dropped in place"
)]
enum SplitLine<'a> {
    Json(Value),
    Words(SmallVec<[&'a str; 16]>),
}

/// The format of a log, with the columns in it.
#[derive(Debug)]
pub(super) struct LogFormat {
    shape: Shape,
    skip: usize,
    /// `None` for one that the log lacks.
    pub(super) columns: Vec<Option<Column>>,
    /// The words of a line that are read.
    words: usize,
}

impl LogFormat {
    /// Returns whether the line that it was found by is no request.
    pub(super) fn has_header(&self) -> bool {
        self.shape.header.is_some()
    }

    /// Returns the number of columns that the log lacks.
    pub(super) fn missing(&self) -> usize {
        self.columns.iter().filter(|it| it.is_none()).count()
    }

    /// Reads a line; `None` if it is not of this format.
    pub(super) fn read<'a>(&self, line: &'a str) -> Option<Cells<'a>> {
        let line = self.shape.line(skip(line, self.skip), self.words).ok()?;
        if let SplitLine::Words(words) = &line
            && words.len() < self.words
            && self.words < usize::MAX
        {
            return None;
        }
        let columns = self.columns.iter();
        Some(columns.map(|it| it.as_ref()?.text(&line)).collect())
    }
}

/// How lines are taken apart.
#[derive(Debug)]
struct Shape {
    /// The byte between words: a blank, a tab or a comma. `None` is JSON.
    between: Option<u8>,
    /// The names of the columns, where a header names them.
    header: Option<Vec<String>>,
}

impl Shape {
    /// Returns that of a line, which may be a header.
    fn of(line: &str) -> Self {
        let header = header(line);
        let between = match line.bytes().next() {
            Some(b'{') => None,
            Some(_) if line.starts_with(FIELDS) => Some(b' '),
            Some(_) if line.contains('\t') => Some(b'\t'),
            Some(_) if header.is_some() => Some(b','),
            _ => Some(b' '),
        };
        Self { between, header }
    }

    /// Takes a line apart, up to so many words.
    fn line<'a>(&self, line: &'a str, words: usize) -> serde_json::Result<SplitLine<'a>> {
        let between = match self.between {
            None => return serde_json::from_str(line).map(SplitLine::Json),
            // A header of the W3C may have blanks where the lines have tabs.
            Some(b' ') if self.header.is_some() && line.contains('\t') => b'\t',
            Some(between) => between,
        };
        Ok(SplitLine::Words(
            Words::of(line, between).take(words).collect(),
        ))
    }
}

/// Returns the names of columns, if the line is a header: of a CSV file, where all between commas
/// are names, or of the extended format of the W3C.
fn header(line: &str) -> Option<Vec<String>> {
    const LONGEST_NAME: usize = 64;
    let is_of_name = |it: char| it.is_alphanumeric() || "_-.@()/ :".contains(it);
    let is_name = |it: &str| {
        let starts = it.starts_with(|it: char| it.is_alphabetic() || "_@".contains(it));
        starts && it.len() <= LONGEST_NAME && it.chars().all(is_of_name) && !Kind::Address.holds(it)
    };
    let names: Vec<_> = match line.strip_prefix(FIELDS) {
        Some(names) => names.split_whitespace().collect(),
        None => Words::of(line, b',').map(str::trim).collect(),
    };
    let is_csv = line.contains(',') && names.iter().all(|it| is_name(it));
    let is_header = is_csv || line.starts_with(FIELDS);
    is_header.then(|| names.into_iter().map(str::to_owned).collect())
}

/// Returns the names of a known layout of words.
fn layout(words: &[&str], text: &str) -> Option<&'static [&'static str]> {
    let has_time = |index: usize| {
        let word = words.get(index).filter(|word| time::read(word).is_some());
        word.is_some_and(|word| text.contains(&format!("[{word}]")))
    };
    let is_address = |index: usize| words.get(index).is_some_and(|it| ip_of(it).is_some());
    if has_time(3) {
        return VHOST_COMBINED.get(1..);
    }
    // A prefix of one word may be a time.
    let is_host = |word: &&str| Kind::Host.holds(word) && time::read(word).is_none();
    let is_host = words.first().is_some_and(is_host) && !is_address(0);
    (has_time(4) && is_address(1) && is_host).then_some(VHOST_COMBINED)
}

impl Column {
    /// Returns what else may be right of a column that is not what its name says.
    pub(super) fn remedy(&self, name: &str) -> String {
        match Kind::of(name) {
            Kind::Address if self.place != name => {
                let place = self.place.escape_debug();
                format!("; `--by {place}` counts by it as it is")
            }
            Kind::Request | Kind::Method | Kind::Path | Kind::Host | Kind::Status => {
                format!("; `--columns {name}=-` reads the log without it")
            }
            _ => String::new(),
        }
    }

    fn text<'a>(&self, line: &SplitLine<'a>) -> Option<Cow<'a, str>> {
        let mut parts = self.parts.iter().map(|part| line.get(part));
        let mut text = parts.next()??;
        for next in parts {
            text = Cow::Owned(format!("{text} {}", next?));
        }
        match (text, self.word) {
            (text, None) => Some(text),
            (Cow::Borrowed(line), Some(word)) => line.split(' ').nth(word).map(Cow::Borrowed),
            (Cow::Owned(line), Some(word)) => Some(line.split(' ').nth(word)?.to_owned().into()),
        }
    }
}

impl<'a> SplitLine<'a> {
    fn get(&self, place: &ColumnPart) -> Option<Cow<'a, str>> {
        match (self, place) {
            (Self::Json(value), ColumnPart::Name(name)) => {
                text_of(member(value, name)?).map(Cow::Owned)
            }
            (Self::Words(words), ColumnPart::Number(number)) => {
                words.get(*number).map(|word| Cow::Borrowed(*word))
            }
            (Self::Words(words), ColumnPart::Name(name)) => {
                let mut values = words.iter().filter_map(|word| value_of(word, name));
                values.next().map(Cow::Borrowed)
            }
            (Self::Json(_), ColumnPart::Number(_)) => None,
        }
    }
}

/// Returns whether a text may stand before an equals sign.
fn is_name(text: &str) -> bool {
    let is_of_name = |it: u8| it.is_ascii_alphanumeric() || b"_-.".contains(&it);
    !text.is_empty() && text.bytes().all(is_of_name)
}

/// Returns the value of `name=value`, if the word is that.
fn value_of<'a>(word: &'a str, name: &str) -> Option<&'a str> {
    let value = word.strip_prefix(name)?.strip_prefix('=')?;
    let inner = value.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    Some(inner.unwrap_or(value))
}

/// Returns a member by its name, or by names with dots between them for one inside of another.
fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        member(value.get(outer)?, inner)
    })
}

/// Returns the text of a value. A list is what was sent in several lines of a header.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(values) => {
            let texts: Option<Vec<_>> = values.iter().map(text_of).collect();
            texts.map(|texts| texts.join(", "))
        }
        Value::Bool(_) | Value::Null | Value::Object(_) => None,
    }
}

/// Adds words by their names or numbers, the values of `name=value`, and pairs of words, which may
/// be the two parts of a time.
fn cells(words: &[&str], names: Option<&[String]>, found: &mut Vec<(String, String)>) {
    let name = |place: usize| {
        let name = names.and_then(|names| names.get(place)).cloned();
        name.unwrap_or_else(|| (place + 1).to_string())
    };
    for (place, word) in words.iter().enumerate() {
        match word.split_once('=').filter(|_| names.is_none()) {
            Some((name, value)) if is_name(name) => {
                found.push((name.to_owned(), value.trim_matches('"').to_owned()));
            }
            _ => found.push((name(place), (*word).to_owned())),
        }
        for other in [place + 1, place + 2] {
            if let Some(next) = words.get(other)
                && Kind::Time.holds(&format!("{word} {next}"))
            {
                let names = format!("{}+{}", name(place), name(other));
                found.push((names, format!("{word} {next}")));
            }
        }
    }
}

/// The words of a line. What is in quotes, or in brackets where spaces are between words, is one,
/// and what is escaped in it stays so. A tab ends a word wherever it stands.
struct Words<'a> {
    rest: Option<&'a str>,
    between: u8,
}

impl<'a> Words<'a> {
    fn of(line: &'a str, between: u8) -> Self {
        let rest = Some(line);
        Self { rest, between }
    }

    /// Returns the end of what is in quotes.
    fn end_of_quotes(&self, bytes: &[u8]) -> Option<usize> {
        let has_spaces = self.between == b' ';
        let mut end = 0;
        loop {
            end += match (bytes.get(end)?, bytes.get(end + 1)) {
                (b'\\', _) if has_spaces => 2,
                (b'"', Some(b'"')) if !has_spaces => 2,
                (b'"', _) => return Some(end),
                _ => 1,
            };
        }
    }

    /// Returns the length of a word that does not begin with quotes or a bracket.
    fn end_of_plain(&self, line: &str) -> Option<usize> {
        // Words are so short that any other search is slower.
        let bytes = line.as_bytes();
        let end = bytes.iter().position(|it| *it == self.between);
        let end = end.unwrap_or(bytes.len());
        // As in `path="/a b"`, which many tools write.
        let quotes = bytes.get(..end)?.windows(2).position(|it| it == b"=\"");
        match quotes.filter(|_| self.between == b' ') {
            Some(at) => Some(at + 3 + self.end_of_quotes(bytes.get(at + 2..)?)?),
            None => Some(end),
        }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (mut line, has_spaces) = (self.rest.take()?, self.between == b' ');
        if has_spaces {
            line = line.trim_start_matches(' ');
        }
        let inner = line.get(1..).filter(|_| self.between != b'\t');
        let (word, rest) = match (line.bytes().next(), inner) {
            (None, _) if has_spaces => return None,
            (Some(b'['), Some(inner)) if has_spaces => {
                inner.split_at_checked(inner.bytes().position(|it| it == b']')?)?
            }
            (Some(b'"'), Some(inner)) => {
                inner.split_at_checked(self.end_of_quotes(inner.as_bytes())?)?
            }
            _ => {
                let (word, rest) = line.split_at_checked(self.end_of_plain(line)?)?;
                self.rest = rest.get(1..);
                return Some(word.trim());
            }
        };
        let rest = rest.get(1..)?;
        self.rest = if has_spaces {
            Some(rest)
        } else {
            rest.strip_prefix(',')
        };
        Some(word)
    }
}

/// Returns what follows so many words, by blanks alone.
fn skip(line: &str, words: usize) -> &str {
    let blank = [' ', '\t'];
    (0..words).fold(line, |line, _| {
        let line = line.trim_start_matches(blank);
        let rest = line.find(blank).and_then(|end| line.get(end..));
        rest.unwrap_or("").trim_start_matches(blank)
    })
}
