//! Captures the formatted log of one thread.

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
use tracing_subscriber::{filter::LevelFilter, fmt::format::FmtSpan, util::SubscriberInitExt};

/// The log of this thread, from all crates.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures until the guard is dropped. The runtimes of these tests have a single thread.
    pub fn capture(&self, level: LevelFilter) -> impl Drop + use<> {
        self.capture_with(level, FmtSpan::NONE)
    }

    /// Captures the spans, too, when they end.
    pub fn capture_spans(&self) -> impl Drop + use<> {
        self.capture_with(LevelFilter::DEBUG, FmtSpan::CLOSE)
    }

    fn capture_with(&self, level: LevelFilter, spans: FmtSpan) -> impl Drop + use<> {
        // With a single subscriber, tracing caches per call site whether a line is enabled, and
        // another test may be the first to reach it. A second one turns that cache off.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| tracing_subscriber::fmt().with_writer(io::sink).into());
        LazyLock::force(&SECOND);
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_span_events(spans)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish()
            .set_default()
    }

    /// Returns all text since it was last taken.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Returns the lines of this crate.
    pub fn lines(&self) -> Vec<String> {
        let text = self.text();
        let own = text.lines().filter(|line| line.contains("tower_ratelimit"));
        own.map(str::to_owned).collect()
    }

    /// Takes all text, so that the next read starts here.
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
