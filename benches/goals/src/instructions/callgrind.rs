//! Runs what is counted, each row in a process of its own.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::in_process::REQUESTS;

/// The argument with which this program counts a row.
pub(crate) const COUNT: &str = "count";

/// Instructions by the name of a row, in the order of the table.
pub(crate) type Counts = Vec<(&'static str, f64)>;

/// Counts a row; the file is for callgrind.
pub(crate) fn count_row(name: &'static str, file: &Path) -> Result<Counts, String> {
    eprintln!("counting: {name}");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--vgdb=no"])
        .arg("--toggle-collect=*counted_requests*")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(
            env::current_exe()
                .map_err(|error| format!("this program is not to be found: {error}"))?,
        )
        .args([COUNT, name]);
    said_by(&mut command)?;
    let total = total(file)?;
    if total == 0 {
        return Err(format!("{name}: callgrind finds no `counted_requests`"));
    }
    Ok(vec![(name, total as f64 / REQUESTS as f64)])
}

/// Runs a program, and returns its output.
pub(crate) fn said_by(command: &mut Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?}: {}\n{said}", output.status))
    }
}

/// Reads how many instructions a file of callgrind's has in all.
pub(crate) fn total(file: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("totals: ")?.parse().ok())
        .ok_or_else(|| format!("{}: no totals", file.display()))
}
