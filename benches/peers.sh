#!/usr/bin/env bash
# Measures this crate beside its peers, and prints tables as Markdown: benches/peers.sh --help
#
# Starts its own redis-server. With --write, a whole run's tables go between the markers of benches/README.md, and its
# figures into target/peers.json. What is missing (a JDK, Redisson's jars) leaves that peer out, and says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(CDPATH='' cd -- "$target" && pwd)
# tower-rate-limiter says Rust 1.96; it compiles with the toolchain of this crate, too.
build=(--quiet --release ${CI:+--locked} --ignore-rust-version --manifest-path benches/peers/Cargo.toml
    --target-dir "$target/peers")
write='' arguments=()
for argument; do
    if [[ $argument == --write ]]; then write=yes; else arguments+=("$argument"); fi
done
if [[ $write && " ${arguments[*]-} " =~ ' '(--quick|--only|--correctness)' ' ]]; then
    echo 'benches/peers.sh: --write takes a whole run' >&2
    exit 2
fi

cargo build "${build[@]}"
# A module of Redis, which no crate links: it is built by its name.
cargo build "${build[@]}" -p redis-cell
PEERS_REDIS_CELL=$target/peers/release/libredis_cell.so
cc -O2 -shared -fPIC -o "$target/peers/clock.so" benches/peers/clock.c -ldl
PEERS_CLOCK=$target/peers/clock.so
export PEERS_REDIS_CELL PEERS_CLOCK

peers=$target/peers/release/tower-ratelimit-peers
if [[ ! $write ]]; then
    exec "$peers" --json "$target/peers.json" ${arguments[@]+"${arguments[@]}"}
fi
"$peers" --json "$target/peers.json" >"$target/peers.md"
benches/shared/between.sh peers "$target/peers.md"
cat "$target/peers.md"
