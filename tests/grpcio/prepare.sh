#!/usr/bin/env bash
# Makes a Python environment with what tests/clients needs from PyPI, for tests/run.sh: grpcio, a gRPC
# client, and prometheus_client, which reads a scrape.
#
#   prepare.sh DIRECTORY    makes DIRECTORY/bin/python, which can import both; does nothing if it is there
set -euo pipefail

if (($# != 1)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY" >&2
    exit 2
fi
directory=$1

# Prints what is missing where pip has not found them, after its own words, and fails.
no_clients() {
    cat >&2 <<'HINT'
tests/grpcio: pip could not install grpcio and prometheus_client, which tests need; what pip says stands above. It has to reach PyPI, or
    PIP_INDEX_URL=..., a mirror of it
    PIP_NO_INDEX=1 PIP_FIND_LINKS=/a/folder, with the wheels of grpcio 1.x, prometheus-client 0.x and what they depend on
Other tests go without: cargo test --all-features
HINT
    exit 1
}

if "$directory/bin/python" -c 'import grpc, prometheus_client' 2>/dev/null; then
    exit 0
fi
"$(dirname "${BASH_SOURCE[0]}")/../venv.sh" "$directory"
echo 'tests/grpcio: installing grpcio and prometheus_client with pip' >&2
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check \
    'grpcio>=1.60,<2' 'prometheus-client>=0.16,<1' || no_clients
