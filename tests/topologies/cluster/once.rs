//! A node that carries out a script and loses the connection before it answers.

use crate::scene::*;
use std::{io::BufReader, io::Write, net::TcpListener, net::TcpStream, sync::atomic::AtomicU32};

use tower_ratelimit::deadpool_redis;

/// One node with all slots; counts the scripts that it was sent.
struct Rude {
    port: u16,
    scripts: Arc<AtomicU32>,
}

impl Rude {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let scripts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&scripts);
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let scripts = Arc::clone(&counted);
                thread::spawn(move || serve(stream, port, &scripts));
            }
        });
        Self { port, scripts }
    }

    fn store(&self) -> RedisStore {
        RedisStore::cluster([format!("redis://127.0.0.1:{}/", self.port)])
            // A busy machine is slow to connect as well.
            .connect_timeout(Duration::from_secs(5))
            .deadline(Duration::from_secs(5))
            .build()
            .unwrap()
    }

    fn scripts(&self) -> u32 {
        self.scripts.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, port: u16, scripts: &AtomicU32) {
    let mut requests = BufReader::new(stream.try_clone().unwrap());
    while let Ok(Reply::Array(request)) = Reply::read(&mut requests) {
        let reply = match request[0].to_string().as_str() {
            "EVALSHA" | "EVAL" => {
                scripts.fetch_add(1, Ordering::SeqCst);
                return;
            }
            "CLUSTER" => {
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
            }
            "PING" => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn what_may_not_run_twice_is_sent_once() {
    let node = Rude::start();
    let limiter = RateLimiter::new(&node.store(), "{orders}").unwrap();
    let error = limiter.release(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(node.scripts(), 1);

    let node = Rude::start();
    let limiter = RateLimiter::new(&node.store(), "{orders}").unwrap();
    let error = limiter.rename("b{orders}").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(node.scripts(), 1);

    for algorithm in [Algorithm::FixedWindow, Algorithm::Gcra] {
        let node = Rude::start();
        let limiter = RateLimiter::new(&node.store(), "{orders}").unwrap();
        let limiter = limiter.algorithm(algorithm);
        let error = limiter.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(node.scripts(), 1);
    }

    let node = Rude::start();
    let limiter = RateLimiter::new(&node.store(), "{orders}").unwrap();
    let error = limiter.slots(10).unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(node.scripts(), 1);
}

/// A decision's ids make it safe to repeat; and the test shows that the node above would notice a
/// repetition.
#[tokio::test]
async fn a_decision_is_sent_six_times_at_most() {
    let node = Rude::start();
    let limiter = RateLimiter::new(&node.store(), "orders").unwrap();
    let error = limiter.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    println!("sent {} times", node.scripts());
    assert!((2..=6).contains(&node.scripts()), "{}", node.scripts());
}

/// As documented on `cluster_pool`: redis-rs repeats any command, and has no setting for it.
#[tokio::test]
async fn a_pool_repeats_also_what_may_not_run_twice() {
    let node = Rude::start();
    let url = format!("redis://127.0.0.1:{}/", node.port);
    let manager = deadpool_redis::cluster::Manager::new(vec![url], false).unwrap();
    let pool = deadpool_redis::cluster::Pool::builder(manager)
        .build()
        .unwrap();
    let store = RedisStore::cluster_pool(pool)
        .deadline(Duration::from_secs(20))
        .build()
        .unwrap();
    let limiter = RateLimiter::new(&store, "{orders}").unwrap();
    let error = limiter.release(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    println!("sent {} times", node.scripts());
    assert!((2..=17).contains(&node.scripts()), "{}", node.scripts());
}
