//! Both stores and their guards: decisions, the state in Redis, and attacks by callers.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod bans;
mod cases;
mod defects;
mod deny_cache;
mod diagnose;
mod fleet;
mod hostile;
mod keyed;
mod kinds;
mod lease;
mod limiter;
mod lists;
#[path = "../../src/macros/logged/log.rs"]
mod log;
mod monitor;
mod observed;
mod queue;
mod stored_limits;
mod verify;
mod weight;
