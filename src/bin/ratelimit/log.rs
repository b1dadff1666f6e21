//! An access log: how it is read, and the request that each of its lines was.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use flate2::bufread::MultiGzDecoder;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header::HOST};
use indicatif::{ProgressBar, ProgressFinish};
use ipnet::Ipv6Net;
use serde_json::{Value, json};
use tower_ratelimit::{
    Limit,
    key::PeerAddr,
    replay::{Rows, RowsRead},
};

use crate::{
    out::{counted, in_file, say},
    rules::Found,
    stage::Row,
    values,
};

/// The share of lines that may be unreadable or late.
const LOST: f64 = 0.01;

/// The bits of an IPv6 address that distinguish callers, as in `PeerIp`.
const IPV6_PREFIX: u8 = 56;

/// How a log is read.
#[derive(clap::Args)]
pub(crate) struct Columns {
    /// Sort lines within this time
    ///
    /// Lines that are apart by more are left out.
    #[arg(
        long,
        default_value = "60s",
        value_parser = values::time,
        value_name = "TIME",
        hide_short_help = true
    )]
    reorder: Duration,
    /// The column of the time, if it has no usual name
    #[arg(long, value_name = "COLUMN", hide_short_help = true)]
    time_field: Option<String>,
    /// The column of a duration to subtract
    ///
    /// Lines are written when requests end. It is in seconds, or in a unit, as in `took:ms` or
    /// `11:us`.
    #[arg(long, value_parser = values::duration, value_name = "COLUMN", hide_short_help = true)]
    duration_field: Option<(String, Duration)>,
    /// The column of a header, or of a key of the code
    ///
    /// As in `x-forwarded-for=xff`. A log must have it.
    #[arg(long, value_parser = values::fixed::<String>, value_name = "NAME=COL")]
    pub(crate) field: Vec<(String, String)>,
}

/// The log that was read.
pub(crate) struct LogRead {
    pub(crate) rows: RowsRead,
    /// Lines whose method or path HTTP does not allow, which are no requests of `rows`.
    invalid: u64,
}

/// The columns of each request, in the order in which they are read, and what it means that a log
/// lacks one; nothing where that is usual.
const USUAL: [(&str, &str); 5] = [
    ("ip", "addresses, so rules by `peer` miss their key"),
    ("method", "methods: each request counts as GET"),
    ("path", "paths: each request counts as one to /"),
    ("host", ""),
    ("status", "status: each response counts as 200"),
];

impl Columns {
    /// Returns rows that are read so.
    pub(crate) fn rows(&self, rows: Rows) -> Rows {
        let mut rows = rows.reorder(self.reorder);
        if let Some(column) = &self.time_field {
            rows = rows.time_column(column);
        }
        match &self.duration_field {
            Some((column, unit)) => rows.duration_column(column, *unit),
            None => rows,
        }
    }

    /// Reads a log, and calls `each` with the time, request and caller of each line. Callers are in
    /// a column.
    pub(crate) fn read(
        &self,
        log: &Path,
        by: Option<&str>,
        mut each: impl FnMut(Duration, Request<()>, Option<Box<str>>),
    ) -> Result<LogRead, String> {
        let rows = match by {
            Some(by) => Rows::of([by]),
            None => Rows::of([]).optional("ip"),
        };
        let usual = USUAL.into_iter().map(|(column, _)| column);
        let rows = usual.fold(self.rows(rows), Rows::optional);
        // They follow the usual ones, and a log must have them: a typing error would be silent.
        let columns = self.field.iter().map(|(_, column)| column);
        let rows = columns.fold(rows, |rows, column| rows.column(column));
        let file = open(log).map_err(in_file(log))?;
        let mut invalid = 0;
        let read = rows.read(file, |time, fields| {
            let [caller, ip, method, path, host, status, others @ ..] = fields else {
                return;
            };
            let usual = [ip, method, path, host, status];
            let names = self.field.iter().map(|(name, _)| name.as_str());
            let others = names.zip(others.iter().map(Option::as_deref));
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            let caller = match by {
                Some("ip") => caller.as_deref().map(grouped),
                _ => caller.clone(),
            };
            match request(usual.map(Option::as_deref), others) {
                None => invalid += 1,
                Some(request) => each(time, request, caller),
            }
        });
        let mut rows = read.map_err(in_file(log))?;
        rows.requests -= invalid;
        Ok(LogRead { rows, invalid })
    }
}

