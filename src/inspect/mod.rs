//! Checks of servers and limiters in Redis, for an operator and never for a request.

pub(crate) mod diagnose;
pub(crate) mod verify;
