//! What this thread logs.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing_subscriber::{filter::LevelFilter, util::SubscriberInitExt};

#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Runtimes of these tests have one thread: nothing happens elsewhere.
    pub(super) fn capture(&self, level: LevelFilter) -> impl Drop + use<> {
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish()
            .set_default()
    }

    /// All of it up to now, other crates' lines included.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
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
