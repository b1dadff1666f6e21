//! Runs what is counted: each row in a process of its own, as many at once as there are cores.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::Mutex,
    thread,
};

use crate::{
    in_process::{self, REQUESTS},
    server,
};

/// The argument with which this program counts a row.
pub(crate) const COUNT: &str = "count";

/// Instructions by the name of a row, in the order of the table.
pub(crate) type Counts = Vec<(&'static str, f64)>;

/// Counts all rows.
///
/// # Errors
///
/// A text with the output of a process that failed.
pub(crate) fn count_all() -> Result<Counts, String> {
    let folder = Folder::make()?;
    // The last rows take longest, so they go first.
    let places = (0..=in_process::SCENES.len()).rev();
    let left = Mutex::new(places);
    let found = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(place) = left.lock().unwrap().next() else {
                return;
            };
            let counts = match in_process::SCENES.get(place) {
                Some(scene) => count_row(scene.name, &folder.0.join(place.to_string())),
                None => Ok(server::ROWS
                    .into_iter()
                    .zip(server::count(&folder.0))
                    .collect()),
            };
            found.lock().unwrap().push((place, counts));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(place, _)| *place);
    let counts: Result<Vec<_>, _> = found.into_iter().map(|(_, counts)| counts).collect();
    Ok(counts?.concat())
}

fn count_row(name: &'static str, file: &Path) -> Result<Counts, String> {
    eprintln!("counting: {name}");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--vgdb=no"])
        .arg("--toggle-collect=*counted_requests*")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(this_program()?)
        .args([COUNT, name]);
    said_by(&mut command)?;
    let total = total(file)?;
    if total == 0 {
        return Err(format!("{name}: callgrind finds no `counted_requests`"));
    }
    Ok(vec![(name, total as f64 / REQUESTS as f64)])
}

fn this_program() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| format!("this program is not to be found: {error}"))
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

/// A folder that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self, String> {
        let path = env::temp_dir().join(format!("tower-ratelimit-counts-{}", process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // One left behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}
