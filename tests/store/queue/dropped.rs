//! Dropped callers, and the permits of their calls: disconnecting is not free, and a `RateLimiter`
//! gives back.

use tower_ratelimit::redis::{Arg, Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};

use super::*;

const RATE: u64 = 80;

type Asking = Pin<Box<dyn Future<Output = bool>>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Request,
    Limiter,
}

/// Both stand in the same queue: they go by the stored limit of one name.
struct OneQueue {
    server: RedisServer,
    store: RedisStore,
    limiter: RateLimiter,
    layer: RateLimitLayer,
}

impl OneQueue {
    async fn new() -> Self {
        let server = RedisServer::start();
        let store = patient(&server).build().unwrap();
        let limiter = limited(&store, Limit::per_hour(RATE)).await;
        let layer = RateLimitLayer::new(&store, Rule::shared(limiter.name()));
        let mut world = Self {
            server,
            store,
            limiter,
            layer,
        };
        // The server learns the scripts.
        let limiter = world.limiter.clone();
        let ask = || {
            let limiter = limiter.clone();
            async move { limiter.try_acquire().await.unwrap() }
        };
        crowd(&mut world.server, ask).await;
        world.start_over().await;
        world
    }

    async fn start_over(&self) {
        self.limiter.set_rate(Limit::per_hour(RATE)).await.unwrap();
    }

    fn asking(&self, kind: Kind) -> Asking {
        let (limiter, layer) = (self.limiter.clone(), self.layer.clone());
        match kind {
            Kind::Limiter => {
                Box::pin(async move { limiter.try_acquire().await.unwrap().is_allowed() })
            }
            Kind::Request => Box::pin(async move { ask(layer).await.0 == StatusCode::OK }),
        }
    }

    /// Returns the permits in use when all releases have arrived.
    async fn in_use(&self) -> u64 {
        self.store.close().await;
        RATE - self.limiter.available_permits().await.unwrap()
    }
}

#[tokio::test]
async fn before_its_call_was_sent_it_is_not_charged() {
    let mut world = OneQueue::new().await;
    for kind in [Kind::Request, Kind::Limiter] {
        world.start_over().await;
        world.server.stop_process();
        let mut asking = [Kind::Limiter, kind, Kind::Request].map(|kind| world.asking(kind));
        for asking in &mut asking {
            begin(asking.as_mut()).await;
        }
        let [first, dropped, last] = asking;
        drop(dropped);
        world.server.resume();
        assert!(first.await && last.await);
        assert_eq!(world.in_use().await, 2, "{kind:?}");
    }
}

#[tokio::test]
async fn while_its_own_call_is_in_flight_a_request_stays_charged() {
    let mut world = OneQueue::new().await;
    for (kind, charged) in [(Kind::Request, 1), (Kind::Limiter, 0)] {
        world.start_over().await;
        world.server.stop_process();
        let mut asking = world.asking(kind);
        begin(asking.as_mut()).await;
        drop(asking);
        world.server.resume();
        assert_eq!(world.in_use().await, charged, "{kind:?}");
    }
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
