//! The committed counts, and how today's stand beside them.

use std::{collections::BTreeMap, fmt::Write, fs, process::Command};

use crate::{
    callgrind::{Counts, said_by},
    figures::thousands,
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.toml");
/// A row may cost so much more than it did.
const MOST: f64 = 1.05;
/// A row that costs so much less is to be written down, so that the gain is not lost unseen.
const LESS: f64 = 0.95;

/// A row that may cost only so many instructions more than another one: 160 are some 15 ns.
const BESIDE: (&str, &str, f64) = ("refused, deny cache, metrics", "refused, deny cache", 160.0);

/// The committed file.
#[derive(Debug, PartialEq)]
pub(crate) struct Book {
    pub(crate) made_by: String,
    counts: BTreeMap<String, f64>,
}

/// Today's counts beside the committed ones.
pub(crate) struct Compared {
    /// As Markdown.
    pub(crate) table: String,
    /// Reasons to fail.
    pub(crate) mistakes: Vec<String>,
    /// Hints that are no reason to fail.
    pub(crate) notes: Vec<String>,
}

pub(crate) fn read() -> Result<Book, String> {
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    parse(&text).map_err(|line| format!("{FILE}: what is {line:?}? --write writes all lines again"))
}

pub(crate) fn write(counts: &Counts) -> Result<(), String> {
    fs::write(FILE, print(&made_by()?, counts)).map_err(|error| format!("{FILE}: {error}"))
}

/// Names the tools that counts depend on.
pub(crate) fn made_by() -> Result<String, String> {
    let tools = [
        ["rustc", "--version"],
        ["valgrind", "--version"],
        ["getconf", "GNU_LIBC_VERSION"],
    ];
    let versions: Result<Vec<_>, _> = tools
        .into_iter()
        .map(|[program, argument]| said_by(Command::new(program).arg(argument)))
        .collect();
    let server = std::env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| "redis-server".into());
    let server = said_by(Command::new(server).arg("--version"))?;
    let words = server.split(' ').take(3);
    let mut versions = versions?;
    versions.push(words.collect::<Vec<_>>().join(" "));
    let versions: Vec<_> = versions.iter().map(|version| version.trim()).collect();
    Ok(versions.join(", "))
}

fn print(made_by: &str, counts: &Counts) -> String {
    let mut text = format!(
        "# Instructions of a request, written by `benches/goals.sh --instructions --write`.\n\
         made-by = \"{made_by}\"\n\n[instructions]\n"
    );
    for (name, count) in counts {
        // Writing to a text does not fail.
        let _ = writeln!(text, "\"{name}\" = {count:.0}");
    }
    text
}

/// The counts as Markdown, for a reader.
pub(crate) fn page(made_by: &str, counts: &Counts) -> String {
    let mut text = format!("By {made_by}.\n\n| row | instructions |\n|---|---:|\n");
    for (name, count) in counts {
        // Writing to a text does not fail.
        let _ = writeln!(text, "| {name} | {} |", thousands(*count));
    }
    text
}

/// Reads what [`print`] writes.
///
/// # Errors
///
/// A line that is nothing of it.
fn parse(text: &str) -> Result<Book, &str> {
    let mut book = Book {
        made_by: String::new(),
        counts: BTreeMap::new(),
    };
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') || line == "[instructions]" {
            continue;
        }
        let (name, value) = line.split_once(" = ").ok_or(line)?;
        let unquoted = |text: &str| {
            let text = text.strip_prefix('"')?.strip_suffix('"')?;
            Some(text.to_owned())
        };
        if name == "made-by" {
            book.made_by = unquoted(value).ok_or(line)?;
        } else {
            let name = unquoted(name).ok_or(line)?;
            let count = value.parse().ok().filter(|count| *count > 0.0);
            book.counts.insert(name, count.ok_or(line)?);
        }
    }
    Ok(book)
}

