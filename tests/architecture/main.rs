//! Holds the boundaries between modules, the names of types, the public API and the sizes of the
//! crate.

#![cfg(test)]

mod api;
mod names;
mod size;
mod source;
mod walls;
mod way;
