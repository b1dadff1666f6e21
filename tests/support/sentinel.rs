//! A real Redis Sentinel that watches over a server of the test.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::cluster::wait_until;
use super::redis_server::{command, free_port};
use super::{RedisServer, Reply};

/// The name under which it knows the master
pub const MASTER_NAME: &str = "orders-master";

/// One sentinel that decides alone, half a second after a master has fallen silent
///
/// Ends with this value, and with the test process, however that one ends.
#[derive(Debug)]
pub struct Sentinel {
    port: u16,
    /// A shell that kills the sentinel when its input ends
    shell: Child,
}

impl Sentinel {
    /// Starts it, and waits until it knows the master and its replica
    ///
    /// # Panics
    ///
    /// If there is no server binary, or the sentinel does not come up.
    pub fn start(master: &RedisServer, replica: &RedisServer) -> Self {
        let port = free_port();
        // Removed with the replica.
        let Reply::Array(pair) = replica.command(&["CONFIG", "GET", "dir"]) else {
            panic!("the replica has a directory");
        };
        let dir = PathBuf::from(pair[1].to_string());
        let config = dir.join("sentinel.conf");
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {}\n\
             sentinel monitor {MASTER_NAME} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {MASTER_NAME} 500\n\
             sentinel failover-timeout {MASTER_NAME} 5000\n",
            dir.display(),
            master.port(),
        );
        fs::write(&config, lines).expect("write the configuration of the sentinel");
        let bin =
            std::env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| String::from("redis-server"));
        let shell = Command::new("sh")
            .arg("-c")
            .arg("\"$0\" \"$1\" --sentinel >\"$1.log\" 2>&1 </dev/null & read -r _; kill -KILL $!")
            .arg(bin)
            .arg(config)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("run `sh`");
        let sentinel = Self { port, shell };
        let replica = replica.port().to_string();
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

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port of the master as the sentinel sees it
    pub fn master_port(&self) -> String {
        match self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME]) {
            Some(Reply::Array(address)) => address[1].to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// Makes the replica the master, and the master a replica
    pub fn fail_over(&self) {
        let reply = self.ask(&["SENTINEL", "FAILOVER", MASTER_NAME]);
        assert_eq!(reply, Some(Reply::Status(String::from("OK"))));
    }

    fn ask(&self, args: &[&str]) -> Option<Reply> {
        command(self.port, args, Duration::from_secs(10)).ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Fails only if the process has ended by itself.
        let _ = self.shell.wait();
    }
}
