//! Servers that lose scripts: newer ones evict scripts that came by EVAL, once there are 500
//! others.

use kit::scene::*;
use tower_ratelimit::redis;

const LIMIT: Limit = Limit::per_hour(1000);

/// A user who may call everything but these.
fn user_without(server: &RedisServer, commands: &str) -> RedisStore {
    server.obeys(&format!(
        "ACL SETUSER limiter on >secret ~* +@all {commands}"
    ));
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    patient(url).build().unwrap()
}

/// Returns how often the server replied that a command is unknown.
fn lacked(server: &RedisServer) -> u64 {
    let count = server.figure("errorstats", "errorstat_NOSCRIPT:count=");
    count.unwrap_or(0)
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

/// As Upstash reads it: the first line of a script says how to run it.
#[tokio::test]
async fn a_header_stands_in_front_of_each_script() {
    const HEADER: &str = "-- lock keys alone";
    let server = RedisServer::start();
    let store = patient(server.url()).script_header(HEADER).build().unwrap();
    let plain = patient(server.url()).build().unwrap();
    for way in Way::ALL {
        let limiter = way.limited(&store, LIMIT).await;
        take(&limiter, 1).await;
        // Neither knows the other's scripts.
        let lacks = lacked(&server);
        take(&way.limited(&plain, LIMIT).await, 1).await;
        assert!(lacked(&server) > lacks, "{way:?}");
        let lacks = lacked(&server);
        for _ in 0..3 {
            take(&limiter, 1).await;
        }
        assert_eq!(lacked(&server), lacks, "{way:?}");
        server.cli(&["SCRIPT", "FLUSH"]);
        take(&limiter, 1).await;
    }
    assert_eq!(server.calls_of("eval"), 0);
}

#[tokio::test]
async fn a_header_that_a_server_does_not_know_is_named() {
    let server = RedisServer::start();
    let store = patient(server.url()).script_header("#!lua flags=allow-key-locking");
    let limiter = RateLimiter::new(&store.build().unwrap(), &unique("orders")).unwrap();
    let error = fails(limiter.try_acquire().await, ErrorKind::Rejected);
    // Redis 6 cannot compile it, and says so in other words.
    if server.figure("server", "redis_version:") >= Some(7) {
        assert!(error.to_string().contains("script_header"), "{error:?}");
    }
    for header in ["", "return 1", "-- a\nreturn 1", "--[[ a", "#!lua\r"] {
        let error = RedisStore::builder(server.url()).script_header(header);
        let error = error.build().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Store);
        assert!(error.to_string().contains("is not one line"), "{error}");
    }
}

/// On a server that drops scripts, and on one that does not.
#[tokio::test]
async fn what_was_loaded_is_never_dropped() {
    const FOREIGN: u64 = 600;
    const ROUNDS: u64 = 5;
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let limiter = limited(&store, LIMIT).await;
    take(&limiter, 1).await;
    let before = lacked(&server);
    let client = redis::Client::open(server.url()).unwrap();
    // A busy machine may take its time for so many.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(LONG));
    let config = config.set_connection_timeout(Some(LONG));
    let others = client.get_multiplexed_async_connection_with_config(&config);
    let mut others = others.await.unwrap();
    for round in 0..ROUNDS {
        let mut foreign = redis::pipe();
        for number in 0..FOREIGN {
            let text = format!("return {}", round * FOREIGN + number);
            foreign.cmd("EVAL").arg(text).arg(0).ignore();
        }
        foreign.query_async::<()>(&mut others).await.unwrap();
        take(&limiter, 1).await;
    }
    assert_eq!(server.calls_of("eval"), FOREIGN * ROUNDS);
    assert_eq!(lacked(&server), before);
}

/// A user without `+script|load` sends the text, and is refused once for each time.
#[tokio::test]
async fn a_user_who_may_not_load_sends_the_text() {
    let server = RedisServer::start();
    let store = user_without(&server, "-script");
    let limiter = limited(&store, LIMIT).await;
    let before = (server.calls_of("eval"), refused_to_load(&server));
    for round in 1..=5 {
        server.cli(&["SCRIPT", "FLUSH"]);
        take(&limiter, 1).await;
        assert_eq!(server.calls_of("eval"), before.0 + round);
        take(&limiter, 1).await;
        assert_eq!(refused_to_load(&server), before.1 + round);
    }
}
