//! A master, its replica and a sentinel, all real: after a failover decisions come from Redis
//! again, with no restart.

use crate::scene::*;
use crate::support;

use crate::{
    support::Sentinel, support::cluster::wait_until, support::redis_server::command,
    support::sentinel::MASTER_NAME,
};

const LIMIT: Limit = Limit::per_hour(10);
const DEADLINE: Duration = Duration::from_millis(500);

fn watched() -> (RedisServer, RedisServer, Sentinel) {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica follows", || {
        replica
            .cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    let sentinel = Sentinel::start(&master, &replica);
    (master, replica, sentinel)
}

/// The second sentinel is never there, and the last one named answers: its place does not matter.
fn store(sentinel: &Sentinel) -> RedisStore {
    let unused = format!("redis://127.0.0.1:{}/", support::redis_server::free_port());
    RedisStore::sentinel([unused, sentinel.url()], MASTER_NAME)
        .deadline(DEADLINE)
        .build()
        .unwrap()
}

/// Takes permits, and waits until the replica has them too.
async fn four_taken(limiter: &RateLimiter, replica: &RedisServer) {
    let begun = Instant::now();
    // The first connection to a master takes longer than a decision may on a busy machine.
    while let Err(error) = limiter.try_set_rate(LIMIT).await {
        assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
    }
    assert!(limiter.try_acquire_many(4).await.unwrap().is_allowed());
    // WAIT would speak of the writes of its own connection alone.
    let key = format!("{{{}}}:value", limiter.name());
    block_in_place(|| {
        wait_until("the replica has it", || replica.cli(&["GET", &key]) == "6");
    });
}

/// Asks until Redis answers, and says how long that took.
async fn available_again(limiter: &RateLimiter) -> u64 {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        match limiter.available_permits().await {
            Ok(available) => {
                println!("answers come from Redis again after {:?}", begun.elapsed());
                return available;
            }
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout),
                    "{error:?}"
                );
                assert!(asked.elapsed() < DEADLINE * 20, "{:?}", asked.elapsed());
                assert!(begun.elapsed() < Duration::from_secs(60), "{error:?}");
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_by_its_replica() {
    let (mut master, replica, sentinel) = watched();
    let store = store(&sentinel);
    store.ping().await.unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    four_taken(&limiter, &replica).await;

    master.kill();
    assert_eq!(available_again(&limiter).await, 6);
    assert_eq!(sentinel.master_port(), replica.port().to_string());
    assert!(limiter.try_acquire().await.unwrap().is_allowed());
}

/// The old master lives on as a replica: connections to it stay good, and it refuses to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_master_is_left() {
    let (master, replica, sentinel) = watched();
    let store = store(&sentinel);
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    four_taken(&limiter, &replica).await;

    sentinel.fail_over();
    block_in_place(|| {
        wait_until("the master follows", || {
            // Sentinel cuts all connections of a master that it demotes, this one included.
            let is = |server: &RedisServer, role: &str| {
                let asked = ["INFO", "replication"];
                command(server.port(), &asked, Duration::from_secs(10))
                    .is_ok_and(|reply| reply.to_string().contains(role))
            };
            is(&master, "role:slave") && is(&replica, "role:master")
        });
    });
    let begun = Instant::now();
    while let Err(error) = limiter.try_acquire().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error:?}");
    }
    println!(
        "decisions come from the new master after {:?}",
        begun.elapsed()
    );
    let key = format!("{{{}}}:value", limiter.name());
    assert_eq!(replica.cli(&["GET", &key]), "5");
}

#[tokio::test]
async fn without_a_sentinel_the_store_is_unavailable() {
    let unused = format!("redis://127.0.0.1:{}/", support::redis_server::free_port());
    let store = RedisStore::sentinel([unused], MASTER_NAME).build().unwrap();
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn bad_addresses_are_refused() {
    for (sentinels, master) in [
        (vec![], MASTER_NAME),
        (vec!["http://a:26379"], MASTER_NAME),
        (vec!["redis://a:26379"], "http://user:secret@mymaster"),
        (vec!["redis://a:26379"], "unix:///tmp/redis"),
    ] {
        let error = RedisStore::sentinel(sentinels, master).build().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Store, "{master}");
        let said = "the address of Redis cannot be read: ";
        assert!(error.to_string().starts_with(said), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let address = "redis://user:secret@mymaster/1";
    let store = RedisStore::sentinel(["redis://a:26379"], address)
        .build()
        .unwrap();
    assert!(!format!("{store:?}").contains("secret"));
}
