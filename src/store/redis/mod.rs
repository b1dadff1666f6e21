//! Limiters in Redis: in our own format, or in that of Redisson's `RRateLimiter`, which Java
//! shares.

mod bans;
mod builder;
pub(crate) mod classify;
mod header;
mod health;
#[cfg(test)]
#[cfg(inside)]
#[path = "../../../tests/inside/mod.rs"]
pub(crate) mod inside;
pub(crate) mod keys;
pub(crate) mod node;
mod open;
mod own;
pub(crate) mod packed;
pub(crate) mod redisson;
pub(crate) mod reply;
mod saga;
pub(crate) mod script;
pub(crate) mod server;
mod settle_queue;
pub(crate) mod store;
pub(crate) mod transport;

pub use self::{
    builder::RedisStoreBuilder,
    health::{BreakerState, Health, NodeHealth},
    store::RedisStore,
    transport::connection::ConnectionState,
};
