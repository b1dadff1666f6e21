//! What a command prints and says.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

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
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (place, cell) in row.iter().enumerate() {
            let cells = rows.iter().filter_map(|row| row.get(place));
            let width = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
