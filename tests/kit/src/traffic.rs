//! Requests, and who answered them.

use tower::util::BoxCloneSyncService;

use crate::scene::*;

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
