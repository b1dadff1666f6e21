//! None of Redisson's defects: each one known of its RRateLimiter up to 4.7.0 is a test here, on a real Redis.
//!
//! A test provokes the defect, or writes the state by hand that a Redisson client leaves behind, and compares what
//! stands in Redis before and after with the format's description. Its comment says what Redisson does there; `#n` is a
//! thread of redisson/redisson, the rest was measured on 4.7.0. Time is a clock that is moved, but for the tests of the
//! server's clock.

mod cases;
mod clients;
mod clocks;
mod lives;
mod lost_keys;
mod members;
mod monitor;
mod names;
mod numbers;
mod rates;
mod resend;
mod waits;
mod world;
