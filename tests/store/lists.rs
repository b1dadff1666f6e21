//! Several limits at once: all of them are charged, or none is, through a layer and through
//! `RateLimiter::all`.

mod cluster;
mod layer;
mod memory;
mod together;
mod world;
