//! The script that keeps limiters packed in one string each, and its twin in Rust: random histories
//! in which they agree, and cases that these do not reach.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod histories;
mod plan;
mod play;
mod rules;
mod twin;
mod versions;
mod world;
