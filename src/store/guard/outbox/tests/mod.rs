//! A simulation of an outbox: a node that loses, delays and reorders, callers that come and leave
//! at every step, and runtimes that are shut down or not driven, on a clock that is moved by hand.
//!
//! [`server`] is the node, with the pure sliding log in it and the laws that hold at each call;
//! [`world`] is everything else. [`histories`] plays random histories by seed, the other modules
//! those that have broken a design.

mod histories;
mod leaving;
mod load;
mod runtimes;
mod server;
mod waiting;
mod world;

use self::{
    server::DEADLINE,
    world::{BOUNDS, Caller, World},
};
use super::bound::Bounds;
use crate::store::guard::scripted::*;
