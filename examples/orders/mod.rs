//! A gRPC service like `tonic-prost-build` output for this file, written by hand to spare you a
//! protobuf compiler:
//!
//! ```proto
//! package shop.v1;
//!
//! service Orders {
//!     rpc Create (Order) returns (Receipt);
//!     rpc Count (Nothing) returns (Receipt);
//! }
//!
//! message Order { string item = 1; }
//! message Nothing {}
//! message Receipt { uint64 number = 1; optional uint64 calls_left = 2; }
//! ```

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "what includes this file uses part of it, and the text above describes it"
)]

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::uri::PathAndQuery;
use tonic::{Request, Response, Status, body::Body, server::NamedService, transport::Channel};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};
use tower_ratelimit::Grant;

pub const CREATE: &str = "/shop.v1.Orders/Create";
pub const COUNT: &str = "/shop.v1.Orders/Count";

#[derive(Clone, PartialEq, prost::Message)]
pub struct Order {
    #[prost(string, tag = "1")]
    pub item: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Receipt {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(uint64, optional, tag = "2")]
    pub calls_left: Option<u64>,
}

/// Counts orders.
#[derive(Clone, Debug, Default)]
pub struct OrdersServer {
    orders: Arc<AtomicU64>,
}

impl OrdersServer {
    /// Handlers find the grant in the extensions, with what is left of the limit.
    fn receipt<T>(number: u64, request: &Request<T>) -> Response<Receipt> {
        let grant = request.extensions().get::<Grant>();
        let limit = grant.and_then(|grant| grant.limits().next());
        Response::new(Receipt {
            number,
            calls_left: limit.and_then(|limit| limit.remaining()),
        })
    }
}

impl NamedService for OrdersServer {
    const NAME: &'static str = "shop.v1.Orders";
}

impl Service<http::Request<Body>> for OrdersServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let orders = Arc::clone(&self.orders);
        Box::pin(async move {
            Ok(match request.uri().path() {
                CREATE => {
                    let create = service_fn(move |request: Request<Order>| {
                        let number = orders.fetch_add(1, Ordering::Relaxed) + 1;
                        std::future::ready(Ok::<_, Status>(Self::receipt(number, &request)))
                    });
                    let codec = ProstCodec::<Receipt, Order>::default();
                    tonic::server::Grpc::new(codec).unary(create, request).await
                }
                COUNT => {
                    let count = service_fn(move |request: Request<Nothing>| {
                        let number = orders.load(Ordering::Relaxed);
                        std::future::ready(Ok::<_, Status>(Self::receipt(number, &request)))
                    });
                    let codec = ProstCodec::<Receipt, Nothing>::default();
                    tonic::server::Grpc::new(codec).unary(count, request).await
                }
                _ => Status::unimplemented("there is no such method").into_http(),
            })
        })
    }
}

/// Calls the service.
#[derive(Clone, Debug)]
pub struct OrdersClient(tonic::client::Grpc<Channel>);

impl OrdersClient {
    pub fn new(channel: Channel) -> Self {
        Self(tonic::client::Grpc::new(channel))
    }

    pub async fn create(&mut self, item: &str) -> Result<Receipt, Status> {
        let item = item.to_owned();
        self.call(CREATE, Order { item }).await
    }

    pub async fn count(&mut self) -> Result<Receipt, Status> {
        self.call(COUNT, Nothing {}).await
    }

    async fn call<T>(&mut self, path: &'static str, message: T) -> Result<Receipt, Status>
    where
        T: prost::Message + Send + Sync + 'static,
    {
        let ready = self.0.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let (path, codec) = (
            PathAndQuery::from_static(path),
            ProstCodec::<T, Receipt>::default(),
        );
        let answer = self.0.unary(Request::new(message), path, codec).await?;
        Ok(answer.into_inner())
    }
}
