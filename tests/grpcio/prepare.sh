#!/usr/bin/env bash
# Makes a Python environment with grpcio, the gRPC client of tests/http/with_grpcio.rs: tests/run.sh calls this.
#
#   prepare.sh DIRECTORY    makes DIRECTORY/bin/python, which can `import grpc`; does nothing if it is there
set -euo pipefail

if (($# != 1)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY" >&2
    exit 2
fi
directory=$1

# Prints what is missing, and fails: without a foreign client nobody would know whether ours is understood.
no_python() {
    cat >&2 <<'HINT'
tests/grpcio: a test needs Python 3 with `venv` and `pip`, to install grpcio with. One of these installs them:
    sudo apt-get install python3-venv
    sudo dnf install python3-pip
    sudo pacman -S python-pip
    sudo apk add python3 py3-pip
    brew install python
HINT
    exit 1
}

# The same where pip has found no grpcio, after its own words.
no_grpcio() {
    cat >&2 <<'HINT'
tests/grpcio: pip could not install grpcio, a client that a test needs; what pip says stands above. It has to reach PyPI, or
    PIP_INDEX_URL=..., a mirror of it
    PIP_NO_INDEX=1 PIP_FIND_LINKS=/a/folder, with the wheels of grpcio 1.x and of what it depends on
Other tests go without: cargo test --all-features --test limiter
HINT
    exit 1
}

# Debian's python3 comes without ensurepip, which venv needs.
have_python() {
    command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' 2>/dev/null
}

if "$directory/bin/python" -c 'import grpc' 2>/dev/null; then
    exit 0
fi
if ! have_python; then
    command -v apt-get >/dev/null || no_python
    as_root=()
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || no_python
        as_root=(sudo)
    fi
    echo 'tests/grpcio: python3-venv is missing, installing it with apt-get' >&2
    # "${a[@]+...}": bash before 4.4 takes an empty array for an unset variable.
    ${as_root[@]+"${as_root[@]}"} apt-get update
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends python3-venv
    have_python || no_python
fi
echo 'tests/grpcio: installing grpcio with pip' >&2
python3 -m venv --clear "$directory"
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check 'grpcio>=1.60,<2' || no_grpcio
