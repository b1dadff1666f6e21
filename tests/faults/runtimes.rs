//! Runtimes that end, stand still, or are not there at all.

use crate::scene::*;

use super::{
    proxy::Proxy,
    wait::{LONG, begin, until},
};

const LIMIT: Limit = Limit::per_hour(20);

fn patient(url: String) -> RedisStore {
    crate::scene::patient(url).build().unwrap()
}

/// Drives a future as a thread without tokio does.
fn without_runtime<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let deadline = Instant::now() + LONG;
    loop {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return output;
        }
        assert!(Instant::now() < deadline, "pending for ever");
        thread::yield_now();
    }
}

#[test]
fn a_store_outlives_its_runtime() {
    let server = RedisServer::start();
    let store = patient(server.url());
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    let first = runtime();
    first.block_on(async {
        assert!(limiter.try_set_rate(LIMIT).await.unwrap());
        assert!(limiter.try_acquire().await.unwrap().is_allowed());
        give_back(&limiter, 19).await;
    });
    drop(first);

    let second = runtime();
    second.block_on(async {
        for _ in 0..3 {
            assert!(limiter.try_acquire().await.unwrap().is_allowed());
        }
        // The task that gave back has ended with the first runtime.
        give_back(&limiter, 16).await;
    });
}

/// Drops a call that takes permits, and waits until only `left` are free.
async fn give_back(limiter: &RateLimiter, left: u64) {
    {
        let mut call = pin!(limiter.try_acquire_many(2));
        begin(call.as_mut()).await;
    }
    until("what the dropped call took is free again", || async {
        limiter.available_permits().await.ok() == Some(left)
    })
    .await;
}

#[test]
fn a_runtime_that_stands_still_blocks_no_other() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = RedisStore::builder(proxy.url())
        .deadline(Duration::from_millis(500))
        .connect_timeout(Duration::from_millis(300))
        .response_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();

    // Its attempt to connect has begun and will not go on.
    let idle = runtime();
    idle.block_on(async {
        let mut call = pin!(limiter.try_set_rate(LIMIT));
        std::future::poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    });

    runtime().block_on(until("the limit is set", || async {
        let setting = tokio::time::timeout(Duration::from_secs(1), limiter.try_set_rate(LIMIT));
        matches!(setting.await, Ok(Ok(true)))
    }));
    // Now a connection whose runtime is not driven.
    let other = runtime();
    other.block_on(until("it decides", || async {
        limiter
            .try_acquire()
            .await
            .is_ok_and(|decision| decision.is_allowed())
    }));
    drop(idle);
}

#[test]
fn no_runtime_is_an_error() {
    let server = RedisServer::start();
    let store = patient(server.url());
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    let fails = || {
        without_runtime(store.ping()).unwrap_err();
        without_runtime(limiter.try_acquire()).unwrap_err();
        without_runtime(limiter.try_set_rate(LIMIT)).unwrap_err();
        without_runtime(limiter.limit()).unwrap_err();
        without_runtime(limiter.available_permits()).unwrap_err();
    };
    fails();
    let runtime = runtime();
    runtime.block_on(async { assert!(limiter.try_set_rate(LIMIT).await.unwrap()) });
    // Also where a connection was made on a runtime, and that still lives.
    fails();
    runtime.block_on(async { assert!(limiter.try_acquire().await.unwrap().is_allowed()) });
    drop(runtime);
    fails();
}
