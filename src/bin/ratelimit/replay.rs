//! `ratelimit replay`: what limits would have refused of an access log.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use serde_json::{Value, json};
use tower_ratelimit::{
    Algorithm, Limit,
    replay::{Replay, Report},
};

use crate::{
    Answer, Stop,
    demo::Demo,
    impact, print,
    rules::Assumptions,
    say,
    traffic::{Columns, LOST},
};

/// The version of what `--json` prints. It grows when a field changes or goes.
pub(crate) const SCHEMA: u32 = 1;

/// Replay an access log against limits: the callers each limit would touch, the requests it would
/// refuse, and the smallest limit that leaves nearly all callers alone.
///
/// Reads the common and combined formats, JSON lines and CSV with a header, also compressed by
/// gzip. Exits with 1 if more than 1 % of the lines were unreadable or too late.
///
/// With `--rules`, each request goes through a real layer whose clock the log moves. Responses end
/// at once with the status of the log, requests that wait do so in the log's time, and callers of
/// gRPC need the column of their `content-type` as a `--field`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The log; `-` is the standard input, which is read once, so that no limit is verified
    #[arg(required_unless_present = "demo", conflicts_with = "demo")]
    log: Option<PathBuf>,
    /// Replay a day that is made up, the same one each time
    #[arg(long)]
    demo: bool,
    /// Count by this column: `ip`, `user`, a name in JSON or CSV, or the number of a column
    #[arg(long, default_value = "ip", value_name = "COLUMN")]
    by: String,
    /// A limit, as in `60/1m`; repeat it to compare limits, which costs no further reading
    #[arg(
        long,
        required_unless_present_any = ["demo", "rules"],
        default_value_if("demo", "true", "30/1m,60/1m,120/1m"),
        value_delimiter = ',',
        value_name = "RATE"
    )]
    limit: Vec<Limit>,
    /// Send the requests through the rules of this file, as a service would
    #[arg(long, conflicts_with_all = ["limit", "demo", "by", "share"], value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The algorithm that counts
    #[arg(long, default_value = "sliding-log")]
    algorithm: Named,
    /// Look for the smallest limit that touches fewer than this share of callers
    #[arg(long, default_value = "0.1%", value_parser = share, value_name = "SHARE")]
    share: f64,
    #[command(flatten)]
    columns: Columns,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Show callers by their keys instead of by digests
    #[arg(long)]
    show_keys: bool,
    /// Print one JSON object, in which figures are lists of the least and the most
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Named {
    SlidingLog,
    FixedWindow,
    Gcra,
}

impl Named {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::SlidingLog => Algorithm::SlidingLog,
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::Gcra => Algorithm::Gcra,
        }
    }

    pub(crate) fn of(algorithm: Algorithm) -> String {
        let mut all = Self::value_variants().iter();
        let named = all.find(|named| named.algorithm() == algorithm);
        let value = named.and_then(Self::to_possible_value);
        // No setting of the command chooses it.
        value.map_or_else(
            || "calendar".to_owned(),
            |value| value.get_name().to_owned(),
        )
    }
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

pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Stop> {
    let columns = &arguments.columns;
    if let (Some(rules), Some(log)) = (&arguments.rules, &arguments.log) {
        let replayed = impact::run(columns, &arguments.assumptions, rules, log)?;
        return replayed.print(arguments.json);
    }
    if !columns.field.is_empty() || arguments.assumptions.is_any() {
        return Err(Stop::usage(
            "`--field` and what code defines are for `--rules`",
        ));
    }
    let mut replay = Replay::by(&arguments.by)
        .share(arguments.share)
        .reorder(columns.reorder);
    for limit in &arguments.limit {
        replay = replay.limit_by(arguments.algorithm.algorithm(), *limit);
    }
    if let Some(column) = &columns.time_field {
        replay = replay.time_column(column);
    }
    if let Some((column, unit)) = &columns.duration_field {
        replay = replay.duration_column(column, *unit);
    }
    if arguments.show_keys {
        replay = replay.show_keys();
    }
    let mut readings = 0;
    let report = replay.run(|| {
        readings += 1;
        match &arguments.log {
            None => Ok(Some(
                Box::new(BufReader::new(Demo::new())) as Box<dyn BufRead>
            )),
            Some(path) if readings > 1 && path.as_os_str() == "-" => Ok(None),
            Some(path) => open(path).map(Some),
        }
    });
    let report = report.map_err(|error| match &arguments.log {
        Some(path) => format!("{}: {error}", path.display()),
        None => error.to_string(),
    })?;
    print(&match arguments.json {
        true => format!("{:#}\n", object(&report)),
        false => report.to_string(),
    })?;
    for (line, text) in &report.samples {
        say(format!("line {line} is unreadable: {text}"));
    }
    if report.lost() > LOST {
        say("more than 1 % of the lines were left out, so the figures may be too low");
        return Ok(Answer::No);
    }
    Ok(Answer::Yes)
}

/// Opens a log, and decompresses it if it begins as gzip does.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut log: Box<dyn BufRead> = match path.as_os_str() == "-" {
        true => Box::new(BufReader::with_capacity(1 << 16, io::stdin())),
        false => Box::new(BufReader::with_capacity(1 << 16, File::open(path)?)),
    };
    if log.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        log = Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(log)));
    }
    Ok(log)
}

/// Returns a report as `--json` prints it.
fn object(report: &Report) -> Value {
    let figure = |figure: &RangeInclusive<u64>| json!([figure.start(), figure.end()]);
    let millis = |time: SystemTime| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    };
    let candidates = report.candidates.iter().map(|it| {
        json!({
            "limit": it.limit.to_string(),
            "algorithm": Named::of(it.algorithm),
            "touched": figure(&it.touched),
            "refused": figure(&it.refused),
        })
    });
    let smallest = report.smallest.iter().map(|it| {
        json!({
            "algorithm": Named::of(it.algorithm),
            "interval_ms": it.interval.as_millis() as u64,
            "permits": it.permits.as_ref().map(figure),
            "touched": figure(&it.touched),
            "touched_by_one_less": figure(&it.touched_by_one_less),
            "verified": it.verified,
        })
    });
    let busiest = report.busiest.iter();
    let busiest = busiest.map(|it| json!({ "caller": it.caller, "most": it.most }));
    json!({
        "schema": SCHEMA,
        "lines": report.lines,
        "unreadable": report.unreadable,
        "late": report.late,
        "without_caller": report.without_caller,
        "requests": report.requests,
        "callers": report.callers,
        "first_ms": report.span.map(|(first, _)| millis(first)),
        "last_ms": report.span.map(|(_, last)| millis(last)),
        "resolution_us": report.resolution.as_micros() as u64,
        "durations_subtracted": report.started,
        "candidates": candidates.collect::<Vec<_>>(),
        "smallest": smallest.collect::<Vec<_>>(),
        "busiest": busiest.collect::<Vec<_>>(),
        "most_active": report.most_active,
    })
}
