//! A burst of new keys on a healthy server is not taken for an outage; a server that hangs is,
//! however many callers ask.

use kit::{
    proxy::Proxy,
    scene::*,
    traffic::{Http, ask_as, behind, grants, service_with},
};
use std::{
    cell::Cell, future::poll_fn, io::Read, io::Write, net::TcpStream, thread, thread::JoinHandle,
};

use super::breaker::state;

const BURST: usize = 20_000;
const DEADLINE: Duration = Duration::from_millis(200);

/// A rule that counts by user.
fn by_user(limit: Limit) -> Rule {
    limit.by(FromHeader::new("x-user")).named(&unique("rule"))
}

/// One request of a user: its status, and who decided.
async fn ask(service: Http, user: usize) -> (usize, StatusCode, Source) {
    let (status, decision) = ask_as(&service, user).await;
    (user, status, decision.source())
}

fn burst(
    service: &Http,
    users: impl Iterator<Item = usize>,
) -> JoinSet<(usize, StatusCode, Source)> {
    users.map(|user| ask(service.clone(), user)).collect()
}

async fn by_redis(service: &Http, user: usize) {
    let decided = async || ask(service.clone(), user).await.2 == Source::Store;
    until("Redis decides", decided).await;
}

async fn warm(store: &RedisStore, service: &Http) {
    by_redis(service, usize::MAX).await;
    assert!(store.health().is_well());
}

/// Returns a store on a healthy server, and a service with this limit for each user.
async fn warmed(store: RedisStoreBuilder, limit: Limit) -> (RedisStore, Http) {
    let store = store.build().unwrap();
    let service = service_with(&store, by_user(limit));
    warm(&store, &service).await;
    (store, service)
}

fn count(answers: &[(usize, StatusCode, Source)], source: Source) -> usize {
    answers.iter().filter(|answer| answer.2 == source).count()
}

/// Asks a server by itself, all the time, and knows how long it was silent at most.
struct Witness(Arc<AtomicBool>, JoinHandle<Duration>);

impl Witness {
    fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                stream.write_all(b"PING\r\n").unwrap();
                stream.read_exact(&mut [0; 7]).unwrap();
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        Self(over, thread)
    }

    fn longest_silence(self) -> Duration {
        self.0.store(true, Ordering::Relaxed);
        self.1.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_new_keys_leaves_the_breaker_closed() {
    let server = RedisServer::start();
    let deadline = 5 * DEADLINE;
    let (store, service) = warmed(hasty(server.url(), deadline), Limit::per_hour(5)).await;
    let witness = Witness::start(&server);
    let began = Instant::now();
    let users = 0..BURST;
    let asked = users.map(|user| {
        let mut asking = Box::pin(ask(service.clone(), user));
        async move {
            if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await {
                return answer;
            }
            // However late the machine is: what was begun before this timer, and ends at the same
            // time at the latest, ends before it.
            tokio::select! {
                biased;
                answer = asking => answer,
                () = tokio::time::sleep(deadline + deadline / 10) => panic!("{user} waits on"),
            }
        }
    });
    let answers = asked.collect::<JoinSet<_>>().join_all().await;
    let took = began.elapsed();
    let here = count(&answers, Source::Local);
    println!("{here} of {BURST} decided in this process, in {took:?}");
    assert_eq!(here + count(&answers, Source::Store), BURST);
    // Each has its own limit, there and here.
    assert!(answers.iter().all(|answer| answer.1 == StatusCode::OK));
    let health = store.health();
    let node = &health.nodes[0];
    let was_open = node.breaker != BreakerState::Closed || node.lasts <= took;
    // On a busy machine the server may not run for about that long; then it is silent, and the open
    // breaker is right.
    let silence = witness.longest_silence();
    println!("the server was silent for {silence:?} at most");
    assert!(!was_open || silence >= deadline / 2, "{node:?}");
    // The next caller is decided for by Redis.
    by_redis(&service, usize::MAX - 1).await;
}

/// A rule that lets all pass does not loosen the other, which has no policy of its own.
#[tokio::test]
async fn by_default_a_process_keeps_the_limit_by_itself() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let kept = || by_user(Limit::per_hour(3));
    let open = Limit::per_hour(2)
        .by(Constant("all"))
        .named(&unique("open"));
    let open = open.on_failure(FailurePolicy::Allow);
    for rules in [vec![kept()], vec![open, kept()]] {
        let service = behind(&layer_of(&store, rules));
        by_redis(&service, 0).await;
        server.kill();
        // More than the rule that lets pass has room for, and each user no more than the other
        // rule has.
        for user in 1..4 {
            for expected in [200, 200, 200, 429] {
                let (_, status, source) = ask(service.clone(), user).await;
                assert_eq!((status.as_u16(), source), (expected, Source::Local));
            }
        }
        server.restart();
        by_redis(&service, 4).await;
    }
}

