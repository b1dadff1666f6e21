//! Reads the lines of a log: the common and combined formats, JSON lines, and CSV.

use std::{borrow::Cow, iter};

use serde_json::Value;
use smallvec::SmallVec;

use super::time;

/// The usual names of columns in logs, after the name that finds all of them.
const USUAL: [(&str, &str); 6] = [
    (
        "ip",
        "remote_addr client_ip remote_ip request.client_ip request.remote_ip clientip client \
         ClientHost",
    ),
    (
        "time",
        "timestamp ts @timestamp time_iso8601 time_local msec date StartUTC",
    ),
    ("method", "request_method request.method RequestMethod verb"),
    ("path", "uri url request_uri request.uri RequestPath"),
    ("host", "http_host request.host RequestHost"),
    ("status", "status_code response.status DownstreamStatus"),
];
/// The columns of the combined format; others have numbers alone.
const COMBINED: [&str; 9] = [
    "ip", "ident", "user", "4", "request", "status", "bytes", "referer", "agent",
];
/// The characters of the columns that an error lists.
const LONGEST_LIST: usize = 300;

/// The texts of a line, by column.
pub(super) type Fields<'a> = SmallVec<[Option<Cow<'a, str>>; 6]>;

/// The place of a column in a line.
#[derive(Debug)]
pub(super) struct Column {
    /// Among the words of a line.
    number: usize,
    /// In JSON.
    name: String,
    /// The word of a request line that it is: 0 is the method, 1 the path.
    word: Option<usize>,
}

/// The format of a log, with the columns in it.
#[derive(Debug)]
pub(super) struct Format {
    /// The byte between words: a space or a comma. `None` is JSON.
    between: Option<u8>,
    /// `None` for one that the log lacks.
    pub(super) columns: Vec<Option<Column>>,
    /// The words of a line that are read.
    words: usize,
}

impl Format {
    /// Finds the format by a line, which the header of a CSV file is: an error says what is
    /// missing. Each column has a name, and may be optional.
    pub(super) fn of(line: &str, columns: &[(String, bool)]) -> Result<Self, String> {
        if line.starts_with('{') {
            let value = serde_json::from_str::<Value>(line);
            let value = value.map_err(|error| format!("it is no JSON: {error}"))?;
            let names = value.as_object().into_iter().flatten();
            let names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
            let find = |name: &str| member(&value, name).map(|_| 0);
            return Self::find(None, columns, &names, find);
        }
        let time = Words::of(line, b' ').position(|word| time::read(word).is_some());
        let between = match time {
            Some(_) if line.contains(' ') => b' ',
            _ => b',',
        };
        let mut names: Vec<_> = Words::of(line, between).map(str::to_owned).collect();
        if between == b' ' {
            for (place, name) in names.iter_mut().enumerate() {
                let known = COMBINED.get(place).map(|name| (*name).to_owned());
                *name = match time == Some(place) {
                    true => "time".to_owned(),
                    false => known.unwrap_or_else(|| (place + 1).to_string()),
                };
            }
        }
        if names.len() < 2 {
            return Err(
                "it is neither JSON, nor of the common or combined format, nor the header of a \
                CSV file"
                    .to_owned(),
            );
        }
        Self::find(Some(between), columns, &names, |name| {
            let number = || name.parse::<usize>().ok()?.checked_sub(1);
            let place = names.iter().position(|it| it == name).or_else(number);
            place.filter(|place| *place < names.len())
        })
    }

