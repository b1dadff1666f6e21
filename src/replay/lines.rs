//! Reads the lines of a log: the common and combined formats, JSON lines, and CSV.

use std::{borrow::Cow, iter};

use serde_json::Value;
use smallvec::SmallVec;

use super::time;

/// The names that columns have in logs, behind the name that stands for them here.
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

/// The characters of the columns that an error lists.
const LONGEST_LIST: usize = 300;

/// The columns that are read.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) fields: Vec<Column>,
    pub(super) time: Option<String>,
    /// Its name, and the microseconds of its unit.
    pub(super) duration: Option<(String, i64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Set if a log may lack it.
    pub(super) optional: bool,
}

/// What one line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// When it was written, in microseconds.
    pub(super) written: i64,
    /// For how long the request had lasted by then.
    pub(super) lasted: i64,
    /// By column.
    pub(super) fields: Fields<'a>,
}

pub(super) type Fields<'a> = SmallVec<[Option<Cow<'a, str>>; 4]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The common and combined formats, and what begins like them
    Spaced,
    Csv,
    Json,
}

/// The place of a column.
#[derive(Debug)]
struct Place {
    /// Of a line of words.
    number: usize,
    /// Of JSON.
    name: String,
    /// The part of a request line that it is.
    part: Part,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Whole,
    Method,
    Path,
}

/// The format of a log, with the places of the columns in it.
#[derive(Debug)]
pub(super) struct Format {
    kind: Kind,
    time: Place,
    /// The place, and the microseconds of its unit.
    duration: Option<(Place, i64)>,
    /// `None` for one that the log lacks.
    fields: Vec<Option<Place>>,
    /// The words of a line that are read.
    words: usize,
}

impl Format {
    /// Finds the format by a line, which the header of a CSV file is: an error says what is
    /// missing.
    pub(super) fn of(line: &str, columns: &Columns) -> Result<Self, String> {
        if line.starts_with('{') {
            let value = serde_json::from_str::<Value>(line);
            let value = value.map_err(|error| format!("it is no JSON: {error}"))?;
            let has = || {
                let names = value.as_object().into_iter().flatten();
                names.map(|(name, _)| name.clone()).collect()
            };
            let find = |name: &str, _| member(&value, name).map(|_| 0);
            return Self::find(Kind::Json, columns, find, has);
        }
        if let Some(time) = Spaced(line).position(|field| time::read(field).is_some())
            && line.contains(' ')
        {
            let words = Spaced(line).count();
            let find = |name: &str, optional: bool| match name {
                "time" => Some(time),
                _ => numbered(name).filter(|number| !optional || *number < words),
            };
            let has = || {
                vec!["ip, user, request, status, bytes, referer, agent, or a number from 1".into()]
            };
            return Self::find(Kind::Spaced, columns, find, has);
        }
        let header: Vec<_> = Csv(Some(line)).collect();
        if header.len() < 2 {
            return Err(
                "it is neither JSON, nor of the common or combined format, nor the header of a \
                CSV file"
                    .to_owned(),
            );
        }
        let find = |name: &str, _| header.iter().position(|column| *column == name);
        let has = || header.iter().map(|name| (*name).to_owned()).collect();
        Self::find(Kind::Csv, columns, find, has)
    }

    /// Finds the columns by name.
    fn find(
        kind: Kind,
        columns: &Columns,
        find: impl Fn(&str, bool) -> Option<usize>,
        has: impl Fn() -> Vec<String>,
    ) -> Result<Self, String> {
        let place = |name: &str, part: Part, optional| {
            let number = find(name, optional)?;
            let name = name.to_owned();
            Some(Place { number, name, part })
        };
        let one = |name: &str, optional| {
            let usual = USUAL.iter().find(|(it, _)| *it == name);
            let usual = usual.map_or("", |(_, names)| names).split(' ');
            let mut names = iter::once(name).chain(usual);
            let found = names.find_map(|name| place(name, Part::Whole, optional));
            found.or_else(|| match name {
                "method" => place("request", Part::Method, optional),
                "path" => place("request", Part::Path, optional),
                _ => None,
            })
        };
        let needed = |name: &str| one(name, false).ok_or_else(|| lacks(kind, name, &has()));
        let duration = columns.duration.as_ref();
        let duration = duration.map(|(name, unit)| Ok::<_, String>((needed(name)?, *unit)));
        let fields = columns.fields.iter().map(|column| match column.optional {
            true => Ok(one(&column.name, true)),
            false => needed(&column.name).map(Some),
        });
        let mut format = Self {
            kind,
            fields: fields.collect::<Result<_, _>>()?,
            time: needed(columns.time.as_deref().unwrap_or("time"))?,
            duration: duration.transpose()?,
            words: 0,
        };
        let timed = format.duration.iter().map(|(place, _)| place);
        let all = format
            .fields
            .iter()
            .flatten()
            .chain(timed)
            .chain([&format.time]);
        format.words = all.map(|place| place.number + 1).max().unwrap_or(0);
        Ok(format)
    }

