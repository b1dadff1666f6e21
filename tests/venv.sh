#!/usr/bin/env bash
# Makes a Python environment: for what tests bring from PyPI.
#
#   venv.sh DIRECTORY    makes DIRECTORY/bin/python, with pip; empties DIRECTORY first
set -euo pipefail

if (($# != 1)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY" >&2
    exit 2
fi

# Prints what is missing, and fails.
no_python() {
    cat >&2 <<'HINT'
tests/venv.sh: tests need Python 3 with `venv` and `pip`. One of these installs them:
    sudo apt-get install python3-venv
    sudo dnf install python3-pip
    sudo pacman -S python-pip
    sudo apk add python3 py3-pip
    brew install python
HINT
    exit 1
}

# Debian's python3 comes without ensurepip, which venv needs.
have_python() {
    command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' 2>/dev/null
}

if ! have_python; then
    command -v apt-get >/dev/null || no_python
    as_root=()
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || no_python
        as_root=(sudo)
    fi
    echo 'tests/venv.sh: python3-venv is missing, installing it with apt-get' >&2
    # "${a[@]+...}": bash before 4.4 takes an empty array for an unset variable.
    ${as_root[@]+"${as_root[@]}"} apt-get update
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends python3-venv
    have_python || no_python
fi
python3 -m venv --clear "$1"