    /// Finds the columns by name.
    fn find(
        between: Option<u8>,
        columns: &[(String, bool)],
        names: &[String],
        find: impl Fn(&str) -> Option<usize>,
    ) -> Result<Self, String> {
        let column = |name: &str, word| {
            let number = find(name)?;
            let name = name.to_owned();
            Some(Column { number, name, word })
        };
        let columns = columns.iter().map(|(name, optional)| {
            let usual = USUAL.iter().find(|(it, _)| it == name);
            let usual = usual.map_or("", |(_, names)| names).split(' ');
            let found = iter::once(&**name)
                .chain(usual)
                .find_map(|it| column(it, None));
            let found = found.or_else(|| match &**name {
                "method" => column("request", Some(0)),
                "path" => column("request", Some(1)),
                _ => None,
            });
            match found {
                None if !optional => Err(lacks(between, name, names)),
                found => Ok(found),
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let last = columns.iter().flatten().map(|column| column.number).max();
        Ok(Self {
            between,
            columns,
            words: last.unwrap_or(0) + 1,
        })
    }

    /// Returns whether the line that it was found by is no request.
    pub(super) fn has_header(&self) -> bool {
        self.between == Some(b',')
    }

    /// Reads a line; `None` if it is not of this format.
    pub(super) fn read<'a>(&self, line: &'a str) -> Option<Fields<'a>> {
        let Some(between) = self.between else {
            let value: Value = serde_json::from_str(line).ok()?;
            return Some(self.pick(|column| match member(&value, &column.name)? {
                Value::String(text) => Some(Cow::Owned(text.clone())),
                Value::Number(number) => Some(Cow::Owned(number.to_string())),
                _ => None,
            }));
        };
        let words = Words::of(line, between).take(self.words);
        let words: SmallVec<[&str; 16]> = words.collect();
        let text = |column: &Column| words.get(column.number).map(|word| Cow::Borrowed(*word));
        (words.len() == self.words).then(|| self.pick(text))
    }

    fn pick<'a>(&self, text: impl Fn(&Column) -> Option<Cow<'a, str>>) -> Fields<'a> {
        let field = |column: &Option<Column>| {
            let column = column.as_ref()?;
            match (text(column)?, column.word) {
                (text, None) => Some(text),
                (Cow::Borrowed(line), Some(word)) => word_of(line, word).map(Cow::Borrowed),
                (Cow::Owned(line), Some(word)) => {
                    Some(Cow::Owned(word_of(&line, word)?.to_owned()))
                }
            }
        };
        self.columns.iter().map(field).collect()
    }
}

/// Returns a word of a request line, which has several.
fn word_of(line: &str, number: usize) -> Option<&str> {
    let (method, rest) = line.split_once(' ')?;
    [method, rest.split(' ').next()?].get(number).copied()
}

/// Returns the text of an error for a column that a log lacks.
fn lacks(between: Option<u8>, missing: &str, has: &[String]) -> String {
    let format = match between {
        Some(b' ') => "the common or combined format",
        Some(_) => "the header of a CSV file",
        None => "JSON",
    };
    // They are the log's, so they may hold anything.
    let has: String = has.join(", ").chars().take(LONGEST_LIST).collect();
    let has = has.escape_debug();
    format!("it looks like {format}, and has no column {missing:?}: it has {has}")
}

/// Returns a member by its name, or by names with dots between them for one inside of another.
fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        member(value.get(outer)?, inner)
    })
}

/// The words of a line. What is in quotes, or in brackets where spaces are between words, is one,
/// and what is escaped in it stays so.
struct Words<'a> {
    rest: Option<&'a str>,
    between: u8,
}

