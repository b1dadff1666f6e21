//! What a decision costs: this process in memory and against Redis, and Redis itself. See README.md beside this file.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark fails by panicking, and prints"
)]

#[path = "decision/memory.rs"]
mod memory;
#[path = "decision/requests.rs"]
mod requests;
#[path = "decision/server.rs"]
mod server;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "decision/traffic.rs"]
mod traffic;

use criterion::Criterion;

fn main() {
    // `cargo test` runs this binary too, without `--bench`: once through each benchmark, and small.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let measuring = has("--bench") && !has("--test") && !has("--list");

    let mut criterion = Criterion::default().configure_from_args();
    memory::bench(&mut criterion, measuring);
    traffic::bench(&mut criterion, measuring);
    criterion.final_summary();

    // Criterion knows no numbers that others measured.
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    if measuring && filter.is_none_or(|filter| "server".contains(filter.as_str())) {
        server::print_table();
    }
}
