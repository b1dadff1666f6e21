//! Limiters in Redis, in the state of Redisson's `RRateLimiter`: shared by every process, Rust or
//! Java.

mod batch;
mod builder;
pub(crate) mod classify;
mod header;
mod health;
#[cfg(test)]
#[cfg(inside)]
#[path = "../../../tests/inside/mod.rs"]
pub(crate) mod inside;
pub(crate) mod node;
mod open;
mod own;
pub(crate) mod packed;
mod saga;
pub(crate) mod server;
mod settle_queue;
pub(crate) mod store;
pub(crate) mod transport;
pub(crate) mod wire;

pub use self::{
    builder::RedisStoreBuilder,
    health::{BreakerState, Health, NodeHealth},
    store::RedisStore,
    transport::connection::ConnectionState,
};
