//! A node that carries out a script and loses the connection before it answers.

use kit::{scene::*, scripted::ScriptedServer};
use tower_ratelimit::{Error, deadpool_redis};

/// One node with all slots.
fn rude() -> ScriptedServer {
    ScriptedServer::start_at(|port| {
        let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
        move |command| match &*command[0].to_ascii_uppercase() {
            b"EVALSHA" | b"EVAL" => Vec::new(),
            b"CLUSTER" => slots.clone().into_bytes(),
            _ => b"+OK\r\n".to_vec(),
        }
    })
}

/// Makes a call, which fails. Returns how many scripts the node was sent.
async fn sent(name: &str, call: impl AsyncFnOnce(RateLimiter) -> Result<(), Error>) -> usize {
    sent_by(async |store| call(RateLimiter::new(&store, name).unwrap()).await).await
}

async fn sent_by(call: impl AsyncFnOnce(RedisStore) -> Result<(), Error>) -> usize {
    let node = rude();
    let store = patiently(RedisStore::cluster([node.url()])).build();
    fails(call(store.unwrap()).await, ErrorKind::Unavailable);
    scripts(&node)
}

fn scripts(node: &ScriptedServer) -> usize {
    let commands = node.commands();
    let sent = commands.iter().filter(|verb| verb.starts_with("EVAL"));
    sent.count()
}

#[tokio::test]
async fn what_may_not_run_twice_is_sent_once() {
    let released = async |limiter: RateLimiter| limiter.release(1).await.map(drop);
    assert_eq!(sent("{orders}", released).await, 1, "release");
    let renamed = async |limiter: RateLimiter| limiter.rename("b{orders}").await.map(drop);
    assert_eq!(sent("{orders}", renamed).await, 1, "rename");
    for way in [Way::Slots(10), Way::Window] {
        let taken = async |limiter: RateLimiter| way.limiter(limiter).try_acquire().await.map(drop);
        assert_eq!(sent("{orders}", taken).await, 1, "{way:?}");
    }
}

/// The limiter knows its last calls.
#[tokio::test]
async fn a_call_by_gcra_or_the_calendar_is_sent_again() {
    let quota = Limit::monthly(9).named("quota");
    let bucket = Limit::per_hour(9)
        .named("bucket")
        .algorithm(Algorithm::Gcra);
    for limit in [quota, bucket] {
        let taken = async |store: RedisStore| {
            let limiter = limit.single(&store).unwrap();
            limiter.try_acquire().await.map(drop)
        };
        let sent = sent_by(taken).await;
        assert!(sent > 1, "{sent}");
    }
}

/// A decision's ids make it safe to repeat; and the test shows that the node above would notice a
/// repetition.
#[tokio::test]
async fn a_decision_is_sent_six_times_at_most() {
    let taken = async |limiter: RateLimiter| limiter.try_acquire().await.map(drop);
    let sent = sent("orders", taken).await;
    println!("sent {sent} times");
    assert!((2..=6).contains(&sent), "{sent}");
}

/// As documented on `cluster_pool`: redis-rs repeats any command, and has no setting for it.
#[tokio::test]
async fn a_pool_repeats_also_what_may_not_run_twice() {
    let node = rude();
    let manager = deadpool_redis::cluster::Manager::new(vec![node.url()], false).unwrap();
    let pool = deadpool_redis::cluster::Pool::builder(manager);
    let store = patiently(RedisStore::cluster_pool(pool.build().unwrap()));
    let limiter = RateLimiter::new(&store.build().unwrap(), "{orders}").unwrap();
    fails(limiter.release(1).await, ErrorKind::Unavailable);
    let sent = scripts(&node);
    println!("sent {sent} times");
    assert!((2..=17).contains(&sent), "{sent}");
}
