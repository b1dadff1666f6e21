//! The Java of the pages, compiled as it stands there and run beside Rust: how it composes the
//! names of a rule's limiters, and that it spends them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::oracle::{self, HOME};
use kit::scene::*;

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// What `URLEncoder` spells otherwise, and a letter of two bytes.
const ACCOUNT: &str = "a b*~+}\u{e9}";

/// The last release that counts by windows: `prepare.sh` brings in its jars.
const LAST_OF_WINDOWS: &str = "3.13.2";

/// Returns the page's blocks of Java.
fn blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```java\n").skip(1);
    let blocks = blocks.map(|block| block.split_once("```").expect("a whole block").0);
    blocks.collect()
}

/// Returns a program of these blocks, which prints what it has spent.
fn program() -> String {
    let [names, digest] = blocks(include_str!("../../src/docs/keys.md"))[..] else {
        panic!("the page on names has two blocks of Java");
    };
    let [orders] = blocks(include_str!("../../src/docs/redisson.md"))[..] else {
        panic!("the page on Redisson has one block of Java");
    };
    include_str!("Pages.java")
        .replace("/* names */", names)
        .replace("/* digest */", digest)
        .replace("/* orders */", orders)
}

/// Runs a program by the jars of this version, and returns what it prints.
fn run(source: &Path, version: &str, server: &RedisServer) -> String {
    let home = PathBuf::from(env::var(HOME).unwrap());
    let mut java = Command::new("java");
    java.arg("-cp").arg(home.join(version).join("lib/*"));
    let ran = java.arg(source).arg(server.url()).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{error}");
    said
}

#[tokio::test]
async fn the_java_of_the_pages_spends_the_limiters_of_rust() {
    let server = RedisServer::start();
    let store = || {
        let store = patient(server.url()).deny_cache(Duration::ZERO);
        store.redisson().build().unwrap()
    };
    let secret = Secret::new("k1", SECRET).unwrap();
    let token = FromHeader::new("authorization").digest(&secret);
    let hour = Limit::per_hour(5);
    let layers = [
        layer_of(&store(), hour.by(FromHeader::new("x-account"))),
        layer_of(&store(), hour.by(token)),
    ];
    let request = || {
        let request = Request::builder().header("x-account", ACCOUNT.as_bytes());
        request
            .header("authorization", "Bearer abc")
            .body(())
            .unwrap()
    };
    for layer in &layers {
        granted(decide(layer, request()).await);
    }
    let orders = RateLimiter::new(&store(), "orders").unwrap();

    let source = server.dir().join("Pages.java");
    fs::write(&source, program()).unwrap();
    // The newest: older versions have another `trySetRate`.
    let said = run(&source, &oracle::versions()[0], &server);
    let mut expected = String::new();
    for layer in &layers {
        let limiter = layer.limiters_of(&request().into_parts().0).remove(0);
        expected += &format!("{} 5 true 3\n", limiter.name());
        assert_eq!(free(&limiter).await, 3);
    }
    assert_eq!(said, expected + "ship\n");
    assert!(!orders.try_set_rate(Limit::per_hour(1)).await.unwrap());
    assert_eq!(orders.limit().await.unwrap(), Some(Limit::per_second(10)));
    assert_eq!(server.entries("{orders}:permits").len(), 1);
}

/// As the page on Redisson has it, with a window that does not end meanwhile.
#[tokio::test]
async fn a_fixed_window_is_shared_with_old_releases() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let feed = RateLimiter::new(&store, "feed").unwrap();
    let feed = feed.algorithm(Algorithm::FixedWindow);
    assert!(feed.try_set_rate(Limit::per_hour(100_000)).await.unwrap());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redisson");
    for left in [99_998, 99_996] {
        take(&feed, 1).await;
        let said = run(&folder.join("Feed.java"), LAST_OF_WINDOWS, &server);
        assert_eq!(said, format!("false\n100000 3600000\ntrue {left}\n"));
        assert_eq!(free(&feed).await, left);
    }
}
