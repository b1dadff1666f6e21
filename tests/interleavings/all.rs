//! Runs the parts that threads share in every order of their steps, by loom: `tests/run.sh
//! --interleavings`.
//!
//! The models stand in `models.rs`, which the library brings in where it is built for this: they
//! reach what is private.

use tower_ratelimit_interleavings::interleavings::*;

#[test]
fn deny_cache_and_what_is_given_back() {
    a_refusal_and_what_is_given_back();
}

#[test]
fn deny_cache_and_verbs() {
    a_refusal_and_a_verb();
}

#[test]
fn deny_cache_asks_once() {
    one_of_many_asks_in_time();
}

#[test]
fn outbox_loses_no_place() {
    a_place_that_is_left_is_given_on();
}

#[test]
fn breaker_sends_one() {
    one_of_a_herd_goes();
}
