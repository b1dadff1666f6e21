//! What a decision costs Redis, by its own account: microseconds in EVALSHA, beside a script that does nothing.

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::task::JoinSet;
use tower_ratelimit::{
    Limit, RateLimitLayer, RateLimiter, RedisStore, SystemClock, key::Header, redis,
};

use super::requests::{decided, passes, users};
use crate::support::RedisServer;

const ROUNDS: usize = 31;
const CALLS: usize = 4000;
const IN_FLIGHT: usize = 16;
const KEYS: usize = 100;

/// Each key is asked often enough to have a log, and seldom enough that this is one of many.
const ADMITTING: Limit = Limit::per_second(1 << 40);
const REFUSING: Limit = Limit::per_day(1);

/// One kind of call.
#[derive(Clone)]
enum Kind {
    /// `return 1`, with as many keys and arguments as a layer's decision
    Nothing(redis::aio::MultiplexedConnection, Arc<str>),
    Layer(RateLimitLayer),
    Limiters(Arc<[RateLimiter]>),
}

/// Prints the median of many rounds, in each of which every kind had its turn: what else the machine does meets all alike.
pub(crate) fn print_table() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = RedisServer::start();
    let mut measured = runtime.block_on(measure(&server));

    let base = median(&mut measured[0].1.clone());
    println!("\nMicroseconds of Redis per EVALSHA, median of {ROUNDS} rounds of {CALLS} calls\n");
    println!("| call | µs | of `return 1` |");
    println!("|---|---:|---:|");
    for (name, costs) in &mut measured {
        let cost = median(costs);
        println!("| {name} | {cost:.2} | {:.2} |", cost / base);
    }
}

async fn measure(server: &RedisServer) -> Vec<(&'static str, Vec<f64>)> {
    let users: Arc<[HeaderValue]> = users(KEYS).into();
    let kinds = kinds(server, &users).await;
    let mut measured: Vec<_> = kinds.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for round in 0..ROUNDS + 2 {
        for ((_, kind), (_, costs)) in kinds.iter().zip(&mut measured) {
            server.cli(&["CONFIG", "RESETSTAT"]);
            run(kind, &users).await;
            let cost = cost(server);
            // The first make the keys, and take what refusals need taken.
            if round >= 2 {
                costs.push(cost);
            }
        }
    }
    measured
}

async fn kinds(server: &RedisServer, users: &[HeaderValue]) -> Vec<(&'static str, Kind)> {
    let client = redis::Client::open(server.url()).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    let hash = server.cli(&["SCRIPT", "LOAD", "return 1"]);
    let layer = |name: &str, limit: Limit, remaining, client_clock| {
        let mut store = patient(server);
        if client_clock {
            store = store.client_clock(SystemClock);
        }
        let layer = RateLimitLayer::builder(&store)
            .otherwise(limit.by(Header::new("x-user")).named(name))
            .count_remaining(remaining)
            .build();
        Kind::Layer(layer.unwrap())
    };
    vec![
        ("`return 1`", Kind::Nothing(connection, hash.into())),
        ("layer, admitted", layer("a", ADMITTING, true, false)),
        (
            "layer, admitted, `count_remaining(false)`",
            layer("b", ADMITTING, false, false),
        ),
        (
            "layer, admitted, client clock",
            layer("c", ADMITTING, true, true),
        ),
        ("layer, refused", layer("d", REFUSING, true, false)),
        (
            "layer, refused, client clock",
            layer("e", REFUSING, true, true),
        ),
        (
            "`RateLimiter`, admitted",
            limiters(server, users, "f", ADMITTING).await,
        ),
        (
            "`RateLimiter`, refused",
            limiters(server, users, "g", REFUSING).await,
        ),
    ]
}

async fn limiters(server: &RedisServer, users: &[HeaderValue], name: &str, limit: Limit) -> Kind {
    let store = patient(server);
    let mut limiters = Vec::new();
    for user in users {
        // As long as a layer's.
        let name = format!("ratelimit:{{{}}}:{name}", user.to_str().unwrap());
        let limiter = RateLimiter::new(&store, &name).unwrap();
        assert!(limiter.try_set_rate(limit).await.unwrap());
        limiters.push(limiter);
    }
    Kind::Limiters(limiters.into())
}

fn patient(server: &RedisServer) -> RedisStore {
    RedisStore::open(server.url())
        .unwrap()
        .deadline(Duration::from_secs(30))
        // What Redis costs is measured here.
        .deny_cache(Duration::ZERO)
        .unwrap()
        .response_timeout(Duration::from_secs(30))
}

async fn run(kind: &Kind, users: &Arc<[HeaderValue]>) {
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        let (kind, users) = (kind.clone(), Arc::clone(users));
        tasks.spawn(async move {
            for call in (task..CALLS).step_by(IN_FLIGHT) {
                kind.call(&users, call % users.len()).await;
            }
        });
    }
    tasks.join_all().await;
}

impl Kind {
    async fn call(&self, users: &[HeaderValue], user: usize) {
        match self {
            Self::Nothing(connection, hash) => {
                let name = format!("ratelimit:{{{}}}:z", users[user].to_str().unwrap());
                let mut command = redis::cmd("EVALSHA");
                command.arg(&**hash).arg(5).arg(&name);
                for suffix in ["value", "value:", "permits", "permits:"] {
                    command.arg(format!("{name}:{suffix}"));
                }
                command
                    .arg("1")
                    .arg(&[16u8; 21])
                    .arg("")
                    .arg("code")
                    .arg("1");
                command
                    .arg("1099511627776")
                    .arg("1000")
                    .arg("0")
                    .arg("60000");
                let one: i64 = command.query_async(&mut connection.clone()).await.unwrap();
                assert_eq!(one, 1);
            }
            Self::Layer(layer) => {
                passes(layer, &users[user]).await;
            }
            Self::Limiters(limiters) => {
                decided(&limiters[user].try_acquire().await.unwrap());
            }
        }
    }
}

/// Microseconds per EVALSHA since the statistics were reset.
fn cost(server: &RedisServer) -> f64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .and_then(|line| {
            line.split_once("usec_per_call=")?
                .1
                .split_once(',')?
                .0
                .parse()
                .ok()
        })
        .expect("EVALSHA was called")
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
