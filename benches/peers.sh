#!/usr/bin/env bash
# Measures this crate beside its peers, and prints tables as Markdown: benches/peers.sh --help
#
# Starts its own redis-server. With --write, a whole run's tables go between the markers of benches/README.md, and its
# figures into target/peers.json. It brings Bucket4j (by Maven) and rate-limiter-flexible (by npm) into target/peers. What
# is missing (a JDK, Maven, Node, Redisson's jars) leaves that peer out, and says so. A whole run takes some 25 minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/shared/help.sh benches/peers/src/main.rs "$@"
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

# Peers in other languages. A folder is made anew if one of its sources, named behind it, is newer.
processes=benches/peers/processes
made() {
    [[ -f $1/complete && -z $(find "${@:2}" -newer "$1/complete") ]]
}

redisson() {
    local version jars home=$target/peers/redisson
    version=$(sed -n 's/^pub(crate) const VERSION: &str = "\(.*\)";$/\1/p' benches/shared/redisson.rs)
    # benches/README.md says what brings them; they stand here whatever folder cargo builds in.
    jars=target/redisson/$version/lib
    [[ -d $jars ]] || return
    made "$home" "$jars" "$processes"/Ask{,Redisson}.java && return
    rm -rf "$home"
    javac -d "$home" -cp "$jars/*" "$processes"/Ask{,Redisson}.java && touch "$home/complete"
}

bucket4j() {
    local home=$target/peers/bucket4j
    made "$home" "$processes"/{pom.xml,Ask.java,AskBucket4j.java} && return
    rm -rf "$home"
    mvn --quiet --batch-mode --file "$processes/pom.xml" \
        dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$home" &&
        javac -d "$home" -cp "$home/*" "$processes"/Ask{,Bucket4j}.java && touch "$home/complete"
}

rate_limiter_flexible() {
    local home=$target/peers/rate-limiter-flexible
    made "$home" "$processes"/package{,-lock}.json && return
    rm -rf "$home"
    mkdir "$home"
    # npm reads the lock file of the folder that it stands in. `--prefix` fails behind a link.
    cp "$processes"/package{,-lock}.json "$home" &&
        (cd "$home" && npm ci --ignore-scripts --no-audit --no-fund) && touch "$home/complete"
}

# The tables say what is left out, and why. What these say is none of the tables.
if redisson >&2; then export PEERS_REDISSON=$target/peers/redisson; fi
if bucket4j >&2; then export PEERS_BUCKET4J=$target/peers/bucket4j; fi
if rate_limiter_flexible >&2; then export PEERS_RATE_LIMITER_FLEXIBLE=$target/peers/rate-limiter-flexible; fi

peers=$target/peers/release/tower-ratelimit-peers
if [[ ! $write ]]; then
    exec "$peers" --json "$target/peers.json" ${arguments[@]+"${arguments[@]}"}
fi
"$peers" --json "$target/peers.json" >"$target/peers.md"
benches/shared/between.sh peers "$target/peers.md"
cat "$target/peers.md"
