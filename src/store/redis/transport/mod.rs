//! Connections to Redis.

pub(crate) mod address;
pub(crate) mod calling;
pub(crate) mod connection;
pub(crate) mod link;
pub(crate) mod source;
mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) mod topology;
