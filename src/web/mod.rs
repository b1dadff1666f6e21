//! The HTTP and gRPC side of the crate: keys, rules, the layer and its answers.

pub(crate) mod answer;
pub(crate) mod builder;
pub(crate) mod charge;
pub mod key;
pub(crate) mod layer;
#[cfg(feature = "page")]
pub(crate) mod page;
pub(crate) mod request;
pub(crate) mod rule;
#[cfg(feature = "config")]
pub(crate) mod rules_file;
pub(crate) mod service;
