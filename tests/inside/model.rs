//! Holds the scripts against the pure functions of `algorithm/`.
//!
//! Every test has both go through the same steps, the scripts on a real server, and compares reply
//! and keys after each. `pair.rs`, `verbs.rs` and `histories.rs` serve every way to count; what
//! differs from one to another is in `log.rs` and `fixed_window.rs`. `own.rs` stands alone, as keys
//! and verbs of our own format are others.

mod edges;
mod engines;
mod fixed_window;
mod histories;
mod lists;
mod log;
mod lone;
mod members;
mod own;
mod pair;
mod rows;
mod slots;
mod verbs;

use std::time::Duration;

use proptest::{prelude::*, sample::Index};
use redis::{Cmd, Value};

use self::{
    histories::{Step, clock, config, live, rate_type, step, steps, take, whose},
    members::Generation,
    pair::{
        CLIENT, Clock, How, Key, Kind, Lone, Pair, Plant, START, Sent, decide, decide_all, replied,
    },
};
use crate::{
    algorithm::{
        answer::{Answer, Changed, Verdict},
        call,
        limiter::LimiterState,
        sliding_log::{Entry, SlidingLog},
    },
    store::redis::{classify, redisson, script::Script},
    values::{
        charge::{Charge, PermitId, Taken},
        clock::Now,
        compiled_limit::{CompiledLimit, Limiter},
        demand::Demand,
        error::ErrorKind,
        limit::{Algorithm, Counting, Limit, LimitSource, RateType, StoredLimit},
        name::Name,
    },
};
