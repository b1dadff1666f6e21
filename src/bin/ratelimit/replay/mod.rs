//! `ratelimit replay`: reports what limits would have refused in an access log.

mod by_rules;
mod demo;
mod limits;
mod report;

use std::{
    borrow::Cow,
    fs,
    io::{BufRead, Cursor},
    iter,
    path::PathBuf,
};

use serde_json::json;
use tower_ratelimit::{
    Algorithm, Limit,
    key::{ClientIp, KeyExtractor},
};

use self::limits::{Replay, Report};
pub(crate) use self::report::ASSUMED;
use crate::{
    Stop,
    access_log::{OWN, Rows},
    assumptions::Assumptions,
    out::{Format, in_file},
    parsers,
    requests::{self, LogOptions, report_left_out, request},
};

/// Replay an access log against limits, to choose one of them.
///
/// Shows the callers that each limit would touch, as it refuses any of their requests, the requests
/// that it would refuse, and the smallest limit that leaves nearly all callers alone. Reads the
/// common and combined formats, JSON lines and CSV with a header, also compressed by gzip. Says
/// first which columns it has found: `--columns` says where another one is.
///
/// With `--rules`, each request goes through a real layer whose clock the log moves. Responses end
/// at once with the status of the log, requests that would wait for permits are counted as such and
/// take none, and callers of gRPC need the column of their `content-type` as a `--field`.
///
/// Examples: `ratelimit replay --demo`; `ratelimit replay access.log --limit 60/1m --html
/// report.html`; `ratelimit replay access.log --rules limits.toml --share 0.1%`.
///
/// Exits with 0 if it was replayed; with 1 if more than 1 % of the lines were unreadable or too
/// late, or if the log lacks what rules ask for; with 2 if a file cannot be read or has an error,
/// or a column does not hold what its name says in 95 % of the lines.
#[derive(clap::Args)]
pub(crate) struct ReplayArguments {
    /// The log, or `-` for the standard input
    ///
    /// That is read once, so that no limit is verified.
    #[arg(required_unless_present = "demo", conflicts_with = "demo")]
    log: Option<PathBuf>,
    /// Replay a day that is made up
    ///
    /// It is the same one each time.
    #[arg(long)]
    demo: bool,
    /// The column of the callers
    ///
    /// `ip`, `user`, a name in JSON or CSV, or the number of a column, from 1.
    #[arg(long, default_value = "ip", value_name = "COLUMN")]
    by: String,
    /// The column of X-Forwarded-For; needs `--trusted`
    ///
    /// Counts by the client's address behind proxies. The column is believed where the address in
    /// `ip` is of a `--trusted` network.
    #[arg(long, requires = "trusted", conflicts_with = "by", value_name = "COL")]
    client_ip_from: Option<String>,
    /// A network of proxies that are trusted, as in `10.0.0.0/8`; repeat it for others
    #[arg(long, requires = "client_ip_from")]
    #[arg(value_name = "NETWORK", hide_short_help = true)]
    trusted: Vec<String>,
    /// A limit
    ///
    /// As in `60/1m`: permits, and an interval in ms, s, m, h or d. Repeat it for others: up to 16
    /// are compared by one reading of the log.
    #[arg(long, default_value = "30/1m,60/1m,120/1m")]
    #[arg(value_delimiter = ',', value_name = "RATE")]
    limit: Vec<Limit>,
    /// Send the log through the rules of this file
    ///
    /// It is in TOML: see `ratelimit check --help`.
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["limit", "demo", "by", "client_ip_from", "html"])]
    rules: Option<PathBuf>,
    /// How to count [default: sliding-log]
    ///
    /// `sliding-log`, `fixed-window` or `gcra`. With `--rules` the file says it.
    #[arg(long, default_value = "sliding-log")]
    #[arg(hide_default_value = true, hide_short_help = true)]
    algorithm: Algorithm,
    /// The share of callers to touch [default: 0.1%]
    ///
    /// As in `1%` or `0.01`. Looks for the smallest limit that touches fewer callers. With
    /// `--rules` for that of each rule, in several readings, and only if it is given.
    #[arg(long, value_parser = parsers::share, value_name = "SHARE")]
    share: Option<f64>,
    #[command(flatten)]
    columns: LogOptions,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Show callers by their keys, not by digests
    #[arg(long)]
    show_keys: bool,
    #[command(flatten)]
    format: Format,
    /// Also write a report with charts into this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &ReplayArguments) -> Result<bool, Stop> {
    let (columns, assumptions) = (&arguments.columns, &arguments.assumptions);
    if let (Some(rules), Some(log)) = (&arguments.rules, &arguments.log) {
        let (share, format) = (arguments.share, &arguments.format);
        return by_rules::replay(columns, [rules, log], assumptions, share, format);
    }
    if !columns.field.is_empty() || assumptions.is_any() {
        return Err(Stop::usage(
            "`--field` and what code defines are for `--rules`",
        ));
    }
    let report = by_limits(arguments)?;
    if let Some(path) = &arguments.html {
        fs::write(path, report::html(&report)).map_err(in_file(path))?;
    }
    let words = report::words(&report);
    arguments.format.print(&words, json!(report))?;
    Ok(report_left_out(&report.read))
}

/// Replays the log against limits.
fn by_limits(arguments: &ReplayArguments) -> Result<Report, Stop> {
    let client = ClientIp::behind(&arguments.trusted);
    client.check()?;
    let mut rows = Rows::of([&*arguments.by]);
    if let Some(column) = &arguments.client_ip_from {
        let place = ("forwarded".to_owned(), column.clone(), 0);
        rows = rows.column("forwarded", false);
        rows.places.push(place);
    }
    let limits = arguments.limit.iter();
    let replay = Replay {
        rows: arguments.columns.rows(rows),
        limits: limits.map(|limit| (arguments.algorithm, *limit)).collect(),
        share: arguments.share.unwrap_or(0.001),
        show_keys: arguments.show_keys,
    };
    let mut readings = 0;
    let open = || {
        readings += 1;
        match &arguments.log {
            Some(path) if readings > 1 && path.as_os_str() == "-" => Ok(None),
            Some(path) => requests::open(path).map(Some),
            None => Ok(Some(Box::new(Cursor::new(demo::day())) as Box<dyn BufRead>)),
        }
    };
    let report = match &arguments.client_ip_from {
        None => replay.run(open, limits::first),
        Some(_) => replay.run(open, |fields| client_of(&client, fields).map(Cow::Owned)),
    };
    Ok(report.map_err(|error| match &arguments.log {
        Some(path) => in_file(path)(error),
        None => error,
    })?)
}

/// Returns the client that a request came from by its address and what proxies have written.
fn client_of(client: &ClientIp, fields: &[Option<Cow<'_, str>>]) -> Option<String> {
    let [peer, forwarded] = fields.get(OWN.len()..)? else {
        return None;
    };
    let forwarded = ("x-forwarded-for", forwarded.as_deref());
    let peer = [peer.as_deref(), None, None, None, None];
    let (parts, ()) = request(peer, iter::once(forwarded))?.into_parts();
    client.find(&parts).map(|address| address.to_string())
}
