//! The picture of `src/docs/algorithms.md`: what each algorithm grants of the same requests, as the
//! crate decides it. And the plots of `benches/plots`: each is that of the figures beside it.
//!
//! `TOWER_RATELIMIT_WRITE=1 cargo test --all-features --test pure pictures` redraws them.

use std::{env, fmt::Write, fs, time::Duration};

use kit::files;
use tower_ratelimit::{Algorithm, Limit, MemoryStore, RateLimitLayer, Rule};

use crate::{house::read, plot::Plot};

const PAGE: &str = "src/docs/algorithms.md";
/// Ten a minute.
const LIMIT: usize = 10;
const INTERVAL: u64 = 60;
/// Where the time ends, in seconds.
const END: u64 = 150;
/// In units of the picture: a second, a permit, a row.
const SECOND: u64 = 5;
const PERMIT: usize = 3;
const ROW: usize = 122;

#[test]
fn the_picture_shows_what_the_algorithms_decide() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once("<svg").expect("a picture");
    let (_, after) = rest.split_once("</svg>\n").expect("its end");
    let drawn = format!("{before}{}{after}", picture());
    if env::var_os("TOWER_RATELIMIT_WRITE").is_some() {
        fs::write(PAGE, &drawn).unwrap();
        return;
    }
    assert!(
        page == drawn,
        "the picture is not what the algorithms decide; redraw it with TOWER_RATELIMIT_WRITE=1"
    );
}

#[test]
fn each_plot_is_of_the_figures_beside_it() {
    let page = read("benches/README.md");
    let plots = files("benches/plots", "csv");
    assert_eq!(plots.len(), files("benches/plots", "svg").len());
    for figures in plots {
        let text = read(&figures);
        let plot = Plot::read(&text).unwrap_or_else(|| panic!("{}", figures.display()));
        assert_eq!(plot.text(), text);
        let picture = figures.with_extension("svg");
        let name = picture.file_name().unwrap().to_string_lossy();
        assert!(
            page.contains(&format!("(plots/{name})")),
            "no one sees {name}"
        );
        if env::var_os("TOWER_RATELIMIT_WRITE").is_some() {
            fs::write(&picture, plot.svg()).unwrap();
        }
        assert!(read(&picture) == plot.svg(), "{name} is not of its figures");
    }
}

/// One request begins the first window. Then each second has one.
fn requests() -> impl Iterator<Item = u64> {
    std::iter::once(0).chain(40..END)
}

/// Returns the seconds whose request is granted.
fn granted(name: &str, algorithm: Algorithm, slots: Option<u32>) -> Vec<u64> {
    let (store, clock) = MemoryStore::builder().redisson().build_manual();
    let limit = Limit::new(LIMIT as u64, Duration::from_secs(INTERVAL));
    let mut rule = Rule::from(limit).named(name).algorithm(algorithm);
    if let Some(slots) = slots {
        rule = rule.slots(slots);
    }
    let limiter = RateLimitLayer::new(&store, rule).limiter(name, ["all"]);
    let limiter = limiter.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let (mut granted, mut now) = (Vec::new(), 0);
        for second in requests() {
            clock.advance(Duration::from_secs(second - now));
            now = second;
            if limiter.try_acquire().await.unwrap().is_allowed() {
                granted.push(second);
            }
        }
        granted
    })
}

