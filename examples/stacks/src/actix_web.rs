//! actix: no service of tower, so no layer. A limiter for each address, in a middleware.

use std::sync::Arc;

use actix_web::{
    Error, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    error::{ErrorInternalServerError, ErrorServiceUnavailable},
    http::header::RETRY_AFTER,
    middleware::Next,
};
use tower_ratelimit::{Decision, Keyed};

/// For `App::wrap(from_fn(move |request, next| limit(limits.clone(), request, next)))`.
///
/// # Errors
///
/// The store of the limits cannot be asked: 503.
pub async fn limit(
    limits: Arc<Keyed>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let peer = request
        .peer_addr()
        .ok_or_else(|| ErrorInternalServerError("no peer"))?;
    match limits.of(peer.ip()).try_acquire().await {
        Ok(Decision::Allow(_)) => Ok(next.call(request).await?.map_into_left_body()),
        Ok(Decision::Deny(refusal)) => {
            let mut answer = HttpResponse::TooManyRequests();
            if let Some(wait) = refusal.retry_after() {
                answer.insert_header((RETRY_AFTER, wait.as_millis().div_ceil(1000).to_string()));
            }
            Ok(request.into_response(answer.finish()).map_into_right_body())
        }
        Err(error) => Err(ErrorServiceUnavailable(error)),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::{App, HttpServer, middleware::from_fn, web};
    use tower_ratelimit::{Limit, MemoryStore};

    use super::*;
    use crate::ask::{ask, statuses};

    #[tokio::test]
    async fn each_address_has_a_limit() {
        let limits = Limit::per_minute(2)
            .named("api")
            .keyed(&MemoryStore::new())
            .unwrap();
        let limits = Arc::new(limits);
        let server = HttpServer::new(move || {
            // One for all workers.
            let limits = Arc::clone(&limits);
            App::new()
                .wrap(from_fn(move |request, next| {
                    limit(limits.clone(), request, next)
                }))
                .route("/orders", web::get().to(async || "tea, cake\n"))
        });
        let server = server.bind("127.0.0.1:0").unwrap();
        let address = server.addrs()[0];
        tokio::spawn(server.run());
        assert_eq!(
            statuses(address, "GET /orders", &["", "", ""]).await,
            [200, 200, 429]
        );
        ask(address, "GET /orders", "", "").await.assert_refused();
    }
}
