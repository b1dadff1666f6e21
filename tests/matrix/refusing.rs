//! Rows 16 to 18: a server that works and refuses commands.

use kit::{permissions, scene::*, wait_until};
use std::{collections::BTreeSet, fs};

use super::{
    guards::BUDGET,
    stage::{EXACT, Expected, Scene, UNKNOWN, aside},
};

/// Creates the user again: with this password, these keys, and the guide's commands but one.
pub fn allow(server: &RedisServer, password: &str, keys: &str, without: &str) {
    let mut commands = permissions();
    commands.retain(|rule| rule.starts_with('+') && *rule != without);
    let commands = commands.join(" ");
    server.obeys(&format!(
        "ACL SETUSER limiter reset on {password} {keys} {commands}"
    ));
}

/// Returns a store of that user.
pub fn of_user(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url.replace("redis://", "redis://limiter:secret@"))
}

/// Returns the lanes whose limiters are in Redisson's format, and those in our own, except that of
/// the calendar: its refusals write nothing.
fn lanes_by_format(scene: &Scene) -> (Vec<usize>, Vec<usize>) {
    let limiters = scene.load.limiters.iter().filter(|it| !it.is_calendar());
    let lanes = |own: bool| {
        let lanes = limiters.clone().filter(move |it| it.in_own_format() == own);
        let lanes: BTreeSet<_> = lanes.map(|it| it.lane).collect();
        lanes.into_iter().collect()
    };
    (lanes(false), lanes(true))
}

/// The permissions of the user change while it is in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_permissions_that_are_taken_away() {
    let server = aside(RedisServer::start);
    allow(&server, ">secret", "~*", "");
    let scene = Scene::begin_on("row 16", server, BUDGET, |url| of_user(&url)).await;
    let (of_redisson, own) = lanes_by_format(&scene);
    let all: Vec<_> = of_redisson.iter().chain(&own).copied().collect();
    for (password, keys, without, met_by) in [
        (">secret", "~*", "+evalsha", &all),
        (">secret", "~*", "+hmget", &of_redisson),
        (">secret", "~*", "+zadd", &of_redisson),
        (">secret", "~*", "+getrange", &own),
        (">secret", "~*", "+setrange", &own),
        (">secret", "~others:*", "", &all),
        (">another", "~*", "", &all),
    ] {
        allow(&scene.server, password, keys, without);
        if password == ">another" {
            // Who is in stays in.
            scene.proxy.reset();
        }
        scene.load.lanes_met_policy(met_by, 10).await;
        allow(&scene.server, ">secret", "~*", "");
        scene.healed().await;
    }
    scene.judge_cut(EXACT, 2).await;
}

/// Writes are refused. A caller over the limit is still refused by the limit, because that writes
/// nothing.
async fn writes_are_refused(row: &'static str, setting: &str) {
    let scene = Scene::begin(row).await;
    for _ in 0..2 {
        scene.server.configure(setting, "1");
        scene.load.met_policy(20).await;
        scene.server.configure(setting, "0");
        scene.healed().await;
    }
    scene.judge(EXACT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_17_no_memory_is_left() {
    writes_are_refused("row 17, full", "maxmemory").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_17_limiters_are_evicted() {
    let scene = Scene::begin("row 17, evicted").await;
    let number = |section: &str, name: &str| scene.server.figure(section, name).unwrap();
    let most = number("memory", "used_memory:") + 400_000;
    scene.server.configure("maxmemory-policy", "allkeys-random");
    scene.server.configure("maxmemory", &most.to_string());
    let large = "x".repeat(60_000);
    let mut junk = 0;
    while number("stats", "evicted_keys:") < 200 {
        junk += 1;
        scene.server.cli(&["SET", &format!("junk:{junk}"), &large]);
        tokio::task::yield_now().await;
    }
    scene.load.decided(3).await;
    let evicted = number("stats", "evicted_keys:");
    println!("row 17, evicted: {evicted} keys of {junk} large ones and of the limiters");
    scene.server.configure("maxmemory", "0");
    scene.healed().await;
    // Each time that all keys of a limiter are evicted, one or three, it starts with all permits.
    let from_zero = Expected {
        over: evicted as f64,
        logs_lost: true,
        ..UNKNOWN
    };
    scene.judge(from_zero).await;
}

/// The last snapshot failed, and the server is configured not to write then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_a_snapshot_that_fails() {
    let protected = RedisServer::allowing("--enable-protected-configs");
    let scene = Scene::begin_with("row 18, snapshot", &protected, BUDGET).await;
    let Reply::Array(dir) = scene.server.command(&["CONFIG", "GET", "dir"]) else {
        panic!("a server has a directory");
    };
    let dir = dir[1].to_string();
    let gone = format!("{dir}/gone");
    fs::create_dir(&gone).unwrap();
    scene.server.configure("dir", &gone);
    fs::remove_dir(&gone).unwrap();
    scene.server.configure("save", "100000 100000");
    scene.server.cli(&["BGSAVE"]);
    aside(|| {
        wait_until("the snapshot has failed", || {
            let info = scene.server.cli(&["INFO", "persistence"]);
            info.contains("rdb_last_bgsave_status:err")
        });
    });
    scene.load.met_policy(20).await;
    scene.server.configure("save", "");
    scene.server.configure("dir", &dir);
    scene.judge(EXACT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_a_master_without_its_replicas() {
    writes_are_refused("row 18, replicas", "min-replicas-to-write").await;
}
