//! Instructions of a request, counted exactly by callgrind. See `../../../HOW.md`.

mod book;
mod callgrind;
mod server;

#[path = "../commands.rs"]
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod commands;
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
#[path = "../../../shared/figures.rs"]
mod figures;
#[path = "../floors.rs"]
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod floors;
#[path = "../peers/governor.rs"]
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod governor;
#[path = "../in_process.rs"]
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod in_process;
#[path = "../requests.rs"]
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
mod requests;

use std::{
    env, fs,
    path::PathBuf,
    process::{self, ExitCode},
    sync::Mutex,
    thread,
};

use self::callgrind::Counts;

const HELP: &str = "\
Usage: benches/goals.sh --instructions [--write]

Counts the instructions of a request, and prints them beside the committed ones, which stand in
benches/goals/instructions.toml. Fails where a row costs more than 5 % more.

Options:
    --write       put the counts into that file and into benches/README.md, whatever they are
    -h, --help    print this text

Needs valgrind, and redis-server on the PATH or in REDIS_SERVER_BIN.
";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => check(),
        ["--write"] => write(),
        ["-h" | "--help"] => {
            print!("{HELP}");
            Ok(true)
        }
        [callgrind::COUNT, name] => {
            let scene = in_process::SCENES.iter().find(|scene| scene.name == name);
            in_process::count(scene.expect("a scene"));
            Ok(true)
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("instructions: {why}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<bool, String> {
    let counts = count_all()?;
    book::write(&counts)?;
    print!("{}", book::page(&book::made_by()?, &counts));
    Ok(true)
}

/// Returns whether no row costs more than it may.
fn check() -> Result<bool, String> {
    // Read first: a file that is of no use is found before anything is counted.
    let committed = book::read()?;
    let made_by = book::made_by()?;
    let compared = committed.compare(&count_all()?);
    print!(
        "Today by {made_by}.\nCommitted by {}.\n\n{}",
        committed.made_by, compared.table
    );
    if committed.made_by != made_by {
        eprintln!(
            "instructions: other tools count differently, by some 4 %: to be sure, --write the \
             counts of the state before a change with these, and compare those after it"
        );
    }
    for note in &compared.notes {
        eprintln!("instructions: {note}");
    }
    for mistake in &compared.mistakes {
        eprintln!("instructions: failed: {mistake}");
    }
    Ok(compared.mistakes.is_empty())
}

/// Counts all rows, as many at once as there are cores.
///
/// # Errors
///
/// A text with the output of a process that failed.
fn count_all() -> Result<Counts, String> {
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
                Some(scene) => callgrind::count_row(scene.name, &folder.0.join(place.to_string())),
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