    /// Returns whether the line that it was found by is no request.
    pub(super) fn has_header(&self) -> bool {
        self.kind == Kind::Csv
    }

    /// Returns whether the log has each of the columns.
    pub(super) fn found(&self) -> impl Iterator<Item = bool> {
        self.fields.iter().map(Option::is_some)
    }

    /// Reads a line; `None` if a column is missing or is not as it has to be.
    pub(super) fn read<'a>(&self, line: &'a str) -> Option<Request<'a>> {
        let mut words: SmallVec<[&str; 16]> = SmallVec::new();
        match self.kind {
            Kind::Json => {
                let value: Value = serde_json::from_str(line).ok()?;
                return self.pick(|place| {
                    member(&value, &place.name)
                        .and_then(text_of)
                        .map(Cow::Owned)
                });
            }
            Kind::Spaced => words.extend(Spaced(line).take(self.words)),
            Kind::Csv => words.extend(Csv(Some(line)).take(self.words)),
        }
        if words.len() < self.words {
            return None;
        }
        self.pick(|place| words.get(place.number).map(|word| Cow::Borrowed(*word)))
    }

    fn pick<'a>(&self, text: impl Fn(&Place) -> Option<Cow<'a, str>>) -> Option<Request<'a>> {
        let lasted = match &self.duration {
            None => 0,
            Some((place, unit)) => match &*text(place)? {
                // nginx writes it where no server was asked.
                "-" | "" => 0,
                text => time::decimal(text, *unit)?,
            },
        };
        let field = |place: &Option<Place>| {
            let place = place.as_ref()?;
            place.part.of(text(place)?)
        };
        Some(Request {
            written: time::read(&text(&self.time)?)?,
            lasted,
            fields: self.fields.iter().map(field).collect(),
        })
    }
}

impl Part {
    /// Returns this part of a request line, which has a method and a path.
    fn of(self, text: Cow<'_, str>) -> Option<Cow<'_, str>> {
        let range = match (self, text.find(' ')) {
            (Self::Whole, _) => return Some(text),
            (_, None) => return None,
            (Self::Method, Some(end)) => 0..end,
            (Self::Path, Some(space)) => {
                let length = text
                    .get(space + 1..)?
                    .bytes()
                    .take_while(|byte| *byte != b' ');
                space + 1..space + 1 + length.count()
            }
        };
        Some(match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(range)?),
            Cow::Owned(text) => Cow::Owned(text.get(range)?.to_owned()),
        })
    }
}

/// Returns the text of an error for a column that a log lacks.
fn lacks(kind: Kind, missing: &str, has: &[String]) -> String {
    let format = match kind {
        Kind::Spaced => "the common or combined format",
        Kind::Csv => "the header of a CSV file",
        Kind::Json => "JSON",
    };
    // They are the log's, so they may hold anything.
    let has = has.join(", ");
    let has: String = has.chars().take(LONGEST_LIST).collect();
    let has = has.escape_debug();
    format!("it looks like {format}, and has no column {missing:?}: it has {has}")
}

/// The place of a column of the combined format, by its name or its number, counted from 1.
fn numbered(name: &str) -> Option<usize> {
    Some(match name {
        "ip" | "remote_addr" => 0,
        "ident" => 1,
        "user" | "remote_user" => 2,
        "request" => 4,
        "status" => 5,
        "bytes" => 6,
        "referer" => 7,
        "agent" | "user_agent" => 8,
        _ => name.parse::<usize>().ok()?.checked_sub(1)?,
    })
}

/// Returns a member by its name, or by names with dots between them for one inside of another.
fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        member(value.get(outer)?, inner)
    })
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The fields of a line of the combined format: words, and what is in quotes or brackets.
struct Spaced<'a>(&'a str);

impl<'a> Iterator for Spaced<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let line = self.0.trim_start_matches(' ');
        let (field, rest) = if let Some(inner) = line.strip_prefix('"') {
            quoted(inner, |bytes, at| match bytes.get(at) {
                Some(b'\\') => Step::Over(2),
                Some(b'"') => Step::End,
                _ => Step::Over(1),
            })?
        } else if let Some(inner) = line.strip_prefix('[') {
            cut(inner, b']')?
        } else if line.is_empty() {
            return None;
        } else {
            cut(line, b' ').unwrap_or((line, ""))
        };
        self.0 = rest;
        Some(field)
    }
}

/// The fields of a line of a CSV file.
struct Csv<'a>(Option<&'a str>);

impl<'a> Iterator for Csv<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let line = self.0.take()?;
        let Some(inner) = line.strip_prefix('"') else {
            let (field, rest) = match cut(line, b',') {
                Some((field, rest)) => (field, Some(rest)),
                None => (line, None),
            };
            self.0 = rest;
            return Some(field.trim());
        };
        let (field, rest) = quoted(inner, |bytes, at| {
            match (bytes.get(at), bytes.get(at + 1)) {
                (Some(b'"'), Some(b'"')) => Step::Over(2),
                (Some(b'"'), _) => Step::End,
                _ => Step::Over(1),
            }
        })?;
        self.0 = rest.strip_prefix(',');
        Some(field)
    }
}

