//! Processes in both languages saturate one limit, each by its own clock; what happened is read
//! from MONITOR.

mod calls;

use std::time::{SystemTime, UNIX_EPOCH};

use redis::Connection;

use calls::{Figures, watch};

use super::{
    oracle::{self, JavaClock, Oracle, Request, TIME_LIMIT},
    raw, worker,
};
use kit::{
    monitor::Feed,
    random::setting,
    scene::{Duration, Limit, RateLimiter, RedisServer, SystemClock, patient, runtime, unique},
};

/// Threads of one Java process.
const THREADS: i64 = 4;

/// What all runs share.
struct Fleet {
    server: RedisServer,
    connection: Connection,
    java: Vec<Oracle>,
}

impl Fleet {
    fn new(versions: &[String]) -> Self {
        let server = RedisServer::start();
        // Two processes; of two versions where there are two.
        let versions = [versions.first().unwrap(), versions.last().unwrap()];
        let java = versions.map(|version| Oracle::start(version, server.port(), JavaClock::System));
        Self {
            connection: raw::connect(&server.url()),
            server,
            java: java.into(),
        }
    }

    /// Saturates a fresh limit, by Java alone or by both, and counts what happened.
    fn run(&mut self, is_mixed: bool, rate: i64, interval: i64, time: Duration) {
        let name = unique("fleet");
        let fields = [
            ("rate", rate),
            ("interval", interval),
            ("keepAliveTime", 0),
            ("type", 0),
        ];
        let mut hash = redis::cmd("HSET");
        hash.arg(&name).arg(&fields);
        hash.exec(&mut self.connection).unwrap();
        let seen = watch(Feed::open(&self.server), &name);

        let until = now() + time.as_millis() as i64;
        let rust = 0..if is_mixed { 2 } else { 0 };
        let rust: Vec<_> = rust
            .map(|_| worker::start(&self.server.url(), &name, until))
            .collect();
        for (permits, oracle) in (1..).zip(&mut self.java) {
            let request = Request::new("saturate")
                .text("name", &name)
                .number("n", permits);
            oracle.send(&request.number("threads", THREADS).number("until", until));
        }
        for oracle in &mut self.java {
            let counted = oracle.answer(time + TIME_LIMIT);
            counted.unwrap_or_else(|thrown| panic!("Redisson threw in a fleet: {thrown}"));
        }
        for worker in rust {
            assert!(worker.result() > 0, "a Rust process asked for nothing");
        }
        self.server.cli(&["ECHO", &name]);
        let seen = seen.recv_timeout(TIME_LIMIT);
        let seen = seen.expect("MONITOR shows the mark");

        let figures = Figures::of(&seen, interval);
        // A permit is free again an interval after its stamp, and so at the earliest an interval
        // less this after it arrived.
        let late = figures.lag.into_iter().max().unwrap();
        let fullest = seen.fullest(interval * 1000 - late);
        assert!(
            fullest <= rate,
            "{fullest} in an interval less {late} us; {figures}"
        );
        let left = raw::state(&mut self.connection, &name, &[String::new()]).unwrap();
        let pair = &left.pairs[""];
        let books = pair.value.map(|value| value + pair.sum());
        assert_eq!(books, Some(rate), "what is left and what is in use");
        let who = if is_mixed { "mixed" } else { "Java alone" };
        println!("{who}, {rate} in {interval} ms: {figures}");
    }
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64
}

/// Permits and milliseconds.
const RATES: [(i64, i64); 3] = [(10, 200), (100, 500), (1000, 1000)];

/// The part of the fleet's time that one run gets.
fn share(part: f64) -> Duration {
    let seconds = setting("TOWER_RATELIMIT_FLEET_SECONDS", 20);
    Duration::from_secs(seconds).mul_f64(part / RATES.len() as f64)
}

#[test]
fn a_mixed_fleet_shares_a_limit() {
    let versions = oracle::versions();
    let mut fleet = Fleet::new(&versions);
    for (rate, interval) in RATES {
        fleet.run(false, rate, interval, share(0.3));
        fleet.run(true, rate, interval, share(0.5));
    }
}

