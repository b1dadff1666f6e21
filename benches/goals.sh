#!/usr/bin/env bash
# Measures every goal beside its contender and prints the table as Markdown: benches/goals.sh --help
# Counts instructions, and compares them with the committed ones: benches/goals.sh --instructions
#
# With --write, as the last argument, the table of a whole run or the counts go between their markers in benches/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=arguments.rs
[[ ${1:-} != --instructions ]] || program=instructions/main.rs
. benches/shared/help.sh "benches/goals/src/$program" "$@"
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(CDPATH='' cd -- "$target" && pwd)
goals=(--quiet --release ${CI:+--locked} --manifest-path benches/goals/Cargo.toml
    --target-dir "$target/goals")
# written NAME COMMAND...: what the command prints goes between the markers of this name, too.
written() {
    "${@:2}" >"$target/$1.md"
    benches/shared/between.sh "$1" "$target/$1.md"
    exec cat "$target/$1.md"
}
if [[ ${1:-} != --instructions ]]; then
    # All programs: one that counts allocations stands beside the one that measures.
    cargo build "${goals[@]}"
    run=(cargo run "${goals[@]}" --)
    [[ "$*" != --write ]] || written goals "${run[@]}"
    exec "${run[@]}" "$@"
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
run=(cargo run "${goals[@]}" --bin instructions --)
[[ "$*" != --write ]] || written instructions "${run[@]}" --write
exec "${run[@]}" "$@"