/// Draws a row for each algorithm, in the ink of the text around it.
fn picture() -> String {
    let slots = granted("slots", Algorithm::SlidingLog, Some(10));
    let whole = |name, algorithm| granted(name, algorithm, None);
    let rows = [
        ("Sliding log", whole("log", Algorithm::SlidingLog)),
        ("The same in ten slots of 6 s", slots),
        ("Fixed window", whole("window", Algorithm::FixedWindow)),
        ("GCRA, a token bucket", whole("bucket", Algorithm::Gcra)),
    ];
    let (width, height) = (SECOND * END + 50, ROW * rows.len() + 30);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"100%\" role=\"img\" \
         aria-label=\"What each algorithm grants\"\nfill=\"currentColor\" stroke=\"none\" \
         font-size=\"14\">\n"
    );
    for (place, (name, granted)) in rows.iter().enumerate() {
        row(&mut svg, ROW * place, name, granted);
    }
    let bottom = ROW * rows.len();
    for second in (0..=END).step_by(30) {
        let x = 30 + SECOND * second;
        writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" opacity=\".7\">{second} s</text>",
            bottom + 16
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

/// Draws the requests, and how many were granted within the last minute.
fn row(svg: &mut String, top: usize, name: &str, granted: &[u64]) {
    let counts = counts(granted);
    let most = counts.iter().map(|(_, count)| *count).max().unwrap();
    let limit = PERMIT * LIMIT;
    writeln!(
        svg,
        "<g transform=\"translate(30 {})\">\n<text y=\"-82\">\n<tspan font-weight=\"bold\">\
         {name}</tspan>: {} granted, at most {most} within a minute</text>",
        top + 100,
        granted.len()
    )
    .unwrap();
    let refused: Vec<_> = requests().filter(|at| !granted.contains(at)).collect();
    let faint = "stroke=\"currentColor\" stroke-width=\"2\" opacity=\".35\"";
    path(svg, faint, ticks(&refused, 4));
    let strong = "stroke=\"currentColor\" stroke-width=\"3\"";
    path(svg, strong, ticks(granted, 12));
    let within = area(&counts, |count| count.min(LIMIT));
    path(svg, "opacity=\".3\"", within);
    if most > LIMIT {
        let over = area(&counts, |count| count.max(LIMIT) - LIMIT);
        let attributes = format!("fill=\"#e8590c\" transform=\"translate(0 -{limit})\"");
        path(svg, &attributes, over);
    }
    let end = SECOND * END;
    let line = vec![format!("M0 0h{end}M0-{limit}h{end}")];
    let dashed = "stroke=\"currentColor\" stroke-dasharray=\"4 3\" opacity=\".6\"";
    path(svg, dashed, line);
    writeln!(
        svg,
        "<text x=\"-6\" y=\"-{}\" text-anchor=\"end\" opacity=\".7\">{LIMIT}</text>\n</g>",
        limit - 5
    )
    .unwrap();
}

/// Returns the seconds at which the number of grants within the last minute changes, with it.
fn counts(granted: &[u64]) -> Vec<(u64, usize)> {
    let mut changes: Vec<_> = granted.iter().flat_map(|at| [*at, at + INTERVAL]).collect();
    changes.sort_unstable();
    changes.dedup();
    let within = |now: u64| {
        granted
            .iter()
            .filter(move |at| **at <= now && now < **at + INTERVAL)
    };
    let changes = changes.into_iter().filter(|at| *at < END);
    changes.map(|at| (at, within(at).count())).collect()
}

/// Returns a stroke for each second, upwards.
fn ticks(seconds: &[u64], height: usize) -> Vec<String> {
    let tick = |at: &u64| format!("M{}-74v{height}", SECOND * at);
    seconds.iter().map(tick).collect()
}

/// Returns the area below the counts as they are shown.
fn area(counts: &[(u64, usize)], shown: impl Fn(usize) -> usize) -> Vec<String> {
    let mut steps = vec![String::from("M0 0")];
    let mut last = 0;
    for (at, count) in counts {
        let height = PERMIT * shown(*count);
        if height != last {
            steps.push(format!("H{}V-{height}", SECOND * at));
            last = height;
        }
    }
    steps.push(format!("H{}V0z", SECOND * END));
    steps
}

/// Writes a path, in lines of at most a hundred columns.
fn path(svg: &mut String, attributes: &str, steps: Vec<String>) {
    let mut column = 0;
    write!(svg, "<path {attributes}\nd=\"").unwrap();
    for step in steps {
        if column + step.len() > 90 {
            svg.push('\n');
            column = 0;
        }
        column += step.len();
        svg.push_str(&step);
    }
    svg.push_str("\"/>\n");
}
