//! The report of a replay, in words and as one HTML file.

use std::{fmt::Display, iter};

use jiff::Timestamp;
use serde_json::json;

use super::limits::{Candidate, Figure, Report, SmallestLimit};
use crate::{
    out::{cells, columns, counted},
    requests::{columns_line, is_coarse, left_out},
};

/// The heading of the busiest callers.
const BUSIEST: &str = "Most requests in one interval of the first limit";

/// The assumption that all figures make.
pub(crate) const ASSUMED: &str =
    "All figures assume that callers would have sent the same requests after a refusal.";

/// The note on figures that are ranges.
const COARSE: &str = "That is coarse, so figures are ranges. To log milliseconds, write the time \
                      as [$msec] in nginx, as [%{msec}t] in Apache.";

/// The note on times from which no duration is subtracted.
const AT_THE_END: &str = "They are when a request was logged, which is mostly its end: subtract \
                          its duration with `--columns duration=COLUMN`.";

/// The beginning of the page, up to its first paragraph.
const HEAD: &str = include_str!("report.html");
/// The bounds of a chart.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 200.0;

/// Returns a report as it is printed on a page.
pub(super) fn words(report: &Report) -> String {
    let (read, size, limits) = (columns_line(&report.read), size(report), candidates(report));
    let mut page = format!("{read}\n{size}\n\n{}\n", columns(&limits));
    for smallest in &report.smallest {
        page += &(conclusion(report, smallest) + "\n");
    }
    if !report.busiest.is_empty() {
        page += &format!("\n{BUSIEST}:\n{}", columns(&busiest(report)));
    }
    page + "\n" + &notes(report).join("\n")
}

/// Returns a report as one HTML file: without scripts or network, light and dark.
pub(super) fn html(report: &Report) -> String {
    let (read, size) = (&report.read, size(report));
    let mut page = format!("{HEAD}{}<p>{size}", text(columns_line(read)));
    if read.requests > 0 {
        page += &format!(", {} to {}", time(read.first_ms), time(read.last_ms));
    }
    page += &html_table(&candidates(report));
    for it in &report.smallest {
        page += &format!("<p>{}", text(conclusion(report, it)));
    }
    page += &format!("<h2>Refusals over time</h2>{}", over_time(report));
    for it in report.smallest.iter().filter(|it| !it.peaks.is_empty()) {
        page += &by_peak(report, it);
    }
    if !report.busiest.is_empty() {
        page += &format!("<h2>{BUSIEST}</h2>{}", html_table(&busiest(report)));
    }
    page += "<h2>How to read this</h2><ul>";
    for note in notes(report) {
        page += &format!("<li>{}", text(note));
    }
    page + "</ul></html>\n"
}

/// Draws the refusals of each candidate, and between the least and the most where they are ranges.
fn over_time(report: &Report) -> String {
    let most = report.moments.iter().flat_map(|it| &it.refused);
    let most = most.map(|[_, most]| *most).max().unwrap_or(0);
    if most == 0 {
        return "<p>No limit would have refused a request.".to_owned();
    }
    let step = (RIGHT - LEFT) / report.moments.len() as f64;
    let (mut legend, mut lines) = (String::new(), String::new());
    for (index, it) in report.candidates.iter().enumerate() {
        let edge = |end: usize| {
            let points = report.moments.iter().zip(0u32..).map(move |(moment, at)| {
                let refused = moment.refused.get(index).map_or(0, |it| it[end]);
                let y = BOTTOM - (BOTTOM - TOP) * refused as f64 / most as f64;
                format!("{:.1},{y:.1} ", LEFT + step * (f64::from(at) + 0.5))
            });
            points.collect::<Vec<_>>()
        };
        let (least, line) = (edge(0), edge(1).concat());
        let back: String = least.into_iter().rev().collect();
        let (colour, limit, algorithm) = (colour(index), it.limit, it.algorithm);
        legend += &format!("<span style='color:{colour}'>&#9632;</span> {limit} {algorithm} ");
        lines += &format!(
            "<polygon class='range' fill='{colour}' points='{line}{back}'/>\
             <polyline class='line' stroke='{colour}' points='{line}'/>"
        );
    }
    let (first, last) = (time(report.read.first_ms), time(report.read.last_ms));
    lines += &label(LEFT - 5.0, TOP + 5.0, "end", most);
    lines += &label(LEFT - 5.0, BOTTOM, "end", 0);
    lines += &label(LEFT, BOTTOM + 18.0, "start", first);
    lines += &label(RIGHT, BOTTOM + 18.0, "end", last);
    let chart = chart("Refused requests over time", &lines);
    format!("<p class='soft'>{legend}{chart}")
}

