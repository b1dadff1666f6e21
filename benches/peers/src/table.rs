//! The tables, as Markdown, and all figures as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::{
    checks::Waits,
    figures::thousands,
    measure::{Figures, Load},
    peers::{Entry, Form, Promise, State},
    work::{Latency, WORKS},
};

/// What one contestant has shown.
pub(crate) struct Shown {
    pub(crate) entry: Entry,
    /// One for each work; none where it cannot do it
    pub(crate) works: Vec<Option<Figures>>,
    /// At each offered load, how long answers took
    pub(crate) open: Vec<Load>,
    pub(crate) bytes: Option<f64>,
    pub(crate) expiry: Option<(f64, Option<f64>)>,
    pub(crate) checks: Option<Checks>,
}

pub(crate) struct Checks {
    pub(crate) over: (usize, bool),
    pub(crate) waits: Waits,
    pub(crate) dropped: String,
    pub(crate) left: Option<usize>,
    pub(crate) inner: String,
    pub(crate) clock: Option<(String, String)>,
}

const PACKAGE: &str = "tower-ratelimit";

impl Shown {
    fn ours(&self) -> bool {
        self.entry.package == PACKAGE
    }
}

/// This crate as it is by default, where the state is.
fn default(all: &[Shown], state: State) -> Option<&Shown> {
    all.iter()
        .find(|shown| shown.ours() && shown.entry.state == state)
}

/// `figures`: whether there is more than correctness.
pub(crate) fn markdown(all: &[Shown], missing: &[(&str, String)], figures: bool) -> String {
    let mut text = String::new();
    if figures {
        text.push_str("#### Where a peer wins\n\n");
        wins(&mut text, all);
    }
    for (name, why) in missing {
        let _ = writeln!(text, "- Not measured: {name}: {why}.");
    }
    if figures {
        works(&mut text, all, State::Process);
        works(&mut text, all, State::Redis);
        open(&mut text, all);
        memory(&mut text, all);
    }
    checks(&mut text, all);
    text
}

/// By a tenth or more: what is less two runs do not tell apart.
fn wins(text: &mut String, all: &[Shown]) {
    let before = text.len();
    for (at, work) in WORKS.iter().enumerate() {
        for state in [State::Process, State::Redis] {
            let figure = |shown: &Shown| shown.works.get(at).copied().flatten();
            let Some(ours) = default(all, state).and_then(figure) else {
                continue;
            };
            let peers = all
                .iter()
                .filter(|shown| !shown.ours() && shown.entry.state == state);
            for (peer, theirs) in peers.filter_map(|peer| Some((peer, figure(peer)?))) {
                let ratio = theirs.per_second / ours.per_second;
                if ratio >= 1.1 && theirs.failed == 0.0 {
                    let form = if peer.entry.form == Form::Call {
                        ", called directly"
                    } else {
                        ""
                    };
                    let place = if state == State::Redis {
                        " on Redis"
                    } else {
                        " in the process"
                    };
                    let name = (peer.entry.name, work.name);
                    let _ = writeln!(
                        text,
                        "- **{}**{form}: {} times as many decisions{place}, *{}*.",
                        name.0,
                        short(ratio),
                        name.1
                    );
                }
            }
        }
    }
    let Some(ours) = default(all, State::Redis) else {
        return;
    };
    for peer in all.iter().filter(|shown| !shown.ours()) {
        for (theirs, ours) in peer.open.iter().zip(&ours.open) {
            if theirs.median.p99 < ours.median.p99 / 1.1 {
                let [median, least] = [theirs.median, theirs.least].map(|it| short(it.p99));
                let [our_median, our_least] = [ours.median, ours.least].map(|it| short(it.p99));
                let _ = writeln!(
                    text,
                    "- **{}**: p99 of {median} µs ({least} at least) at {} a second, and \
                     {our_median} ({our_least}) here.",
                    peer.entry.name, theirs.rate
                );
            }
        }
        let bytes = default(all, peer.entry.state).and_then(|ours| ours.bytes);
        if let (Some(theirs), Some(ours)) = (peer.bytes, bytes)
            && theirs < ours / 1.1
        {
            let (theirs, ours) = (short(theirs), short(ours));
            let _ = writeln!(
                text,
                "- **{}**: {theirs} bytes a key, and {ours} here.",
                peer.entry.name
            );
        }
    }
    if text.len() == before {
        text.push_str("- Nowhere by a tenth or more in this run.\n");
    }
}

