//! Connections to Redis.

pub(crate) mod address;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod source;
pub(crate) mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) mod topology;
