//! What a thread logs.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a test brings it in and uses part of it"
)]

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::Dispatch;
use tracing_subscriber::{filter::LevelFilter, util::SubscriberInitExt};

/// What this thread logs, by whatever crate.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Runtimes of these tests have one thread: nothing happens elsewhere.
    pub fn capture(&self, level: LevelFilter) -> impl Drop + use<> {
        // While there is one alone, whoever comes to a line first is asked whether to log it: that may be another test.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| tracing_subscriber::fmt().with_writer(io::sink).into());
        LazyLock::force(&SECOND);
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish()
            .set_default()
    }

    /// All of it since it was last taken.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// The lines of this crate.
    pub fn lines(&self) -> Vec<String> {
        let text = self.text();
        let own = text.lines().filter(|line| line.contains("tower_ratelimit"));
        own.map(str::to_owned).collect()
    }

    /// Takes it all, so that the next look begins here.
    pub fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
