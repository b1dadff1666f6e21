//! How permits are counted: a state, an instant, and what is left.

pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod counted;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
#[cfg(test)]
mod rounding;
pub(crate) mod sliding_log;
