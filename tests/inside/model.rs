//! Holds the scripts against the pure functions of `algorithm/sliding_log.rs`.
//!
//! Every test has both go through the same steps, the scripts on a real server, and compares reply and keys after each.

mod edges;
mod engines;
mod fixed_window;
mod gcra;
mod histories;
mod keep_alive;
mod lists;
mod lone;
mod members;
mod pair;
mod settling;
mod slots;
mod verbs;

use super::support;
