//! A real Redis server, owned by a test.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{LONG, wait_until};
pub use crate::ports::free_port;
use crate::ports::{address, free_cluster_port};
use crate::resp::Reply;
pub use crate::resp::command;

/// A server process on a free loopback port, empty and without persistence
///
/// The binary is `REDIS_SERVER_BIN` from the environment, else `redis-server` on the `PATH`. The
/// process ends with this value, also when the test panics, and with the test process, however that
/// one ends.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    tls_port: Option<u16>,
    args: Vec<String>,
    /// `None` after `kill`; before `dir`, to be dropped first
    process: Option<Process>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server and waits until it answers
    ///
    /// # Panics
    ///
    /// If there is no server binary, or the server does not come up: a test that needs Redis must
    /// not pass without it.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with more arguments: `&["--maxmemory", "1mb"]`
    pub fn start_with(args: &[&str]) -> Self {
        Self::try_start(None, args).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`start_with`](Self::start_with), on a port for TLS as well, which wants a certificate
    /// of its clients unless the arguments say otherwise
    pub fn start_tls(tls: &Tls, args: &[&str]) -> Self {
        Self::try_start(Some(tls), args).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns whether the binary was built with TLS
    ///
    /// # Panics
    ///
    /// If it does not start for another reason.
    pub fn has_tls(tls: &Tls) -> bool {
        let Err(error) = Self::try_start(Some(tls), &[]) else {
            return true;
        };
        let lacks = ["Failed finding TLS support", "Bad directive"];
        let said = lacks.iter().any(|words| error.log.contains(words));
        assert!(said, "{error}");
        false
    }

    fn try_start(tls: Option<&Tls>, args: &[&str]) -> Result<Self, StartError> {
        let dir = TempDir::new();
        let mut last = None;
        let port = if args.contains(&"--cluster-enabled") {
            free_cluster_port
        } else {
            free_port
        };
        for _ in 0..5 {
            let mut args: Vec<String> = args.iter().map(|&arg| String::from(arg)).collect();
            let tls_port = tls.map(|tls| {
                let tls_port = port();
                tls.write_to(dir.path());
                for (name, value) in tls.settings(tls_port) {
                    args.extend([format!("--{name}"), value]);
                }
                tls_port
            });
            let port = port();
            match Process::start(port, &args, &dir) {
                Ok(process) => {
                    return Ok(Self {
                        port,
                        tls_port,
                        args,
                        process: Some(process),
                        dir,
                    });
                }
                Err(error) if error.port_taken => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        panic!(
            "five ports were taken one after the other: {}",
            last.unwrap()
        );
    }

    /// The server that all tests of this binary share
    ///
    /// Others use it at the same time: take key names from [`unique`](super::unique), and do not
    /// flush. It cannot be killed or stopped, as that takes `&mut self`.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A setting that is switched on, as arguments; `option` is its name behind `--`
    ///
    /// None where servers lack it, as older ones do: what it allows is always allowed there.
    pub fn allowing(option: &str) -> Vec<&str> {
        match Self::shared().command(&["CONFIG", "GET", &option[2..]]) {
            Reply::Array(found) if found.is_empty() => Vec::new(),
            _ => vec![option, "yes"],
        }
    }

    /// `redis://127.0.0.1:port/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS, of one that was started with it
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("the server was started with TLS")
    }

    /// Its working directory, which is removed with it
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn address(&self) -> SocketAddr {
        address(self.port)
    }

    /// Ends the process as a crash would: connections are reset, the port refuses new ones
    ///
    /// Does nothing if it is dead already.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the process without closing anything: connections stay open, and no reply comes
    ///
    /// The kernel still accepts new connections. Returns when the process stands still.
    pub fn stop_process(&mut self) {
        let process = self.running();
        process.signal("STOP");
        process.wait_stopped();
    }

    /// Undoes [`stop_process`](Self::stop_process)
    pub fn resume(&mut self) {
        self.running().signal("CONT");
    }

    /// Kills the server if it runs, and starts an empty one on the same port
    pub fn restart(&mut self) {
        self.kill();
        // Nothing of ours takes this port meanwhile; a stranger that probes it gives it back at
        // once.
        wait_until("its port is free", || {
            match Process::start(self.port, &self.args, &self.dir) {
                Ok(process) => self.process = Some(process),
                Err(error) => assert!(error.port_taken, "{error}"),
            }
            self.process.is_some()
        });
    }

    /// Sends one command over a connection of its own
    ///
    /// # Panics
    ///
    /// If the server does not answer within two minutes.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        command(self.port, args, LONG)
            .unwrap_or_else(|error| panic!("no answer from Redis on port {}: {error}", self.port))
    }

    /// As [`command`](Self::command), with the reply as text, like `redis-cli` prints it into a
    /// pipe
    ///
    /// Nil is `(nil)`, an error begins with `(error) `, and the elements of an array stand on a
    /// line each.
    pub fn cli(&self, args: &[&str]) -> String {
        self.command(args).to_string()
    }

    /// Sends a command of words without spaces
    ///
    /// # Panics
    ///
    /// If the answer is not OK.
    #[track_caller]
    pub fn obeys(&self, command: &str) {
        let words: Vec<_> = command.split_whitespace().collect();
        assert_eq!(self.cli(&words), "OK", "{command}");
    }

    /// Sets one of its settings
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    #[track_caller]
    pub fn configure(&self, setting: &str, value: &str) {
        assert_eq!(self.cli(&["CONFIG", "SET", setting, value]), "OK");
    }

    /// Shows another certificate from now on, over new connections
    pub fn renew(&self, tls: &Tls) {
        tls.write_to(self.dir());
        self.obeys("CONFIG SET tls-cert-file server.pem tls-key-file server.key");
        // None, if clients are waiting to connect again.
        self.kill_clients();
    }

    /// How often a command was called, by clients and by scripts
    pub fn calls_of(&self, command: &str) -> u64 {
        let words = format!("cmdstat_{command}:calls=");
        self.figure("commandstats", &words).unwrap_or(0)
    }

    /// The number behind these words in a section of INFO; none where they are not there
    pub fn figure(&self, section: &str, words: &str) -> Option<u64> {
        let info = self.cli(&["INFO", section]);
        let rest = info.lines().find_map(|line| line.strip_prefix(words))?;
        let number = rest.split(|it: char| !it.is_ascii_digit()).next();
        number.and_then(|number| number.parse().ok())
    }

    /// Closes all connections but those that read along, and returns how many
    pub fn kill_clients(&self) -> usize {
        let clients = self.clients().into_iter();
        let killed = clients.filter(|id| self.cli(&["CLIENT", "KILL", "ID", id]) == "1");
        killed.count()
    }

    /// How many connections are open, but for those that read along
    pub fn connected(&self) -> usize {
        // Without the one that asks.
        self.clients().len() - 1
    }

    /// The ids of clients that do not read along
    fn clients(&self) -> Vec<String> {
        let clients = self.cli(&["CLIENT", "LIST"]);
        // By TCP, or by a Unix socket.
        let is_normal = |line: &&str| line.contains(" flags=N ") || line.contains(" flags=U ");
        let normal = clients.lines().filter(is_normal);
        let ids = normal.filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
        ids.map(str::to_owned).collect()
    }

    /// How many scripts were called, by their hash or with their text
    pub fn scripts_called(&self) -> u64 {
        self.calls_of("evalsha") + self.calls_of("eval")
    }

    /// The members of a log and their scores, in their order
    ///
    /// # Panics
    ///
    /// If the key is no log, or a score no whole number.
    pub fn entries(&self, log: &str) -> Vec<(i64, Vec<u8>)> {
        let Reply::Array(entries) = self.command(&["ZRANGE", log, "0", "-1", "WITHSCORES"]) else {
            panic!("{log} is no log");
        };
        let entry = |entry: &[Reply]| match entry {
            [Reply::Bulk(member), score] => {
                let score = score.to_string().parse().expect("a whole number");
                (score, member.clone())
            }
            other => panic!("not a member and its score: {other:?}"),
        };
        entries.chunks(2).map(entry).collect()
    }

    /// Its clock, in microseconds
    pub fn micros(&self) -> i64 {
        let time = self.cli(&["TIME"]);
        let (seconds, micros) = time.split_once('\n').expect("two numbers");
        let [seconds, micros] =
            [seconds, micros].map(|text| text.parse::<i64>().expect("a number"));
        seconds * 1_000_000 + micros
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server has been killed")
    }
}

