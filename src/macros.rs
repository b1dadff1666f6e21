//! Macros that log, all with the target `tower_ratelimit`.
//!
//! Events carry rule names and error kinds, never a key: the sender of a request must not choose
//! what is logged.

macro_rules! warning {
    ($($arg:tt)*) => {
        tracing::warn!(target: "tower_ratelimit", $($arg)*)
    };
}

macro_rules! detail {
    ($($arg:tt)*) => {
        tracing::debug!(target: "tower_ratelimit", $($arg)*)
    };
}

macro_rules! notice {
    ($($arg:tt)*) => {
        tracing::info!(target: "tower_ratelimit", $($arg)*)
    };
}

/// Implements `Debug` by the name of a type alone.
macro_rules! opaque {
    ($type:ident) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($type), "(..)"))
            }
        }
    };
}

pub(crate) use detail;
pub(crate) use notice;
pub(crate) use opaque;
pub(crate) use warning;

#[cfg(test)]
pub(crate) mod logged;
