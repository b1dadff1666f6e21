//! A master, its replica and a sentinel, all real: after a failover decisions come from Redis
//! again, with no restart.

use crate::scene::*;

use super::cannot_be_read;
use crate::support::{
    Sentinel,
    redis_server::free_port,
    resp::command,
    sentinel::{MASTER_NAME, Watch, Watched},
    wait_until,
};
use crate::traffic::grants;

const LIMIT: Limit = Limit::per_hour(10);
const DEADLINE: Duration = Duration::from_millis(500);

/// The second sentinel is never there, and the last one named answers: its place does not matter.
fn store(sentinel: &Sentinel) -> RedisStore {
    let unused = format!("redis://127.0.0.1:{}/", free_port());
    RedisStore::sentinel([unused, sentinel.url()], MASTER_NAME)
        .deadline(DEADLINE)
        .build()
        .unwrap()
}

/// Takes permits, and waits until the replica has them too.
async fn four_taken(limiter: &RateLimiter, replica: &RedisServer) {
    // The first connection to a master takes longer than a decision may on a busy machine.
    until("the limit is set", async || {
        limiter.try_set_rate(LIMIT).await.is_ok()
    })
    .await;
    take(limiter, 4).await;
    // WAIT would speak of the writes of its own connection alone.
    let key = format!("{{{}}}:value", limiter.name());
    block_in_place(|| {
        wait_until("the replica has it", || replica.cli(&["GET", &key]) == "6");
    });
}

/// Asks until Redis answers, and says how long that took.
async fn available_again(limiter: &RateLimiter) -> u64 {
    let mut available = 0;
    let healed = until("Redis answers again", async || {
        let asked = Instant::now();
        let error = match limiter.available_permits().await {
            Ok(found) => {
                available = found;
                return true;
            }
            Err(error) => error,
        };
        let failed = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
        assert!(failed, "{error:?}");
        assert!(asked.elapsed() < DEADLINE * 20, "{:?}", asked.elapsed());
        false
    })
    .await;
    println!("answers come from Redis again after {healed:?}");
    available
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_by_its_replica() {
    let mut watched = Watched::start(&Watch::default());
    let store = store(&watched.sentinel);
    store.ping().await.unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    four_taken(&limiter, &watched.replica).await;

    watched.master.kill();
    assert_eq!(available_again(&limiter).await, 6);
    let replica = watched.replica.port().to_string();
    assert_eq!(watched.sentinel.master_port(), replica);
    take(&limiter, 1).await;
}

/// The old master lives on as a replica: connections to it stay good, and it refuses to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_master_is_left() {
    let Watched {
        master,
        replica,
        sentinel,
    } = Watched::start(&Watch::default());
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
    let healed = grants(&limiter).await;
    println!("decisions come from the new master after {healed:?}");
    let key = format!("{{{}}}:value", limiter.name());
    assert_eq!(replica.cli(&["GET", &key]), "5");
}

#[tokio::test]
async fn without_a_sentinel_the_store_is_unavailable() {
    let unused = format!("redis://127.0.0.1:{}/", free_port());
    let store = RedisStore::sentinel([unused], MASTER_NAME).build().unwrap();
    fails(store.ping().await, ErrorKind::Unavailable);
}

#[test]
fn bad_addresses_are_refused() {
    for (sentinels, master) in [
        (vec![], MASTER_NAME),
        (vec!["http://a:26379"], MASTER_NAME),
        (vec!["redis://a:26379"], "http://user:secret@mymaster"),
        (vec!["redis://a:26379"], "unix:///tmp/redis"),
    ] {
        cannot_be_read(RedisStore::sentinel(sentinels, master));
    }
    let address = "redis://user:secret@mymaster/1";
    let store = RedisStore::sentinel(["redis://a:26379"], address)
        .build()
        .unwrap();
    assert!(!format!("{store:?}").contains("secret"));
}