/// What a server speaks TLS with, as PEM
#[derive(Clone, Debug)]
pub struct Tls {
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

impl Tls {
    /// Where a server finds them, from its working directory
    pub fn write_to(&self, dir: &Path) {
        for (name, text) in [
            ("ca.pem", &self.authority),
            ("server.pem", &self.certificate),
            ("server.key", &self.key),
        ] {
            fs::write(dir.join(name), text).expect("write a file for TLS");
        }
    }

    /// Lines of a server's configuration, or a sentinel's
    pub fn settings(&self, port: u16) -> Vec<(&'static str, String)> {
        vec![
            ("tls-port", port.to_string()),
            ("tls-ca-cert-file", String::from("ca.pem")),
            ("tls-cert-file", String::from("server.pem")),
            ("tls-key-file", String::from("server.key")),
        ]
    }
}

/// A running server and the watchdog that outlives this process by a moment, to take the server
/// along
///
/// Statics are not dropped, and neither is anything when a test aborts or is killed. The watchdog
/// is a shell that reads from a pipe whose other end only this process holds: however this process
/// ends, the shell reads the end of the file, kills the server and removes its directory.
/// `PR_SET_PDEATHSIG` would not do: it fires when the *thread* that started the child ends, and the
/// test that happens to start the shared server is not the last one.
#[derive(Debug)]
struct Process {
    server: Child,
    watchdog: Child,
}

impl Process {
    fn start(port: u16, args: &[String], dir: &TempDir) -> Result<Self, StartError> {
        let log = dir.path().join("log");
        let log_file = File::create(&log).expect("create the log of the server");
        let bin = binary();
        let server = Command::new(&bin)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--protected-mode", "no", "--loglevel", "warning"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .args(args)
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().expect("clone the handle of the log"))
            .stderr(log_file)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot run `{bin}`: {error}\n\
                     The tests need a Redis server. `tests/run.sh` installs it, as does the \
                     package `redis-server` (apt) or `redis` (dnf, apk, brew). \
                     REDIS_SERVER_BIN names another binary."
                )
            });
        let watchdog = Command::new("sh")
            .args(["-c", "read -r _; kill -KILL \"$0\"; rm -rf \"$1\""])
            .arg(server.id().to_string())
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run `sh`");
        let mut process = Self { server, watchdog };

        let own_dir = Reply::Bulk(dir.path().as_os_str().as_encoded_bytes().to_vec());
        let deadline = Instant::now() + LONG;
        loop {
            // Asked for its directory and not only pinged: a stranger may have taken the port
            // before our server did.
            let reply = command(port, &["CONFIG", "GET", "dir"], Duration::from_millis(500));
            if let Ok(Reply::Array(pair)) = reply
                && pair.last() == Some(&own_dir)
            {
                return Ok(process);
            }
            let exited = process
                .server
                .try_wait()
                .expect("ask for the state of the server");
            if exited.is_some() || Instant::now() >= deadline {
                let log = fs::read_to_string(&log).unwrap_or_default();
                return Err(StartError {
                    port_taken: exited.is_some() && log.contains("Address already in use"),
                    what: match exited {
                        Some(status) => format!("`{bin}` ended with {status}"),
                        None => format!("`{bin}` does not answer on port {port}"),
                    },
                    log,
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Sends a signal by its name
    fn signal(&self, name: &str) {
        // The `kill` of the shell: not every container has the program.
        let status = Command::new("sh")
            .args(["-c", "kill -\"$0\" \"$1\"", name])
            .arg(self.server.id().to_string())
            .status()
            .expect("run `sh`");
        assert!(status.success(), "kill -{name}: {status}");
    }

    /// Waits until SIGSTOP has taken effect: `kill` returns before a process that runs on another
    /// core stands still
    fn wait_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.server.id());
        // Only Linux has this file; elsewhere the signal is all there is. The state follows the
        // name in parentheses.
        let stopped = |stat: String| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|it| it.starts_with('T'))
        };
        wait_until("SIGSTOP has stopped the server", || {
            fs::read_to_string(&stat).map_or(true, stopped)
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watchdog goes first. As soon as the server has been waited for, its process id may be
        // given to another.
        for child in [&mut self.watchdog, &mut self.server] {
            // Fails only if the process has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[derive(Debug)]
struct StartError {
    port_taken: bool,
    what: String,
    log: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; its log:\n{}", self.what, self.log)
    }
}

/// The server's program
pub fn binary() -> String {
    std::env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| String::from("redis-server"))
}

/// A fresh directory, removed with this value
#[derive(Debug)]
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Canonical, to compare equal with what the server says; `/tmp` is a link on macOS.
        let base = std::env::temp_dir()
            .canonicalize()
            .expect("find the temporary directory");
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("tower-ratelimit-{}-{n}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left behind by a killed process that had our id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => panic!("create {}: {error}", path.display()),
            }
        }
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A directory left in /tmp is no reason to fail a test.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const POLL: Duration = Duration::from_millis(10);