/// Permits that an abandoned call takes in the end stay taken, because its caller was admitted.
#[tokio::test]
async fn a_request_admitted_here_is_charged_there() {
    const LIMIT: u64 = 20;
    let mut server = RedisServer::start();
    let store = hasty(server.url(), DEADLINE).breaker(0).build().unwrap();
    let rule = by_user(Limit::per_hour(LIMIT));
    let service = service_with(&store, rule.clone());
    warm(&store, &service).await;
    let refusing = by_user(Limit::per_hour(LIMIT)).on_failure(FailurePolicy::Deny);
    let refusing = service_with(&store, refusing);
    warm(&store, &refusing).await;
    server.stop_process();
    for _ in 0..3 {
        let here = ask(service.clone(), 1).await;
        assert_eq!(here, (1, StatusCode::OK, Source::Local));
        let refused = ask(refusing.clone(), 1).await;
        assert_eq!(refused.1, StatusCode::SERVICE_UNAVAILABLE);
    }
    server.resume();
    let left = async |service: &Http| {
        let (_, decision) = ask_as(service, 1).await;
        (decision.source() == Source::Store)
            .then(|| decision.limits().next().unwrap().remaining().unwrap())
    };
    let asked = Cell::new(0);
    until("what was refused is given back", async || {
        // A late answer is the policy's, and takes nothing.
        let Some(left) = left(&refusing).await else {
            return false;
        };
        asked.set(asked.get() + 1);
        left + asked.get() == LIMIT
    })
    .await;
    store.close().await;
    // By a process whose answer is never late: it would be admitted by policy, and charged.
    let calm = service_with(&patient(server.url()).build().unwrap(), rule);
    assert_eq!(left(&calm).await, Some(LIMIT - 3 - 1));
}

/// Their calls are many more than those that find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_left_alone_though_many_ask() {
    for keys in [1, 5_000] {
        let mut server = RedisServer::start();
        let store = hasty(server.url(), DEADLINE);
        let (store, service) = warmed(store, Limit::per_hour(1_000_000)).await;
        server.stop_process();
        let node = || store.health().nodes.remove(0);
        while node().breaker == BreakerState::Closed {
            let failures = node().failures;
            let users = (0..5_000).map(|number| number % keys);
            let answers = burst(&service, users).join_all().await;
            assert_eq!(count(&answers, Source::Local), answers.len());
            // A call fails when its task sees that all its callers have left, which is later.
            until(
                &format!("{keys} keys: the burst is found out"),
                async || {
                    // Callers of one key share calls: on a busy machine they all leave in the
                    // midst of a few, which are fewer failures than open a breaker.
                    let fails = keys == 1 && node().failures > failures;
                    fails || node().breaker != BreakerState::Closed
                },
            )
            .await;
        }
        server.resume();
        warm_again(&store, &service).await;
    }
}

async fn warm_again(store: &RedisStore, service: &Http) {
    until("Redis decides again", || async {
        ask(service.clone(), usize::MAX).await.2 == Source::Store
            && state(store) == BreakerState::Closed
    })
    .await;
}

/// By a fixed window a call goes once: with its connection it is lost, which says nothing of the
/// server.
#[tokio::test]
async fn calls_that_are_lost_with_their_connection_open_no_breaker() {
    let (_server, proxy) = Proxy::and_server();
    let store = patient(proxy.url()).build().unwrap();
    let mut limiters = Vec::new();
    for _ in 0..50 {
        limiters.push(Way::Window.limited(&store, Limit::per_hour(1_000)).await);
    }
    let began = Instant::now();
    let mut lost = 0;
    for _ in 0..5 {
        proxy.freeze();
        let mut calls = JoinSet::new();
        for limiter in &limiters {
            let limiter = limiter.clone();
            calls.spawn(async move { limiter.try_acquire().await.map(drop) });
        }
        settle().await;
        proxy.reset();
        for call in calls.join_all().await {
            match call {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable);
                    assert!(!error.to_string().contains("breaker"), "{error}");
                    lost += 1;
                }
            }
        }
        grants(&limiters[0]).await;
    }
    println!("{lost} calls were lost");
    assert!(lost > 0);
    let health = store.health();
    let node = &health.nodes[0];
    assert_eq!(node.breaker, BreakerState::Closed);
    assert!(node.lasts > began.elapsed());
}
