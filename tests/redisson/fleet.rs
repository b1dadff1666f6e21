//! Processes in both languages saturate one limit, each by its own clock; what happened is read
//! from MONITOR.

use std::{
    fmt,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::Connection;
use tokio::runtime::Builder;
use tower_ratelimit::{Limit, RateLimiter, RedisStore, SystemClock};

use super::{
    feed::{Feed, Seen},
    model::{self, Caller, Generation, Reply, State},
    oracle::{self, JavaClock, Oracle, Request},
    ours::Ask,
    raw,
    support::{RedisServer, unique},
    worker::Worker,
};

/// Threads of one Java process.
const THREADS: i64 = 4;

/// One call as the server executed it.
#[derive(Debug)]
struct Call {
    /// Microseconds since the epoch, by the server
    arrived: i64,
    java: bool,
    /// What the caller stamped it with; `None` where the server's clock counts
    now: Option<i64>,
    asks: Vec<Ask>,
    /// Score and member of what was granted
    granted: Vec<(i64, Vec<u8>)>,
}

/// Permits that were granted together.
#[derive(Clone, Copy, Debug)]
struct Grant {
    arrived: i64,
    /// The score, in microseconds
    stamp: i64,
    permits: i64,
    java: bool,
}

/// What a run came to.
#[derive(Debug, Default)]
struct Figures {
    calls: usize,
    /// Grants and permits, of Java and of Rust
    granted: [(usize, i64); 2],
    /// Longest time from stamp to arrival, microseconds, of Java and of Rust
    lag: [i64; 2],
    /// Permits of the fullest window of the whole interval
    fullest: i64,
    /// Windows of the whole interval with more than the rate
    over: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(java, java_permits), (rust, rust_permits)] = self.granted;
        write!(
            f,
            "{} calls; Java {java} grants of {java_permits}, Rust {rust} of {rust_permits}; latest arrival after its \
             stamp: Java {:.1} ms, Rust {:.1} ms; fullest whole interval {}, {} over",
            self.calls,
            self.lag[0] as f64 / 1000.0,
            self.lag[1] as f64 / 1000.0,
            self.fullest,
            self.over,
        )
    }
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Members {
    Mixed,
    JavaOnly,
    /// By the server's clock
    RustOnly,
}

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

    /// Saturates a fresh limit, replays what happened, and counts.
    fn run(&mut self, members: Members, rate: i64, interval: i64, time: Duration) -> Figures {
        let name = unique("fleet");
        let limit = model::Limit {
            rate,
            interval,
            keep_alive: Some(0),
            ..model::Limit::default()
        };
        let mut hash = redis::cmd("HSET");
        hash.arg(&name)
            .arg("rate")
            .arg(rate)
            .arg("interval")
            .arg(interval);
        hash.arg("keepAliveTime")
            .arg(0)
            .arg("type")
            .arg(0)
            .exec(&mut self.connection)
            .unwrap();
        let seen = watch(Feed::open(&self.server), &name);

        let until = now() + time.as_millis() as i64;
        let mut rust = Vec::new();
        if members != Members::JavaOnly {
            let server_clock = members == Members::RustOnly;
            rust.extend(
                [0, 1].map(|_| Worker::start(&self.server.url(), &name, until, server_clock)),
            );
        }
        let java: &mut [Oracle] = if members == Members::RustOnly {
            &mut []
        } else {
            &mut self.java
        };
        for (permits, oracle) in (1..).zip(java.iter_mut()) {
            let request = Request::new("saturate")
                .text("name", &name)
                .number("n", permits);
            oracle.send(&request.number("threads", THREADS).number("until", until));
        }
        for oracle in java {
            let counted = oracle.answer(time + Duration::from_secs(30));
            counted.unwrap_or_else(|thrown| panic!("Redisson threw in a fleet: {thrown}"));
        }
        for worker in rust {
            assert!(worker.calls() > 0, "a Rust process asked for nothing");
        }
        redis::cmd("ECHO")
            .arg(&name)
            .exec(&mut self.connection)
            .unwrap();
        let calls = seen
            .recv_timeout(Duration::from_secs(60))
            .expect("MONITOR shows the mark");

        if members != Members::RustOnly {
            let mut state = State {
                limit: Some(limit),
                ..State::default()
            };
            replay(&mut state, &calls, Generation::of(&self.java[0].version));
            let found = raw::state(&mut self.connection, &name, &[String::new()]).unwrap();
            raw::compare(&mut state, &found).expect("the replay leaves what the fleet has left");
        }
        let figures = count(&calls, rate, interval);
        if members != Members::RustOnly {
            // A permit is free again an interval after its stamp, and so at the earliest an
            // interval less this after it arrived. With the server's clock there is no such time.
            let late = figures.lag.into_iter().max().unwrap();
            let grants = grants(&calls);
            let arrivals = grants.iter().map(|grant| (grant.arrived, grant.permits));
            let fullest = windows(arrivals, interval * 1000 - late).into_iter().max();
            assert!(
                fullest.unwrap_or(0) <= rate,
                "{fullest:?} in an interval less {late} us; {figures}"
            );
        }
        println!("{members:?}, {rate} in {interval} ms: {figures}");
        figures
    }
}

