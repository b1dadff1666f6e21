//! Looks at servers and limiters in Redis for an operator, never for a request.

pub(crate) mod diagnose;
pub(crate) mod verify;
