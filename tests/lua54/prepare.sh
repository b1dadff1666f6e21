#!/usr/bin/env bash
# Brings Lua 5.4 from PyPI, as the package lupa, for tests/run.sh: scripts run in it, too.
#
#   prepare.sh DIRECTORY    makes DIRECTORY/redis-server, which is a server whose scripts run in Lua
#                           5.4 (see server.py), unless that is there
set -euo pipefail

if (($# != 1)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY" >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
# What is written there runs from anywhere.
directory=$(cd "$1" && pwd)

# Prints what is missing where pip has not found it, after its own words, and fails.
no_lua() {
    cat >&2 <<'HINT'
tests/lua54: pip could not install lupa, which brings Lua 5.4; its words stand above. It has to reach
PyPI, or
    PIP_INDEX_URL=..., a mirror of it
    PIP_NO_INDEX=1 PIP_FIND_LINKS=/a/folder, with the wheel of lupa 2.x
Other tests go without: cargo test --all-features
HINT
    exit 1
}

if ! "$directory/venv/bin/python" -c 'import lupa.lua54' 2>/dev/null; then
    "$here/../venv.sh" "$directory/venv"
    echo 'tests/lua54: installing lupa with pip' >&2
    "$directory/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --only-binary :all: 'lupa>=2.2,<3' || no_lua
    "$directory/venv/bin/python" -c 'import lupa.lua54' || no_lua
fi
cat >"$directory/redis-server" <<RUN
#!/bin/sh
exec "$directory/venv/bin/python" "$here/server.py" "\$@"
RUN
chmod +x "$directory/redis-server"
"$directory/redis-server" --version
