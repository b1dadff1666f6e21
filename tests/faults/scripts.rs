//! Servers that lose scripts: newer ones drop those that came by EVAL, once 500 others have come.

use crate::scene::*;
use tower_ratelimit::redis;

use crate::support::scripted::ScriptedServer;

const LIMIT: Limit = Limit::per_hour(1000);

/// A user who may call everything but these.
fn user_without(server: &RedisServer, commands: &str) -> RedisStore {
    let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all"];
    user.extend(commands.split_whitespace());
    assert_eq!(server.cli(&user), "OK");
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    patient(url).build().unwrap()
}

async fn limiter(store: &RedisStore, algorithm: Algorithm) -> RateLimiter {
    let limiter = RateLimiter::new(store, &unique("orders")).unwrap();
    let limiter = limiter.algorithm(algorithm);
    assert!(limiter.try_set_rate(LIMIT).await.unwrap());
    limiter
}

async fn take(limiter: &RateLimiter) {
    assert!(limiter.try_acquire().await.unwrap().is_allowed());
}

/// Returns how often the server replied that a command is unknown.
fn lacked(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "errorstats"]);
    let count = stats
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_NOSCRIPT:count="))
        .unwrap_or("0");
    count.trim().parse().unwrap()
}

/// Returns how often the user was not permitted to load a script.
fn refused_to_load(server: &RedisServer) -> u64 {
    let log = server.cli(&["ACL", "LOG"]);
    let lines: Vec<_> = log.lines().collect();
    let entries = lines.windows(2).filter(|pair| pair[0] == "count");
    let counts = entries.map(|pair| pair[1].parse::<u64>().unwrap());
    if log.contains("script") {
        counts.sum()
    } else {
        assert_eq!(log, "");
        0
    }
}

#[tokio::test]
async fn what_is_lacked_twice_is_loaded() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let server = RedisServer::start();
        let store = patient(server.url()).build().unwrap();
        let limiter = limiter(&store, algorithm).await;
        let before = server.calls_of("eval");
        take(&limiter).await;
        assert_eq!(server.calls_of("eval"), before + 1, "{algorithm:?}");
        for _ in 0..3 {
            server.cli(&["SCRIPT", "FLUSH"]);
            take(&limiter).await;
            assert_eq!(server.calls_of("eval"), before + 1, "{algorithm:?}");
        }
    }
}

/// On a server that drops scripts, and on one that does not.
#[tokio::test]
async fn what_a_server_drops_is_lacked_twice_at_most() {
    const FOREIGN: u64 = 600;
    const ROUNDS: u64 = 5;
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let limiter = limiter(&store, Algorithm::SlidingLog).await;
    let before = (server.calls_of("eval"), lacked(&server));
    let client = redis::Client::open(server.url()).unwrap();
    let mut others = client.get_multiplexed_async_connection().await.unwrap();
    for round in 0..ROUNDS {
        take(&limiter).await;
        let mut foreign = redis::pipe();
        for number in 0..FOREIGN {
            let text = format!("return {}", round * FOREIGN + number);
            foreign.cmd("EVAL").arg(text).arg(0).ignore();
        }
        foreign.query_async::<()>(&mut others).await.unwrap();
    }
    take(&limiter).await;
    let (sent, times) = (
        server.calls_of("eval") - before.0,
        lacked(&server) - before.1,
    );
    println!(
        "lacked {times} times, by a server that got {} texts",
        FOREIGN * ROUNDS
    );
    assert_eq!(sent, FOREIGN * ROUNDS + 1);
    assert!((1..=2).contains(&times), "{times}");
}

#[tokio::test]
async fn a_user_who_may_not_load_is_refused_once_in_a_minute() {
    let server = RedisServer::start();
    let store = user_without(&server, "-script");
    let limiter = limiter(&store, Algorithm::SlidingLog).await;
    let before = server.calls_of("eval");
    for round in 0..5 {
        server.cli(&["SCRIPT", "FLUSH"]);
        take(&limiter).await;
        assert_eq!(server.calls_of("eval"), before + 1 + round);
    }
    assert_eq!(refused_to_load(&server), 1);
}

/// Calls that begin together find it lacking together, which is once.
#[tokio::test]
async fn a_crowd_at_the_start_loads_nothing() {
    let server = RedisServer::start();
    let store = user_without(&server, "-script");
    let mut limiters = Vec::new();
    for _ in 0..50 {
        limiters.push(limiter(&store, Algorithm::SlidingLog).await);
    }
    let mut crowd = JoinSet::new();
    for limiter in limiters {
        crowd.spawn(async move { take(&limiter).await });
    }
    crowd.join_all().await;
    assert_eq!(refused_to_load(&server), 0);
}

/// Between SCRIPT LOAD and the hash as well: a scripted server forgets whatever was loaded.
#[tokio::test]
async fn what_is_gone_again_after_it_was_loaded_is_sent_as_text() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::FixedWindow] {
        let server = ScriptedServer::start(|command| {
            match &*command[0].to_ascii_uppercase() {
                b"EVALSHA" => "-NOSCRIPT No matching script.\r\n",
                b"EVAL" => "-WRONGTYPE it has run\r\n",
                _ => "+loaded\r\n",
            }
            .as_bytes()
            .to_vec()
        });
        let store = patient(server.url()).build().unwrap();
        let limiter = RateLimiter::new(&store, "scripted").unwrap();
        let limiter = limiter.algorithm(algorithm);
        for expected in [
            &["EVALSHA", "EVAL"][..],
            &["EVALSHA", "SCRIPT", "EVALSHA", "EVAL"],
        ] {
            let before = server.commands().len();
            let error = limiter.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ForeignState, "{error}");
            assert_eq!(server.commands()[before..], *expected, "{algorithm:?}");
        }
    }
}
