//! Limiters that Redisson made, looked after by the command `ratelimit`.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{
    java_side::client_id,
    oracle::{JavaClock, Oracle, Request, versions},
};
use kit::{RedisServer, unique};

fn ratelimit(server: &RedisServer, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ratelimit"))
        .args(args)
        .arg("--json")
        .env("REDIS_URL", server.url())
        .output()
        .unwrap()
}

/// Runs the command, which ends with this status, and returns its object.
#[track_caller]
fn object(server: &RedisServer, args: &[&str], status: i32) -> Value {
    let ran = ratelimit(server, args);
    assert_eq!(ran.status.code(), Some(status), "{ran:?}");
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Ten an hour. Java takes four of them, by the unchanged jars.
struct Made {
    server: RedisServer,
    java: Oracle,
    name: String,
}

impl Made {
    fn new(version: &str, per_client: bool) -> Self {
        let server = RedisServer::start();
        let java = Oracle::start(version, server.port(), JavaClock::System);
        let name = unique("java");
        let mut made = Self { server, java, name };
        let limit = [
            ("rate", 10),
            ("interval", 3_600_000),
            ("type", per_client.into()),
        ];
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
        object(&self.server, &[&[verb, &self.name], more].concat(), 0)
    }
}

#[test]
fn the_command_looks_after_limiters_of_redisson() {
    for version in versions() {
        println!("Redisson {version}");
        let mut made = Made::new(&version, false);
        let seen = made.tool("get", &[]);
        assert_eq!(seen["limit"], "10/1h");
        assert_eq!((&seen["left"], &seen["used"]), (&json!(6), &json!(4)));
        assert_eq!(seen["algorithm"], "sliding-log");
        assert!(seen["next_free_ms"].as_u64() > Some(3_500_000), "{seen}");
        assert_eq!(made.tool("watch", &["--count", "1"])["left"], 6);
        assert_eq!(made.tool("diagnose", &[])["findings"], json!([]));

        // As a call that Redisson resends does.
        let value = format!("{{{}}}:value", made.name);
        made.server.cli(&["SET", &value, "3"]);
        let found = object(&made.server, &["diagnose", &made.name], 1);
        assert_eq!(found["findings"][0]["kind"], "drift");
        assert_eq!(made.java("available", &[]), "3");
        assert_eq!(made.tool("repair", &["--yes"])["lost"], 3);
        assert_eq!(made.java("available", &[]), "6");

        made.tool("set-rate", &["--rate", "20/1h", "--yes"]);
        assert_eq!(made.java("config", &[]), "0 20 3600000");
        assert_eq!(made.java("available", &[]), "16");
        assert_eq!(made.java("tryAcquire", &[("n", 16)]), "true");
        assert_eq!(made.java("tryAcquire", &[("n", 1)]), "false");
        assert_eq!(made.tool("get", &[])["left"], 0);

        made.tool("delete", &["--yes"]);
        assert_eq!(made.java("exists", &[]), "false");
        let gone = ratelimit(&made.server, &["get", &made.name]);
        assert_eq!(gone.status.code(), Some(4), "{gone:?}");
    }
}

#[test]
fn the_command_keeps_a_limit_per_client_one() {
    for version in versions() {
        let mut made = Made::new(&version, true);
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
