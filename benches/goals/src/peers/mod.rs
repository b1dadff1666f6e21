//! Those who are measured beside this crate.

pub(crate) mod governor;
pub(crate) mod redisson;
