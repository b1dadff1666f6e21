//! Logging without `cfg` at the call sites.
//!
//! Events carry rule names and error kinds, never a key: whoever sends requests must not choose what is logged.

#[cfg(feature = "tracing")]
macro_rules! warning {
    ($($arg:tt)*) => {
        tracing::warn!(target: "tower_ratelimit", $($arg)*)
    };
}

#[cfg(feature = "tracing")]
macro_rules! detail {
    ($($arg:tt)*) => {
        tracing::debug!(target: "tower_ratelimit", $($arg)*)
    };
}

#[cfg(feature = "tracing")]
#[cfg_attr(
    not(any(feature = "redis", feature = "config")),
    allow(unused_macros, reason = "only servers and files change")
)]
macro_rules! notice {
    ($($arg:tt)*) => {
        tracing::info!(target: "tower_ratelimit", $($arg)*)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! warning {
    ($($arg:tt)*) => {
        ()
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! detail {
    ($($arg:tt)*) => {
        ()
    };
}

#[cfg(not(feature = "tracing"))]
#[cfg_attr(
    not(any(feature = "redis", feature = "config")),
    allow(unused_macros, reason = "only servers and files change")
)]
macro_rules! notice {
    ($($arg:tt)*) => {
        ()
    };
}

pub(crate) use detail;
#[cfg(any(feature = "redis", feature = "config"))]
pub(crate) use notice;
pub(crate) use warning;

#[cfg(all(test, feature = "tracing"))]
pub(crate) mod logged;