/// Splits at the first such byte, of ASCII. Fields are so short that a search by words is slower.
fn cut(text: &str, at: u8) -> Option<(&str, &str)> {
    let place = text.bytes().position(|byte| byte == at)?;
    Some((text.get(..place)?, text.get(place + 1..)?))
}

enum Step {
    Over(usize),
    End,
}

/// Splits at the quote that ends a field; what is escaped in it stays so.
fn quoted(text: &str, step: impl Fn(&[u8], usize) -> Step) -> Option<(&str, &str)> {
    let mut at = 0;
    while at < text.len() {
        match step(text.as_bytes(), at) {
            Step::Over(bytes) => at += bytes,
            Step::End => return Some((text.get(..at)?, text.get(at + 1..)?)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(by: &str) -> Columns {
        Columns {
            fields: vec![Column {
                name: by.to_owned(),
                optional: false,
            }],
            time: None,
            duration: None,
        }
    }

    fn request(caller: &str) -> Request<'_> {
        Request {
            written: 971_211_336_000_000,
            lasted: 0,
            fields: [Some(Cow::Borrowed(caller))].into_iter().collect(),
        }
    }

    const COMBINED: &str = r#"192.0.2.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a\"b?q=1 HTTP/1.1" 200 23 "-" "curl 8" 0.25"#;

    #[test]
    fn every_column_of_a_combined_line_can_be_counted_by() {
        for (by, caller) in [
            ("ip", "192.0.2.7"),
            ("user", "ann"),
            ("request", r#"GET /a\"b?q=1 HTTP/1.1"#),
            ("status", "200"),
            ("agent", "curl 8"),
            ("10", "0.25"),
        ] {
            let format = Format::of(COMBINED, &columns(by)).unwrap();
            assert_eq!(format.read(COMBINED), Some(request(caller)), "{by}");
        }
        let timed = Columns {
            duration: Some(("10".to_owned(), 1_000_000)),
            ..columns("ip")
        };
        let format = Format::of(COMBINED, &timed).unwrap();
        assert_eq!(format.read(COMBINED).unwrap().lasted, 250_000);
        let cut = &COMBINED[..60];
        assert_eq!(format.read(cut), None, "its duration is cut off");
        let error = Format::of(COMBINED, &columns("tenant")).unwrap_err();
        assert!(error.contains("\"tenant\""), "{error}");
    }

    #[test]
    fn a_time_in_another_place_is_found() {
        let line = r#"example.org:443 192.0.2.7 - - [971211336.000] "GET / HTTP/1.1" 200"#;
        let format = Format::of(line, &columns("2")).unwrap();
        assert_eq!(format.read(line), Some(request("192.0.2.7")));
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
            let format = Format::of(line, &columns(by)).unwrap();
            assert_eq!(format.read(line), Some(request(caller)), "{line}");
            assert_eq!(format.read("{}"), None);
            assert_eq!(format.read(r#"{"ts":"#), None);
        }
        let error = Format::of(r#"{"level":"info"}"#, &columns("ip")).unwrap_err();
        assert!(error.contains("\"ip\": it has level"), "{error}");
        let error = Format::of("{\"\\u001b[2J\":1}", &columns("ip")).unwrap_err();
        assert!(error.ends_with("it has \\u{1b}[2J"), "{error}");
    }

    #[test]
    fn a_request_line_has_a_method_and_a_path() {
        let columns = Columns {
            fields: ["method", "path", "host", "status"]
                .map(|name| Column {
                    name: name.to_owned(),
                    optional: true,
                })
                .to_vec(),
            time: None,
            duration: None,
        };
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
            let read = Format::of(line, &columns).unwrap();
            let request = read.read(line).unwrap();
            let fields: Vec<_> = request.fields.iter().map(Option::as_deref).collect();
            assert_eq!(fields, expected, "{line}");
        }
        let short = "192.0.2.7 [971211336.0] x";
        let found: Vec<_> = Format::of(short, &columns).unwrap().found().collect();
        assert_eq!(found, [false; 4]);
    }

    #[test]
    fn csv_has_named_columns() {
        let format = Format::of(r#"status,time,"client_ip",path"#, &columns("ip")).unwrap();
        assert!(format.has_header());
        for (line, caller) in [
            ("200,971211336,a,/", "a"),
            (r#"200,"971211336","a ""b"", c",/"#, r#"a ""b"", c"#),
            ("200,2000-10-10 20:55:36,,", ""),
        ] {
            assert_eq!(format.read(line), Some(request(caller)), "{line}");
        }
        for line in ["", "200,x,a,/", r#"200,971211336,"a"#] {
            assert_eq!(format.read(line), None, "{line}");
        }
        for header in ["time,path", "what is this", ""] {
            assert!(Format::of(header, &columns("ip")).is_err(), "{header}");
        }
    }
}