fn works(text: &mut String, all: &[Shown], state: State) {
    let place = if state == State::Redis {
        "Redis"
    } else {
        "the process"
    };
    let _ = writeln!(text, "\n#### State in {place}\n");
    text.push_str("| work | contestant | decisions/s | of ours | admitted | failed | commands | µs of Redis | µs of this side | p50 | p99 | p99.9 |\n");
    text.push_str("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (at, work) in WORKS.iter().enumerate() {
        let figure = |shown: &Shown| shown.works.get(at).copied().flatten();
        let ours = default(all, state)
            .and_then(figure)
            .map_or(f64::NAN, |ours| ours.per_second);
        let mut name = format!("**{}**", work.name);
        for shown in all.iter().filter(|shown| shown.entry.state == state) {
            let Some(figures) = figure(shown) else {
                let _ = writeln!(
                    text,
                    "| {name} | {} | – | | | | | | | | | |",
                    shown.entry.name
                );
                name.clear();
                continue;
            };
            let redis = |figure: f64| {
                if state == State::Redis {
                    short(figure)
                } else {
                    String::new()
                }
            };
            // In Redis with 64 in flight, latency is no more than what decisions a second say.
            let took = |figure: f64| {
                if state == State::Process {
                    short(figure)
                } else {
                    String::new()
                }
            };
            let Latency { p50, p99, p999 } = figures.latency;
            let form = if shown.entry.form == Form::Call {
                " (call)"
            } else {
                ""
            };
            let row = [
                name.clone(),
                format!("{}{form}", shown.entry.name),
                short(figures.per_second),
                short(figures.per_second / ours),
                percent(figures.admitted),
                percent(figures.failed),
                redis(figures.commands),
                redis(figures.server_micros),
                short(figures.own_micros),
                took(p50),
                took(p99),
                took(p999),
            ];
            let _ = writeln!(text, "| {} |", row.join(" | "));
            name.clear();
        }
    }
}

fn open(text: &mut String, all: &[Shown]) {
    let asked = || all.iter().filter(|shown| !shown.open.is_empty());
    // Who kept up with all loads has all of them.
    let Some(longest) = asked().max_by_key(|shown| shown.open.len()) else {
        return;
    };
    text.push_str(
        "\n#### Latency by offered load\n\nIn µs: the median of all turns (and the least). No numbers \
         where a contestant did not keep up with the load before.\n\n",
    );
    text.push_str("| offered | contestant | p50 | p99 | p99.9 | in Redis: p50 | p99 | p99.9 |\n");
    text.push_str("|---|---|---:|---:|---:|---:|---:|---:|\n");
    let figures: [fn(&Latency) -> f64; 3] = [|it| it.p50, |it| it.p99, |it| it.p999];
    for (at, Load { rate, .. }) in longest.open.iter().enumerate() {
        let mut name = format!("**{}/s**", thousands(*rate as f64));
        for shown in asked() {
            let _ = write!(text, "| {name} | {} |", shown.entry.name);
            match shown.open.get(at) {
                None => text.push_str(&" – |".repeat(2 * figures.len())),
                Some(load) => {
                    for [median, least] in [[load.median, load.least], load.in_redis] {
                        for of in figures {
                            let [median, least] = [median, least].map(|it| short(of(&it)));
                            let _ = write!(text, " {median} ({least}) |");
                        }
                    }
                }
            }
            text.push('\n');
            name.clear();
        }
    }
}

fn memory(text: &mut String, all: &[Shown]) {
    text.push_str("\n#### Memory, and what expires\n\n");
    text.push_str("| contestant | where | bytes a key | bytes an idle key, in Redis | dearest call, ms |\n|---|---|---:|---:|---:|\n");
    for shown in all {
        let place = if shown.entry.on_redis() {
            "Redis"
        } else {
            "process"
        };
        let (dearest, idle) = shown
            .expiry
            .map_or((None, None), |(ms, held)| (Some(ms), held));
        let cell = |figure: Option<f64>| figure.map_or(String::from("–"), short);
        let (bytes, idle, dearest) = (cell(shown.bytes), cell(idle), cell(dearest));
        let _ = writeln!(
            text,
            "| {} | {place} | {bytes} | {idle} | {dearest} |",
            shown.entry.name
        );
    }
}

