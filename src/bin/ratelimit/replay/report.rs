//! Describes the results of a replay in words, on a page and in [`html`](super::html).

use std::iter;

use super::limits::{Figure, Report, SmallestLimit};
use crate::{log::is_coarse, out::counted};

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

/// Returns a table of the candidates.
pub(crate) fn candidates(report: &Report) -> Vec<Vec<String>> {
    let share = |figure: Figure, of: u64| {
        let [least, most] = figure.map(|count| 100.0 * count as f64 / of.max(1) as f64);
        let up_to = if least == most { "" } else { "up to " };
        format!("{} ({up_to}{most:.2} %)", range(figure))
    };
    let rows = report.candidates.iter().map(|it| {
        let (limit, by) = (it.limit.to_string(), it.algorithm.to_string());
        let touched = share(it.touched, report.callers);
        [limit, by, touched, share(it.refused, report.read.requests)]
    });
    let heads = ["limit", "algorithm", "callers touched", "requests refused"];
    below(heads, rows)
}

/// Returns a table of the busiest callers.
pub(crate) fn busiest(report: &Report) -> Vec<Vec<String>> {
    let rows = report.busiest.iter();
    let rows = rows.map(|it| [it.caller.clone(), range(it.most)]);
    below(["caller", "requests"], rows)
}

/// Returns rows below their heads.
fn below<const N: usize>(
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Vec<Vec<String>> {
    let heads = iter::once(heads.map(str::to_owned));
    heads.chain(rows).map(Vec::from).collect()
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
    let lines = counted(read.lines, "line");
    let left_out = |count: u64, what: &str| (count > 0, format!("{count} of {lines}: {what}."));
    let is_coarse = report.candidates.iter().any(|it| is_coarse(read, it.limit));
    let held = counted(report.most_active, "caller");
    let held = format!("The state of at most {held} was held at once.");
    let notes = [
        (true, format!("Times are {:?} apart.", read.resolution)),
        (is_coarse, COARSE.to_owned()),
        (!report.durations_subtracted, AT_THE_END.to_owned()),
        (true, ASSUMED.to_owned()),
        left_out(read.unreadable, "unreadable"),
        left_out(read.late, "too late to be put in order, and left out"),
        left_out(read.invalid, "no valid requests, and left out"),
        left_out(report.without_caller, "without a caller, and not limited"),
        (true, held),
    ];
    let notes = notes.into_iter().filter(|(applies, _)| *applies);
    notes.map(|(_, note)| note).collect()
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