/// Opens a log, and decompresses it if it begins as gzip does. A terminal sees how far it is read.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let (file, length): (Box<dyn Read>, _) = match path.as_os_str() == "-" {
        true => (Box::new(io::stdin()), None),
        false => {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            (Box::new(file), Some(length))
        }
    };
    // It is drawn on the standard error, and nowhere if that is no terminal.
    let progress = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let file = progress
        .with_finish(ProgressFinish::AndClear)
        .wrap_read(file);
    let mut log: Box<dyn BufRead> = Box::new(BufReader::with_capacity(1 << 16, file));
    if log.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        log = Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(log)));
    }
    Ok(log)
}

/// Reads an address, with or without a port.
fn address(text: &str) -> Option<SocketAddr> {
    let ip = text.parse::<IpAddr>();
    ip.map_or_else(|_| text.parse().ok(), |ip| Some(SocketAddr::new(ip, 0)))
}

/// Returns an address as rules by `peer` count it: without a port, and of IPv6 the network.
fn grouped(caller: &str) -> Box<str> {
    match address(caller).map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => {
            let network = Ipv6Net::new(ip, IPV6_PREFIX).map(|it| it.trunc().to_string());
            network.unwrap_or_default().into()
        }
        Some(ip) => ip.to_string().into(),
        None => caller.into(),
    }
}

/// Returns what a field of a log says; `None` where it says that there is nothing.
pub(crate) fn said<T: AsRef<str>>(field: Option<T>) -> Option<T> {
    field.filter(|field| !matches!(field.as_ref(), "" | "-"))
}

/// Builds a request; `None` if HTTP has none like it.
pub(crate) fn request<'a>(
    [ip, method, path, host, status]: [Option<&str>; 5],
    others: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Option<Request<()>> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method.unwrap_or("GET").as_bytes()).ok()?;
    *request.uri_mut() = path.unwrap_or("/").parse::<Uri>().ok()?;
    if let Some(host) = said(host) {
        request.headers_mut().insert(HOST, host.parse().ok()?);
    }
    let mut found = Found::default();
    for (name, value) in others {
        let Some(value) = said(value) else { continue };
        // A name may be a header's, a key's of the code, or both: rules distinguish them.
        let header = HeaderName::try_from(name).ok();
        if let Some((name, value)) = header.zip(HeaderValue::try_from(value).ok()) {
            request.headers_mut().append(name, value);
        }
        found.0.push((name.to_owned(), value.to_owned()));
    }
    let extensions = request.extensions_mut();
    extensions.insert(found);
    if let Some(address) = ip.and_then(address) {
        extensions.insert(PeerAddr(address));
    }
    let status = status.and_then(|status| status.parse::<StatusCode>().ok());
    extensions.insert(status.unwrap_or(StatusCode::OK));
    Some(request)
}

impl LogRead {
    /// Says what was assumed, left out, and is not exact. Returns whether enough is left.
    pub(crate) fn report<'r>(&self, rules: impl IntoIterator<Item = &'r Row>) -> bool {
        let coarse = rules.into_iter().filter(|rule| self.is_too_coarse(rule));
        // Two files may have the same rule.
        for name in coarse.map(|rule| &rule.name).collect::<BTreeSet<_>>() {
            let resolution = self.rows.resolution;
            say(format!(
                "times are {resolution:?} apart, so the figures of {name:?} are approximate"
            ));
        }
        for (column, meaning) in USUAL.iter().filter(|(_, meaning)| !meaning.is_empty()) {
            if self.rows.missing.iter().any(|missing| missing == column) {
                say(format!("the log has no {meaning}"));
            }
        }
        for (left_out, why) in [
            (self.rows.late, "too late"),
            (self.invalid, "no valid requests"),
        ] {
            if left_out > 0 {
                let lines = counted(self.rows.lines, "line");
                say(format!("{left_out} of {lines} left out: {why}"));
            }
        }
        is_enough(&self.rows)
    }

    /// Returns whether times are too far apart for the limit of a rule.
    pub(crate) fn is_too_coarse(&self, rule: &Row) -> bool {
        rule.limit.is_some_and(|limit| is_coarse(&self.rows, limit))
    }

    pub(crate) fn object(&self) -> Value {
        let mut object = json!(self.rows);
        object["invalid"] = self.invalid.into();
        object
    }
}

/// Returns whether times are too far apart to count by this limit exactly.
pub(crate) fn is_coarse(read: &RowsRead, limit: Limit) -> bool {
    read.resolution * 20 > limit.interval()
}

/// Says which lines are unreadable. Returns whether no more than a hundredth was left out.
pub(crate) fn is_enough(read: &RowsRead) -> bool {
    for (line, text) in &read.samples {
        say(format!("line {line} is unreadable: {text}"));
    }
    let is_enough = read.lost() <= LOST;
    if !is_enough {
        say("more than 1 % of the lines were left out, so the figures may be too low");
    }
    is_enough
}
