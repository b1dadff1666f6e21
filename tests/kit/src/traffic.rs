//! Steady concurrent traffic, and who answered it.

use std::collections::BTreeSet;

use tower::util::BoxCloneSyncService;

use crate::scene::*;

/// Granted at first, refused later: both are decisions.
const LIMIT: Limit = Limit::new(200, Duration::from_millis(500));
const TASKS_PER_LANE: usize = 4;

pub type Http = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// An answer: its status, and who decided.
pub type Answer = (StatusCode, Source);

pub const BY_REDIS: Answer = (StatusCode::OK, Source::Store);
pub const ALLOWED: Answer = (StatusCode::OK, Source::FailurePolicy);
pub const DENIED: Answer = (StatusCode::SERVICE_UNAVAILABLE, Source::FailurePolicy);

/// So many that none is refused.
pub const HOURLY: Limit = Limit::per_hour(1_000_000);

/// A service whose requests all meet one limit.
pub fn service(store: &RedisStore, limit: Limit, policy: FailurePolicy) -> Http {
    let rule = limit.by(Constant("all")).named(&unique("rule"));
    service_with(store, rule.on_failure(policy))
}

/// A service behind a layer of one rule.
pub fn service_with(store: &RedisStore, rule: Rule) -> Http {
    behind(&RateLimitLayer::new(store, rule))
}

/// A service behind a layer.
pub fn behind(layer: &RateLimitLayer) -> Http {
    let layered = layer.layer(service_fn(serve::<()>));
    // Only the head matters here.
    Http::new(layered.map_response(|response: Response<_>| response.map(|_| String::new())))
}

/// The services of one that denies in an outage, and one that allows.
pub fn deny_and_allow(store: &RedisStore) -> [Http; 2] {
    [FailurePolicy::Deny, FailurePolicy::Allow].map(|policy| service(store, HOURLY, policy))
}

/// One request's answer.
pub async fn ask(service: &Http) -> Answer {
    let Ok(response) = service.clone().oneshot(Request::new(())).await;
    (response.status(), decision_of(&response).source())
}

/// The answer to a user, where limits are by `x-user`.
pub async fn ask_as(service: &Http, user: impl ToString) -> (StatusCode, Decision) {
    let request = Request::builder().header("x-user", user.to_string());
    let Ok(response) = service.clone().oneshot(request.body(()).unwrap()).await;
    let is_refused = response.status() == StatusCode::TOO_MANY_REQUESTS;
    let announced = response.headers().contains_key(header::RETRY_AFTER);
    assert!(announced || !is_refused, "{response:?}");
    (response.status(), decision_of(&response).clone())
}

/// Asks each until Redis decides for it. Returns how long that took.
pub async fn by_redis<'a>(services: impl IntoIterator<Item = &'a Http>) -> Duration {
    let began = Instant::now();
    for service in services {
        until("Redis decides", async || ask(service).await == BY_REDIS).await;
    }
    began.elapsed()
}

/// Takes permits, and Redis decides that.
pub async fn take_by_redis(limiter: &RateLimiter, permits: u32) -> Grant {
    let decision = limiter.try_acquire_many(permits).await.unwrap();
    assert_eq!(decision.source(), Source::Store);
    granted(decision)
}

/// Asks until a permit is granted. Returns how long that took.
pub async fn grants(limiter: &RateLimiter) -> Duration {
    let granted = async || {
        let decision = limiter.try_acquire().await;
        decision.is_ok_and(|decision| decision.is_allowed())
    };
    until("a permit is granted", granted).await
}

/// Asks until so many permits are free. Returns how long that took.
pub async fn is_free(limiter: &RateLimiter, permits: u64) -> Duration {
    let found = async || limiter.available_permits().await.ok() == Some(permits);
    until(&format!("{permits} permits are free"), found).await
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
    /// Starts it on a store without a deny cache, so that each decision shows the health of Redis.
    pub fn start(store: &RedisStore) -> Self {
        let mut traffic = Self {
            lanes: Vec::new(),
            stop: Arc::default(),
            tasks: JoinSet::new(),
        };
        for (name, policy, by_policy) in [
            ("deny", FailurePolicy::Deny, DENIED),
            ("allow", FailurePolicy::Allow, ALLOWED),
        ] {
            let service = service(store, LIMIT, policy);
            traffic.lane(name, move || {
                let service = service.clone();
                async move {
                    match ask(&service).await {
                        (StatusCode::OK | StatusCode::TOO_MANY_REQUESTS, Source::Store) => Ok(true),
                        answer if answer == by_policy => Ok(false),
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
                    // An answer of Redis, at first and after a flush; the limiter's owner sets it
                    // then.
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

    /// Plays a fault so many times under traffic: it costs no decision.
    pub async fn undisturbed(store: RedisStoreBuilder, times: u32, fault: impl Fn()) {
        let store = patiently(store).deny_cache(Duration::ZERO);
        let traffic = Self::start(&store.build().unwrap());
        traffic.answered(100).await;
        traffic.all_by_store("before");
        for _ in 0..times {
            fault();
            traffic.answered(100).await;
            // A call is sent once more, not twice: none is to meet two faults.
            traffic.under_way_over().await;
            traffic.all_by_store("during and after");
        }
        traffic.end().await;
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
        for lane in &self.lanes {
            let goal = count(lane).load(Ordering::SeqCst) + times;
            until(
                &format!("{what} {times} times more: {lane:?}"),
                async || {
                    self.nothing_wrong();
                    count(lane).load(Ordering::SeqCst) >= goal
                },
            )
            .await;
        }
    }

    /// Nothing was decided by policy since traffic began, and nothing ever came out wrong.
    pub fn all_by_store(&self, when: &str) {
        for lane in &self.lanes {
            let by_policy = lane.by_policy.load(Ordering::SeqCst);
            assert_eq!(by_policy, 0, "by policy, {when}: {}", lane.name);
        }
        self.nothing_wrong();
    }

    fn nothing_wrong(&self) {
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
