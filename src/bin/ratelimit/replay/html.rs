//! Writes the report of a replay as one HTML file: without scripts or network, light and dark.

use std::fmt::{self, Display, Write};

use jiff::Timestamp;

use super::{
    limits::{Candidate, Report, SmallestLimit},
    report::{BUSIEST, busiest, candidates, conclusion, notes, size},
};
use crate::{
    log::columns_line,
    out::{Field, cells},
};

/// The beginning of the page, up to its first paragraph.
const HEAD: &str = include_str!("report.html");
/// The bounds of a chart.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 200.0;

pub(crate) fn page(report: &Report) -> String {
    let mut page = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut page, report);
    page
}

fn write(page: &mut String, report: &Report) -> fmt::Result {
    write!(
        page,
        "{HEAD}{}<p>{}",
        text(&columns_line(&report.read)),
        size(report)
    )?;
    if let (Some(first), Some(last)) = (report.read.first_ms, report.read.last_ms) {
        write!(page, ", {} to {}", time(first), time(last))?;
    }
    write_table(page, &candidates(report))?;
    for it in &report.smallest {
        write!(page, "<p>{}", text(&conclusion(report, it)))?;
    }
    write!(page, "<h2>Refusals over time</h2>")?;
    over_time(page, report)?;
    for it in report.smallest.iter().filter(|it| !it.peaks.is_empty()) {
        by_peak(page, report, it)?;
    }
    if !report.busiest.is_empty() {
        write!(page, "<h2>{BUSIEST}</h2>")?;
        write_table(page, &busiest(report))?;
    }
    write!(page, "<h2>How to read this</h2><ul>")?;
    for note in notes(report) {
        write!(page, "<li>{}", text(&note))?;
    }
    writeln!(page, "</ul></html>")
}

/// Draws the refusals of each candidate, and between the least and the most where they are ranges.
fn over_time(page: &mut String, report: &Report) -> fmt::Result {
    let most = report.moments.iter().flat_map(|it| &it.refused);
    let most = most.map(|[_, most]| *most).max().unwrap_or(0);
    if most == 0 {
        return write!(page, "<p>No limit would have refused a request.");
    }
    write!(page, "<p class=\"soft\">")?;
    for (index, it) in report.candidates.iter().enumerate() {
        let (colour, limit, algorithm) = (colour(index), it.limit, it.algorithm);
        write!(
            page,
            "<span style=\"color:{colour}\">&#9632;</span> {limit} {algorithm} "
        )?;
    }
    let step = (RIGHT - LEFT) / report.moments.len() as f64;
    open_chart(page, "Refused requests over time")?;
    for index in 0..report.candidates.len() {
        let edge = |end: usize| {
            let points = report.moments.iter().zip(0u32..).map(move |(moment, at)| {
                let refused = moment.refused.get(index).map_or(0, |it| it[end]);
                let y = BOTTOM - (BOTTOM - TOP) * refused as f64 / most as f64;
                (LEFT + step * (f64::from(at) + 0.5), y)
            });
            points.map(|(x, y)| format!("{x:.1},{y:.1} "))
        };
        let back: Vec<_> = edge(0).collect();
        let between: String = edge(1).chain(back.into_iter().rev()).collect();
        let (colour, line) = (colour(index), edge(1).collect::<String>());
        write!(
            page,
            "<polygon class=\"range\" fill=\"{colour}\" points=\"{between}\"/><polyline \
             class=\"line\" stroke=\"{colour}\" points=\"{line}\"/>"
        )?;
    }
    label(page, LEFT - 5.0, TOP + 5.0, "end", most)?;
    label(page, LEFT - 5.0, BOTTOM, "end", 0)?;
    if let (Some(first), Some(last)) = (report.read.first_ms, report.read.last_ms) {
        label(page, LEFT, BOTTOM + 18.0, "start", time(first))?;
        label(page, RIGHT, BOTTOM + 18.0, "end", time(last))?;
    }
    write!(page, "</svg>")
}