fn checks(text: &mut String, all: &[Shown]) {
    text.push_str("\n#### Correctness\n\n| contestant | most in an interval of 50 | promised | wait too early | wait too late, s | connections closed | charged of 10 that left | inner `ConcurrencyLimit` | clock 2 min ahead |\n");
    text.push_str("|---|---:|---|---:|---:|---|---:|---|---|\n");
    for (shown, checks) in all
        .iter()
        .filter_map(|shown| Some((shown, shown.checks.as_ref()?)))
    {
        let promise = match shown.entry.promise {
            Promise::Interval => "50",
            Promise::Bucket => "100, a token bucket",
            Promise::Window => "100, a fixed window",
            Promise::Estimate => "nothing",
        };
        let kept = if checks.over.1 { "" } else { "; **broken**" };
        let Waits {
            announced,
            early,
            late,
        } = checks.waits;
        let waits = match announced {
            0 => [String::from("not announced"), String::new()],
            _ => [format!("{early} of {announced}"), format!("{late:.1}")],
        };
        let clock = checks.clock.as_ref();
        let row = [
            shown.entry.name.to_owned(),
            checks.over.0.to_string(),
            format!("{promise}{kept}"),
            waits[0].clone(),
            waits[1].clone(),
            checks.dropped.clone(),
            checks
                .left
                .map_or(String::from("–"), |left| left.to_string()),
            checks.inner.clone(),
            clock.map_or(String::from("–"), |(over, after)| {
                format!("{over}; {after}")
            }),
        ];
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

pub(crate) fn json(about: &str, all: &[Shown]) -> Value {
    let latency = |latency: &Latency| json!([latency.p50, latency.p99, latency.p999]);
    let shown = |shown: &Shown| {
        let works = WORKS.iter().zip(&shown.works).filter_map(|(work, figures)| {
            let figures = figures.as_ref()?;
            Some(json!({
                "work": work.name, "per_second": figures.per_second, "admitted": figures.admitted,
                "failed": figures.failed, "commands": figures.commands,
                "server_micros": figures.server_micros, "own_micros": figures.own_micros,
                "micros": latency(&figures.latency),
            }))
        });
        let open = shown.open.iter().map(|load| {
            json!({
                "offered": load.rate, "micros": latency(&load.median),
                "least": latency(&load.least), "in_redis": latency(&load.in_redis[0]),
                "least_in_redis": latency(&load.in_redis[1]),
            })
        });
        json!({
            "name": shown.entry.name, "redis": shown.entry.on_redis(),
            "works": works.collect::<Vec<_>>(), "open": open.collect::<Vec<_>>(),
            "bytes": shown.bytes, "expiry": shown.expiry,
            "most": shown.checks.as_ref().map(|checks| checks.over.0),
        })
    };
    json!({"about": about, "contestants": all.iter().map(shown).collect::<Vec<_>>()})
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// A number in three digits.
fn short(number: f64) -> String {
    match number.abs() {
        _ if !number.is_finite() => String::from("–"),
        size if size >= 1e4 => {
            let digits = 10_f64.powi(size.log10() as i32 - 2);
            thousands((number / digits).round() * digits)
        }
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    #[test]
    fn a_load_that_was_not_offered_has_no_numbers() {
        let took = |micros| Latency {
            p50: micros,
            p99: micros,
            p999: micros,
        };
        let load = |rate, micros| Load::of(rate, &[[took(micros), took(1.0)]]);
        let [quick, slow] = [load(1_000, 9_999.0), load(1_000, 10_001.0)];
        assert_eq!([quick, slow].map(|it| it.kept_up()), [true, false]);
        let mut entries = peers::all().into_iter().filter(Entry::on_redis);
        let mut shown = |open| Shown {
            open,
            ..Shown::of(entries.next().unwrap())
        };
        // The first that is listed has the fewest.
        let all = [shown(vec![slow]), shown(vec![quick, load(2_000, 7.0)])];
        let mut text = String::new();
        open(&mut text, &all);
        let rows: Vec<_> = text
            .lines()
            .filter(|line| line.contains("tower-"))
            .collect();
        assert_eq!(rows.len(), 4, "{text}");
        assert!(rows[2].starts_with("| **2,000/s** |"), "{text}");
        assert!(rows[2].ends_with(" | – | – | – | – | – | – |"), "{text}");
        assert!(rows[3].contains(" | 7.00 (7.00) | "), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [
            (0.654, "0.65"),
            (12.34, "12.3"),
            (1234.5, "1234"),
            (46_492.0, "46,500"),
            (12_345_678.0, "12,300,000"),
            (f64::NAN, "–"),
        ];
        for (number, text) in numbers {
            assert_eq!(short(number), text);
        }
    }
}
