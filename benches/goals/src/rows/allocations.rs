//! Allocations of a request.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use http::HeaderValue;
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{Decision, Limit, RateLimitLayer, Source, redis};

use crate::{
    contenders::Contender,
    database::{Database, patient},
    requests::{by_user, nothing, passes, request, users},
    row::{
        Contest, Figure,
        Goal::{AtMost, Reported},
        Rounds, Row,
    },
};

const REQUESTS: u64 = 1000;
const ONCE: Rounds = Rounds {
    warm_up: 1,
    counted: 3,
};

pub(super) fn rows() -> [Row; 2] {
    [
        Row {
            name: String::from("allocations, cached refusal"),
            parameters: format!(
                "through the layer, 1 per hour, spent, its header fields as usual, {REQUESTS} requests a turn, which are made \
                 and not counted"
            ),
            beside: "the service without the layer",
            needs: &[Contender::Redis],
            rounds: ONCE,
            figures: vec![
                Figure {
                    name: "in Service::call, which decides",
                    goal: AtMost(0.0),
                },
                Figure {
                    name: "in all, the answer included",
                    goal: Reported,
                },
            ],
            begin: Box::new(|| Box::new(Refusals::begin())),
        },
        Row {
            name: String::from("allocations, admitted on Redis"),
            parameters: format!(
                "through the layer, {REQUESTS} requests a turn, one at a time, those of the connection included, those of making \
                 the request not"
            ),
            beside: "a bare EVALSHA of `return 1` with 5 keys and 3 arguments on a connection of its own",
            needs: &[Contender::Redis],
            rounds: ONCE,
            figures: vec![
                Figure {
                    name: "with header fields, as usual",
                    goal: AtMost(12.0),
                },
                Figure {
                    name: "without them, what is left not counted",
                    goal: Reported,
                },
            ],
            begin: Box::new(|| Box::new(Grants::begin())),
        },
    ]
}

/// Everything happens on the thread that counts.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn layer(database: &Database, limit: Limit) -> RateLimitLayer {
    RateLimitLayer::new(
        &patient(&database.url()).build().unwrap(),
        limit.by(by_user()),
    )
}

struct Refusals {
    runtime: Runtime,
    user: HeaderValue,
    layer: RateLimitLayer,
    /// The last to go
    _database: Database,
}

impl Refusals {
    fn begin() -> Self {
        let runtime = runtime();
        let database = Database::start();
        Self {
            user: users(1)[0].clone(),
            layer: layer(&database, Limit::per_hour(1)),
            runtime,
            _database: database,
        }
    }

    /// Asks until the answer comes from memory.
    fn warm(&self) {
        self.runtime.block_on(async {
            loop {
                let service = self.layer.layer(nothing());
                let response = service.oneshot(request(&self.user)).await.unwrap();
                let decision = response.extensions().get::<Decision>().unwrap();
                if decision.source() == Source::Cache {
                    break;
                }
            }
        });
    }
}

impl Contest for Refusals {
    fn ours(&mut self) -> Vec<f64> {
        self.warm();
        let _inside = self.runtime.enter();
        let mut service = self.layer.layer(nothing());
        let (mut counted, mut deciding, mut answering) = (0, 0, 0);
        while counted < REQUESTS {
            let request = request(&self.user);
            let mut call = None;
            let first = measure(|| call = Some(service.call(request)));
            let mut call = pin!(call.unwrap());
            let mut answer = Poll::Pending;
            let second = measure(|| {
                let mut context = Context::from_waker(Waker::noop());
                answer = call.as_mut().poll(&mut context);
            });
            let known = match &answer {
                Poll::Ready(Ok(response)) => {
                    let decision = response.extensions().get::<Decision>();
                    decision.is_some_and(|decision| decision.source() == Source::Cache)
                }
                _ => false,
            };
            if known {
                counted += 1;
                deciding += first.count_total;
                answering += second.count_total;
            } else {
                // Its second is over: Redis is asked again.
                self.warm();
            }
        }
        let each = |count: u64| count as f64 / REQUESTS as f64;
        vec![each(deciding), each(deciding + answering)]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let mut service = nothing();
        let request = request(&self.user);
        let counted = measure(|| drop(self.runtime.block_on(service.call(request))));
        vec![None, Some(counted.count_total as f64)]
    }
}

struct Grants {
    runtime: Runtime,
    user: HeaderValue,
    /// With header fields, and without
    layers: [RateLimitLayer; 2],
    connection: redis::aio::MultiplexedConnection,
    hash: String,
    /// The last to go
    _database: Database,
}

impl Grants {
    fn begin() -> Self {
        let runtime = runtime();
        let database = Database::start();
        let limit = Limit::per_minute(1 << 40);
        let spare = RateLimitLayer::builder(&patient(&database.url()).build().unwrap())
            .otherwise(limit.by(by_user()))
            .headers([])
            .count_remaining(false)
            .build()
            .unwrap();
        Self {
            user: users(1)[0].clone(),
            layers: [layer(&database, limit), spare],
            connection: runtime.block_on(database.connection()),
            hash: database.cli(&["SCRIPT", "LOAD", "return 1"]),
            runtime,
            _database: database,
        }
    }

    /// Of one call; also those that another task makes for it.
    fn each(&self, call: impl AsyncFn()) -> f64 {
        let counted = measure(|| {
            self.runtime.block_on(async {
                for _ in 0..REQUESTS {
                    call().await;
                }
            });
        });
        counted.count_total as f64 / REQUESTS as f64
    }
}

impl Contest for Grants {
    fn ours(&mut self) -> Vec<f64> {
        let request = self.each(async || drop(request(&self.user)));
        let through = |layer: &RateLimitLayer| {
            self.each(async || assert!(passes(layer, &self.user).await)) - request
        };
        self.layers.iter().map(through).collect()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let each = self.each(async || {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&self.hash).arg(5);
            for word in ["k1", "k2", "k3", "k4", "k5", "a1", "a2", "a3"] {
                call.arg(word);
            }
            let mut connection = self.connection.clone();
            let one: i64 = call.query_async(&mut connection).await.unwrap();
            assert_eq!(one, 1);
        });
        vec![Some(each); 2]
    }
}
