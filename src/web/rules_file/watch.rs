//! Looks after a rules file while a service runs.

use std::{
    fmt, panic,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use super::RulesFile;
use crate::{
    error::{ConfigError, ConfigErrorKind},
    macros::{notice, warning},
    web::layer::{RateLimitLayer, Shared},
};

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(5);
/// How long a new text must have stayed the same: a program may still be writing it.
const SETTLED: Duration = Duration::from_millis(100);

type Report = dyn FnMut(Result<(), &ConfigError>) + Send;

/// Reloads a layer's rules whenever their file has changed. Made by
/// [`RateLimitLayer::watch`](crate::RateLimitLayer::watch); it does nothing until [`run`](Self::run) is spawned.
///
/// The file is read every 5 seconds, or as [`every`](Self::every) says. Reading and applying it
/// happen on a thread that may block: requests go on meanwhile. What counts is its text, so that
/// all ways to replace a file are seen: writing it, renaming another over it, and the symbolic
/// links by which Kubernetes updates a mounted config map (not one mounted by `subPath`, which
/// Kubernetes leaves as it is). A text must have stayed the same for a tenth of a second; better
/// still, rename a finished file over the old one.
///
/// The first look applies the file as it is then: nothing is lost that changed since the layer was built.
///
/// A file that is bad, or gone, changes nothing: the rules stay, and one warning says the line and the reason. So does
/// [`report`](Self::report), for a metric or a health check.
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
    layer: Weak<Shared>,
    file: Arc<RulesFile>,
    path: PathBuf,
    every: Duration,
    report: Option<Box<Report>>,
}

impl RateLimitLayer {
    /// Looks after a rules file: whenever it changes, its rules are [reloaded](Self::reload). See [`Watch`].
    pub fn watch(&self, file: RulesFile, path: impl Into<PathBuf>) -> Watch {
        Watch::new(Arc::downgrade(&self.shared), file, path.into())
    }
}

impl Watch {
    pub(crate) fn new(layer: Weak<Shared>, file: RulesFile, path: PathBuf) -> Self {
        Self {
            layer,
            file: Arc::new(file),
            path,
            every: EVERY,
            report: None,
        }
    }

    /// How often the file is looked at. Default: every 5 seconds; at least every millisecond.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self
    }

    /// Tells of each new text of the file whether it was applied. It is called between two looks at the file, and so should
    /// not take long.
    pub fn report(mut self, report: impl FnMut(Result<(), &ConfigError>) + Send + 'static) -> Self {
        self.report = Some(Box::new(report));
        self
    }

    /// Watches until the layer, its clones and its services are gone. Spawn it, on a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the watch. The layer has the rules that were applied last, whole; a file
    /// that is being applied at that moment may still come into force.
    pub async fn run(mut self) {
        let mut last = None;
        while self.layer.strong_count() > 0 {
            let mut text = read(self.path.clone()).await;
            while Some(&text) != last.as_ref() {
                tokio::time::sleep(SETTLED).await;
                let again = read(self.path.clone()).await;
                if again == text {
                    let (layer, file) = (Weak::clone(&self.layer), Arc::clone(&self.file));
                    let Some(applied) = apply(layer, file, again).await else {
                        return;
                    };
                    self.tell(applied.as_ref().copied());
                    last = Some(text);
                    break;
                }
                text = again;
            }
            tokio::time::sleep(self.every).await;
        }
    }

    fn tell(&mut self, result: Result<(), &ConfigError>) {
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

/// Applies a text where it may take its time: requests must not wait for thousands of rules.
///
/// `None` if the layer or the runtime is gone.
async fn apply(
    layer: Weak<Shared>,
    file: Arc<RulesFile>,
    text: Result<String, ConfigError>,
) -> Option<Result<(), ConfigError>> {
    let applying = tokio::task::spawn_blocking(move || {
        let rules = text.and_then(|text| file.parse(&text));
        let layer = layer.upgrade()?;
        Some(rules.and_then(|rules| layer.reload(rules)))
    });
    match applying.await {
        Ok(applied) => applied,
        // A closure of the user's has panicked: that ends the watch.
        Err(error) => match error.try_into_panic() {
            Ok(reason) => panic::resume_unwind(reason),
            Err(_) => None,
        },
    }
}

async fn read(path: PathBuf) -> Result<String, ConfigError> {
    let shown = path.display().to_string();
    let reading = tokio::task::spawn_blocking(move || super::read(&path));
    reading.await.unwrap_or_else(|_| {
        Err(ConfigErrorKind::Unreadable.error(format!(
            "the rules file {shown:?} cannot be read: the runtime is shutting down"
        )))
    })
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("path", &self.path)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}
