//! What a layer on a `MemoryStore` adds to a request, beside layers that count in memory.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, Request, Response, StatusCode};
use tower::{Layer, Service};
use tower_ratelimit::{Algorithm, Limit, MemoryStore, RateLimitLayer};

use super::Pace;
use crate::{
    peers::governor::{self, Direct},
    requests::{by_user, nothing, request, users},
    row::{
        Contest, Figure,
        Goal::{self, RatioAtMost, Reported},
        Rounds, Row, median,
    },
};

const MANY: usize = 100_000;
/// So short that most are not interrupted: what else the machine does falls out of the median.
const CHUNK: usize = 50;
/// Shares no divisor with the number of keys: each is met, and no two neighbours are.
const STRIDE: usize = 61_803;

/// Never reached, and soon forgotten: the log holds the grants of the last ten milliseconds.
const AMPLE: Limit = Limit::new(1 << 40, Duration::from_millis(10));
/// As fast as GCRA counts, and more at once than a row asks for.
const FASTEST: Limit = Limit::new(60_000_000, Duration::from_secs(60));
const HOURLY: Limit = Limit::per_hour(1);

#[derive(Clone, Copy, Debug)]
enum Peer {
    TowerGovernor,
    Governor,
}

/// A way of counting beside a peer, and the goals where requests are admitted and refused. Both
/// peers count by GCRA.
const PAIRS: [(&str, Algorithm, Peer, [Goal; 2]); 5] = [
    (
        "sliding log",
        Algorithm::SlidingLog,
        Peer::TowerGovernor,
        [RatioAtMost(1.0), RatioAtMost(0.02)],
    ),
    (
        "sliding log",
        Algorithm::SlidingLog,
        Peer::Governor,
        [Reported, RatioAtMost(1.5)],
    ),
    (
        "fixed window",
        Algorithm::FixedWindow,
        Peer::Governor,
        [Reported, Reported],
    ),
    (
        "GCRA",
        Algorithm::Gcra,
        Peer::TowerGovernor,
        [RatioAtMost(1.0), RatioAtMost(0.02)],
    ),
    (
        "GCRA",
        Algorithm::Gcra,
        Peer::Governor,
        [Reported, RatioAtMost(1.5)],
    ),
];

pub(super) fn rows(pace: Pace) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, algorithm, peer, goals) in PAIRS {
        for (goal, admitted) in goals.into_iter().zip([true, false]) {
            for keys in [1, MANY] {
                let chunks = pace.pick(501, 101);
                let (verdict, peer_name, beside) = (
                    if admitted { "admitted" } else { "refused" },
                    match peer {
                        Peer::TowerGovernor => "tower_governor",
                        Peer::Governor => "governor",
                    },
                    match peer {
                        Peer::TowerGovernor => "tower_governor through its layer",
                        Peer::Governor => "governor called directly by a service",
                    },
                );
                let key = if keys == 1 { "1 key" } else { "100,000 keys" };
                rows.push(Row {
                    name: format!("memory {verdict}, {name}, {key}, {peer_name}"),
                    parameters: format!(
                        "Service::call, one thread, no network, no fields for callers, the median of {chunks} times \
                         {CHUNK} calls a turn"
                    ),
                    beside,
                    needs: &[],
                    rounds: Rounds {
                        warm_up: 2,
                        counted: pace.pick(21, 3),
                    },
                    figures: vec![Figure {
                        name: "ns added per request",
                        goal,
                    }],
                    begin: Box::new(move || {
                        Box::new(Layers::begin(algorithm, peer, admitted, keys, chunks))
                    }),
                });
            }
        }
    }
    rows
}

/// Nanoseconds per request.
type Chunk = Box<dyn FnMut() -> f64>;

struct Layers {
    chunks: usize,
    bare: Chunk,
    ours: Chunk,
    theirs: Chunk,
}

impl Layers {
    fn begin(algorithm: Algorithm, peer: Peer, admitted: bool, keys: usize, chunks: usize) -> Self {
        let users = users(keys);
        let status = if admitted {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        let store = MemoryStore::new().max_limiters(2 * keys);
        let limit = match algorithm {
            _ if !admitted => HOURLY,
            Algorithm::Gcra => FASTEST,
            _ => AMPLE,
        };
        let layer = RateLimitLayer::builder(&store)
            .otherwise(limit.by(by_user()).algorithm(algorithm))
            .headers([])
            .count_remaining(false)
            .build()
            .unwrap();
        let (burst, refill) = if admitted {
            (u32::MAX, Duration::from_nanos(1))
        } else {
            (1, Duration::from_secs(3600))
        };
        let theirs = match peer {
            Peer::TowerGovernor => chunk(
                governor::layer(burst, refill).layer(nothing()),
                Arc::clone(&users),
                status,
            ),
            Peer::Governor => chunk(
                Direct::new(nothing(), burst, refill),
                Arc::clone(&users),
                status,
            ),
        };
        Self {
            chunks,
            bare: chunk(nothing(), Arc::clone(&users), StatusCode::OK),
            ours: chunk(layer.layer(nothing()), users, status),
            theirs,
        }
    }

    /// What a layer adds: the service alone has its chunks between.
    fn added(chunks: usize, bare: &mut Chunk, with: &mut Chunk) -> f64 {
        let (mut alone, mut limited) = (Vec::new(), Vec::new());
        for _ in 0..chunks {
            alone.push(bare());
            limited.push(with());
        }
        alone.sort_by(f64::total_cmp);
        limited.sort_by(f64::total_cmp);
        median(&limited) - median(&alone)
    }
}

/// Each user has asked once before.
fn chunk<S, B>(mut service: S, users: Arc<[HeaderValue]>, status: StatusCode) -> Chunk
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for user in &*users {
        runtime.block_on(ask(&mut service, user));
    }
    let mut place = 0;
    Box::new(move || {
        runtime.block_on(async {
            let began = Instant::now();
            for _ in 0..CHUNK {
                place = (place + STRIDE) % users.len();
                assert_eq!(ask(&mut service, &users[place]).await, status);
            }
            began.elapsed().as_nanos() as f64 / CHUNK as f64
        })
    })
}

async fn ask<S, B>(service: &mut S, user: &HeaderValue) -> StatusCode
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let Ok(()) = std::future::poll_fn(|context| service.poll_ready(context)).await;
    let Ok(response) = service.call(request(user)).await;
    response.status()
}

impl Contest for Layers {
    fn ours(&mut self) -> Vec<f64> {
        vec![Self::added(self.chunks, &mut self.bare, &mut self.ours)]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        vec![Some(Self::added(
            self.chunks,
            &mut self.bare,
            &mut self.theirs,
        ))]
    }
}
