//! A store on each kind of Redis, in a few lines. The argument selects one: `cargo run --example
//! connect --features cluster,sentinel,tls -- cluster`.
//!
//! `REDIS_URL` is the address of Redis, for a Cluster and for sentinels one or more addresses
//! separated by commas. `CERTIFICATES` is the folder of `ca.pem`, `service.pem` and `service.key`.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error, fs, time::Duration};

use tower_ratelimit::{
    Limit, RateLimiter, RedisStore, RedisStoreBuilder,
    deadpool_redis::{self, cluster, sentinel},
    redis::{
        AsyncConnectionConfig, Client,
        aio::{ConnectionManager, ConnectionManagerConfig},
    },
};

type Made = Result<RedisStoreBuilder, Box<dyn Error>>;

/// A single server: `redis://127.0.0.1/`, as a user `redis://limiter:secret@127.0.0.1/`, over a
/// socket `redis+unix:///run/redis.sock`.
fn standalone(url: &str) -> Made {
    Ok(RedisStore::builder(url))
}

/// `rediss://redis.internal/`: its certificate comes from an authority that the machine trusts, or
/// from this one.
fn tls(url: &str) -> Made {
    Ok(RedisStore::builder(url).authorities(pem("ca.pem")?))
}

/// The same, on a server that requires a certificate of the client.
fn mutual_tls(url: &str) -> Made {
    let store = RedisStore::builder(url).authorities(pem("ca.pem")?);
    Ok(store.client(pem("service.pem")?, pem("service.key")?))
}

/// A Cluster, by one or more of its nodes: `redis://10.0.0.1/`, `redis://10.0.0.2/`.
fn cluster(urls: &str) -> Made {
    Ok(RedisStore::cluster(urls.split(',')))
}

/// The master that sentinels call `orders-master`; if it requires a user, write
/// `redis://limiter:secret@orders-master`.
fn sentinel(urls: &str) -> Made {
    Ok(RedisStore::sentinel(urls.split(','), "orders-master"))
}

/// A pool of the service's own, with its timeouts.
fn pool(url: &str) -> Made {
    let longest = Some(Duration::from_millis(500));
    let config = AsyncConnectionConfig::new().set_response_timeout(longest);
    let manager = deadpool_redis::Manager::new_with_config(url, config)?;
    let pool = deadpool_redis::Pool::builder(manager).build()?;
    Ok(RedisStore::pool(pool))
}

/// A connection of the service's own that reconnects by itself, with redis' feature
/// `connection-manager`.
fn manager(url: &str) -> Made {
    let config = ConnectionManagerConfig::new();
    let manager = ConnectionManager::new_lazy_with_config(Client::open(url)?, config)?;
    Ok(RedisStore::connection(manager))
}

/// A pool for a Cluster: see `RedisStore::cluster_pool` for what it may repeat.
fn cluster_pool(urls: &str) -> Made {
    let manager = cluster::Manager::new(urls.split(',').collect(), false)?;
    let pool = cluster::Pool::builder(manager).build()?;
    Ok(RedisStore::cluster_pool(pool))
}

/// A pool for the master that sentinels name.
fn sentinel_pool(urls: &str) -> Made {
    let (urls, master) = (urls.split(',').collect(), "orders-master".to_owned());
    let manager = sentinel::Manager::new(urls, master, None, sentinel::SentinelServerType::Master)?;
    let pool = sentinel::Pool::builder(manager).build()?;
    Ok(RedisStore::sentinel_pool(pool))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let kind = env::args()
        .nth(1)
        .unwrap_or_else(|| "standalone".to_owned());
    let make = match kind.as_str() {
        "standalone" => standalone,
        "tls" => tls,
        "mutual-tls" => mutual_tls,
        "cluster" => cluster,
        "sentinel" => sentinel,
        "pool" => pool,
        "manager" => manager,
        "cluster-pool" => cluster_pool,
        "sentinel-pool" => sentinel_pool,
        other => return Err(format!("no such kind: {other}").into()),
    };
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    // No request waits for this answer: more than the 50 ms of a service.
    let longest = Duration::from_secs(10);
    let store = make(&url)?
        .connect_timeout(longest)
        .response_timeout(longest)
        .deadline(longest)
        .build()?;

    let orders = RateLimiter::new(&store, "orders")?;
    orders.try_set_rate(Limit::per_second(5)).await?;
    orders.acquire().await?;
    let limit = orders.limit().await?.ok_or("the limit was deleted")?;
    println!("{kind}: one order of {} a second", limit.permits());
    Ok(())
}

fn pem(name: &str) -> std::io::Result<Vec<u8>> {
    let folder = env::var("CERTIFICATES").unwrap_or_else(|_| ".".to_owned());
    fs::read(format!("{folder}/{name}"))
}
