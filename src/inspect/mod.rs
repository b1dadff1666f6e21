//! What operators ask of a Redis, and never a request.

pub(crate) mod diagnose;
pub(crate) mod verify;
