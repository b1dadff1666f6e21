//! The requests of an access log: how it is read, and which request each of its lines was.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use flate2::bufread::MultiGzDecoder;
use http::{HeaderName, HeaderValue, Request, StatusCode, header::HOST};
use indicatif::{ProgressBar, ProgressFinish};
use tower_ratelimit::{Limit, key::PeerAddr};

use crate::{
    access_log::{Rows, RowsRead, counted_as, ip_of, says_nothing},
    assumptions::CodeKeys,
    dry_run::RuleEffect,
    needs::Need,
    out::{counted, harmless, in_file, say},
    parsers,
};

/// The share of lines that may be unreadable or late.
const LOST: f64 = 0.01;

/// How a log is read.
#[derive(clap::Args)]
pub(crate) struct LogOptions {
    /// Sort lines that are apart by up to this time
    ///
    /// Servers write lines when requests end, and so not in the order in which they began. A line
    /// that comes later than this is left out, and counted.
    #[arg(long, default_value = "60s", value_parser = parsers::time)]
    #[arg(value_name = "TIME", hide_short_help = true)]
    reorder: Duration,
    /// Where a column is, as in `ip=2,time=3+4`
    ///
    /// A place is a name, or a number from 1; two with a plus are a time that stands in two, and
    /// `-` is a column that the log does not have. The columns are `ip`, `time`, `request` or
    /// `method` and `path`, `host`, `status`, and `duration`, which is subtracted, as lines are
    /// written when requests end: in seconds, or in a unit, as in `duration=took:ms`.
    #[arg(long, value_parser = parsers::place, value_delimiter = ',')]
    #[arg(value_name = "COLUMN=PLACE")]
    columns: Vec<(String, String, i64)>,
    /// Skip so many words before each line, which another program has put there
    #[arg(long, default_value_t = 0)]
    #[arg(value_name = "WORDS", hide_short_help = true)]
    skip_fields: usize,
    /// The column of a header, or of a key of the code
    ///
    /// For rules that count by it, as in `x-api-key=key`. A log must have the column. Repeat it for
    /// others.
    #[arg(long, value_parser = parsers::fixed::<String>, value_name = "NAME=COL")]
    pub(crate) field: Vec<(String, String)>,
}

/// The log that was read.
pub(crate) struct LogRead<'o> {
    pub(crate) rows: RowsRead,
    options: &'o LogOptions,
    /// The requests without an address.
    without_address: u64,
}

/// The columns of each request, and what it means that a log lacks one; nothing where that is
/// usual.
const USUAL: [(&str, &str, &str); 5] = [
    ("ip", "addresses", ", so rules by `peer` miss their key"),
    ("method", "methods", ": each request counts as GET"),
    ("path", "paths", ": each request counts as one to /"),
    ("host", "hosts", ""),
    ("status", "status", ": each response counts as 200"),
];

impl LogOptions {
    /// Returns rows that are read so.
    pub(crate) fn rows(&self, mut rows: Rows) -> Rows {
        (rows.reorder, rows.skip) = (self.reorder, self.skip_fields);
        rows.places.extend_from_slice(&self.columns);
        rows
    }

