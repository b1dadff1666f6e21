//! Steady concurrent traffic, and who answered it.

#![allow(dead_code, reason = "each test binary uses part of it")]

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_ratelimit::{
    Decision, ErrorKind, FailurePolicy, Limit, RateLimitLayer, RateLimiter, RedisStore, Rule,
    Source, key::Constant,
};

use super::wait::until;
use crate::support::unique;

/// Granted at first, refused later: both are decisions.
const LIMIT: Limit = Limit::new(200, Duration::from_millis(500));
const TASKS_PER_LANE: usize = 4;

pub type Http = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// A service whose requests all meet one limit.
pub fn service(store: &RedisStore, limit: Limit, policy: FailurePolicy) -> Http {
    let rule = limit.by(Constant("all")).named(&unique("rule"));
    service_with(store, rule.on_failure(policy))
}

/// A service behind a layer of one rule.
pub fn service_with(store: &RedisStore, rule: Rule) -> Http {
    let inner = service_fn(|_: Request<()>| async { Ok(Response::new(String::new())) });
    let layered = RateLimitLayer::new(store, rule).layer(inner);
    // Only the head matters here.
    Http::new(layered.map_response(|response: Response<_>| response.map(|_| String::new())))
}

/// One request's answer: its status, and who decided.
pub async fn ask(service: &Http) -> (StatusCode, Source) {
    let Ok(response) = service.clone().oneshot(Request::new(())).await;
    let decision = response
        .extensions()
        .get::<Decision>()
        .expect("every answer has its decision");
    (response.status(), decision.source())
}

/// Layers that fail either way and a limiter, each asked by several tasks without a pause.
#[derive(Debug)]
pub struct Traffic {
    lanes: Vec<Arc<Lane>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Lane {
    name: &'static str,
    by_store: AtomicU64,
    by_policy: AtomicU64,
    /// How many calls of each task are over.
    over: [AtomicU64; TASKS_PER_LANE],
    wrong: Mutex<BTreeSet<String>>,
}

impl Traffic {
    /// On a store without a deny cache: each decision is to tell of its health.
    pub fn start(store: &RedisStore) -> Self {
        let mut traffic = Self {
            lanes: Vec::new(),
            stop: Arc::default(),
            tasks: JoinSet::new(),
        };
        for (name, policy, status) in [
            ("deny", FailurePolicy::Deny, StatusCode::SERVICE_UNAVAILABLE),
            ("allow", FailurePolicy::Allow, StatusCode::OK),
        ] {
            let service = service(store, LIMIT, policy);
            traffic.lane(name, move || {
                let service = service.clone();
                async move {
                    match ask(&service).await {
                        (StatusCode::OK | StatusCode::TOO_MANY_REQUESTS, Source::Store) => Ok(true),
                        (answer, Source::FailurePolicy) if answer == status => Ok(false),
                        other => Err(format!("{other:?}")),
                    }
                }
            });
        }
        let limiter = RateLimiter::new(store, &unique("orders")).unwrap();
        traffic.lane("limiter", move || {
            let limiter = limiter.clone();
            async move {
                match limiter.try_acquire().await {
                    Ok(decision) if decision.source() == Source::Store => Ok(true),
                    Ok(decision) => Err(format!("{decision:?}")),
                    // An answer of Redis, at first and after a flush; the limiter's owner sets it then.
                    Err(error) if error.kind() == ErrorKind::NotInitialized => {
                        // Fails with the server, and is then tried again by the next.
                        let _ = limiter.try_set_rate(LIMIT).await;
                        Ok(true)
                    }
                    Err(error) => match error.kind() {
                        ErrorKind::Unavailable | ErrorKind::Timeout => Ok(false),
                        kind => Err(format!("{kind:?}: {error}")),
                    },
                }
            }
        });
        traffic
    }

    fn lane<F>(&mut self, name: &'static str, ask: impl Fn() -> F + Clone + Send + Sync + 'static)
    where
        F: Future<Output = Result<bool, String>> + Send + 'static,
    {
        let lane = Arc::new(Lane {
            name,
            by_store: AtomicU64::new(0),
            by_policy: AtomicU64::new(0),
            over: Default::default(),
            wrong: Mutex::default(),
        });
        for task in 0..TASKS_PER_LANE {
            let (lane, stop, ask) = (Arc::clone(&lane), Arc::clone(&self.stop), ask.clone());
            self.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match ask().await {
                        Ok(true) => {
                            lane.by_store.fetch_add(1, Ordering::SeqCst);
                        }
                        Ok(false) => {
                            lane.by_policy.fetch_add(1, Ordering::SeqCst);
                            // As a server would: other tasks have their turn.
                            tokio::task::yield_now().await;
                        }
                        Err(wrong) => {
                            lane.wrong.lock().unwrap().insert(wrong);
                        }
                    }
                    lane.over[task].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        self.lanes.push(lane);
    }

    /// Waits until Redis has answered every lane so many times more.
    pub async fn answered(&self, times: u64) {
        self.counted(times, |lane| &lane.by_store, "answered by Redis")
            .await;
    }

    /// Waits until every lane has met its policy so many times more.
    pub async fn met_policy(&self, times: u64) {
        self.counted(times, |lane| &lane.by_policy, "answered by policy")
            .await;
    }

    /// Waits until every call is over that is under way now.
    pub async fn under_way_over(&self) {
        let over = || {
            let lanes = self.lanes.iter().flat_map(|lane| &lane.over);
            lanes.map(|over| over.load(Ordering::SeqCst))
        };
        let before: Vec<u64> = over().collect();
        until("what was under way is over", || async {
            over().zip(&before).all(|(now, before)| now > *before)
        })
        .await;
    }

    async fn counted(&self, times: u64, count: fn(&Lane) -> &AtomicU64, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        for lane in &self.lanes {
            let goal = count(lane).load(Ordering::SeqCst) + times;
            while count(lane).load(Ordering::SeqCst) < goal {
                assert!(
                    Instant::now() < deadline,
                    "not {what} {times} times more: {lane:?}"
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// Begins to count anew.
    pub fn forget(&self) {
        for lane in &self.lanes {
            lane.by_policy.store(0, Ordering::SeqCst);
        }
    }

    /// Nothing was decided by policy since traffic began or was last forgotten, and nothing ever came out wrong.
    pub fn all_by_store(&self, when: &str) {
        for lane in &self.lanes {
            assert_eq!(
                lane.by_policy.load(Ordering::SeqCst),
                0,
                "by policy, {when}: {}",
                lane.name
            );
        }
        self.nothing_wrong();
    }

    pub fn nothing_wrong(&self) {
        for lane in &self.lanes {
            let wrong = lane.wrong.lock().unwrap();
            assert!(wrong.is_empty(), "{}: {wrong:?}", lane.name);
        }
    }

    /// Ends the traffic, and fails if one of its tasks panicked.
    pub async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.nothing_wrong();
    }
}
