//! `ratelimit replay`: reports what limits would have refused in an access log.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{self, BufRead, BufReader, Cursor, Read},
    iter,
    path::{Path, PathBuf},
    time::Duration,
};

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressFinish};
use tower_ratelimit::{
    Algorithm, Limit,
    key::{ClientIp, KeyExtractor},
    replay::{Candidate, Figure, Replay, Report, Rows, SmallestLimit},
};

use crate::{
    Stop, demo, html, impact,
    out::{Field, Format, table},
    rules::Assumptions,
    traffic::{Columns, is_enough, request},
};

/// The assumption that all figures make.
pub(crate) const ASSUMED: &str =
    "All figures assume that callers would have sent the same requests after a refusal.";

/// The note on figures that are ranges.
const COARSE: &str = "That is coarse, so figures are ranges. To log milliseconds, write the time \
                      as [$msec] in nginx, as [%{msec}t] in Apache.";

/// The note on times from which no duration is subtracted.
const AT_THE_END: &str = "They are when a request was logged, which is mostly its end: name the \
                          column of its duration to subtract it.";

/// Replay an access log against limits, to choose one of them.
///
/// Shows the callers that each limit would touch, the requests that it would refuse, and the
/// smallest limit that leaves nearly all callers alone. Reads the common and combined formats, JSON
/// lines and CSV with a header, also compressed by gzip. Exits with 1 if more than 1 % of the lines
/// were unreadable or too late.
///
/// With `--rules`, each request goes through a real layer whose clock the log moves. Responses end
/// at once with the status of the log, requests that would wait for permits are counted as such and
/// take none, and callers of gRPC need the column of their `content-type` as a `--field`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The log
    ///
    /// `-` is the standard input, which is read once, so that no limit is verified.
    #[arg(required_unless_present = "demo", conflicts_with = "demo")]
    log: Option<PathBuf>,
    /// Replay a day that is made up
    ///
    /// It is the same one each time.
    #[arg(long)]
    demo: bool,
    /// The column of the callers
    ///
    /// `ip`, `user`, a name in JSON or CSV, or the number of a column.
    #[arg(long, default_value = "ip", value_name = "COLUMN")]
    by: String,
    /// The column of X-Forwarded-For; needs `--trusted`
    ///
    /// Counts by the client's address behind proxies. The column is believed where the address in
    /// `ip` is of a `--trusted` network.
    #[arg(long, requires = "trusted", conflicts_with = "by", value_name = "COL")]
    client_ip_from: Option<String>,
    /// A network of proxies that are trusted, as in `10.0.0.0/8`; repeat it for others
    #[arg(
        long,
        requires = "client_ip_from",
        value_name = "NETWORK",
        hide_short_help = true
    )]
    trusted: Vec<String>,
    /// A limit
    ///
    /// Repeat it to compare limits, which costs no further reading of the log.
    #[arg(
        long,
        default_value = "30/1m,60/1m,120/1m",
        value_delimiter = ',',
        value_name = "RATE"
    )]
    limit: Vec<Limit>,
    /// Send the log through the rules of this file
    #[arg(
        long,
        conflicts_with_all = ["limit", "demo", "by", "client_ip_from", "html"],
        value_name = "FILE"
    )]
    rules: Option<PathBuf>,
    /// How to count [default: sliding-log]
    ///
    /// `sliding-log`, `fixed-window` or `gcra`.
    #[arg(long, default_value = "sliding-log", hide_default_value = true)]
    algorithm: Algorithm,
    /// The share of callers to touch [default: 0.1%]
    ///
    /// Looks for the smallest limit that touches fewer callers. With `--rules` for that of each
    /// rule, in several readings, and only if it is given.
    #[arg(long, value_parser = share, value_name = "SHARE")]
    pub(crate) share: Option<f64>,
    #[command(flatten)]
    pub(crate) columns: Columns,
    #[command(flatten)]
    pub(crate) assumptions: Assumptions,
    /// Show callers by their keys, not by digests
    #[arg(long)]
    show_keys: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    /// Also write a report with charts into this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let (number, of) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().map(|number| number / of);
    let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a share of callers, as in `0.1%` or `0.001`".to_owned())
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    // A time is what follows the slash of a rate, except a day, a week or a month, which are words.
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let rate = format!("1/{text}").parse::<Limit>();
    let rate = rate.ok().filter(|_| unit.len() <= "ms".len());
    let time = rate.map(|limit| limit.interval());
    time.ok_or_else(|| "write a time, as in `60s` or `5m`, or `0`".to_owned())
}