impl Book {
    /// Holds today's counts beside the committed ones.
    pub(crate) fn compare(&self, counts: &Counts) -> Compared {
        let mut compared = Compared {
            table: String::from(
                "| row | instructions | committed | change |\n|---|---:|---:|---:|\n",
            ),
            mistakes: Vec::new(),
            notes: Vec::new(),
        };
        for (name, count) in counts {
            let committed = self.counts.get(*name);
            let change = committed.map(|committed| count / committed);
            compared.judge(name, change);
            let committed = committed.map(|count| format!("{count:.0}"));
            let change = change.map(|change| format!("{:+.1} %", (change - 1.0) * 100.0));
            // Writing to a text does not fail.
            let _ = writeln!(
                compared.table,
                "| {name} | {count:.0} | {} | {} |",
                committed.unwrap_or_default(),
                change.unwrap_or_default(),
            );
        }
        let count = |of: &str| counts.iter().find(|(name, _)| *name == of);
        let (name, beside, most) = BESIDE;
        if let (Some((_, more)), Some((_, less))) = (count(name), count(beside)) {
            let added = more - less;
            let _ = writeln!(compared.table, "\n`{name}` adds {added:.0} to `{beside}`.");
            if added > most {
                let mistake = format!("`{name}` adds {added:.0}, and may add {most} to `{beside}`");
                compared.mistakes.push(mistake);
            }
        }
        let is_row = |name: &str| counts.iter().any(|(row, _)| *row == name);
        for name in self.counts.keys().filter(|name| !is_row(name)) {
            let mistake = format!("`{name}` is committed and is no row: --write");
            compared.mistakes.push(mistake);
        }
        compared
    }
}

impl Compared {
    /// Judges a row by its count as a multiple of the committed one.
    fn judge(&mut self, name: &str, change: Option<f64>) {
        match change {
            None => {
                let mistake = format!("`{name}` has no committed count: --write");
                self.mistakes.push(mistake);
            }
            Some(change) if change <= MOST => {
                if change < LESS {
                    let note = format!("`{name}` costs less: --write, or it may be lost again");
                    self.notes.push(note);
                }
            }
            Some(_) => {
                let mistake = format!("`{name}` costs more than 5 % more than is committed");
                self.mistakes.push(mistake);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "admitted, GCRA";

    fn counts(row: f64) -> Counts {
        vec![("bare service", 1000.0), (ROW, row)]
    }

    fn committed() -> Book {
        parse(&print("these tools", &counts(4000.0))).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let book = committed();
        assert_eq!(book.made_by, "these tools");
        assert_eq!(book.counts[ROW], 4000.0);
        assert_eq!(book.counts.len(), 2);
        for line in [
            "admitted = 3",
            "\"admitted\" = x",
            "\"admitted\" = 0",
            "word",
        ] {
            assert_eq!(parse(line), Err(line));
        }
    }

    #[test]
    fn a_row_may_cost_five_percent_more() {
        for (row, mistakes, notes) in [
            (4000.0, 0, 0),
            (4199.0, 0, 0),
            (4201.0, 1, 0),
            (f64::NAN, 1, 0),
            (3801.0, 0, 0),
            (3799.0, 0, 1),
        ] {
            let compared = committed().compare(&counts(row));
            assert_eq!(compared.mistakes.len(), mistakes, "{row}");
            assert_eq!(compared.notes.len(), notes, "{row}");
        }
    }

    #[test]
    fn metrics_may_add_what_is_committed_to_a_refusal() {
        for (added, mistakes) in [(160.0, 0), (161.0, 1)] {
            let (metrics, without, _) = BESIDE;
            let counts: Counts = vec![(without, 6000.0), (metrics, 6000.0 + added)];
            let book = parse(&print("these tools", &counts)).unwrap();
            let compared = book.compare(&counts);
            assert_eq!(compared.mistakes.len(), mistakes, "{:?}", compared.mistakes);
        }
    }

    #[test]
    fn a_row_that_is_new_or_gone_is_a_mistake() {
        let (all, one) = (counts(4000.0), counts(4000.0)[..1].to_vec());
        assert_eq!(committed().compare(&one).mistakes.len(), 1);
        let book = parse(&print("these tools", &one)).unwrap();
        assert_eq!(book.compare(&all).mistakes.len(), 1);
    }
}