    /// Reads this many lines of a log, and calls `each` with the time, request and caller of each.
    /// Callers are in a column.
    pub(crate) fn read(
        &self,
        (log, lines): (&Path, u64),
        by: Option<&str>,
        mut each: impl FnMut(Duration, Request<()>, Option<Box<str>>),
    ) -> Result<LogRead<'_>, String> {
        let rows = Rows::of([]).column("ip", true).column("host", true);
        // A log must have these: a typing error would be silent.
        let fields = self.field.iter().map(|(name, column)| (&**name, &**column));
        let columns = fields.clone().map(|(_, column)| column).chain(by);
        let rows = columns.fold(self.rows(rows), |rows, column| rows.column(column, false));
        let file = open(log).map_err(in_file(log))?;
        let (mut invalid, mut with_host, mut without_address) = (0, 0, 0);
        let keep = |cells: &[Option<Cow<'_, str>>]| {
            let [_, _, method, path, status, ip, host, others @ ..] = cells else {
                return None;
            };
            let usual = [ip, method, path, host, status].map(Option::as_deref);
            let caller = by.and_then(|by| match others.last()?.as_deref()?.trim() {
                caller if by == "ip" => Some(counted_as(caller).into()),
                caller => Some(caller.into()),
            });
            let others = others.iter().map(Option::as_deref);
            let request = request(usual, fields.clone().map(|(it, _)| it).zip(others));
            // HTTP may have none like it.
            invalid += u64::from(request.is_none());
            Some((request?, caller))
        };
        let decide = |_, time: i64, (request, caller): (Request<()>, _)| {
            with_host += u64::from(request.uri().host().is_some());
            without_address += u64::from(request.extensions().get::<PeerAddr>().is_none());
            let time = Duration::from_micros(u64::try_from(time).unwrap_or(0));
            each(time, request, caller);
        };
        let read = rows.each(file, lines, keep, decide);
        let mut rows = read.map_err(in_file(log))?;
        rows.invalid += invalid;
        if with_host == rows.requests || self.has_field("host") {
            rows.missing.retain(|column| column != "host");
        }
        Ok(LogRead {
            rows,
            options: self,
            without_address,
        })
    }

    fn has_field(&self, name: &str) -> bool {
        let mut fields = self.field.iter();
        fields.any(|(it, _)| it.eq_ignore_ascii_case(name))
    }
}

/// Opens a log, and decompresses it if it begins as gzip does. A terminal sees how far it is read.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    // It is drawn on the standard error, and nowhere if that is no terminal.
    let (file, progress): (Box<dyn Read>, _) = if path.as_os_str() == "-" {
        (Box::new(io::stdin()), ProgressBar::no_length())
    } else {
        let file = File::open(path)?;
        let progress = ProgressBar::new(file.metadata()?.len());
        (Box::new(file), progress)
    };
    let progress = progress.with_finish(ProgressFinish::AndClear);
    let mut log = BufReader::with_capacity(1 << 16, progress.wrap_read(file));
    if log.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        let log = MultiGzDecoder::new(log);
        return Ok(Box::new(BufReader::with_capacity(1 << 16, log)));
    }
    Ok(Box::new(log))
}

/// Returns what a field of a log says; `None` where it says that there is nothing.
pub(crate) fn present<T: AsRef<str>>(field: Option<T>) -> Option<T> {
    field.filter(|field| !says_nothing(field.as_ref()))
}

/// Builds a request; `None` if HTTP has none like it.
pub(crate) fn request<'a>(
    [ip, method, path, host, status]: [Option<&str>; 5],
    others: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Option<Request<()>> {
    let request = Request::builder().method(method.unwrap_or("GET"));
    let mut request = request.uri(path.unwrap_or("/"));
    if let Some(host) = present(host) {
        request = request.header(HOST, host);
    }
    let mut found = CodeKeys::default();
    for (name, value) in others.filter_map(|(name, value)| Some((name, present(value)?))) {
        // A name may be a header's, a key's of the code, or both: rules distinguish them.
        let header = HeaderName::try_from(name).ok();
        if let Some((name, value)) = header.zip(HeaderValue::try_from(value).ok()) {
            request = request.header(name, value);
        }
        found.0.push((name.to_owned(), value.to_owned()));
    }
    if let Some(ip) = ip.and_then(ip_of) {
        // No rule counts by the port.
        request = request.extension(PeerAddr(SocketAddr::new(ip, 0)));
    }
    let status = status.and_then(|status| status.parse::<StatusCode>().ok());
    let request = request.extension(status.unwrap_or(StatusCode::OK));
    request.extension(found).body(()).ok()
}

