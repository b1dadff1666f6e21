//! Connections to Redis.

pub(crate) mod address;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod link;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
pub(crate) mod source;
#[cfg(feature = "tls")]
pub(crate) mod tls;
