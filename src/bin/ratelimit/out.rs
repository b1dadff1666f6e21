//! Prints results and messages of a command, as text or JSON, and says why one ends early:
//! [`Stop`].

use std::{
    fmt::Display,
    io::{self, Write},
    iter,
    path::Path,
    time::Duration,
};

use serde_json::Value;
use tower_ratelimit::{ConfigError, Error, ErrorKind};

/// The version of what `--json` prints. It grows when a member changes or goes.
const SCHEMA: u32 = 1;

/// How a command prints its result.
#[derive(clap::Args)]
pub(crate) struct Format {
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl Format {
    /// Prints a result, as words or as the JSON object with the same content. Returns whether it
    /// still has a reader.
    pub(crate) fn print(&self, words: &str, mut object: Value) -> Result<bool, String> {
        object["schema"] = SCHEMA.into();
        let result = if self.json {
            &object.to_string()
        } else {
            words.trim()
        };
        print(&format!("{result}\n"))
    }

    /// Prints an object: of these members, a line for each that it has.
    pub(crate) fn print_members(&self, names: &str, object: Value) -> Result<bool, String> {
        let names = names.split(' ');
        let row = |it| Some(vec![label(it), words(it, object.get(it)?)]);
        let rows: Vec<_> = names.filter_map(row).collect();
        self.print(&columns(&rows), object)
    }
}

/// Returns these members of objects as a table, below their names.
pub(crate) fn table(names: &str, rows: &[Value]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    columns(&cells(names, rows))
}

/// Returns the cells of such a table, row by row.
pub(crate) fn cells(names: &str, rows: &[Value]) -> Vec<Vec<String>> {
    let head = names.split(' ').map(label).collect();
    let cells = |row: &Value| names.split(' ').map(|it| words(it, &row[it])).collect();
    iter::once(head).chain(rows.iter().map(cells)).collect()
}

/// Returns the name of a member in words.
pub(crate) fn label(name: &str) -> String {
    name.trim_end_matches("_ms").replace('_', " ")
}

/// Returns the value of a member in words.
pub(crate) fn words(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(is_set) => if *is_set { "yes" } else { "" }.to_owned(),
        Value::String(text) => harmless(text),
        value => match value.as_u64().filter(|_| name.ends_with("_ms")) {
            Some(millis) => format!("{:.1?}", Duration::from_millis(millis)),
            None => value.to_string(),
        },
    }
}

/// Returns a number with the name of what is counted, which is in the plural unless it is one.
pub(crate) fn counted(number: impl Into<i128>, thing: &str) -> String {
    let number = number.into();
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Escapes what could steer a terminal, and leaves what was escaped before as it is.
pub(crate) fn harmless(text: &str) -> String {
    let escape = |character: char| match character {
        '\\' | '\'' | '"' => character.to_string(),
        _ => character.escape_debug().collect(),
    };
    text.chars().map(escape).collect()
}

/// Returns a closure that puts the path of a file before an error.
pub(crate) fn in_file<E: Display>(file: &Path) -> impl Fn(E) -> String {
    move |error| format!("{}: {error}", file.display())
}

/// Prints a result. Returns whether it still has a reader: one that has seen enough may leave
/// early.
pub(crate) fn print(result: &str) -> Result<bool, String> {
    let mut output = io::stdout().lock();
    match write!(output, "{result}").and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("the result cannot be written: {error}")),
    }
}

/// Says something that is no result.
pub(crate) fn say(what: impl Display) {
    // There is no place left to say that this place is closed.
    let _ = writeln!(io::stderr().lock(), "ratelimit: {what}");
}

/// Returns rows as lines, whose columns have the width of their longest cell.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let length = |cell: &String| cell.chars().count();
    let width = |at| rows.iter().filter_map(|row| row.get(at).map(length)).max();
    let widths: Vec<_> = (0..).map_while(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths.iter().copied());
        let cells = cells.map(|(cell, width)| format!("{cell:width$}  "));
        text += &format!("{}\n", cells.collect::<String>().trim_end());
    }
    text
}

/// Why a command ends without a result: the exit status, and the reason.
pub(crate) struct Stop(pub(crate) u8, pub(crate) String);

impl Stop {
    /// The command cannot be meant so, or a file cannot be read.
    pub(crate) fn usage(reason: impl Into<String>) -> Self {
        Self(2, reason.into())
    }
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::usage(reason)
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        let reason = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {}", source.to_string().escape_debug()),
            None => error.to_string(),
        };
        match error.kind() {
            ErrorKind::Limit => Self::usage(reason),
            ErrorKind::NotInitialized => Self(4, reason),
            _ => Self(3, reason),
        }
    }
}
