//! What is asked of several limits, and what is left of each.

use kit::scene::*;

/// Sends a request with these headers.
pub async fn ask(layer: &RateLimitLayer, headers: &[(&str, &str)]) -> (StatusCode, Decision) {
    let answer = send(layer, asking("GET /", headers)).await;
    (answer.status(), decision_of(&answer).clone())
}

/// Returns the permits left of the limiter that a rule has made for a key.
pub async fn left_of(layer: &RateLimitLayer, rule: &str, key: &str) -> u64 {
    free(&layer.limiter(rule, [key]).unwrap()).await
}

/// Returns the permits left of each limiter.
pub async fn left(limiters: &[RateLimiter]) -> Vec<u64> {
    let mut left = Vec::new();
    for limiter in limiters {
        left.push(free(limiter).await);
    }
    left
}

/// The limits that refused: each name, and its wait in ms.
pub fn refused_by(refusal: &Refusal) -> Vec<(String, Option<u128>)> {
    let limits = refusal.limits().filter(|limit| limit.is_refused());
    limits
        .map(|limit| {
            let wait = limit.retry_after().map(|wait| wait.as_millis());
            (limit.name().to_owned(), wait)
        })
        .collect()
}
