//! Describes the results of a replay in words, on a page and in [`html`](super::html).

use super::limits::{Figure, Report, SmallestLimit};
use crate::{
    log::is_coarse,
    out::{Field, counted},
};

/// The heading of the busiest callers.
pub(crate) const BUSIEST: &str = "Most requests in one interval of the first limit";

/// The assumption that all figures make.
pub(crate) const ASSUMED: &str =
    "All figures assume that callers would have sent the same requests after a refusal.";

/// The note on figures that are ranges.
const COARSE: &str = "That is coarse, so figures are ranges. To log milliseconds, write the time \
                      as [$msec] in nginx, as [%{msec}t] in Apache.";

/// The note on times from which no duration is subtracted.
const AT_THE_END: &str = "They are when a request was logged, which is mostly its end: subtract \
                          its duration with `--columns duration=COLUMN`.";

/// Returns how many requests of how many callers the log has.
pub(crate) fn size(report: &Report) -> String {
    let requests = counted(report.read.requests, "request");
    format!("{requests} of {}", counted(report.callers, "caller"))
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
    let Some(permits) = it.permits else {
        let reason = match report.read.requests {
            0 => "there are no requests",
            _ => "it is searched for in further readings, and this log was read once",
        };
        return format!("{limit}: unknown: {reason}.");
    };
    let (permits, touched) = (some(permits, "permit"), some(it.touched, "caller"));
    let less = range(it.touched_by_one_less);
    let verified = if it.verified {
        "verified by runs of both"
    } else {
        "not verified by a run"
    };
    format!("{limit}: {permits}. It touches {touched}, one less {less} ({verified}).")
}

/// Returns the sentences that explain the figures.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let Report { read, .. } = report;
    let mut notes = vec![format!("Times are {:?} apart.", read.resolution)];
    let mut candidates = report.candidates.iter();
    for (applies, note) in [
        (candidates.any(|it| is_coarse(read, it.limit)), COARSE),
        (!report.durations_subtracted, AT_THE_END),
        (true, ASSUMED),
    ] {
        notes.extend(applies.then(|| note.to_owned()));
    }
    for (count, what) in [
        (read.unreadable, "unreadable"),
        (read.late, "too late to be put in order, and left out"),
        (read.invalid, "no valid requests, and left out"),
        (report.without_caller, "without a caller, and not limited"),
    ] {
        if count > 0 {
            notes.push(format!(
                "{count} of {}: {what}.",
                counted(read.lines, "line")
            ));
        }
    }
    let held = counted(report.most_active, "caller");
    notes.push(format!("The state of at most {held} was held at once."));
    notes
}

/// Returns the text of a figure.
fn range([least, most]: Figure) -> String {
    if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    }
}

/// Returns the text of a figure with the name of what is counted.
fn some(figure: Figure, thing: &str) -> String {
    match figure {
        [least, most] if least == most => counted(most, thing),
        figure => format!("{} {thing}s", range(figure)),
    }
}
