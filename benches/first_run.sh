#!/usr/bin/env bash
# What a newcomer waits for, as two tables in Markdown: benches/first_run.sh [COMMIT...]
#
# The first: the first command of the README of each commit (HEAD), with no crate downloaded and nothing built. The second: a
# package that depends on axum, and on one crate more, with all crates downloaded and nothing built. Seconds by the clock, and
# of the processors, which other load on the machine changes less. Some ten minutes on two cores; needs a registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As in a newcomer's shell.
unset CARGO_INCREMENTAL CARGO_PROFILE_DEV_DEBUG CARGO_TARGET_DIR RUSTFLAGS
export CARGO_TERM_COLOR=never CARGO_HOME

# timed COMMAND...: sets `clock` and `cores`; what the command says goes to $work/log.
timed() {
    local TIMEFORMAT='%R %U %S' user system
    { time "$@" >"$work/log" 2>&1; } 2>"$work/time" || {
        cat "$work/log" >&2
        return 1
    }
    read -r clock user system <"$work/time"
    cores=$(awk "BEGIN { print $user + $system }")
}

# said WORD: how many lines of cargo begin with it.
said() {
    grep -c "^ *$1 " "$work/log" || true
}

echo "$(date +%F), $(rustc --version | cut -d' ' -f1,2), $(nproc) cores"
echo
echo '| commit | first command | downloaded | compiled | s | s of cores |'
echo '|---|---|---:|---:|---:|---:|'
for commit in "${@:-HEAD}"; do
    commit=$(git rev-parse --short "$commit")
    mkdir "$work/$commit"
    git archive "$commit" | tar -x -C "$work/$commit"
    command=$(grep -m 1 '^cargo run .*server' "$work/$commit/README.md")
    CARGO_HOME=$work/home-$commit
    read -ra build <<<"${command/ run / build }"
    cd "$work/$commit"
    timed "${build[@]}" --locked
    echo "| $commit | \`$command\` | $(said Downloaded) | $(said Compiling) | $clock | $cores |"
    cd "$here"
    rm -rf "${work:?}/$commit"
done

# row NAME DEPENDENCY [PACKAGE VERSION]: the last two for `cargo update --precise`.
row() {
    local package=$work/package crates
    rm -rf "$package"
    mkdir -p "$package/src"
    touch "$package/src/lib.rs"
    cat >"$package/Cargo.toml" <<MANIFEST
[package]
name = "newcomer"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
$2
MANIFEST
    cd "$package"
    cargo generate-lockfile --quiet
    if [[ $# -gt 2 ]]; then
        cargo update --quiet --package "$3" --precise "$4"
    fi
    cargo fetch --quiet
    crates=$(cargo tree --edges normal,build --prefix none --no-dedupe | sort -u | wc -l)
    # As a crate from a registry is compiled, which this one is not here.
    timed env CARGO_INCREMENTAL=0 cargo build --offline
    echo "| $1 | $((crates - 1)) | $clock | $cores |"
    cd "$here"
}

CARGO_HOME=$work/home
axum='axum = "0.8"'
ours() {
    printf '%s\ntower-ratelimit = { path = "%s", %s }' "$axum" "$here" "$1"
}
version() {
    cargo info --quiet --registry crates-io "$1" 2>/dev/null | sed -n 's/^version: \([^ ]*\).*/\1/p'
}
all=$(sed -n '/^\[package.metadata.docs.rs\]/,/^\]/p' Cargo.toml | grep -o '"[a-z-]*"' | grep -v '"--\|docsrs' | paste -sd,)
echo
echo '| dependencies | crates | s | s of cores |'
echo '|---|---:|---:|---:|'
row 'axum alone' "$axum"
for peer in tower_governor axum-governor; do
    newest=$(version "$peer")
    row "axum, $peer $newest" "$axum
$peer = \"=$newest\""
done
row 'axum, this crate in memory: `default-features = false`' "$(ours 'default-features = false, features = ["axum"]')"
row 'axum, this crate with Redis: `default`' "$(ours 'features = ["axum"]')"
row 'the same, without ICU' "$(ours 'features = ["axum"]')" idna_adapter 1.1.0
row 'axum, this crate with all features but `cli`' "$(ours "features = [$all]")"
row 'the same, without ICU' "$(ours "features = [$all]")" idna_adapter 1.1.0
row 'this crate alone, in memory' "tower-ratelimit = { path = \"$here\", default-features = false }"
