//! Connections to Redis.

pub(crate) mod address;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod link;
pub(crate) mod source;
mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) mod topology;

use std::time::Duration;

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