/// Real timers: what one side has taken, the other waits for.
#[test]
fn each_waits_for_the_other() {
    const INTERVAL: i64 = 400;
    let server = RedisServer::start();
    let mut java = Oracle::start(&oracle::versions()[0], server.port(), JavaClock::System);
    let store = patient(server.url()).client_clock(SystemClock);
    // Every refusal is to be the script's.
    let store = store.deny_cache(Duration::ZERO).build().unwrap();
    let (name, spent) = (unique("wait"), unique("spent"));
    let [limiter, spent] = [&name, &spent].map(|name| RateLimiter::new(&store, name).unwrap());
    let runtime = runtime();
    let request = |op: &str, of: &RateLimiter| {
        let request = Request::new(op).text("name", of.name());
        request.number("n", 2)
    };

    let mut connection = raw::connect(&server.url());
    // When the permits that are in use were taken.
    let mut taken = || {
        let state = raw::state(&mut connection, &name, &[String::new()]).unwrap();
        state.pairs[""]
            .log
            .last()
            .expect("permits are in use")
            .score
    };

    let limit = Limit::new(2, Duration::from_millis(INTERVAL as u64));
    // Who is in a hurry is refused; of that one nothing comes free meanwhile.
    for (limiter, limit) in [(&spent, Limit::per_hour(2)), (&limiter, limit)] {
        assert!(runtime.block_on(limiter.try_set_rate(limit)).unwrap());
        let decision = runtime.block_on(limiter.try_acquire_many(2)).unwrap();
        assert!(decision.is_allowed());
    }
    let first = taken();

    let hurried = java.ask(&request("tryAcquireFor", &spent).number("timeout", 20));
    assert_eq!(hurried.unwrap(), "false");
    java.ask(&request("acquire", &limiter)).unwrap();
    let second = taken();
    assert!(
        second - first >= INTERVAL,
        "Java after {} ms",
        second - first
    );

    let hurried = spent.try_acquire_for(2, Duration::from_millis(20));
    assert!(!runtime.block_on(hurried).unwrap().is_allowed());
    runtime.block_on(limiter.acquire_many(2)).unwrap();
    let third = taken();
    assert!(
        third - second >= INTERVAL,
        "Rust after {} ms",
        third - second
    );
}

/// Waiters that come back to the millisecond leave little to Redisson's, whose timer ticks.
#[test]
fn those_that_yield_leave_java_its_share() {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let server = RedisServer::start();
    let mut java = Oracle::start(&oracle::versions()[0], server.port(), JavaClock::System);
    let store = patient(server.url()).client_clock(SystemClock);
    let (store, runtime) = (store.build().unwrap(), runtime());
    for (rate, interval) in [(10, 1000), (100, 500)] {
        for yields in [false, true] {
            let name = unique("yield");
            let limiter = RateLimiter::new(&store, &name).unwrap();
            let limiter = if yields {
                limiter.yield_to_others()
            } else {
                limiter
            };
            let limit = Limit::new(rate, Duration::from_millis(interval));
            runtime.block_on(limiter.set_rate(limit)).unwrap();
            // Half a minute: one side may have all that becomes free at the same time.
            let time = share(if yields { 4.5 } else { 0.6 });
            let until = now() + time.as_millis() as i64;
            let request = Request::new("saturate").text("name", &name).number("n", 1);
            let request = request.number("timeout", TIMEOUT.as_millis() as i64);
            java.send(&request.number("threads", THREADS).number("until", until));
            let waiting = (0..THREADS).map(|_| {
                let limiter = limiter.clone();
                async move {
                    let mut granted = 0;
                    while now() < until {
                        let decision = limiter.try_acquire_for(1, TIMEOUT).await;
                        granted += i64::from(decision.unwrap().is_allowed());
                    }
                    granted
                }
            });
            let waiting = waiting.collect::<Vec<_>>();
            let rust: i64 = runtime.block_on(async {
                let waiting: tokio::task::JoinSet<_> = waiting.into_iter().collect();
                waiting.join_all().await.into_iter().sum()
            });
            let answer = java.answer(TIMEOUT + TIME_LIMIT).unwrap();
            let java: i64 = answer.split(' ').nth(1).unwrap().parse().unwrap();
            println!("{rate} in {interval} ms, yields {yields}: Java {java}, Rust {rust}");
            if yields {
                // Of hundreds a second Java takes most: its threads share what Rust's turn leaves.
                assert!(4 * java >= java + rust, "Java is left too little");
                assert!(10 * rust >= java + rust, "Rust is left too little");
            }
        }
    }
}
