//! Callers in line for one limiter, and calls that are in flight: on a real Redis, and over a
//! connection that is slow. How many calls they share is counted by `kinds::table`; callers that
//! leave are those of `tests/matrix/leaving.rs`.

use kit::scene::*;
use tower_ratelimit::redis::{Arg, Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};

/// Its turn by what is known would come in an hour. Another process makes room.
#[tokio::test]
async fn a_waiter_learns_within_a_deny_cache_what_another_process_has_changed() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| {
        let store = patient(server.url()).deny_cache(millis(100));
        store.build().unwrap()
    });
    for change in [
        "raises",
        "gives back",
        "releases",
        "deletes",
        "waits for less",
    ] {
        let limiter = limited(&here, Limit::per_hour(1)).await;
        let other = RateLimiter::new(&there, limiter.name()).unwrap();
        let grant = take(&other, 1).await;
        let mut waiting = pin!(limiter.acquire());
        begin(waiting.as_mut()).await;
        until("it has asked", async || {
            limiter.available_permits().await.unwrap() == 0
        })
        .await;
        match change {
            "raises" => other.set_rate(Limit::per_hour(2)).await.unwrap(),
            "gives back" => other.give_back(&grant),
            "releases" => assert_eq!(other.release(1).await.unwrap(), 1),
            "deletes" => assert!(other.delete().await.unwrap()),
            _ => other.set_rate(Limit::new(1, millis(200))).await.unwrap(),
        }
        let served = tokio::time::timeout(LONG, waiting).await;
        let served = served.unwrap_or_else(|_| panic!("it sleeps on: {change}"));
        match change {
            "deletes" => drop(fails(served, ErrorKind::NotInitialized)),
            _ => drop(served.unwrap()),
        }
    }
}

/// Each caller chooses whether the permits left are counted.
#[tokio::test]
async fn one_that_wants_exact_numbers_gets_them_behind_one_that_does_not() {
    let (mut server, clock) = (RedisServer::start(), ManualClock::new());
    let store = by_clock(&server, &clock).deny_cache(Duration::ZERO);
    let store = store.build().unwrap();
    let limiter = limited(&store, Limit::per_second(10)).await;
    let rule = Rule::shared(limiter.name());
    let layer = RateLimitLayer::builder(&store).otherwise(rule);
    let layer = layer.count_remaining(false).build().unwrap();
    for (takes, then) in [(5, 500), (4, 600)] {
        for _ in 0..takes {
            limiter.try_acquire().await.unwrap().assert_allowed();
        }
        clock.advance(Duration::from_millis(then));
    }
    // Five have expired, and one was free.
    server.stop_process();
    let requests = [(); 2].map(|()| {
        let layer = layer.clone();
        tokio::spawn(async move { decide(&layer, Request::new(())).await })
    });
    settle().await;
    let mut counting = pin!(limiter.try_acquire());
    begin(counting.as_mut()).await;
    server.resume();
    let remaining = |decision: &Decision| decision.limits().next().unwrap().remaining();
    for request in requests {
        assert_eq!(remaining(&request.await.unwrap()), None);
    }
    assert_eq!(remaining(&counting.await.unwrap()), Some(3));
}

/// What it is asked to send, in order. It never answers a call, and while it sends the second one,
/// another command may overtake it.
#[derive(Clone, Default)]
struct Slow {
    sent: Arc<Mutex<Vec<&'static str>>>,
    is_sending: Arc<AtomicBool>,
}

impl Slow {
    fn count(&self) -> usize {
        self.sent.lock().unwrap().len()
    }
}

impl ConnectionLike for Slow {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut words = command.args_iter();
        // Where others have the number of their rows.
        let settles = words.any(|word| match word {
            Arg::Simple(bytes) => bytes.get(14) == Some(&255),
            _ => false,
        });
        Box::pin(async move {
            if settles {
                self.sent.lock().unwrap().push("settlement");
                return Ok(Value::Int(1));
            }
            if self.count() == 1 {
                self.is_sending.store(true, Ordering::SeqCst);
                let began = Instant::now();
                // The thread, as no other task of it is polled either while a call is sent.
                while self.count() == 1 && began.elapsed() < Duration::from_millis(200) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            self.sent.lock().unwrap().push("call");
            std::future::pending().await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(std::future::pending())
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// A caller leaves when a task has its call, and has not sent it yet: what gives back may overtake
/// the call, and comes once more after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gives_back_comes_after_its_call() {
    let connection = Slow::default();
    let store = patiently(RedisStore::connection(connection.clone()));
    let store = store.build().unwrap();
    let orders = Limit::per_hour(9).named("orders").keyed(&store).unwrap();
    let limiter = || orders.of(unique("a"));
    let (first, leaving) = (limiter(), limiter());
    let first = tokio::spawn(async move { first.try_acquire().await });
    until("the first is sent", async || connection.count() == 1).await;
    let mut leaving = Box::pin(leaving.try_acquire());
    begin(leaving.as_mut()).await;
    let is_sending = async || connection.is_sending.load(Ordering::SeqCst);
    until("the second is taken", is_sending).await;
    drop(leaving);
    let is_given_back = async || {
        let sent = connection.sent.lock().unwrap();
        let mut calls = sent.iter().enumerate().filter(|(_, it)| **it == "call");
        let second = calls.nth(1);
        second.is_some_and(|(at, _)| sent[at..].contains(&"settlement"))
    };
    until("it is given back", is_given_back).await;
    first.abort();
}