/// Draws how many callers have which peak, in steps that double, and marks the limits of the same
/// algorithm and interval.
fn by_peak(page: &mut String, report: &Report, it: &SmallestLimit) -> fmt::Result {
    let (algorithm, interval) = (it.algorithm, it.interval);
    write!(
        page,
        "<h2>Callers by their most requests in {interval:?}, {algorithm}</h2><p class=\"soft\">A \
         limit touches the callers to the right of its mark. The numbers are of callers."
    )?;
    let mut bars = vec![0; 1];
    for (peak, callers) in &it.peaks {
        let index = peak.max(&1).ilog2() as usize;
        bars.resize(bars.len().max(index + 1), 0);
        bars[index] += callers;
    }
    let is_same = |(_, given): &(usize, &Candidate)| {
        given.algorithm == algorithm && given.limit.interval() == interval
    };
    let given = report.candidates.iter().enumerate().filter(is_same);
    let given = given.map(|(index, it)| (it.limit.permits(), colour(index), it.limit.to_string()));
    let found = it.permits.map(|[_, most]| most);
    let found = found.map(|most| (most, "var(--ink)".to_owned(), format!("smallest: {most}")));
    let marks: Vec<_> = given.chain(found).collect();
    let last = marks.iter().map(|(permits, ..)| *permits).max();
    let steps = bars
        .len()
        .max(last.unwrap_or(0).max(1).ilog2() as usize + 1);
    let width = (RIGHT - LEFT) / steps as f64;
    let most = bars.iter().copied().max().unwrap_or(1) as f64;
    open_chart(
        page,
        "Callers by their largest number of requests in an interval",
    )?;
    for (callers, index) in bars.iter().zip(0u32..) {
        let height = (BOTTOM - TOP) * (*callers as f64).ln_1p() / most.ln_1p();
        let (x, y) = (LEFT + width * f64::from(index), BOTTOM - height);
        write!(
            page,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
            width - 2.0
        )?;
        label(page, x + width / 2.0, y - 4.0, "middle", callers)?;
        label(page, x, BOTTOM + 16.0, "middle", 1u64 << index)?;
    }
    for (row, (permits, colour, name)) in marks.iter().enumerate() {
        // What has one request more is behind the mark.
        let x = LEFT + width * ((*permits + 1) as f64).log2();
        write!(
            page,
            "<line class=\"mark\" stroke=\"{colour}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" \
             y2=\"{BOTTOM}\"><title>{name}</title></line>"
        )?;
        let y = TOP + 12.0 * (row % 4) as f64;
        label(page, x - 4.0, y, "end", name)?;
    }
    write!(page, "</svg>")
}

fn open_chart(page: &mut String, title: &str) -> fmt::Result {
    write!(
        page,
        "<svg viewBox=\"0 0 720 224\" role=\"img\" aria-label=\"{title}\"><line class=\"axis\" \
         x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\"/>"
    )
}

fn label(page: &mut String, x: f64, y: f64, anchor: &str, label: impl Display) -> fmt::Result {
    let label = text(&label.to_string());
    write!(
        page,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>"
    )
}

fn write_table(page: &mut String, rows: &[Vec<Field>]) -> fmt::Result {
    write!(page, "<div class=\"scroll\"><table>")?;
    let tags = ["th"].into_iter().chain(std::iter::repeat("td"));
    for (row, tag) in cells(rows).iter().zip(tags) {
        write!(page, "<tr>")?;
        for cell in row {
            write!(page, "<{tag}>{}</{tag}>", text(cell))?;
        }
    }
    write!(page, "</table></div>")
}

/// Returns the colour of a candidate.
fn colour(index: usize) -> String {
    format!("var(--c{})", index % 6)
}

fn time(millis: i64) -> String {
    let time = Timestamp::from_millisecond(millis);
    time.map_or_else(|_| millis.to_string(), |time| format!("{time:.0}"))
}

/// Escapes what is no markup: keys and names come from a log.
fn text(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    escaped.replace('>', "&gt;").replace('"', "&quot;")
}
