//! Watches a rules file while a service runs.

use std::{
    panic,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use super::RulesFile;
use crate::{
    macros::{notice, opaque, warning},
    values::{
        error::{ConfigError, ConfigErrorKind, bail},
        observe::Origin,
    },
    web::layer::{LayerState, RateLimitLayer},
};

/// The default time between two reads of the file.
const EVERY: Duration = Duration::from_secs(5);
/// The time for which a new text must stay the same, because a program may still be writing it.
const SETTLED: Duration = Duration::from_millis(100);

type OnReload = dyn FnMut(Result<(), &ConfigError>) + Send;

/// Reloads a layer's rules whenever their file changes. Made by
/// [`RateLimitLayer::watch`](crate::RateLimitLayer::watch); it does nothing until
/// [`run`](Self::run) is spawned.
///
/// The file is read every 5 seconds, or as [`every`](Self::every) says, and applied on a thread
/// that may block, so requests are not delayed. The text is compared, so every way to replace a
/// file is noticed: writing it, renaming another file over it, and the symbolic links with which
/// Kubernetes updates a mounted config map (but not one mounted by `subPath`, which Kubernetes does
/// not update). A text must have stayed the same for a tenth of a second; it is better still to
/// rename a finished file over the old one.
///
/// The first read applies the file as it is then, so no change since the layer was built is missed.
///
/// The file replaces all rules and lists of the layer. If code has added some to those of a file,
/// it replaces none of them, and that is reported as for an invalid file: the file would silently
/// lift what code has added.
///
/// An invalid or missing file changes nothing: the rules stay in force, and one warning names the
/// line and the reason. [`report`](Self::report) receives the same, for a metric or a health check.
///
/// A valid file that the layer refuses for that, or for a different rule of the same name, in
/// another layer or a limit without HTTP, is tried again at each read, and reported again once it
/// is in force: what is in its way may be dropped. See [`reload`](RateLimitLayer::reload).
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::{MemoryStore, RateLimitLayer, RulesFile};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// let (file, path) = (RulesFile::new(), "limits.toml");
/// let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(file.load(path)?).build()?;
/// tokio::spawn(layer.watch(file, path).run());
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing until `run` is spawned"]
pub struct Watch {
    layer: Weak<LayerState>,
    file: Arc<RulesFile>,
    path: PathBuf,
    every: Duration,
    report: Option<Box<OnReload>>,
}

impl RateLimitLayer {
    /// Watches a rules file, and [reloads](Self::reload) the rules whenever it changes. See
    /// [`Watch`].
    pub fn watch(&self, file: RulesFile, path: impl Into<PathBuf>) -> Watch {
        Watch {
            layer: Arc::downgrade(&self.shared),
            file: Arc::new(file),
            path: path.into(),
            every: EVERY,
            report: None,
        }
    }
}

impl Watch {
    /// Sets the time between two reads of the file. Default: 5 seconds; at least one millisecond.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self
    }

    /// Calls this closure for each new text of the file, with the result of applying it, and once
    /// more if it was refused for another layer's rules and is in force now. It is called between
    /// two reads of the file, and so should return quickly.
    pub fn report(mut self, report: impl FnMut(Result<(), &ConfigError>) + Send + 'static) -> Self {
        self.report = Some(Box::new(report));
        self
    }

    /// Watches until the layer, its clones and its services are gone. Spawn it on a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the watch. The layer keeps the complete rules that were applied last. A
    /// file that is being applied at that moment may still take effect.
    pub async fn run(mut self) {
        let mut last = None;
        // Set while a rule of another layer, or what code has added to the rules in force, is in
        // the way of a valid text: it may be dropped.
        let mut retries = false;
        while self.layer.strong_count() > 0 {
            let text = read_text(self.path.clone()).await;
            let is_new = Some(&text) != last.as_ref();
            if is_new {
                tokio::time::sleep(SETTLED).await;
                if read_text(self.path.clone()).await != text {
                    continue;
                }
            }
            if is_new || retries {
                let (layer, file) = (Weak::clone(&self.layer), Arc::clone(&self.file));
                let applying = apply(layer, file, text.clone(), is_new);
                let Some((is_good, applied)) = applying.await else {
                    return;
                };
                retries = is_good
                    && applied.as_ref().is_err_and(|error| {
                        error.is_duplicate() || error.kind() == ConfigErrorKind::LimitsNothing
                    });
                if is_new || applied.is_ok() {
                    self.log_and_report(applied.as_ref().copied());
                }
                last = Some(text);
            }
            tokio::time::sleep(self.every).await;
        }
    }

    fn log_and_report(&mut self, result: Result<(), &ConfigError>) {
        match result {
            Ok(()) => notice!(path = ?self.path, "the rules of the file are in force"),
            Err(error) => warning!(
                path = ?self.path,
                error = %error,
                "the rules file cannot be used: the rules stay as they were"
            ),
        }
        if let Some(report) = &mut self.report {
            report(result);
        }
    }
}

/// Applies a text on a blocking thread, so that requests do not wait for thousands of rules. A
/// refusal is reported if the text `is_new`, and not at each further try.
///
/// Returns whether the text is good, and what came of it; `None` if the layer or the runtime is
/// gone.
async fn apply(
    layer: Weak<LayerState>,
    file: Arc<RulesFile>,
    text: Result<String, ConfigError>,
    is_new: bool,
) -> Option<(bool, Result<(), ConfigError>)> {
    let applying = tokio::task::spawn_blocking(move || {
        let rules = text.and_then(|text| file.parse(&text));
        let layer = layer.upgrade()?;
        let is_good = rules.is_ok();
        let applied = rules.and_then(|rules| layer.replace(rules, Origin::File));
        if is_new || applied.is_ok() {
            layer.reloaded(applied.as_ref().err(), Origin::File);
        }
        Some((is_good, applied))
    });
    match applying.await {
        Ok(applied) => applied,
        // A closure of the user's has panicked, which ends the watch.
        Err(error) => match error.try_into_panic() {
            Ok(reason) => panic::resume_unwind(reason),
            Err(_) => None,
        },
    }
}

async fn read_text(path: PathBuf) -> Result<String, ConfigError> {
    let shown = path.display().to_string();
    let reading = tokio::task::spawn_blocking(move || super::read_text(&path));
    reading.await.unwrap_or_else(|_| {
        bail!(Unreadable: "the rules file {shown:?} cannot be read: the runtime is shutting down")
    })
}

opaque!(Watch);
