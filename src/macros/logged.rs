//! What a test logs, on its own thread.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use tracing::Dispatch;
use tracing_subscriber::{filter::LevelFilter, util::SubscriberInitExt};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that are logged meanwhile, at any level: each begins with it.
pub(crate) fn lines(act: impl FnOnce()) -> Vec<String> {
    // While there is one alone, whoever comes to a line first is asked whether to log it: that may be another test.
    static SECOND: LazyLock<Dispatch> =
        LazyLock::new(|| tracing_subscriber::fmt().with_writer(io::sink).into());
    LazyLock::force(&SECOND);
    let log = Log::default();
    let writes = log.clone();
    let capturing = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .without_time()
        .with_writer(move || writes.clone())
        .finish()
        .set_default();
    act();
    drop(capturing);
    let log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&log);
    text.lines()
        .map(|line| line.trim_start().to_owned())
        .collect()
}

/// The level of each line that is logged meanwhile.
pub(crate) fn levels(act: impl FnOnce()) -> Vec<String> {
    let level = |line: String| line.split(' ').next().map(str::to_owned);
    lines(act).into_iter().filter_map(level).collect()
}
