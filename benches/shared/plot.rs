//! Plots: figures as text that a spreadsheet reads, and the picture of them.

use std::fmt::Write;

/// Lines over one axis. As text: two comments, the title and where it was measured; a row of
/// names, that of the axis below with that of the axis beside it; then a row for each place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) measured: String,
    pub(crate) below: String,
    pub(crate) beside: String,
    pub(crate) lines: Vec<String>,
    /// A place on the axis below, and a figure for each line that has one there.
    pub(crate) rows: Vec<(f64, Vec<Option<f64>>)>,
}

/// Where lines are drawn.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 520.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 300.0;
/// A picture beside a document knows the colours of the system, and not those of its page.
const STYLE: &str = "<style>
svg{--ink:#1d2024;--line:#d5d9de;color:var(--ink);background:#fff;font:12px system-ui,sans-serif}
@media(prefers-color-scheme:dark){svg{--ink:#e7e9ec;--line:#3a4149;background:#15181c}}
text{fill:var(--ink)}.axis{stroke:var(--line)}polyline{fill:none;stroke-width:2}
</style>
";
/// Readable on both grounds.
const COLOURS: [&str; 6] = [
    "#2b7de9", "#d9480f", "#2f9e44", "#9c4dd6", "#b08900", "#d6336c",
];

impl Plot {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let title = lines.next()?.strip_prefix("# ")?.to_owned();
        let measured = lines.next()?.strip_prefix("# ")?.to_owned();
        let mut names = lines.next()?.split(',').map(str::to_owned);
        let (below, beside) = names
            .next()?
            .split_once(" / ")
            .map(|(a, b)| (a.into(), b.into()))?;
        let row = |line: &str| {
            let mut cells = line.split(',');
            let place = cells.next()?.parse().ok()?;
            let cell = |it: &str| (!it.is_empty()).then(|| it.parse().ok());
            let figures: Option<Vec<_>> = cells
                .map(|it| cell(it).map_or(Some(None), |it| it.map(Some)))
                .collect();
            Some((place, figures?))
        };
        let names = names.collect();
        let rows = lines.map(row).collect::<Option<_>>()?;
        Some(Self {
            title,
            measured,
            below,
            beside,
            lines: names,
            rows,
        })
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("# {}\n# {}\n", self.title, self.measured);
        let names = self
            .lines
            .iter()
            .map(|name| format!(",{name}"))
            .collect::<String>();
        let _ = writeln!(text, "{} / {}{names}", self.below, self.beside);
        for (place, figures) in &self.rows {
            let cells = figures
                .iter()
                .map(|it| it.map_or(String::from(","), |it| format!(",{it}")));
            let _ = writeln!(text, "{place}{}", cells.collect::<String>());
        }
        text
    }

    pub(crate) fn svg(&self) -> String {
        let figures = self
            .rows
            .iter()
            .flat_map(|(_, figures)| figures.iter().flatten());
        let across = Axis::of(self.rows.iter().map(|(place, _)| *place), LEFT, RIGHT);
        let up = Axis::of(figures.copied(), BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 344\" role=\"img\" \
             aria-label=\"{}\">\n{STYLE}",
            self.title
        );
        label(
            &mut svg,
            8.0,
            18.0,
            "start\" font-weight=\"bold",
            &self.title,
        );
        label(&mut svg, 8.0, TOP - 12.0, "start", &self.beside);
        label(
            &mut svg,
            (LEFT + RIGHT) / 2.0,
            BOTTOM + 36.0,
            "middle",
            &self.below,
        );
        for tick in across.ticks() {
            label(
                &mut svg,
                across.at(tick),
                BOTTOM + 18.0,
                "middle",
                &short(tick),
            );
        }
        for tick in up.ticks() {
            let y = up.at(tick);
            let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
            label(&mut svg, LEFT - 6.0, y + 4.0, "end", &short(tick));
        }
        let mut names = Vec::new();
        for (line, name) in self.lines.iter().enumerate() {
            let there = self
                .rows
                .iter()
                .filter_map(|(place, it)| Some((*place, (*it.get(line)?)?)));
            let points: Vec<_> = there.map(|(x, y)| (across.at(x), up.at(y))).collect();
            let colour = COLOURS[line % COLOURS.len()];
            let drawn: Vec<_> = points
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let drawn = drawn.join(" ");
            let _ = writeln!(svg, "<polyline stroke=\"{colour}\" points=\"{drawn}\"/>");
            names.extend(points.last().map(|(x, y)| (*y, *x, colour, name)));
        }
        // The name stands where its line ends, or below the one above.
        names.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut free = TOP;
        for (y, x, colour, name) in names {
            let y = y.max(free);
            free = y + 16.0;
            let x = x + 8.0;
            let _ = writeln!(
                svg,
                "<circle cx=\"{x}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
            );
            label(&mut svg, x + 8.0, y + 4.0, "start", name);
        }
        svg + "</svg>\n"
    }
}

/// An axis, by powers where its figures span more than one, and else from zero.
struct Axis {
    least: f64,
    most: f64,
    powers: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(figures: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let least = figures.clone().fold(f64::INFINITY, f64::min);
        let most = figures.fold(f64::MIN_POSITIVE, f64::max);
        let powers = least > 0.0 && most >= 20.0 * least;
        let least = if powers { least } else { 0.0 };
        Self {
            least,
            most,
            powers,
            from,
            to,
        }
    }

    fn at(&self, figure: f64) -> f64 {
        let part = if self.powers {
            (figure / self.least).ln() / (self.most / self.least).ln()
        } else {
            figure / self.most
        };
        self.from + part * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let step = 10_f64.powf((self.most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * step);
        let step = step
            .into_iter()
            .find(|it| self.most / it <= 6.0)
            .unwrap_or(self.most);
        let all: Vec<_> = if self.powers {
            let few = self.most / self.least < 1000.0;
            let parts: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let decades = -9..12;
            decades
                .flat_map(|it| parts.iter().map(move |part| part * 10_f64.powi(it)))
                .collect()
        } else {
            (0..=6).map(|it| f64::from(it) * step).collect()
        };
        let within = |it: &f64| *it >= self.least * 0.999 && *it <= self.most * 1.001;
        all.into_iter().filter(within).collect()
    }
}

/// A number as short as it can be said.
fn short(number: f64) -> String {
    let (number, unit) = match number {
        1e6.. => (number / 1e6, "M"),
        1e3.. => (number / 1e3, "k"),
        _ => (number, ""),
    };
    format!("{}{unit}", (number * 1000.0).round() / 1000.0)
}

fn label(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}
