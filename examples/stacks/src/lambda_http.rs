//! lambda_http: counts by the address that API Gateway saw.

use std::net::IpAddr;

use lambda_http::{
    Body, Error, Request, Response, http::request::Parts, request::RequestContext, service_fn,
};
use tower_ratelimit::{
    ConfigError, Layer, Limit, RateLimitLayer, Store,
    key::{ClientIp, PeerIp},
};

/// There is no connection whose peer could be asked: the event says who it was.
fn source_ip(parts: &Parts) -> Option<IpAddr> {
    match parts.extensions.get()? {
        RequestContext::ApiGatewayV2(context) => context.http.source_ip.as_deref()?.parse().ok(),
        _ => None,
    }
}

async fn orders(_: Request) -> Result<Response<Body>, Error> {
    Ok(Response::new("tea, cake\n".into()))
}

/// # Errors
///
/// The name of the rule is taken in this store.
pub fn limit(store: &impl Store) -> Result<RateLimitLayer, ConfigError> {
    let client = ClientIp::from(PeerIp).peer(source_ip);
    RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(2).by(client).named("api"))
        .build()
}

/// # Errors
///
/// The name of the rule is taken in this store, or the runtime of AWS ends.
pub async fn run(store: &impl Store) -> Result<(), Error> {
    lambda_http::run(limit(store)?.layer(service_fn(orders))).await
}

#[cfg(test)]
mod tests {
    use lambda_http::{
        Adapter, Context, LambdaEvent,
        request::LambdaRequest,
        tower::{Service, ServiceExt},
    };
    use serde_json::{Value, json};
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::assert_wait;

    /// An event of API Gateway, version 2 of its format.
    fn event(address: &str) -> LambdaEvent<LambdaRequest> {
        let http = json!({
            "method": "GET", "path": "/orders", "protocol": "HTTP/1.1", "sourceIp": address,
            "userAgent": "curl",
        });
        let event = json!({
            "version": "2.0", "routeKey": "$default", "rawPath": "/orders", "rawQueryString": "",
            "headers": { "host": "x.execute-api.eu-west-1.amazonaws.com" },
            "isBase64Encoded": false,
            "requestContext": {
                "accountId": "1", "apiId": "x", "domainName": "x.execute-api", "domainPrefix": "x",
                "http": http, "requestId": "r", "routeKey": "$default", "stage": "$default",
                "time": "06/May/2026:22:36:55 +0000", "timeEpoch": 1_778_106_615_616_i64,
            },
        });
        LambdaEvent::new(serde_json::from_value(event).unwrap(), Context::default())
    }

    /// What `lambda_http::run` hands to the runtime, and so what API Gateway gets.
    #[tokio::test]
    async fn each_source_address_has_a_limit() {
        let mut service = Adapter::from(
            limit(&MemoryStore::new())
                .unwrap()
                .layer(service_fn(orders)),
        );
        let mut seen = Vec::new();
        let addresses = [
            "192.0.2.1",
            "192.0.2.1",
            "192.0.2.1",
            "192.0.2.2",
            "2001:db8::1",
        ];
        for address in addresses {
            let answer = service
                .ready()
                .await
                .unwrap()
                .call(event(address))
                .await
                .unwrap();
            let answer: Value = serde_json::to_value(answer).unwrap();
            seen.push(answer["statusCode"].clone());
            if answer["statusCode"] == 429 {
                assert_wait(answer["headers"]["retry-after"].as_str());
                assert!(
                    answer["body"].as_str().unwrap().contains("Quota Exceeded"),
                    "{answer}"
                );
            }
        }
        assert_eq!(seen, [200, 200, 429, 200, 200]);
    }
}
