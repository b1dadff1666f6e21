//! Checks that columns hold what their names say: [`Kind`], [`ColumnTally`].

use super::{address::ip_of, time};

/// The methods by which a column of them is known. Others are methods, too.
const METHODS: [&str; 11] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY",
    "PROPFIND",
];

/// What a column holds. What is counted by comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Address,
    /// Of clients and proxies, with commas between them.
    Addresses,
    /// Its name says nothing.
    Any,
    Time,
    Duration,
    Request,
    Method,
    Path,
    Host,
    Status,
}

/// The kinds with the names of the columns that hold them, and what each is in words.
pub(super) const KINDS: [(Kind, &str, &str); 9] = [
    (Kind::Address, "ip", "an address"),
    (Kind::Addresses, "forwarded", "addresses"),
    (Kind::Time, "time", "a time with its day"),
    (Kind::Duration, "duration", "a duration"),
    (Kind::Request, "request", "a request line"),
    (Kind::Method, "method", "a method"),
    (Kind::Path, "path", "a path"),
    (Kind::Host, "host", "a host"),
    (Kind::Status, "status", "a status"),
];

impl Kind {
    /// Returns what a column of this name holds.
    pub(super) fn of(name: &str) -> Self {
        Self::in_words(name).0
    }

    /// Returns that, and what a text of this kind is called.
    fn in_words(name: &str) -> (Self, &'static str) {
        let known = KINDS.into_iter().find(|(_, known, _)| *known == name);
        known.map_or((Self::Any, "a text"), |(kind, _, noun)| (kind, noun))
    }

    /// Returns whether a text is of this kind.
    pub(super) fn holds(self, text: &str) -> bool {
        match self {
            Self::Address => ip_of(text).is_some(),
            Self::Addresses => text.split(',').all(|it| {
                let is_unknown = matches!(it.trim(), "" | "unknown");
                is_unknown || ip_of(it).is_some()
            }),
            Self::Time => time::read(text).is_some(),
            Self::Duration => says_nothing(text) || time::duration(text, 1).is_some(),
            Self::Request => {
                let mut words = text.split(' ');
                words.next().zip(words.next()).is_some_and(is_request)
            }
            Self::Method => METHODS.contains(&text),
            Self::Path => is_path(text),
            Self::Host => is_host(text),
            Self::Status => {
                text.len() == 3 && text.parse().is_ok_and(|it: u16| (100..600).contains(&it))
            }
            Self::Any => true,
        }
    }
}

/// Returns whether a log says by a text that there is nothing.
pub(crate) fn says_nothing(text: &str) -> bool {
    matches!(text.trim(), "" | "-")
}

/// With or without a port.
fn is_host(text: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
    let with_port = text.rsplit_once(':').filter(|(_, port)| is_number(port));
    let host = with_port.map_or(text, |(host, _)| host);
    let is_of_name = |it: char| it.is_alphanumeric() || ".-_".contains(it);
    ip_of(host.trim_matches(['[', ']'])).is_some() || host.chars().all(is_of_name)
}

fn is_method(text: &str) -> bool {
    let is_of_method = |it: u8| it.is_ascii_uppercase() || b"-_".contains(&it);
    text.len() > 2 && text.bytes().all(is_of_method)
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') || text == "*" || text.contains("://")
}

/// Returns whether a method and its target are a request of HTTP.
pub(super) fn is_request((method, target): (&str, &str)) -> bool {
    is_method(method) && (is_path(target) || (method == "CONNECT" && !target.is_empty()))
}

/// Returns whether so many are nearly all.
pub(super) fn is_most(number: usize, all: usize) -> bool {
    number * 100 >= all * 95
}

/// What was found in one column.
#[derive(Clone, Debug)]
pub(super) struct ColumnTally {
    pub(super) kind: Kind,
    /// The lines in which it says something.
    pub(super) said: u64,
    /// Those in which that is what its name says.
    held: u64,
    /// The first other text.
    example: String,
}

impl ColumnTally {
    /// The characters of a text that are shown.
    const SHOWN: usize = 40;

    /// Begins with nothing of a column of this name.
    pub(super) fn of(name: &str) -> Self {
        Self {
            kind: Kind::of(name),
            said: 0,
            held: 0,
            example: String::new(),
        }
    }

    pub(super) fn add(&mut self, text: &str, holds: bool) {
        self.said += 1;
        self.held += u64::from(holds);
        if !holds && self.example.is_empty() {
            let shown = text.chars().take(Self::SHOWN);
            self.example = shown.flat_map(char::escape_debug).collect();
        }
    }

    /// Returns why a column is not what its name says, in so many lines, if that is so.
    pub(super) fn mistake(&self, name: &str, place: &str, lines: u64) -> Option<String> {
        let is_silent = match self.kind {
            Kind::Any => false,
            // Figures of few of the requests would look like those of all.
            Kind::Address => self.said * 2 < lines,
            _ => self.said == 0 && lines > 0,
        };
        let (said, held, (_, noun)) = (self.said, self.held, Kind::in_words(name));
        let place = place.escape_debug();
        if !is_most(held as usize, said as usize) {
            let example = &self.example;
            return Some(format!(
                "{name}={place}, which holds {noun} in {held} of {said} lines, and not as in \
                 \"{example}\""
            ));
        }
        is_silent.then(|| {
            let silent = lines - said;
            format!("{name}={place}, which says nothing in {silent} of {lines} lines")
        })
    }
}
