//! Nothing: `cargo build -p redis-cell` builds the module, which is a library for Redis.