/// Every decision, in the order in which the server made it and with the time that it was made by,
/// is the model's.
fn replay(state: &mut State, calls: &[Call], generation: Generation) {
    for (number, call) in calls.iter().enumerate() {
        let now = call.now.expect("stamped by its caller");
        let granted: Vec<bool> = if call.java {
            let [(permits, member)] = &*call.asks else {
                panic!("Java asks for one")
            };
            let caller = Caller {
                client: String::new(),
                now,
                member: member.clone(),
            };
            match state.java_acquire(generation, &caller, *permits).reply {
                Reply::Granted => vec![true],
                Reply::Denied => vec![false],
                other => panic!("call {number} of a fleet: {other:?}"),
            }
        } else {
            state.our_call("", now, &call.asks)
        };
        let real: Vec<bool> = call
            .asks
            .iter()
            .map(|(_, member)| {
                call.granted
                    .iter()
                    .any(|(_, granted)| Some(granted) == member.as_ref())
            })
            .collect();
        assert_eq!(
            granted, real,
            "call {number} of a fleet: the model's decisions and the server's; {call:?}"
        );
    }
}

fn count(calls: &[Call], rate: i64, interval: i64) -> Figures {
    let grants = grants(calls);
    let mut figures = Figures {
        calls: calls.len(),
        ..Figures::default()
    };
    for grant in &grants {
        let side = usize::from(!grant.java);
        figures.granted[side].0 += 1;
        figures.granted[side].1 += grant.permits;
        figures.lag[side] = figures.lag[side].max(grant.arrived - grant.stamp);
    }
    // Where the server stamps, its own milliseconds are what an interval is counted in.
    let by_server = calls.iter().any(|call| call.now.is_none());
    let times = grants.iter().map(|grant| {
        (
            if by_server {
                grant.stamp
            } else {
                grant.arrived
            },
            grant.permits,
        )
    });
    let windows = windows(times, interval * 1000);
    figures.fullest = windows.iter().copied().max().unwrap_or(0);
    figures.over = windows.iter().filter(|permits| **permits > rate).count();
    figures
}

fn grants(calls: &[Call]) -> Vec<Grant> {
    let grants = calls.iter().flat_map(|call| {
        call.granted.iter().map(|(score, member)| Grant {
            arrived: call.arrived,
            stamp: score * 1000,
            permits: i64::from(u32::from_le_bytes(member[17..].try_into().unwrap())),
            java: call.java,
        })
    });
    grants.collect()
}

/// The permits in the window that begins with each grant; the times in order.
fn windows(grants: impl Iterator<Item = (i64, i64)>, length: i64) -> Vec<i64> {
    let grants: Vec<_> = grants.collect();
    let (mut end, mut within) = (0, 0);
    let mut windows = Vec::new();
    for &(begin, permits) in &grants {
        while let Some(&(_, more)) = grants.get(end).filter(|(at, _)| at - begin < length) {
            within += more;
            end += 1;
        }
        windows.push(within);
        within -= permits;
    }
    windows
}

/// Gathers the calls on a name until a mark of that name.
fn watch(mut feed: Feed, name: &str) -> Receiver<Vec<Call>> {
    let (sender, receiver) = channel();
    let name = name.to_owned();
    thread::spawn(move || {
        let mut calls: Vec<Call> = Vec::new();
        // A call that has begun, and whether its script has run: a server that does not know it yet
        // does nothing.
        let mut current: Option<(Call, bool)> = None;
        loop {
            let seen = feed.next();
            if seen.by_script {
                if let Some((call, ran)) = &mut current {
                    *ran = true;
                    if seen.words[0].eq_ignore_ascii_case("ZADD") {
                        grant(call, &seen);
                    }
                }
                continue;
            }
            calls.extend(current.take().filter(|(_, ran)| *ran).map(|(call, _)| call));
            if seen.words == ["ECHO", &name] {
                // Fails only if the test has failed.
                let _ = sender.send(calls);
                return;
            }
            if seen.is_script() && seen.words[3] == name {
                current = Some((call(&seen), false));
            }
        }
    });
    receiver
}

fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// EVALSHA, hash, the number of keys, the keys, and then: Java permits, time, random bytes; ours
/// time, exact, source, four fields of a limit, and either the permits of each caller and their
/// members, or for each caller waits, permits, member, shadow.
fn call(seen: &Seen) -> Call {
    let arguments = seen.arguments();
    let rest = &arguments[3 + number(&arguments[2]).unwrap() as usize..];
    let java = rest.len() == 3;
    let (now, asks) = if java {
        let permits = number(&rest[0]).unwrap();
        let member = [&[16], &rest[2][..], &(permits as u32).to_le_bytes()].concat();
        (number(&rest[1]), vec![(permits, Some(member))])
    } else if let [now, .., permits, members] = rest
        && rest.len() == 9
    {
        let permits = number(permits).unwrap();
        let asks = members
            .chunks(21)
            .map(|member| (permits, Some(member.to_vec())));
        (number(now), asks.collect())
    } else {
        let callers = rest[7..].chunks(4);
        let asks = callers.map(|caller| (number(&caller[1]).unwrap(), Some(caller[2].clone())));
        (number(&rest[0]), asks.collect())
    };
    Call {
        arrived: seen.micros,
        java,
        now,
        asks,
        granted: Vec::new(),
    }
}

fn grant(call: &mut Call, seen: &Seen) {
    // Java: key, score, member; ours has NX before the scores, and XX where it repairs.
    let arguments = seen.arguments();
    let flag = usize::from(number(&arguments[2]).is_none());
    for entry in arguments[2 + flag..].chunks(2) {
        let (score, member) = (&entry[0], &entry[1]);
        let mut asks = call.asks.iter();
        if asks.any(|(_, asked)| asked.as_ref() == Some(member)) {
            call.granted.push((number(score).unwrap(), member.clone()));
        }
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
    let seconds = super::setting("TOWER_RATELIMIT_FLEET_SECONDS", 20);
    Duration::from_secs(seconds).mul_f64(part / RATES.len() as f64)
}

#[test]
fn a_mixed_fleet_shares_a_limit() {
    let versions = oracle::versions();
    let mut fleet = Fleet::new(&versions);
    for (rate, interval) in RATES {
        let alone = fleet.run(Members::JavaOnly, rate, interval, share(0.3));
        let mixed = fleet.run(Members::Mixed, rate, interval, share(0.5));
        let excess = |figures: &Figures| (figures.fullest - rate).max(0);
        println!(
            "  most beyond the rate in a whole interval: {} mixed, {} with Java alone",
            excess(&mixed),
            excess(&alone)
        );
    }
}

#[test]
fn a_rust_fleet_by_the_servers_clock_is_never_over() {
    let mut fleet = Fleet::new(&oracle::versions());
    for (rate, interval) in RATES {
        let figures = fleet.run(Members::RustOnly, rate, interval, share(0.2));
        assert!(figures.granted[1].1 > rate, "the limit was not saturated");
        assert_eq!(figures.over, 0, "windows over the limit");
    }
}

/// Real timers: what one side has taken, the other waits for.
#[test]
fn each_waits_for_the_other() {
    const INTERVAL: i64 = 400;
    let server = RedisServer::start();
    let mut java = Oracle::start(&oracle::versions()[0], server.port(), JavaClock::System);
    let store = RedisStore::builder(server.url())
        .client_clock(SystemClock)
        .deadline(Duration::from_secs(20))
        // Every refusal is to be the script's.
        .deny_cache(Duration::ZERO)
        .build()
        .unwrap();
    let name = unique("wait");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let request = |op: &str| Request::new(op).text("name", &name).number("n", 2);

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
    assert!(runtime.block_on(limiter.try_set_rate(limit)).unwrap());
    let decision = runtime.block_on(limiter.try_acquire_many(2)).unwrap();
    assert!(decision.is_allowed());
    let first = taken();

    let hurried = java.ask(&request("tryAcquireFor").number("timeout", 20));
    assert_eq!(hurried.unwrap(), "false");
    java.ask(&request("acquire")).unwrap();
    let second = taken();
    assert!(
        second - first >= INTERVAL,
        "Java after {} ms",
        second - first
    );

    let hurried = limiter.try_acquire_for(2, Duration::from_millis(20));
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
    let store = RedisStore::builder(server.url())
        .client_clock(SystemClock)
        .deadline(Duration::from_secs(20))
        .build()
        .unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
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
            let answer = java.answer(TIMEOUT + Duration::from_secs(30)).unwrap();
            let java: i64 = answer.split(' ').nth(1).unwrap().parse().unwrap();
            println!("{rate} in {interval} ms, yields {yields}: Java {java}, Rust {rust}");
            if yields {
                assert!(4 * java >= java + rust, "Java is left too little");
                assert!(4 * rust >= java + rust, "Rust is left too little");
            }
        }
    }
}

#[test]
fn windows_begin_with_each_grant() {
    let grants = [(0, 1), (5, 2), (10, 4), (11, 8)];
    assert_eq!(windows(grants.into_iter(), 10), [3, 14, 12, 8]);
    assert_eq!(windows(grants.into_iter(), 11), [7, 14, 12, 8]);
}
