//! Changing the rules file of a running service.

use super::*;
use std::{fs, os::unix::fs::symlink, path::Path, path::PathBuf, thread::ThreadId};

use http::request::Parts;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tower_ratelimit::{
    key::{Key, KeyTraits, NoKey},
    observe::{Observer, Origin, StateChange},
};

/// Longer than anything here takes, on the busiest machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder of its own, gone with the test, with a file of rules.
struct Folder(PathBuf);

impl Folder {
    fn new(text: &str) -> Self {
        let folder = std::env::temp_dir().join(unique("watch"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("limits.toml"), text).unwrap();
        Self(folder)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn limits(&self) -> PathBuf {
        self.join("limits.toml")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn text(permits: u64) -> String {
    format!("[rules.all]\nrate = '{permits}/1h'\nby = 'peer'\n\n[otherwise]\nrules = ['all']\n")
}

/// A layer of another rule that watches a file, and the reports that it received.
struct Watched {
    store: MemoryStore,
    /// As an observer sees them
    reloads: Reloads,
    layer: RateLimitLayer,
    reports: mpsc::UnboundedReceiver<Option<String>>,
    task: JoinHandle<()>,
}

/// Whose each reload was, and whether it was applied.
#[derive(Clone, Debug, Default)]
struct Reloads(Arc<Mutex<Vec<(Origin, bool)>>>);

impl Observer for Reloads {
    fn changed(&self, change: &StateChange<'_>) {
        if let StateChange::Rules { refused, by, .. } = change {
            self.0.lock().unwrap().push((*by, refused.is_none()));
        }
    }
}

impl Watched {
    fn new(path: &Path) -> Self {
        Self::of(file(), path)
    }

    fn of(file: RulesFile, path: &Path) -> Self {
        let before = Limit::per_hour(1).by(PeerIp).named("before");
        Self::in_place_of(Rules::new().otherwise(before), file, path)
    }

    fn in_place_of(before: Rules, file: RulesFile, path: &Path) -> Self {
        let store = MemoryStore::new();
        let reloads = Reloads::default();
        let layer = RateLimitLayer::builder(&store).rules(before);
        let layer = layer.observe(Arc::new(reloads.clone())).build().unwrap();
        let (sender, reports) = mpsc::unbounded_channel();
        let watch = layer.watch(file, path).every(Duration::from_millis(1));
        let watch = watch.report(move |result| {
            sender.send(result.err().map(ToString::to_string)).unwrap();
        });
        Self {
            store,
            reloads,
            layer,
            reports,
            task: tokio::spawn(watch.run()),
        }
    }

    async fn next_report(&mut self) -> Option<String> {
        timeout(TIMEOUT, self.reports.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// The next report, of a mistake that holds these words.
    async fn next_mistake(&mut self, words: &str) -> String {
        let report = self.next_report().await.expect("a mistake");
        assert!(report.contains(words), "{report}");
        report
    }

    /// For as long as another watch takes to see three changes.
    async fn has_no_more_to_report(&self, folder: &Folder) {
        let other = folder.join("other.toml");
        fs::write(&other, text(1)).unwrap();
        let mut beside = Self::new(&other);
        for permits in 2..5 {
            assert_eq!(beside.next_report().await, None);
            fs::write(&other, text(permits)).unwrap();
        }
        assert!(self.reports.is_empty());
    }

    /// The limit in force.
    async fn permits(&self) -> u64 {
        met(&self.layer, request("GET", "/", &[])).await[0].1
    }
}

#[tokio::test]
async fn a_written_file_is_in_force() {
    let folder = Folder::new(&text(10));
    let path = folder.limits();
    let mut watched = Watched::new(&path);
    assert_eq!(watched.next_report().await, None);
    assert_eq!(watched.permits().await, 10);
    // The same length, and perhaps the same time: the text counts.
    fs::write(&path, text(20)).unwrap();
    assert_eq!(watched.next_report().await, None);
    assert_eq!(
        met(&watched.layer, request("GET", "/", &[])).await,
        one("all", 20, 18)
    );
    // A rename, as of an editor that saves.
    fs::write(folder.join("new"), text(30)).unwrap();
    fs::rename(folder.join("new"), &path).unwrap();
    assert_eq!(watched.next_report().await, None);
}

#[tokio::test]
async fn a_bad_file_keeps_the_rules_and_is_reported_once() {
    let folder = Folder::new("");
    let path = folder.limits();
    assert!(RulesFile::new().load(&path).is_err(), "nor is it a start");
    let mut watched = Watched::new(&path);
    watched.next_mistake("there are no rules").await;
    assert_eq!(watched.permits().await, 1);
    fs::write(&path, text(10)).unwrap();
    assert_eq!(watched.next_report().await, None);
    fs::write(&path, text(20).replace("rate", "rat")).unwrap();
    let said = "line 2, rules.all.rat: there is no field \"rat\": did you mean `rate`?";
    assert_eq!(watched.next_mistake(said).await, said);
    assert_eq!(watched.permits().await, 10);
    watched.has_no_more_to_report(&folder).await;
    fs::write(&path, "").unwrap();
    watched.next_mistake("there are no rules").await;
    fs::remove_file(&path).unwrap();
    watched.next_mistake("cannot be read: No such file").await;
    assert_eq!(watched.permits().await, 10);
    fs::write(&path, text(40)).unwrap();
    // Nothing was reported twice in between.
    assert_eq!(watched.next_report().await, None);
    assert_eq!(watched.permits().await, 40);
}

/// As in Kubernetes: the file is a link through a link to a folder, and the latter is replaced by a
/// rename.
#[tokio::test]
async fn a_config_map_is_swapped() {
    let folder = Folder::new("");
    fs::remove_file(folder.limits()).unwrap();
    let version = |name: &str, permits| {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("limits.toml"), text(permits)).unwrap();
    };
    version("..2026_01", 10);
    symlink("..2026_01", folder.join("..data")).unwrap();
    symlink("..data/limits.toml", folder.limits()).unwrap();
    let mut watched = Watched::new(&folder.limits());
    assert_eq!(watched.next_report().await, None);
    assert_eq!(watched.permits().await, 10);
    for (next, permits) in [("..2026_02", 20), ("..2026_03", 30)] {
        version(next, permits);
        symlink(next, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        assert_eq!(watched.next_report().await, None);
    }
    fs::remove_dir_all(folder.join("..2026_01")).unwrap();
    let rest = met(&watched.layer, request("GET", "/", &[])).await;
    assert_eq!(rest[0].0, "all");
}

/// A key that records where it is checked: where a file that names it is read, and where its rules
/// are made.
#[derive(Debug)]
struct Noting(Arc<Mutex<Vec<ThreadId>>>);

impl KeyExtractor for Noting {
    fn extract(&self, _: &Parts, key: &mut Key) -> Result<(), NoKey> {
        key.push("x");
        Ok(())
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        self.0.lock().unwrap().push(thread::current().id());
        Ok(KeyTraits::default())
    }
}

/// Thousands of rules take their time, and requests must not wait for them.
#[tokio::test]
async fn a_file_is_applied_beside_the_runtime() {
    let folder = Folder::new(&text(10).replace("peer", "noting"));
    let threads = Arc::default();
    let file = RulesFile::new().key("noting", Noting(Arc::clone(&threads)));
    let mut watched = Watched::of(file, &folder.limits());
    assert_eq!(watched.next_report().await, None);
    let threads = threads.lock().unwrap();
    assert!(threads.len() > 1, "{threads:?}");
    assert!(!threads.contains(&thread::current().id()), "{threads:?}");
}

#[tokio::test]
async fn the_watch_ends_with_the_layer_and_leaves_the_rules() {
    let folder = Folder::new(&text(10));
    let mut watched = Watched::new(&folder.limits());
    assert_eq!(watched.next_report().await, None);
    drop(watched.layer);
    timeout(TIMEOUT, watched.task).await.unwrap().unwrap();

    let mut watched = Watched::new(&folder.limits());
    assert_eq!(watched.next_report().await, None);
    watched.task.abort();
    let _ = layer(file().load(folder.limits()).unwrap());
    assert_eq!(watched.permits().await, 10);
}

/// The store lacks what the file asks for, and always will: it is not read again and again.
#[tokio::test]
async fn a_file_that_no_try_puts_in_force_is_tried_once() {
    let noting = text(1000).replace("peer", "noting");
    let folder = Folder::new(&noting.replace("[otherwise]", "slots = 100\n[otherwise]"));
    let threads = Arc::default();
    let file = RulesFile::new().key("noting", Noting(Arc::clone(&threads)));
    let mut watched = Watched::of(file, &folder.limits());
    watched.next_mistake("needs no slots").await;
    let tried = threads.lock().unwrap().len();
    watched.has_no_more_to_report(&folder).await;
    assert_eq!(threads.lock().unwrap().len(), tried);
}

/// The file lacks what code has added to it, which would be lifted.
#[tokio::test]
async fn a_file_does_not_replace_what_code_has_added_to_it() {
    let folder = Folder::new(&text(10));
    let path = folder.limits();
    let of_file = || file().load(&path).unwrap();
    let admin = Limit::per_hour(3).by(PeerIp).named("admin");
    let listed = || Requests::on("/admin");
    for (before, status) in [
        (of_file().on("/admin", admin), 200),
        (of_file().deny(listed()), 403),
        (of_file().allow(listed()), 200),
    ] {
        let mut watched = Watched::in_place_of(before, file(), &path);
        watched
            .next_mistake("code has added rules or lists to")
            .await;
        let answer = send(&watched.layer, request("GET", "/admin", &[])).await;
        assert_eq!(answer.status(), status);
        assert!(met_by(&answer).iter().all(|met| met.0 == "admin"));
        assert_eq!(watched.permits().await, 10);
        // Code may replace its own, and the file those of a file.
        watched.layer.reload(of_file()).unwrap();
        fs::write(&path, text(20)).unwrap();
        assert_eq!(watched.next_report().await, None);
        assert_eq!(watched.permits().await, 20);
        fs::write(&path, text(10)).unwrap();
        assert_eq!(watched.next_report().await, None);
    }
}

/// Another layer's rules of the name are in the way: the file is tried until they are gone, and
/// that is said once.
#[tokio::test]
async fn a_file_is_tried_until_the_rules_of_another_layer_are_gone() {
    let folder = Folder::new(&text(10));
    let mut watched = Watched::new(&folder.limits());
    assert_eq!(watched.next_report().await, None);
    let other = file().load(folder.limits()).unwrap();
    let other = layer_by(&watched.store, other);
    fs::write(folder.limits(), text(20)).unwrap();
    watched.next_mistake("a rule of another layer").await;
    watched.has_no_more_to_report(&folder).await;
    assert_eq!(watched.permits().await, 10);
    drop(other);
    assert_eq!(watched.next_report().await, None);
    assert_eq!(watched.permits().await, 20);
    let reloads = watched.reloads.0.lock().unwrap();
    let by_file = [true, false, true].map(|is_applied| (Origin::File, is_applied));
    assert_eq!(*reloads, by_file);
}
