#!/usr/bin/env bash
# Measures every goal beside its contender and prints the table as Markdown: benches/goals.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
exec cargo run --quiet --release --manifest-path benches/goals/Cargo.toml --target-dir "$target/goals" -- "$@"
