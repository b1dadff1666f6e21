//! Prints results and messages of a command, as text or JSON.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    path::Path,
    time::Duration,
};

use serde_json::Value;

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
    /// Prints a result, as words or as the JSON object with the same content.
    pub(crate) fn print(&self, words: &str, mut object: Value) -> Result<(), String> {
        if !self.json {
            return print(&format!("{}\n", words.trim()));
        }
        object["schema"] = SCHEMA.into();
        print(&format!("{object}\n"))
    }

    /// Prints fields, a line for each.
    pub(crate) fn print_fields(&self, fields: &[Field]) -> Result<(), String> {
        let rows = fields.iter().map(|field| vec![label(field), words(field)]);
        self.print(&columns(&rows.collect::<Vec<_>>()), object(fields))
    }
}

/// One field of a result: its name in JSON, and its value.
pub(crate) type Field = (&'static str, Value);

/// Returns fields as JSON.
pub(crate) fn object(fields: &[Field]) -> Value {
    fields.iter().cloned().collect()
}

/// Returns rows as JSON.
pub(crate) fn objects(rows: &[Vec<Field>]) -> Value {
    rows.iter().map(|row| object(row)).collect()
}

/// Returns rows of the same fields as cells, below the names of the fields.
pub(crate) fn cells(rows: &[Vec<Field>]) -> Vec<Vec<String>> {
    let head = rows.iter().take(1);
    let head = head.map(|row| row.iter().map(label).collect());
    let cells = rows.iter().map(|row| row.iter().map(words).collect());
    head.chain(cells).collect()
}

/// Returns rows of the same fields as a table.
pub(crate) fn table(rows: &[Vec<Field>]) -> String {
    columns(&cells(rows))
}

/// Returns the name of a field in words.
pub(crate) fn label((name, _): &Field) -> String {
    name.trim_end_matches("_ms").replace('_', " ")
}

/// Returns the value of a field in words.
pub(crate) fn words((name, value): &Field) -> String {
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

/// Prints a result. A reader that has seen enough may leave early.
pub(crate) fn print(result: &str) -> Result<(), String> {
    let mut output = io::stdout().lock();
    let printed = output
        .write_all(result.as_bytes())
        .and_then(|()| output.flush());
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("the result cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

/// Says something that is no result.
pub(crate) fn say(what: impl Display) {
    // There is no place left to say that this place is closed.
    let _ = writeln!(io::stderr().lock(), "ratelimit: {what}");
}

/// Returns rows as a table, whose columns have the width of their longest cell.
fn columns(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            let cells = rows.iter().filter_map(|row| row.get(index));
            let width = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
