#!/usr/bin/env bash
# Measures every goal beside its contender and prints the table as Markdown: benches/goals.sh --help
# Counts instructions, and compares them with the committed ones: benches/goals.sh --instructions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
goals=(--quiet --release ${CI:+--locked} --manifest-path benches/goals/Cargo.toml
    --target-dir "$target/goals")
if [[ ${1:-} != --instructions ]]; then
    # All programs: one that counts allocations stands beside the one that measures.
    cargo build "${goals[@]}"
    exec cargo run "${goals[@]}" -- "$@"
fi
shift
# need COMMAND PACKAGE: fails where it is missing, before anything is built.
need() {
    command -v "$1" >/dev/null && return
    echo "benches/goals.sh: \`$1\` is missing: install the package $2" >&2
    exit 1
}
need valgrind 'valgrind (apt, dnf, pacman, apk)'
need vgdb 'valgrind (apt, dnf, pacman, apk)'
need "${REDIS_SERVER_BIN:-redis-server}" \
    'redis-server (apt) or redis (dnf, apk), or name another server in REDIS_SERVER_BIN'
exec cargo run "${goals[@]}" --bin instructions -- "$@"
