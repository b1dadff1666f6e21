//! Reads the lines of a log: the common and combined formats, JSON lines, and CSV.

use std::borrow::Cow;

use serde_json::Value;

use super::time;

/// The names that a column of addresses has, the common ones first.
const ADDRESSES: [&str; 8] = [
    "ip",
    "remote_addr",
    "client_ip",
    "remote_ip",
    "request.client_ip",
    "request.remote_ip",
    "clientip",
    "client",
];
const TIMES: [&str; 8] = [
    "time",
    "timestamp",
    "ts",
    "@timestamp",
    "time_iso8601",
    "time_local",
    "msec",
    "date",
];

/// The characters of the columns that an error lists.
const LONGEST_LIST: usize = 300;

/// The columns that are read.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) by: String,
    pub(super) time: Option<String>,
    /// Its name, and the microseconds of its unit.
    pub(super) duration: Option<(String, i64)>,
}

/// What one line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// When it was written, in microseconds.
    pub(super) written: i64,
    /// For how long the request had lasted by then.
    pub(super) lasted: i64,
    pub(super) caller: Cow<'a, str>,
}

/// The places of the columns: numbers, or names in JSON.
#[derive(Debug)]
pub(super) struct Places<P> {
    caller: P,
    time: P,
    /// The place, and the microseconds of its unit.
    duration: Option<(P, i64)>,
}

impl<P> Places<P> {
    /// Finds the columns by name; an error is the name of one that is missing.
    fn find(columns: &Columns, find: impl Fn(&[&str]) -> Option<P>) -> Result<Self, String> {
        let one = |name: &str, known: &[&str]| {
            let found = find(&[name]).or_else(|| find(known));
            found.ok_or_else(|| name.to_owned())
        };
        let known: &[_] = if columns.by == "ip" { &ADDRESSES } else { &[] };
        let duration = columns.duration.as_ref();
        let duration = duration.map(|(name, unit)| Ok::<_, String>((one(name, &[])?, *unit)));
        Ok(Self {
            caller: one(&columns.by, known)?,
            time: match &columns.time {
                Some(name) => one(name, &[])?,
                None => one("time", &TIMES)?,
            },
            duration: duration.transpose()?,
        })
    }
}

/// The format of a log, with the places of the columns in it.
#[derive(Debug)]
pub(super) enum Format {
    /// The common and combined formats, and what begins like them
    Spaced(Places<usize>),
    Csv(Places<usize>),
    Json(Places<String>),
}

impl Format {
    /// Finds the format by a line, which the header of a CSV file is: an error says what is
    /// missing.
    pub(super) fn of(line: &str, columns: &Columns) -> Result<Self, String> {
        if line.starts_with('{') {
            return Self::of_json(line, columns);
        }
        if let Some(time) = Spaced(line).position(|field| time::read(field).is_some())
            && line.contains(' ')
        {
            let place = |names: &[&str]| {
                let mut names = names.iter();
                names.find_map(|name| {
                    if *name == "time" {
                        Some(time)
                    } else {
                        numbered(name)
                    }
                })
            };
            return Places::find(columns, place)
                .map(Self::Spaced)
                .map_err(|missing| {
                    let has =
                        "ip, user, request, status, bytes, referer, agent, or a number from 1";
                    lacks("the common or combined format", &missing, &[has.to_owned()])
                });
        }
        let header: Vec<_> = Csv(Some(line)).collect();
        let place = |names: &[&str]| {
            let mut names = names.iter();
            names.find_map(|name| header.iter().position(|column| column == name))
        };
        let has = || {
            header
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        match header.len() {
            0 | 1 => Err(
                "it is neither JSON, nor of the common or combined format, nor the header \
                of a CSV file"
                    .to_owned(),
            ),
            _ => Places::find(columns, place)
                .map(Self::Csv)
                .map_err(|missing| lacks("the header of a CSV file", &missing, &has())),
        }
    }

    fn of_json(line: &str, columns: &Columns) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("it is no JSON: {error}"))?;
        let first = |names: &[&str]| {
            let found = names.iter().find(|name| member(&value, name).is_some());
            found.map(|name| (*name).to_owned())
        };
        let has = value.as_object();
        let has = has.map(|it| it.keys().cloned().collect::<Vec<_>>());
        let places = Places::find(columns, first);
        places
            .map(Self::Json)
            .map_err(|missing| lacks("JSON", &missing, &has.unwrap_or_default()))
    }

    /// Returns whether the line that it was found by is no request.
    pub(super) fn has_header(&self) -> bool {
        matches!(self, Self::Csv(_))
    }

    /// Reads a line; `None` if a column is missing or is not as it has to be.
    pub(super) fn read<'a>(&self, line: &'a str) -> Option<Request<'a>> {
        match self {
            Self::Spaced(places) => places.pick(Spaced(line)),
            Self::Csv(places) => places.pick(Csv(Some(line))),
            Self::Json(places) => {
                let value: Value = serde_json::from_str(line).ok()?;
                let text = |name: &String| member(&value, name).and_then(text_of);
                let duration = match &places.duration {
                    Some((name, unit)) => Some((text(name)?, *unit)),
                    None => None,
                };
                let lasted = duration.as_ref().map(|(text, unit)| (text.as_str(), *unit));
                let caller = text(&places.caller).unwrap_or_default();
                request(Cow::Owned(caller), &text(&places.time)?, lasted)
            }
        }
    }
}

impl Places<usize> {
    fn pick<'a>(&self, fields: impl Iterator<Item = &'a str>) -> Option<Request<'a>> {
        let duration = self.duration.as_ref().map(|(place, _)| *place);
        let last = self.caller.max(self.time).max(duration.unwrap_or(0));
        let (mut caller, mut time, mut lasted) = (None, None, None);
        for (place, field) in fields.enumerate().take(last + 1) {
            if place == self.caller {
                caller = Some(field);
            }
            if place == self.time {
                time = Some(field);
            }
            if Some(place) == duration {
                lasted = Some(field);
            }
        }
        let lasted = match &self.duration {
            Some((_, unit)) => Some((lasted?, *unit)),
            None => None,
        };
        request(Cow::Borrowed(caller?), time?, lasted)
    }
}

fn request<'a>(
    caller: Cow<'a, str>,
    written: &str,
    lasted: Option<(&str, i64)>,
) -> Option<Request<'a>> {
    Some(Request {
        written: time::read(written)?,
        lasted: match lasted {
            // nginx writes it where no server was asked.
            None | Some(("-" | "", _)) => 0,
            Some((text, unit)) => time::decimal(text, unit)?,
        },
        caller,
    })
}

/// Returns the text of an error for a column that a log lacks.
fn lacks(format: &str, missing: &str, has: &[String]) -> String {
    // They are the log's, so they may hold anything.
    let has = has.join(", ");
    let has: String = has.chars().take(LONGEST_LIST).collect();
    let has = has.escape_debug();
    format!("it looks like {format}, and has no column {missing:?}: it has {has}")
}

/// The place of a column of the combined format, by its name or its number, counted from 1.
fn numbered(name: &str) -> Option<usize> {
    Some(match name {
        "ip" | "host" | "remote_addr" => 0,
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
            by: by.to_owned(),
            time: None,
            duration: None,
        }
    }

    fn request(caller: &str) -> Request<'_> {
        Request {
            written: 971_211_336_000_000,
            lasted: 0,
            caller: Cow::Borrowed(caller),
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
