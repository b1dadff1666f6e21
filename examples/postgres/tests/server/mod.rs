//! A real PostgreSQL server of its own, on a socket in its folder, for as long as the value lives:
//! no other process can take its address.

use std::{
    fs,
    io::ErrorKind,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use tokio_postgres::{Config, NoTls};

pub struct Server {
    child: Child,
    binaries: PathBuf,
    folder: PathBuf,
}

impl Server {
    /// Starts one, and waits until it answers.
    pub async fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (binaries, process) = (binaries(), std::process::id());
        let folder = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("ratelimit-postgres-{process}-{number}");
            let folder = std::env::temp_dir().join(name);
            match fs::create_dir(&folder) {
                Ok(()) => break folder,
                // Left behind by a killed process that had our id.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("create {}: {error}", folder.display()),
            }
        };
        if let Some(user) = unprivileged() {
            chown(&folder, Some(user), None).expect("root may");
        }
        let (data, log) = (folder.join("data"), folder.join("log"));
        let mut initdb = command(&binaries, "initdb");
        initdb.arg("-D").arg(&data).args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        ]);
        let made = initdb.output().expect("initdb runs");
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let child = command(&binaries, "postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&folder)
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .stderr(fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("postgres runs");
        let mut server = Self {
            child,
            binaries,
            folder,
        };
        server.answers(&log).await;
        server
    }

    async fn answers(&mut self, log: &Path) {
        let began = Instant::now();
        while let Err(error) = self.config().connect(NoTls).await {
            let ended = self.child.try_wait().expect("a child");
            let gives_up = ended.is_some() || began.elapsed() > Duration::from_secs(120);
            let said = || fs::read_to_string(log).unwrap_or_default();
            assert!(!gives_up, "PostgreSQL does not start: {error}\n{}", said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .host_path(&self.folder)
            .user("postgres")
            .dbname("postgres");
        config
    }

    /// Stops it, so that calls fail.
    pub fn stop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let mut stop = command(&self.binaries, "pg_ctl");
        stop.args(["stop", "-m", "immediate", "-D"])
            .arg(self.folder.join("data"));
        let stopped = stop.status().is_ok_and(|status| status.success());
        if !stopped {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the folder of the server's binaries, which are seldom on PATH.
fn binaries() -> PathBuf {
    let configured = Command::new("pg_config").arg("--bindir").output().ok();
    let configured = configured.and_then(|output| String::from_utf8(output.stdout).ok());
    let mut places: Vec<_> = configured
        .map(|line| PathBuf::from(line.trim()))
        .into_iter()
        .collect();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&paths));
    let found = places.into_iter().find(|place| {
        ["initdb", "postgres", "pg_ctl"]
            .iter()
            .all(|name| place.join(name).is_file())
    });
    found.expect(
        "these tests need a PostgreSQL server: `sudo apt-get install postgresql`, or \
         `sudo dnf install postgresql-server`, or `brew install postgresql`",
    )
}

/// Returns a command that does not run as root, which PostgreSQL refuses.
fn command(binaries: &Path, name: &str) -> Command {
    let mut command = Command::new(binaries.join(name));
    if let Some(user) = unprivileged() {
        command.uid(user).gid(user);
    }
    // It may not read the folder of the tests.
    command.current_dir("/").stdout(Stdio::null());
    command
}

/// Returns `nobody` for root, and nothing for others.
fn unprivileged() -> Option<u32> {
    let id = |arguments: &[&str]| {
        let output = Command::new("id")
            .args(arguments)
            .output()
            .expect("id runs");
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse::<u32>()
            .expect("a number")
    };
    (id(&["-u"]) == 0).then(|| id(&["-u", "nobody"]))
}
