//! None of Redisson's defects: each one known of its RRateLimiter up to 4.7.0 has a test here, on a
//! real Redis.
//!
//! A test provokes the defect, or writes the state that a Redisson client leaves behind, and
//! compares Redis' state before and after with the description of the format. Its comment describes
//! Redisson's behaviour; `#n` is a thread of redisson/redisson, the rest was measured on 4.7.0.
//! `cases.toml` is played by `cases`. That keys of single users vanish is held by `hostile`, what
//! several processes take in a window by `fleet`, that a call sent twice takes once by
//! `tests/faults/delivery.rs`, and that a lowered rate holds by `cases.toml`. Members that
//! no Redisson wrote, and scores from the future, are those of `tests/inside/model`. Time is a
//! clock that is moved, except in the tests of the server's clock. Names whose keys a Cluster would
//! put apart are tried on a real one, in `tests/topologies/cluster.rs`.

mod clocks;
mod members;
mod monitor;
mod waits;
pub(crate) mod world;
