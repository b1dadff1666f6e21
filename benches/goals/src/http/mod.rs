//! An axum server in a process of its own, and what asks it.

pub(crate) mod load;
pub(crate) mod scene;
pub(crate) mod server;
