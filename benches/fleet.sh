#!/usr/bin/env bash
# Simulates fleets of processes that share limits, and prints a table as Markdown: benches/fleet.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/shared/help.sh benches/fleet/main.rs "$@"
exec cargo run --quiet --release ${CI:+--locked} --manifest-path benches/fleet/Cargo.toml \
    --target-dir "${CARGO_TARGET_DIR:-target}/fleet" -- "$@"
