//! Unknown messages of a server, and a server without Lua: findings, and never silence.

use kit::{scene::*, scripted::ScriptedServer};
use std::fmt::Write;

use tower_ratelimit::inspect::{Finding, Severity};

use super::{NO_INFO, check, found, open};

const NO_LUA: (&str, Severity, &str) = ("no_lua", Severity::Error, "no Lua");

fn not_understood(severity: Severity, text: &str) -> (&str, Severity, &str) {
    ("not_understood", severity, text)
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// The answer of the script that tries commands: what each of them was refused with, and that all
/// texts can be compiled.
fn tried(refused: &[(&str, &str)]) -> String {
    let mut reply = format!("*2\r\n*{}\r\n", refused.len());
    for (command, words) in refused {
        write!(reply, "*2\r\n{}{}", bulk(command), bulk(words)).unwrap();
    }
    reply + "*0\r\n"
}

/// Returns a server that is well, except for its reply to scripts.
fn server(to_scripts: &str) -> ScriptedServer {
    let to_scripts = to_scripts.to_owned();
    ScriptedServer::start(move |command| {
        let reply = match &*command[0].to_ascii_uppercase() {
            b"TIME" => format!("*2\r\n{}{}", bulk("1700000000"), bulk("0")),
            b"INFO" => bulk("redis_version:8.2.3\r\nrole:master\r\n"),
            _ => to_scripts.clone(),
        };
        reply.into_bytes()
    })
}

/// Returns the findings, except those about the clock, which is not this machine's.
async fn findings(to_scripts: &str) -> Vec<Finding> {
    let verification = open(&server(to_scripts).url()).verify().await.unwrap();
    println!("{verification}");
    let mut findings = found(&verification);
    findings.retain(|it| it.code() != "clocks_apart");
    findings
}

#[tokio::test]
async fn words_that_are_not_known_are_a_finding() {
    let said = "ERR whatever else\u{1b}";
    let unknown = |command: &str| format!(r"the reply to {command} is `ERR whatever else\u{{1b}}`");
    let (get, eval, time) = (unknown("GET"), unknown("EVAL"), unknown("TIME"));
    check(&findings(&tried(&[("GET", "")])).await, &[]);
    let of_one = findings(&tried(&[("GET", said), ("TIME", "")])).await;
    check(&of_one, &[not_understood(Severity::Warning, &get)]);

    let server = ScriptedServer::start(move |_| format!("-{said}\r\n").into_bytes());
    let verification = open(&server.url()).verify().await.unwrap();
    let of_others = [
        not_understood(Severity::Error, &eval),
        not_understood(Severity::Warning, &time),
        NO_INFO,
    ];
    check(&found(&verification), &of_others);

    let of_all = findings(&format!("-{said}\r\n")).await;
    check(&of_all, &[not_understood(Severity::Error, &eval)]);
}

/// Those that are tried so that they change nothing, and what each server says to their arguments.
#[tokio::test]
async fn arguments_that_are_refused_are_no_finding() {
    let refused = [
        ("RENAME", "ERR no such key"),
        ("HSET", "ERR wrong number of arguments for 'hset' command"),
        ("INCRBY", "ERR value is not an integer or out of range"),
        ("SETRANGE", "ERR offset is out of range"),
    ];
    assert_eq!(findings(&tried(&refused)).await, []);
    // The same words elsewhere are not what was asked for.
    let elsewhere = findings(&tried(&[("GET", "ERR no such key")])).await;
    assert_eq!(elsewhere.len(), 1);
}

/// The user may not query the role.
#[tokio::test]
async fn a_replica_is_found_by_what_it_refuses() {
    let readonly = "READONLY You can't write against a read only replica.";
    let found = findings(&tried(&[("SET", readonly), ("ZADD", readonly)])).await;
    check(&found, &[("replica", Severity::Error, "replica")]);
}

/// The words of Valkey 9.1, whose Lua is a module.
#[tokio::test]
async fn a_server_that_runs_no_lua_is_found() {
    let found = findings("-ERR Could not find scripting engine 'lua'\r\n").await;
    check(&found, &[NO_LUA]);
}

/// By a server whose Lua can be taken away, and one whose Lua cannot.
#[tokio::test]
async fn a_server_whose_lua_is_taken_away_is_found() {
    let allowed = RedisServer::allowing("--enable-module-command");
    let server = RedisServer::start_with(&allowed);
    let modules = server.cli(&["MODULE", "LIST"]);
    let unloaded = server.cli(&["MODULE", "UNLOAD", "lua"]);
    let store = open(&server.url());
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    if modules.lines().any(|line| line == "lua") {
        assert_eq!(unloaded, "OK");
        let found = found(&store.verify().await.unwrap());
        check(&found, &[NO_LUA]);
        let error = fails(limiter.try_acquire().await, ErrorKind::Rejected);
        assert!(error.to_string().contains("module `lua`"), "{error}");
    } else {
        assert!(unloaded.starts_with("(error)"), "{unloaded}");
        assert_eq!(found(&store.verify().await.unwrap()), []);
        fails(limiter.try_acquire().await, ErrorKind::NotInitialized);
    }
}