/// Draws how many callers have which peak, in steps that double, and marks the limits of the same
/// algorithm and interval.
fn by_peak(report: &Report, it: &SmallestLimit) -> String {
    let (algorithm, interval) = (it.algorithm, it.interval);
    let is_same = |(_, given): &(usize, &Candidate)| {
        given.algorithm == algorithm && given.limit.interval() == interval
    };
    let given = report.candidates.iter().enumerate().filter(is_same);
    let given = given.map(|(index, it)| (it.limit.permits(), colour(index), it.limit.to_string()));
    let found = it.permits.map(|[_, most]| most);
    let found = found.map(|most| (most, "var(--ink)".to_owned(), format!("smallest: {most}")));
    let marks: Vec<_> = given.chain(found).collect();
    let step = |requests: u64| requests.max(1).ilog2() as usize;
    let permits = marks.iter().map(|(permits, ..)| *permits);
    let all = it.peaks.iter().map(|(peak, _)| *peak).chain(permits);
    let mut bars = vec![0; all.map(step).max().unwrap_or(0) + 1];
    for (peak, callers) in &it.peaks {
        bars[step(*peak)] += callers;
    }
    let width = (RIGHT - LEFT) / bars.len() as f64;
    let most = bars.iter().copied().max().unwrap_or(1) as f64;
    let mut drawn = String::new();
    for (callers, index) in bars.iter().zip(0u32..) {
        let height = (BOTTOM - TOP) * (*callers as f64).ln_1p() / most.ln_1p();
        let (x, y) = (LEFT + width * f64::from(index), BOTTOM - height);
        let wide = width - 2.0;
        drawn += &format!(
            "<rect class='bar' x='{x:.1}' y='{y:.1}' width='{wide:.1}' height='{height:.1}'/>"
        );
        drawn += &label(x + width / 2.0, y - 4.0, "middle", callers);
        drawn += &label(x, BOTTOM + 16.0, "middle", 1u64 << index);
    }
    for (row, (permits, colour, name)) in marks.iter().enumerate() {
        // What has one request more is behind the mark.
        let x = LEFT + width * ((*permits + 1) as f64).log2();
        drawn += &format!(
            "<line class='mark' stroke='{colour}' x1='{x:.1}' x2='{x:.1}' y1='{TOP}' \
             y2='{BOTTOM}'><title>{name}</title></line>"
        );
        drawn += &label(x - 4.0, TOP + 12.0 * (row % 4) as f64, "end", name);
    }
    let title = "Callers by their largest number of requests in an interval";
    let chart = chart(title, &drawn);
    format!(
        "<h2>Callers by their most requests in {interval:?}, {algorithm}</h2><p class='soft'>A \
         limit touches the callers to the right of its mark. The numbers are of callers.{chart}"
    )
}

fn chart(title: &str, drawn: &str) -> String {
    format!(
        "<svg viewBox='0 0 720 224' role='img' aria-label='{title}'><line class='axis' \
         x1='{LEFT}' x2='{RIGHT}' y1='{BOTTOM}' y2='{BOTTOM}'/>{drawn}</svg>"
    )
}

fn label(x: f64, y: f64, anchor: &str, label: impl Display) -> String {
    let label = text(label);
    format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{label}</text>")
}

fn html_table(rows: &[Vec<String>]) -> String {
    let tags = iter::once("th").chain(iter::repeat("td"));
    let rows = rows.iter().zip(tags).map(|(row, tag)| {
        let cell = |cell| format!("<{tag}>{}</{tag}>", text(cell));
        format!("<tr>{}", row.iter().map(cell).collect::<String>())
    });
    let rows: String = rows.collect();
    format!("<div class='scroll'><table>{rows}</table></div>")
}

/// Returns the colour of a candidate.
fn colour(index: usize) -> String {
    format!("var(--c{})", index % 6)
}

fn time(millis: Option<i64>) -> String {
    let time = Timestamp::from_millisecond(millis.unwrap_or(0));
    time.map_or_else(|error| error.to_string(), |time| format!("{time:.0}"))
}

/// Escapes what is no markup: keys and names come from a log.
fn text(text: impl Display) -> String {
    let escaped = text.to_string().replace('&', "&amp;").replace('<', "&lt;");
    escaped.replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns how many requests of how many callers the log has.
fn size(report: &Report) -> String {
    let requests = counted(report.read.requests, "request");
    format!("{requests} of {}", counted(report.callers, "caller"))
}

/// Returns a table of the candidates.
fn candidates(report: &Report) -> Vec<Vec<String>> {
    let share = |figure: Figure, of: u64| {
        let [least, most] = figure.map(|count| 100.0 * count as f64 / of.max(1) as f64);
        let up_to = if least == most { "" } else { "up to " };
        format!("{} ({up_to}{most:.2} %)", range(figure))
    };
    let rows = report.candidates.iter().map(|it| {
        json!({
            "limit": it.limit, "algorithm": it.algorithm.to_string(),
            "callers_touched": share(it.touched, report.callers),
            "requests_refused": share(it.refused, report.read.requests),
        })
    });
    let columns = "limit algorithm callers_touched requests_refused";
    cells(columns, &rows.collect::<Vec<_>>())
}

/// Returns a table of the busiest callers.
fn busiest(report: &Report) -> Vec<Vec<String>> {
    let rows = report.busiest.iter();
    let rows = rows.map(|it| json!({ "caller": it.caller, "requests": range(it.most) }));
    cells("caller requests", &rows.collect::<Vec<_>>())
}

/// Returns a sentence on a smallest limit.
fn conclusion(report: &Report, it: &SmallestLimit) -> String {
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
fn notes(report: &Report) -> Vec<String> {
    let Report { read, .. } = report;
    let mut notes = vec![format!("Times are {:?} apart.", read.resolution)];
    let mut candidates = report.candidates.iter();
    if candidates.any(|it| is_coarse(read, it.limit)) {
        notes.push(COARSE.to_owned());
    }
    if !report.durations_subtracted {
        notes.push(AT_THE_END.to_owned());
    }
    notes.push(ASSUMED.to_owned());
    notes.extend(left_out(read, report.without_caller).map(|note| note + "."));
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
