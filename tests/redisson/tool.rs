//! A limit per client that Redisson made, looked after by the command `ratelimit`.

use std::process::Command;

use serde_json::{Value, json};

use super::{
    java_side::client_id,
    oracle::{JavaClock, Oracle, Request, versions},
};
use kit::{RedisServer, unique};

/// Ten an hour for each client. Java takes four of them, by the unchanged jars.
struct Made {
    server: RedisServer,
    java: Oracle,
    name: String,
}

impl Made {
    fn new(version: &str) -> Self {
        let server = RedisServer::start();
        let java = Oracle::start(version, server.port(), JavaClock::System);
        let name = unique("java");
        let mut made = Self { server, java, name };
        let limit = [("rate", 10), ("interval", 3_600_000), ("type", 1)];
        assert_eq!(made.java("trySetRate", &limit), "true");
        assert_eq!(made.java("tryAcquire", &[("n", 4)]), "true");
        made
    }

    fn java(&mut self, verb: &str, numbers: &[(&str, i64)]) -> String {
        let request = Request::new(verb).text("name", &self.name);
        let request = numbers
            .iter()
            .fold(request, |it, (name, number)| it.number(name, *number));
        self.java.ask(&request).unwrap()
    }

    #[track_caller]
    fn tool(&self, verb: &str, more: &[&str]) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ratelimit"));
        let ran = command.args([verb, &self.name]).args(more).arg("--json");
        let ran = ran.env("REDIS_URL", self.server.url()).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        serde_json::from_slice(&ran.stdout).unwrap()
    }
}

#[test]
fn the_command_keeps_a_limit_per_client_one() {
    for version in versions() {
        let mut made = Made::new(&version);
        let id = client_id(&mut made.java, 0);
        let client = ["--client", &id];
        // Each client has a part of its own, and the command by itself is one.
        assert_eq!(made.tool("get", &[])["left"], 10);
        let seen = made.tool("get", &client);
        assert_eq!((&seen["left"], &seen["used"]), (&json!(6), &json!(4)));
        made.tool("set-rate", &["--rate", "5/1m", "--yes"]);
        assert_eq!(made.java("config", &[]), "1 5 60000");
        let reset = ["--rate", "9/1h", "--reset", "--yes"];
        made.tool("set-rate", &[&reset[..], &client].concat());
        assert_eq!(made.java("config", &[]), "1 9 3600000");
        assert_eq!(made.java("tryAcquire", &[("n", 9)]), "true");
        assert_eq!(made.tool("get", &client)["left"], 0);
    }
}