impl<'a> Words<'a> {
    fn of(line: &'a str, between: u8) -> Self {
        let rest = Some(line);
        Self { rest, between }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (mut line, has_spaces) = (self.rest.take()?, self.between == b' ');
        if has_spaces {
            line = line.trim_start_matches(' ');
        }
        let inner = line.get(1..);
        let (word, rest) = match (line.bytes().next(), inner) {
            (None, _) if has_spaces => return None,
            (Some(b'['), Some(inner)) if has_spaces => {
                inner.split_at_checked(inner.bytes().position(|it| it == b']')?)?
            }
            (Some(b'"'), Some(inner)) => {
                let bytes = inner.as_bytes();
                let mut end = 0;
                loop {
                    end += match (bytes.get(end)?, bytes.get(end + 1)) {
                        (b'\\', _) if has_spaces => 2,
                        (b'"', Some(b'"')) if !has_spaces => 2,
                        (b'"', _) => break,
                        _ => 1,
                    };
                }
                inner.split_at_checked(end)?
            }
            _ => {
                // Words are so short that any other search is slower.
                let end = line.bytes().position(|it| it == self.between);
                let (word, rest) = line.split_at_checked(end.unwrap_or(line.len()))?;
                self.rest = end.and(rest.get(1..));
                return Some(word.trim());
            }
        };
        let rest = rest.get(1..)?;
        self.rest = match has_spaces {
            true => Some(rest),
            false => rest.strip_prefix(','),
        };
        Some(word)
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    fn columns(names: &[&str]) -> Vec<(String, bool)> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), false))
            .collect()
    }

    /// Reads the column of a line that shows its format.
    fn read(line: &str, by: &str) -> Option<String> {
        let format = Format::of(line, &columns(&["time", by])).unwrap();
        text(&format.read(line)?)
    }

    fn text(fields: &Fields<'_>) -> Option<String> {
        fields[1].as_deref().map(str::to_owned)
    }

    const COMBINED: &str = r#"192.0.2.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a\"b?q=1 HTTP/1.1" 200 23 "-" "curl 8" 0.25"#;

    #[test]
    fn every_column_of_a_combined_line_can_be_counted_by() {
        for (by, caller) in [
            ("ip", "192.0.2.7"),
            ("user", "ann"),
            ("4", "10/Oct/2000:13:55:36 -0700"),
            ("request", r#"GET /a\"b?q=1 HTTP/1.1"#),
            ("status", "200"),
            ("agent", "curl 8"),
            ("10", "0.25"),
        ] {
            assert_eq!(read(COMBINED, by).as_deref(), Some(caller), "{by}");
        }
        let format = Format::of(COMBINED, &columns(&["time", "10"])).unwrap();
        assert_eq!(
            format.read(&COMBINED[..60]),
            None,
            "its last column is cut off"
        );
        for missing in ["tenant", "11"] {
            let error = Format::of(COMBINED, &columns(&["time", missing])).unwrap_err();
            assert!(error.contains(&format!("{missing:?}")), "{error}");
        }
    }

    #[test]
    fn a_time_in_another_place_is_found() {
        let line = r#"example.org:443 192.0.2.7 - - [971211336.000] "GET / HTTP/1.1" 200"#;
        assert_eq!(read(line, "2").as_deref(), Some("192.0.2.7"));
        assert_eq!(read(line, "time").as_deref(), Some("971211336.000"));
    }

    #[test]
    fn json_has_names_also_inside_of_others() {
        for (line, by, caller) in [
            (r#"{"time":"2000-10-10T20:55:36Z","ip":"a"}"#, "ip", "a"),
            (r#"{"ts":971211336.0,"remote_addr":"a"}"#, "ip", "a"),
            (r#"{"ts":971211336,"request":{"remote_ip":"a"}}"#, "ip", "a"),
            (r#"{"ts":971211336,"user":{"id":7}}"#, "user.id", "7"),
            (r#"{"ts":971211336,"user.id":"x"}"#, "user.id", "x"),
        ] {
            assert_eq!(read(line, by).as_deref(), Some(caller), "{line}");
            let format = Format::of(line, &columns(&["time", by])).unwrap();
            let empty = format.read("{}").unwrap();
            assert!(empty.iter().all(Option::is_none), "{empty:?}");
            assert_eq!(format.read(r#"{"ts":"#), None);
        }
        let error = Format::of(r#"{"level":"info"}"#, &columns(&["ip"])).unwrap_err();
        assert!(error.contains("\"ip\": it has level"), "{error}");
        let error = Format::of("{\"\\u001b[2J\":1}", &columns(&["ip"])).unwrap_err();
        assert!(error.ends_with("it has \\u{1b}[2J"), "{error}");
    }

    #[test]
    fn a_request_line_has_a_method_and_a_path() {
        let columns = ["method", "path", "host", "status"].map(|name| (name.to_owned(), true));
        let line = r#"{"ts":971211336,"request":"POST /a?b HTTP/1.1"}"#;
        let caddy = r#"{"ts":971211336,"request":{"method":"GET","uri":"/","host":"h"}}"#;
        let absent = r#"192.0.2.7 - - [971211336.0] "-" 400"#;
        for (line, expected) in [
            (
                COMBINED,
                [Some("GET"), Some(r#"/a\"b?q=1"#), None, Some("200")],
            ),
            (line, [Some("POST"), Some("/a?b"), None, None]),
            (caddy, [Some("GET"), Some("/"), Some("h"), None]),
            (absent, [None, None, None, Some("400")]),
        ] {
            let fields = Format::of(line, &columns).unwrap().read(line).unwrap();
            let fields: Vec<_> = fields.iter().map(Option::as_deref).collect();
            assert_eq!(fields, expected, "{line}");
        }
        let short = Format::of("192.0.2.7 [971211336.0] x", &columns).unwrap();
        assert!(short.columns.iter().all(Option::is_none));
    }

    #[test]
    fn csv_has_named_columns() {
        let header = r#"status,time,"client_ip",path"#;
        let format = Format::of(header, &columns(&["time", "ip"])).unwrap();
        assert!(format.has_header());
        for (line, caller) in [
            ("200,971211336,a,/", Some("a")),
            (r#"200,"971211336","a ""b"", c",/"#, Some(r#"a ""b"", c"#)),
            ("200,2000-10-10 20:55:36,,", Some("")),
            ("", None),
            (r#"200,971211336,"a"#, None),
        ] {
            let fields = format.read(line);
            assert_eq!(fields.and_then(|it| text(&it)).as_deref(), caller, "{line}");
        }
        for header in ["time,path", "what is this", ""] {
            assert!(
                Format::of(header, &columns(&["time", "ip"])).is_err(),
                "{header}"
            );
        }
    }
}
