//! poem: its requests are not those of `http`, so no layer, not even by its `compat`. A limiter for
//! each address, in `around`.

use poem::{
    Endpoint, EndpointExt, Error, IntoResponse, Request, Response, Result, Route, get, handler,
    http::{StatusCode, header::RETRY_AFTER},
};
use tower_ratelimit::{Decision, Keyed};

async fn limit(limits: Keyed, next: impl Endpoint, request: Request) -> Result<Response> {
    let Some(peer) = request.remote_addr().as_socket_addr() else {
        return Err(Error::from_status(StatusCode::INTERNAL_SERVER_ERROR));
    };
    match limits.of(peer.ip()).try_acquire().await {
        Ok(Decision::Allow(_)) => next.call(request).await.map(IntoResponse::into_response),
        Ok(Decision::Deny(refusal)) => {
            let mut answer = StatusCode::TOO_MANY_REQUESTS.into_response();
            if let Some(wait) = refusal.retry_after() {
                let seconds = wait.as_millis().div_ceil(1000).to_string();
                answer = answer.with_header(RETRY_AFTER, seconds).into_response();
            }
            Ok(answer)
        }
        Err(error) => Err(Error::new(error, StatusCode::SERVICE_UNAVAILABLE)),
    }
}

#[handler]
fn orders() -> &'static str {
    "tea, cake\n"
}

/// The limits are made once: `Limit::per_minute(2).named("api").keyed(&store)`.
pub fn app(limits: Keyed) -> impl Endpoint<Output = Response> {
    let app = Route::new().at("/orders", get(orders));
    app.around(move |next, request| limit(limits.clone(), next, request))
}

#[cfg(test)]
mod tests {
    use poem::{
        Server,
        listener::{Acceptor, Listener, TcpListener},
    };
    use tower_ratelimit::{Limit, MemoryStore};

    use super::*;
    use crate::ask::{ask, statuses};

    #[tokio::test]
    async fn each_address_has_a_limit() {
        let acceptor = TcpListener::bind("127.0.0.1:0")
            .into_acceptor()
            .await
            .unwrap();
        let server = *acceptor.local_addr()[0].as_socket_addr().unwrap();
        let limits = Limit::per_minute(2).named("api").keyed(&MemoryStore::new());
        tokio::spawn(Server::new_with_acceptor(acceptor).run(app(limits.unwrap())));
        assert_eq!(
            statuses(server, "GET /orders", &["", "", ""]).await,
            [200, 200, 429]
        );
        ask(server, "GET /orders", "", "").await.assert_refused();
    }
}
