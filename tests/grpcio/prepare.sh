#!/usr/bin/env bash
# Makes a Python environment with grpcio, the gRPC client of tests/clients/with_grpcio.rs, for
# tests/run.sh.
#
#   prepare.sh DIRECTORY    makes DIRECTORY/bin/python, which can `import grpc`; does nothing if it is there
set -euo pipefail

if (($# != 1)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY" >&2
    exit 2
fi
directory=$1

# Prints what is missing where pip has found no grpcio, after its own words, and fails.
no_grpcio() {
    cat >&2 <<'HINT'
tests/grpcio: pip could not install grpcio, a client that a test needs; what pip says stands above. It has to reach PyPI, or
    PIP_INDEX_URL=..., a mirror of it
    PIP_NO_INDEX=1 PIP_FIND_LINKS=/a/folder, with the wheels of grpcio 1.x and of what it depends on
Other tests go without: cargo test --all-features
HINT
    exit 1
}

if "$directory/bin/python" -c 'import grpc' 2>/dev/null; then
    exit 0
fi
"$(dirname "${BASH_SOURCE[0]}")/../venv.sh" "$directory"
echo 'tests/grpcio: installing grpcio with pip' >&2
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check 'grpcio>=1.60,<2' || no_grpcio