impl LogRead<'_> {
    /// Says what was assumed, left out, and is not exact. Returns whether the log has all that
    /// these rules ask for, and enough of it is left.
    pub(crate) fn report<'r>(
        &self,
        rules: impl IntoIterator<Item = &'r RuleEffect>,
        needs: &BTreeSet<Need>,
    ) -> bool {
        let coarse = rules.into_iter().filter(|rule| self.is_too_coarse(rule));
        // Two files may have the same rule.
        for name in coarse.map(|rule| &rule.name).collect::<BTreeSet<_>>() {
            let resolution = self.rows.resolution;
            say(format!(
                "times are {resolution:?} apart, so the figures of {name:?} are approximate"
            ));
        }
        for (column, what, meaning) in USUAL {
            let is_asked_for = needs.contains(&Need::Column(column));
            if !is_asked_for && !meaning.is_empty() && self.lacks(column) {
                say(format!("the log has no {what}{meaning}"));
            }
        }
        let missing: Vec<_> = needs.iter().filter_map(|need| self.missing(need)).collect();
        missing.iter().for_each(say);
        let has_all = missing.is_empty();
        left_out(&self.rows, 0).for_each(say);
        let counts = has_all && needs.contains(&Need::Column("ip"));
        let without = if counts { self.without_address } else { 0 };
        let requests = self.rows.requests;
        if without > 0 {
            let requests = counted(requests, "request");
            say(format!(
                "{without} of {requests} have no address to count by"
            ));
        }
        report_left_out(&self.rows) && has_all && without as f64 <= LOST * requests as f64
    }

    /// Returns what the log lacks of what rules ask for, and the option that adds it.
    fn missing(&self, need: &Need) -> Option<String> {
        match need {
            Need::Column(column) if self.lacks(column) => {
                let (_, what, meaning) = USUAL.into_iter().find(|(it, ..)| it == column)?;
                // What a text holds does not show whether it is a host.
                let hint = Some(&*self.rows.hint).filter(|_| *column != "host");
                let hint = hint.unwrap_or_default();
                Some(format!(
                    "the log has no {what}, which the rules ask for{meaning}; if it has, say \
                     where, as in `--columns {column}=COLUMN`{hint}"
                ))
            }
            Need::Field(name) if !self.options.has_field(name) => {
                let name = harmless(name);
                Some(format!(
                    "the log has no {name:?}, which the rules ask for: name its column, as in \
                     `--field {name}=COLUMN`"
                ))
            }
            Need::Unseen(what) => Some(what.clone()),
            Need::Column(_) | Need::Field(_) => None,
        }
    }

    /// Returns whether the log lacks one of the usual columns.
    fn lacks(&self, column: &str) -> bool {
        self.rows.missing.iter().any(|it| it == column)
    }

    /// Returns whether times are too far apart for the limit of a rule.
    pub(crate) fn is_too_coarse(&self, rule: &RuleEffect) -> bool {
        rule.limit.is_some_and(|limit| is_coarse(&self.rows, limit))
    }
}

/// Returns whether times are too far apart to count by this limit exactly.
pub(crate) fn is_coarse(read: &RowsRead, limit: Limit) -> bool {
    let mut each = limit.each();
    each.any(|limit| read.resolution * 20 > limit.interval())
}

/// Returns how the columns of a log were understood, in the form of `--columns`.
pub(crate) fn columns_line(read: &RowsRead) -> String {
    let columns = read.columns.iter();
    let columns = columns.map(|(name, place)| format!("{}={}", harmless(name), harmless(place)));
    match &*columns.collect::<Vec<_>>() {
        [] => "Columns: none, as the log is empty.".to_owned(),
        columns => format!("Columns: {}", columns.join(",")),
    }
}

/// Returns how many lines count for nothing, by what is wrong with them, and how many of the others
/// have no caller.
pub(crate) fn left_out(read: &RowsRead, callerless: u64) -> impl Iterator<Item = String> {
    let lines = counted(read.lines, "line");
    let kinds = [
        (read.unreadable, "unreadable"),
        (read.late, "too late to be put in order, and left out"),
        (read.invalid, "no valid requests, and left out"),
        (callerless, "without a caller, and not limited"),
    ];
    let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
    kinds.map(move |(count, what)| format!("{count} of {lines}: {what}"))
}

/// Says which lines are unreadable. Returns whether no more than a hundredth was left out.
pub(crate) fn report_left_out(read: &RowsRead) -> bool {
    for (line, text) in &read.samples {
        say(format!("line {line} is unreadable: {text}"));
    }
    let is_enough = read.lost() <= LOST;
    if !is_enough {
        say("more than 1 % of the lines were left out, so the figures may be too low");
    }
    let has_requests = read.invalid * 2 <= read.lines;
    if !has_requests {
        say("more than half of the lines hold no requests");
    }
    is_enough && has_requests
}
