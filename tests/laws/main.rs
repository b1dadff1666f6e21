//! The laws every store keeps, each as a property of random histories on both stores.
//!
//! L1 never over, L2 exact wait, L3 refusals are free, L5 nothing is lost. Time is a clock that is
//! moved; what counts by the server's clock is held by `tests/packed`, `tests/inside` and
//! `tests/matrix`. In memory it moves by nanoseconds, too. In Redis they hold on
//! every topology, see `kit::topologies`, and in every combination of guards, see `guards`.
//!
//! L5, and L6 (a key is who it says), have one exception: untracked names of a full `MemoryStore`
//! are counted approximately, never too much, and that heals an eighth of the interval later, see
//! `tests/pure/memory/untracked.rs`.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod backend;
mod bans;
mod calendar;
mod exact_wait;
mod free_refusals;
mod in_flight;
mod jumps;
mod kinds;
mod never_over;
mod next_permit;
mod nothing_lost;
#[path = "../../examples/backend.rs"]
#[allow(dead_code, reason = "the example has a main")]
mod plain;
mod saved;
mod settled;
mod several;
mod slots;
mod world;