pub(crate) fn duration(text: &str) -> Result<(String, Duration), String> {
    let (column, unit) = text.rsplit_once(':').unwrap_or((text, "s"));
    let unit = match unit {
        "s" => Duration::from_secs(1),
        "ms" => Duration::from_millis(1),
        "us" => Duration::from_micros(1),
        _ => return Err(format!("the unit is `s`, `ms` or `us`, not `{unit}`")),
    };
    Ok((column.to_owned(), unit))
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Stop> {
    if let (Some(rules), Some(log)) = (&arguments.rules, &arguments.log) {
        return impact::run(arguments, rules, log);
    }
    let (columns, share) = (&arguments.columns, arguments.share);
    if !columns.field.is_empty() || arguments.assumptions.is_any() {
        return Err(Stop::usage(
            "`--field` and what code defines are for `--rules`",
        ));
    }
    let client = ClientIp::behind(&arguments.trusted);
    client.check()?;
    let by = [Some(&arguments.by), arguments.client_ip_from.as_ref()];
    let rows = Rows::of(by.into_iter().flatten().map(String::as_str));
    let mut replay = Replay::of(columns.rows(rows)).share(share.unwrap_or(0.001));
    for limit in &arguments.limit {
        replay = replay.limit_by(arguments.algorithm, *limit);
    }
    if arguments.show_keys {
        replay = replay.show_keys();
    }
    let mut readings = 0;
    let open = || {
        readings += 1;
        match &arguments.log {
            Some(path) if readings > 1 && path.as_os_str() == "-" => Ok(None),
            Some(path) => open(path).map(Some),
            None => Ok(Some(Box::new(Cursor::new(demo::day())) as Box<dyn BufRead>)),
        }
    };
    let report = match &arguments.client_ip_from {
        None => replay.run(open),
        Some(_) => replay.run_by(open, |fields| client_of(&client, fields).map(Cow::Owned)),
    };
    let report = report.map_err(|error| match &arguments.log {
        Some(path) => format!("{}: {error}", path.display()),
        None => error.to_string(),
    })?;
    if let Some(path) = &arguments.html {
        let written = fs::write(path, html::page(&report));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let object = serde_json::to_value(&report).map_err(|error| error.to_string())?;
    arguments.format.print(&page(&report), object)?;
    Ok(is_enough(&report.read))
}

/// Returns the client that a request came from by its address and what proxies have written.
fn client_of(client: &ClientIp, fields: &[Option<Cow<'_, str>>]) -> Option<String> {
    let [peer, forwarded] = fields else {
        return None;
    };
    let forwarded = ("x-forwarded-for", forwarded.as_deref());
    let peer = [peer.as_deref(), None, None, None, None];
    let (parts, ()) = request(peer, iter::once(forwarded))?.into_parts();
    client.find(&parts).map(|address| address.to_string())
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

/// Returns a report as it is printed on a page.
fn page(report: &Report) -> String {
    let Report { read, callers, .. } = report;
    let mut page = format!("{} requests of {callers} callers\n\n", read.requests);
    page += &(table(&candidates(report)) + "\n");
    for smallest in &report.smallest {
        page += &(conclusion(report, smallest) + "\n");
    }
    if !report.busiest.is_empty() {
        page += &format!("\n{BUSIEST}:\n{}", table(&busiest(report)));
    }
    page + "\n" + &notes(report).join("\n")
}

/// Returns what is shown of the candidates.
pub(crate) fn candidates(report: &Report) -> Vec<Vec<Field>> {
    let share = |figure: Figure, of: u64| {
        let [least, most] = figure.map(|count| 100.0 * count as f64 / of.max(1) as f64);
        let up_to = if least == most { "" } else { "up to " };
        format!("{} ({up_to}{most:.2} %)", range(figure))
    };
    let candidates = report.candidates.iter().map(|it| {
        let touched = share(it.touched, report.callers);
        let refused = share(it.refused, report.read.requests);
        vec![
            ("limit", it.limit.to_string().into()),
            ("algorithm", it.algorithm.to_string().into()),
            ("callers_touched", touched.into()),
            ("requests_refused", refused.into()),
        ]
    });
    candidates.collect()
}

/// The heading of the busiest callers.
pub(crate) const BUSIEST: &str = "Most requests in one interval of the first limit";

/// Returns what is shown of the busiest callers.
pub(crate) fn busiest(report: &Report) -> Vec<Vec<Field>> {
    let callers = report.busiest.iter().map(|it| {
        let (caller, requests) = (it.caller.as_str(), range(it.most));
        vec![("caller", caller.into()), ("requests", requests.into())]
    });
    callers.collect()
}

/// Returns a sentence on a smallest limit.
pub(crate) fn conclusion(report: &Report, it: &SmallestLimit) -> String {
    let limit = format!("Smallest {} limit in {:?}", it.algorithm, it.interval);
    let Some(permits) = it.permits.map(range) else {
        let reason = match report.read.requests {
            0 => "there are no requests",
            _ => "it is searched for in further readings, and this log was read once",
        };
        return format!("{limit}: unknown: {reason}.");
    };
    let (touched, less) = (range(it.touched), range(it.touched_by_one_less));
    let verified = match it.verified {
        true => "verified by runs of both",
        false => "not verified by a run",
    };
    format!("{limit}: {permits} permits touch {touched} callers, one less {less} ({verified}).")
}

/// Returns the sentences that the figures are to be read with.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let Report { read, .. } = report;
    let mut notes = vec![format!("Times are {:?} apart.", read.resolution)];
    let is_coarse = |it: &Candidate| read.resolution * 20 > it.limit.interval();
    for (applies, note) in [
        (report.candidates.iter().any(is_coarse), COARSE),
        (!report.durations_subtracted, AT_THE_END),
        (true, ASSUMED),
    ] {
        notes.extend(applies.then(|| note.to_owned()));
    }
    for (count, what) in [
        (read.unreadable, "unreadable"),
        (read.late, "too late to be put in order, and left out"),
        (report.without_caller, "without a caller, and not limited"),
    ] {
        if count > 0 {
            notes.push(format!("{count} of {} lines: {what}.", read.lines));
        }
    }
    notes.push(format!(
        "At most {} callers were held at once.",
        report.most_active
    ));
    notes
}

/// Returns the text of a figure.
fn range([least, most]: Figure) -> String {
    match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    }
}
