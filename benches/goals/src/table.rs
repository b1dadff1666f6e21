//! The table, as Markdown.

use std::fmt::Write;

use crate::{
    figures::thousands,
    row::{Compared, Goal, Measured, Spread},
};

/// `judged`: whether it says which goals are met. A quick run says too little for that.
pub(crate) fn markdown(about: &str, rows: &[Measured], judged: bool) -> String {
    let mut text = format!("{about}\n\n");
    text.push_str("| work | figure | this crate | beside it | ratio | goal | met |\n");
    text.push_str("|---|---|---:|---:|---:|---:|---|\n");
    for row in rows {
        for (place, figure) in row.figures.iter().enumerate() {
            // Further figures of a row stand below its first.
            let work = if place == 0 { &*row.name } else { "" };
            line(&mut text, work, figure, judged);
        }
    }
    text
}

fn line(text: &mut String, work: &str, compared: &Compared, judged: bool) {
    let none = || String::from("–");
    let (ours, theirs, ratio) = compared.beside.map_or_else(
        || (spread(compared.ours), none(), none()),
        |beside| {
            let ratio = Spread {
                median: beside.ratio,
                ..beside.ratios
            };
            // Of nothing there is none.
            let ratio = if ratio.median.is_finite() {
                spread(ratio)
            } else {
                none()
            };
            (short(compared.ours.median), short(beside.theirs), ratio)
        },
    );
    let goal = match compared.figure.goal {
        Goal::RatioAtMost(most) => format!("≤ {most}x"),
        Goal::RatioAtLeast(least) => format!("≥ {least}x"),
        Goal::AtMost(most) => format!("≤ {most}"),
        Goal::Reported => String::from("reported"),
    };
    let met = match compared.met().filter(|_| judged) {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    };
    // Writing to a text does not fail.
    let _ = writeln!(
        text,
        "| {work} | {} | {ours} | {theirs} | {ratio} | {goal} | {met} |",
        compared.figure.name,
    );
}

/// The median, and in parentheses from where to where it went.
fn spread(spread: Spread) -> String {
    let (median, min, max) = (short(spread.median), short(spread.min), short(spread.max));
    if min == max {
        median
    } else {
        format!("{median} ({min}–{max})")
    }
}

/// A number in as many digits as it deserves.
fn short(number: f64) -> String {
    let size = number.abs();
    if size >= 1000.0 {
        thousands(number)
    } else if size >= 100.0 || number == number.trunc() {
        format!("{number:.0}")
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else if size >= 0.1 {
        format!("{number:.2}")
    } else {
        format!("{number:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [
            (0.0, "0"),
            (0.003_21, "0.0032"),
            (0.654, "0.65"),
            (12.34, "12.3"),
            (999.6, "1000"),
            (1234.5, "1,234"),
            (12_345_678.0, "12,345,678"),
            (-1234.0, "-1,234"),
        ];
        for (number, text) in numbers {
            assert_eq!(short(number), text);
        }
    }
}
