//! Finds the columns of a format by their names and places: [`Finder`].

use smallvec::SmallVec;

use super::super::{DURATION, Rows, kind::Kind};
use super::{
    Column, ColumnPart, Lack, LogFormat, Shape, SplitLine, cells, is_name, layout, member, skip,
    text_of, value_of,
};

/// The usual names of columns in logs, after the name that finds all of them. Of two times, the
/// first is that at which a request began, and the host of CloudFront's cs(Host) is its own.
const USUAL: [&str; 6] = [
    "ip: ip remote_addr client_ip remote_ip request.client_ip request.remote_ip clientip client \
     ClientHost ClientIP c-ip httpRequest.remoteIp",
    "time: StartUTC date+time time timestamp ts @timestamp time_iso8601 time_local msec date \
     start_time EdgeStartTimestamp",
    "method: method request_method request.method RequestMethod verb cs-method \
     ClientRequestMethod httpRequest.requestMethod",
    "path: path uri url request_uri request.uri RequestPath cs-uri-stem cs-uri ClientRequestURI \
     httpRequest.requestUrl",
    "host: host http_host request.host RequestHost x-host-header cs-host cs(Host) authority \
     ClientRequestHost",
    "status: status status_code response.status DownstreamStatus sc-status response_code \
     EdgeResponseStatus httpRequest.status",
];
/// The characters of the columns that an error lists.
const LONGEST_LIST: usize = 300;

impl LogFormat {
    /// Finds the format by a line, which may be a header: an error says what is missing, and of
    /// which kind it is.
    pub(in super::super) fn find(line: &str, wanted: &Rows) -> Result<Self, Lack> {
        let text = skip(line, wanted.skip);
        let shape = Shape::of(text);
        let has_header = shape.header.is_some();
        // A header holds nothing.
        let shown = if has_header { 0 } else { usize::MAX };
        let line = shape.line(text, shown);
        let line = line.map_err(|error| (Kind::Time, format!("it is no JSON: {error}")))?;
        let finder = Finder {
            names: shape.names(&line, text),
            line,
            text,
            wanted,
            has_header,
        };
        // One is enough in JSON.
        let is_json = matches!(finder.line, SplitLine::Json(_));
        if finder.names.len() < 2 - usize::from(is_json) {
            let reason = "it is neither JSON, nor of the common or combined format, nor the header \
                          of a CSV file";
            return Err((Kind::Time, reason.to_owned()));
        }
        let columns = wanted.columns.iter();
        let columns = columns.map(|(name, optional)| finder.column(name, *optional));
        let columns: Vec<_> = columns.collect::<Result<_, _>>()?;
        let parts = columns.iter().flatten().flat_map(|it| &it.parts);
        let words = parts.map(|part| match part {
            ColumnPart::Number(number) => number + 1,
            ColumnPart::Name(_) => usize::MAX,
        });
        Ok(Self {
            words: words.max().unwrap_or(1),
            skip: wanted.skip,
            shape,
            columns,
        })
    }
}

/// Finds the columns of a format in the line that shows it.
struct Finder<'a> {
    line: SplitLine<'a>,
    text: &'a str,
    wanted: &'a Rows,
    /// The names of the columns, or their numbers.
    names: Vec<String>,
    has_header: bool,
}

impl Shape {
    /// Returns the names of the columns of a line, or their numbers.
    fn names(&self, line: &SplitLine<'_>, text: &str) -> Vec<String> {
        match (&self.header, line) {
            (Some(names), _) => names.clone(),
            (None, SplitLine::Json(value)) => {
                let members = value.as_object().into_iter().flatten();
                members.map(|(name, _)| name.clone()).collect()
            }
            (None, SplitLine::Words(words)) => {
                let known = layout(words, text).unwrap_or(&[]);
                let named = |index: usize| match known.get(index) {
                    Some(name) => (*name).to_owned(),
                    None => (index + 1).to_string(),
                };
                (0..words.len()).map(named).collect()
            }
        }
    }
}

