//! Captures what a test logs on its own thread.

#[allow(
    clippy::unwrap_used,
    reason = "it is a helper of the integration tests, too"
)]
mod log;

use tracing_subscriber::filter::LevelFilter;

use self::log::Log;

/// Returns the level of each line that this crate logs while `act` runs.
pub(crate) fn levels(act: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let capturing = log.capture(LevelFilter::TRACE);
    act();
    drop(capturing);
    // The level follows the time.
    let level = |line: String| line.split_whitespace().nth(1).map(str::to_owned);
    log.lines().into_iter().filter_map(level).collect()
}
