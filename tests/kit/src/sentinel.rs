//! A real Redis Sentinel that watches over a server of the test.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{RedisServer, Reply, wait_until};
use crate::resp::{command, command_with_password};
use crate::server::{Tls, binary, free_port};

/// The name under which it knows the master
pub const MASTER_NAME: &str = "orders-master";

/// How a sentinel watches: in plain text and without a password, if nothing else is said
#[derive(Debug, Default)]
pub struct Watch<'a> {
    /// Over TLS, to servers that were started with it
    pub tls: Option<&'a Tls>,
    /// What its own clients must send
    pub password: Option<&'static str>,
}

impl Watch<'_> {
    fn port_of(&self, server: &RedisServer) -> u16 {
        self.tls.map_or(server.port(), |_| server.tls_port())
    }
}

/// For how many milliseconds a master may be silent: a busy machine is not taken for a dead one
const SILENCE: &str = "60000";

/// A master, its replica, and the sentinel that watches over them
pub struct Watched {
    pub master: RedisServer,
    pub replica: RedisServer,
    pub sentinel: Sentinel,
}

impl Watched {
    /// Starts them, over TLS where the sentinel is to watch so
    pub fn start(watch: &Watch<'_>) -> Self {
        let server = |args: &[&str]| match watch.tls {
            Some(tls) => {
                RedisServer::start_tls(tls, &[&["--tls-replication", "yes"], args].concat())
            }
            None => RedisServer::start_with(args),
        };
        let master = server(&[]);
        let port = watch.port_of(&master).to_string();
        let replica = server(&["--replicaof", "127.0.0.1", &port]);
        wait_for_replica(&replica);
        let sentinel = Sentinel::start(&master, &replica, watch);
        Self {
            master,
            replica,
            sentinel,
        }
    }
}

/// Waits until a replica has what its master sent
pub fn wait_for_replica(replica: &RedisServer) {
    wait_until("the replica follows", || {
        let info = replica.cli(&["INFO", "replication"]);
        info.contains("master_link_status:up")
    });
}

/// One sentinel that decides alone
///
/// Ends with this value, and with the test process, however that one ends.
#[derive(Debug)]
pub struct Sentinel {
    port: u16,
    tls_port: Option<u16>,
    password: Option<&'static str>,
    /// A shell that kills the sentinel when its input ends
    shell: Child,
}

impl Sentinel {
    /// Starts it, and waits until it knows the master and its replica
    ///
    /// # Panics
    ///
    /// If there is no server binary, or the sentinel does not come up.
    fn start(master: &RedisServer, replica: &RedisServer, watch: &Watch<'_>) -> Self {
        // Removed with the replica.
        let config = replica.dir().join("sentinel.conf");
        // Between the choice of a port and its use, another process may take it.
        let sentinel = (0..5).find_map(|_| Self::launch(&config, watch.port_of(master), watch));
        let sentinel = sentinel.expect("a port that no other process takes");
        let replica = watch.port_of(replica).to_string();
        wait_until("the sentinel knows the replica", || {
            let reply = sentinel.ask(&["SENTINEL", "REPLICAS", MASTER_NAME]);
            reply.is_some_and(|reply| {
                let text = reply.to_string();
                let has = |line: &str| text.lines().any(|other| other == line);
                has(&replica) && has("ok")
            })
        });
        sentinel
    }

    /// None if its port was taken in the meantime.
    fn launch(config: &Path, master: u16, watch: &Watch<'_>) -> Option<Self> {
        let &Watch { tls, password } = watch;
        let port = free_port();
        let dir = config.parent().expect("a file in a directory");
        let mut lines = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {}\n\
             sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds {MASTER_NAME} {SILENCE}\n\
             sentinel failover-timeout {MASTER_NAME} 5000\n",
            dir.display(),
        );
        let tls_port = tls.map(|tls| {
            let tls_port = free_port();
            lines.push_str("tls-replication yes\n");
            // Beside those of the replica, in its directory.
            for (name, value) in tls.settings(tls_port) {
                lines.push_str(&format!("{name} {value}\n"));
            }
            tls_port
        });
        if let Some(password) = password {
            lines.push_str(&format!("requirepass {password}\n"));
        }
        fs::write(config, lines).expect("write the configuration of the sentinel");
        let log = config.with_extension("log");
        fs::write(&log, "").expect("create the log of the sentinel");
        let shell = Command::new("sh")
            .arg("-c")
            .arg("\"$0\" \"$1\" --sentinel >\"$2\" 2>&1 </dev/null & read -r _; kill -KILL $!")
            .arg(binary())
            .args([config, &log])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("run `sh`");
        let sentinel = Self {
            port,
            tls_port,
            password,
            shell,
        };
        let mut is_taken = false;
        wait_until("the sentinel listens, or cannot", || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            is_taken = log.contains("Address already in use");
            is_taken || log.contains("Sentinel ID is")
        });
        (!is_taken).then_some(sentinel)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port for TLS, of one that was started with it
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("the sentinel was started with TLS")
    }

    /// Makes the replica the master, and the master a replica
    pub fn fail_over(&self) {
        let reply = self.ask(&["SENTINEL", "FAILOVER", MASTER_NAME]);
        assert_eq!(reply, Some(Reply::Status(String::from("OK"))));
    }

    /// Takes the master for dead after half a second of silence; or after a minute again
    pub fn replaces_the_silent(&self, soon: bool) {
        let silence = if soon { "500" } else { SILENCE };
        let set = [
            "SENTINEL",
            "SET",
            MASTER_NAME,
            "down-after-milliseconds",
            silence,
        ];
        assert_eq!(self.ask(&set), Some(Reply::Status(String::from("OK"))));
    }

    /// Forgets the master, and watches over another: what an operator does who has moved it by hand
    pub fn watch_instead(&self, master: &RedisServer) {
        let port = master.port().to_string();
        for command in [
            &["SENTINEL", "REMOVE", MASTER_NAME][..],
            &["SENTINEL", "MONITOR", MASTER_NAME, "127.0.0.1", &port, "1"],
        ] {
            assert_eq!(self.ask(command), Some(Reply::Status(String::from("OK"))));
        }
        wait_until("the sentinel knows the master", || {
            let reply = self.ask(&["SENTINEL", "MASTERS"]);
            reply.is_some_and(|reply| reply.to_string().lines().any(|line| line == "master"))
        });
    }

    fn ask(&self, args: &[&str]) -> Option<Reply> {
        let time_limit = Duration::from_secs(60);
        match self.password {
            Some(password) => command_with_password(self.port, password, args, time_limit).ok(),
            None => command(self.port, args, time_limit).ok(),
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Fails only if the process has ended by itself.
        let _ = self.shell.wait();
    }
}