impl Finder<'_> {
    /// Finds a column; `None` for an optional one that is not there.
    fn column(&self, name: &str, optional: bool) -> Result<Option<Column>, Lack> {
        let of_request = ["method", "path"].iter().position(|it| *it == name);
        let lacks = |place| (Kind::of(name), self.lacks(place));
        let placed = |name, word| Some((&*self.wanted.placed(name)?.1, word));
        let in_request = || placed("request", Some(of_request?));
        match placed(name, None).or_else(in_request) {
            Some(("-", _)) => return Ok(None),
            Some((place, word)) => {
                let found = self.place(place, word).map(Some);
                return found.ok_or_else(|| lacks(place));
            }
            None if name == DURATION && optional => return Ok(None),
            None => {}
        }
        let mut usual = USUAL.iter().filter_map(|it| it.split_once(": "));
        let usual = usual.find(|(it, _)| *it == name);
        let usual = usual.map_or(name, |(_, names)| names).split(' ');
        let mut found: Vec<_> = usual.filter_map(|it| self.place(it, None)).collect();
        found.extend(of_request.and_then(|_| self.place("request", of_request)));
        if name == "time" && found.is_empty() && !self.has_header {
            found.extend(self.time());
        }
        // Of several, the first that holds what the name says, if a line shows that.
        let holds = |it: &Column| {
            let text = it.text(&self.line);
            text.is_some_and(|text| Kind::of(name).holds(&text))
        };
        let index = found.iter().position(holds).unwrap_or(0);
        match found.into_iter().nth(index) {
            None if !optional => Err(lacks(name)),
            found => Ok(found),
        }
    }

    /// Finds a column by its name or number, or by two with a plus between them.
    fn place(&self, place: &str, word: Option<usize>) -> Option<Column> {
        let apart = || place.split('+').map(|part| self.one(part)).collect();
        let whole = self.one(place).map(|whole| SmallVec::from_iter([whole]));
        let parts: SmallVec<_> = whole.or_else(apart)?;
        let names: Vec<_> = parts.iter().map(|part| self.name_of(part)).collect();
        let place = names.join("+");
        Some(Column { parts, word, place })
    }

    fn one(&self, name: &str) -> Option<ColumnPart> {
        match &self.line {
            SplitLine::Json(value) => {
                let value = member(value, name)?;
                let is_text = value.is_null() || text_of(value).is_some();
                is_text.then(|| ColumnPart::Name(name.to_owned()))
            }
            SplitLine::Words(words) => {
                let number = || name.parse::<usize>().ok()?.checked_sub(1);
                let number = self.names.iter().position(|it| it == name).or_else(number);
                if let Some(number) = number.filter(|it| *it < self.names.len()) {
                    return Some(ColumnPart::Number(number));
                }
                // One alone may be what a client has sent.
                let named = |word: &&&str| word.split_once('=').is_some_and(|(it, _)| is_name(it));
                let is_named = words.iter().any(|it| value_of(it, name).is_some())
                    && words.iter().filter(named).count() >= 3;
                is_named.then(|| ColumnPart::Name(name.to_owned()))
            }
        }
    }

    /// Returns the name of a part of a column, or its number.
    fn name_of(&self, part: &ColumnPart) -> String {
        match part {
            ColumnPart::Name(name) => name.clone(),
            ColumnPart::Number(number) if self.has_header => self.names[*number].clone(),
            ColumnPart::Number(number) => (number + 1).to_string(),
        }
    }

    /// Returns the first word that is a time, or a pair of words: a written time before a number.
    fn time(&self) -> Option<Column> {
        // A line may have very many, and each is compared with all of them.
        const MOST: usize = 64;
        let SplitLine::Words(words) = &self.line else {
            return None;
        };
        let mut found = Vec::new();
        cells(words.get(..MOST).unwrap_or(words), None, &mut found);
        let times = found.iter().filter(|(_, text)| Kind::Time.holds(text));
        let times = times.filter_map(|it| Some((it, self.place(&it.0, None)?)));
        let first = times.min_by_key(|((name, text), _)| {
            let is_number = !text.contains(':');
            (is_number, name.contains('+'))
        });
        first.map(|(_, column)| column)
    }

    /// Returns the text of an error for a column that a log lacks.
    fn lacks(&self, missing: &str) -> String {
        let format = match &self.line {
            SplitLine::Json(_) => "JSON",
            SplitLine::Words(_) if self.has_header => "the header of a CSV file",
            SplitLine::Words(words) if layout(words, self.text).is_some() => {
                "the common or combined format"
            }
            SplitLine::Words(_) => "words without names",
        };
        // They are the log's, so they may hold anything.
        let has: String = self.names.join(", ").chars().take(LONGEST_LIST).collect();
        let has = has.escape_debug();
        format!("it looks like {format}, and has no column {missing:?}: it has {has}")
    }
}
