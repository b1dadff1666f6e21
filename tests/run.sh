#!/usr/bin/env bash
# Runs all tests on a fresh machine: finds or installs what they need, then calls
# `cargo test --all-features`, and what that leaves out because not every machine has what it needs.
#
# What it brings from elsewhere goes to `target` in the checkout, whatever folder cargo builds in.
set -euo pipefail
# A relative path is relative to the caller's directory, which is left here.
case ${REDIS_SERVER_BIN:-} in
    /*) ;;
    */*) export REDIS_SERVER_BIN=$PWD/$REDIS_SERVER_BIN ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'USAGE'
Usage: tests/run.sh [--redisson | --redisson-only] [--faults | --faults-only] [--quick] [--inside] [--size]
                    [--interleavings] [--servers[=LIST]] [--stacks] [--screenshots] [--long] [--help] [-- ARGS...]

Runs all tests, doctests included, and those that need curl, Python, Chromium and PostgreSQL. With ARGS,
`cargo test` with these alone:
    tests/run.sh -- --test web service::
    tests/run.sh -- -- --nocapture

Options:
    --quick            what to run before a commit, in about a minute: format, clippy of the library,
                       its unit tests, which need no server, tests/architecture, the house, links,
                       operations and pictures of tests/pure, and the cases of tests/store/cases in
                       memory and on one server
    --size             nothing else but the sizes of the crate: lines by module, the largest files and
                       functions, and the functions that one request passes (by valgrind)
    --inside           nothing else but the library's unit tests at full length, and with those that
                       need a server, too: see tests/inside. ARGS select some of them:
                       tests/run.sh --inside -- -- inside::model
    --redisson         then the tests against the real Redisson, too: they need a JDK and Maven, which are installed
                       with apt-get if missing, and bring in Redisson's jars from the Maven repository
    --redisson-only    those tests alone
    --faults           then ten minutes of random faults over a random load, too, whose laws are checked at the end
    --faults-only      those alone
    --interleavings    nothing else but every order of what threads do with the pieces they share, by loom: see
                       tests/interleavings
    --servers          nothing else but what servers may differ in, on Valkey 9.1 and 8.1 and on
                       Redis 8.2 and 6.2, which come from PyPI. LIST names some of them, and ARGS
                       other tests:
                       tests/run.sh --servers=valkey-9.1,redis-6.2 -- --test laws --test faults
    --stacks           nothing else but the limits in other stacks: see src/docs/stacks.md. Before a
                       release, after `cargo update --manifest-path examples/stacks/Cargo.toml`
    --screenshots      nothing else but the pictures of the page at /_limits, written into examples
    --long             with --redisson 100,000 random steps and a minute of fleet instead of 10,000 and 20 seconds; 40
                       rounds of recorded histories instead of one; and with --faults
    -h, --help         print this text

Environment:
    REDIS_SERVER_BIN    the server to test against (default: redis-server on PATH, installed with apt-get if missing);
                        another Redis version or valkey-server will do, if it was built with TLS
                        (`make BUILD_TLS=yes`); not for --servers
    TOWER_RATELIMIT_SEED, _STEPS, _FLEET_SECONDS
                        the random steps against Redisson begin with this seed (a failing run prints its own), are so
                        many; so long the fleet saturates its limits. Recorded histories and random faults begin with this
                        seed, too
    TOWER_RATELIMIT_MINUTES
                        for so long there are random faults (default: 10)
    TOWER_RATELIMIT_KEYS
                        so many different keys are asked for in row 25 of the fault matrix (default: 20000),
                        and in the flood of a full MemoryStore (default: 30000)
    TOWER_RATELIMIT_HISTORIES
                        so many rounds of recorded histories, one of each combination of guards
    TOWER_RATELIMIT_PACKED
                        so many histories of tests/packed (default: 200)
    TOWER_RATELIMIT_REDISSON_VERSIONS
                        which versions of Redisson (default: 4.7.0 3.27.2)
    CI                  if set and not empty, Cargo.lock must be up to date (--locked)
USAGE
}

# Prints how to get a server, and fails: a run without Redis would leave out what matters most.
no_server() {
    cat >&2 <<'HINT'
tests/run.sh: the tests need a Redis server, and `redis-server` is not installed. One of these installs it:
    sudo apt-get install redis-server
    sudo dnf install redis           # newer Fedora: valkey-compat-redis
    sudo pacman -S valkey            # then set REDIS_SERVER_BIN=valkey-server
    sudo apk add redis
    brew install redis
To test against a server binary elsewhere, set REDIS_SERVER_BIN to its path.
HINT
    exit 1
}

# The same for the clients that tests/clients watches.
no_clients() {
    cat >&2 <<'HINT'
tests/run.sh: the tests need curl, promtool, and python3 with the package urllib3. One of these
installs them:
    sudo apt-get install curl prometheus python3-urllib3
    sudo dnf install curl golang-github-prometheus python3-urllib3
    sudo pacman -S curl prometheus python-urllib3
    sudo apk add curl prometheus py3-urllib3
HINT
    exit 1
}

# And for the browser that tests/browser looks at the page with.
no_browser() {
    cat >&2 <<'HINT'
tests/run.sh: the tests need Chromium or Google Chrome. One of these installs it:
    sudo apt-get install chromium
    sudo dnf install chromium
    sudo pacman -S chromium
    sudo apk add chromium
HINT
    exit 1
}

# And for the server of examples/postgres.
no_postgres() {
    cat >&2 <<'HINT'
tests/run.sh: the tests need a PostgreSQL server. One of these installs it:
    sudo apt-get install postgresql
    sudo dnf install postgresql-server
    sudo pacman -S postgresql
    sudo apk add postgresql
    brew install postgresql
HINT
    exit 1
}

# apt_install PACKAGE...: fails where apt-get is missing, or the right to use it.
apt_install() {
    command -v apt-get >/dev/null || return 1
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || return 1
        as_root=(sudo)
    fi
    echo "tests/run.sh: missing, and now installed with apt-get: $*" >&2
    # "${a[@]+...}": bash before 4.4 takes an empty array for an unset variable.
    ${as_root[@]+"${as_root[@]}"} apt-get update &&
        ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
            apt-get install --yes --no-install-recommends "$@"
}

has_clients() {
    command -v curl >/dev/null && command -v promtool >/dev/null &&
        python3 -c 'import urllib3' 2>/dev/null
}

# The names are those of tests/browser/chromium.rs.
has_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome ||
        command -v google-chrome-stable
} >/dev/null

# The places are those of examples/postgres/tests/server.
has_postgres() {
    command -v postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' ||
        { command -v pg_config && [[ -x $(pg_config --bindir)/postgres ]]; }
} >/dev/null

# on_server SERVER ARGS...: `cargo test` with these; without any, all in which servers may differ.
on_server() {
    local server=$1 status=0
    shift
    if (($# > 0)); then
        REDIS_SERVER_BIN=$server cargo test "${cargo_args[@]}" --no-fail-fast "$@"
        return
    fi
    # None of these servers has TLS.
    on_server "$server" --test laws --test faults --test matrix -- \
        --skip while_certificates_are_renewed || status=1
    on_server "$server" --test store -- cases:: diagnose:: kinds:: limiter:: verify:: || status=1
    on_server "$server" --test topologies -- cluster:: sentinel:: || status=1
    return $status
}

# on_servers SERVER... -- ARGS...: one after the other, also after one has failed.
on_servers() {
    local home=$PWD/target/servers servers=() failed=() server
    while [[ $1 != -- ]]; do
        servers+=("$1")
        shift
    done
    shift
    tests/servers/prepare.sh "$home" "${servers[@]}"
    for server in "${servers[@]}"; do
        printf '\ntests/run.sh: on %s\n' "$server"
        on_server "$home/$server" "$@" || failed+=("$server")
    done
    if ((${#failed[@]} > 0)); then
        echo "tests/run.sh: failed on ${failed[*]}" >&2
        return 1
    fi
}

everything=1 quick='' inside='' size='' redisson='' faults='' interleavings='' servers='' stacks='' long='' screenshots=''
while (($# > 0)); do
    case $1 in
        --quick)
            quick=1 everything=''
            shift
            ;;
        --size)
            size=1
            shift
            ;;
        --inside)
            inside=1 everything=''
            shift
            ;;
        --redisson)
            redisson=1
            shift
            ;;
        --redisson-only)
            redisson=1 everything=''
            shift
            ;;
        --faults)
            faults=1
            shift
            ;;
        --faults-only)
            faults=1 everything=''
            shift
            ;;
        --interleavings)
            interleavings=1
            shift
            ;;
        --servers)
            servers=valkey-9.1,valkey-8.1,redis-8.2,redis-6.2
            shift
            ;;
        --servers=?*)
            servers=${1#*=}
            shift
            ;;
        --stacks)
            stacks=1
            shift
            ;;
        --screenshots)
            screenshots=1 everything=''
            shift
            ;;
        --long)
            long=1 faults=1
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        --)
            shift
            break
            ;;
        *)
            echo "tests/run.sh: unknown argument '$1'" >&2
            usage >&2
            exit 2
            ;;
    esac
done

if [[ -n $interleavings ]]; then
    # A package of its own, which shares what it can with the other builds.
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
    exec cargo test --manifest-path tests/interleavings/Cargo.toml ${CI:+--locked} "$@"
fi

if [[ -n $stacks ]]; then
    # So are they; what they bring is heavy, and in a folder of its own can be deleted alone.
    exec cargo test --manifest-path examples/stacks/Cargo.toml --all-features ${CI:+--locked} \
        --target-dir "${CARGO_TARGET_DIR:-target}/stacks" "$@"
fi

cargo_args=(--all-features)
if [[ -n ${CI:-} ]]; then
    cargo_args+=(--locked)
fi

if [[ -n $size ]]; then
    exec cargo test "${cargo_args[@]}" --test architecture -- --ignored --exact --nocapture size::sizes
fi

if [[ -n $servers ]]; then
    # shellcheck disable=SC2086 # one word for each of them
    on_servers ${servers//,/ } -- "$@"
    exit
fi

if [[ -n ${REDIS_SERVER_BIN:-} ]]; then
    if ! command -v "$REDIS_SERVER_BIN" >/dev/null; then
        echo "tests/run.sh: REDIS_SERVER_BIN is '$REDIS_SERVER_BIN', which cannot be run" >&2
        exit 1
    fi
elif ! command -v redis-server >/dev/null; then
    apt_install redis-server || no_server
    command -v redis-server >/dev/null || no_server
fi
if [[ -n $everything ]] && ! has_clients; then
    apt_install curl prometheus python3-urllib3 || no_clients
    has_clients || no_clients
fi
if [[ -n $everything || -n $screenshots ]] && ! has_browser; then
    apt_install chromium || no_browser
    has_browser || no_browser
fi
if [[ -n $everything ]] && ! has_postgres; then
    apt_install postgresql || no_postgres
    has_postgres || no_postgres
fi
echo "tests/run.sh: $("${REDIS_SERVER_BIN:-redis-server}" --version)"

if [[ -n $everything ]]; then
    tests/grpcio/prepare.sh target/grpcio
    tests/lua54/prepare.sh target/lua54
fi

# inside_tests ARGS...: cargo calls the wrapper for this package alone, so no dependency is built again.
inside_tests() {
    cargo test "${cargo_args[@]}" --lib \
        --config "build.rustc-workspace-wrapper='tests/inside/rustc'" "$@"
}

if [[ -n $quick ]]; then
    cargo fmt --all --check
    cargo clippy "${cargo_args[@]}" --lib -- -D warnings
    cargo test "${cargo_args[@]}" --lib --test architecture
    cargo test "${cargo_args[@]}" --test pure -- house:: links:: operations:: pictures::
    exec cargo test "${cargo_args[@]}" --test store -- cases::in_memory cases::on_one_server
fi
if [[ -n $inside ]]; then
    inside_tests "$@"
    exit
fi
if [[ -n $screenshots ]]; then
    exec cargo test "${cargo_args[@]}" --test browser -- --ignored --exact screenshots
fi

# lua54_tests: the cases of every script once in Lua 5.4, with few random histories, as each command
# of a script crosses two processes.
lua54_tests() (
    export LUA54_SERVER_BIN=${REDIS_SERVER_BIN:-redis-server} PROPTEST_CASES=10
    export REDIS_SERVER_BIN=$PWD/target/lua54/redis-server
    # Not the one whose keys live for milliseconds: here they can expire while a script runs.
    inside_tests inside::model -- --skip it_counts_in_microseconds
    cargo test "${cargo_args[@]}" --test store -- cases::on_one_server
    TOWER_RATELIMIT_PACKED=20 cargo test "${cargo_args[@]}" --test packed -- histories:: rules::
)

# all_tests ARGS...: without ARGS also what a plain `cargo test` leaves out: what needs a server in the
# library, what needs curl, Python and Chromium, and the examples that are packages of their own.
all_tests() {
    cargo test "${cargo_args[@]}" --workspace "$@"
    if (($# == 0)); then
        inside_tests
        lua54_tests
        cargo test "${cargo_args[@]}" --test clients --test examples --test browser
        local example
        for example in opentelemetry postgres; do
            cargo test ${CI:+--locked} --manifest-path "examples/$example/Cargo.toml" \
                --target-dir "${CARGO_TARGET_DIR:-target}"
        done
        # It checks the laws itself.
        cargo run ${CI:+--locked} --manifest-path examples/redb/Cargo.toml \
            --target-dir "${CARGO_TARGET_DIR:-target}"
    fi
}

if [[ -n $long ]]; then
    export TOWER_RATELIMIT_HISTORIES=${TOWER_RATELIMIT_HISTORIES:-40}
    export TOWER_RATELIMIT_PACKED=${TOWER_RATELIMIT_PACKED:-2000}
fi
if [[ -n $faults && -z $everything && -z $redisson ]]; then
    # The last command, and in no pipe: its output and its exit status are those of this script.
    exec cargo test "${cargo_args[@]}" --test matrix -- --ignored --nocapture long:: "$@"
fi
if [[ -z $redisson ]]; then
    all_tests "$@"
    if [[ -z $faults ]]; then
        exit
    fi
    exec cargo test "${cargo_args[@]}" --test matrix -- --ignored --nocapture long::
fi

# Before the first test, so that a missing JDK fails at once.
export TOWER_RATELIMIT_REDISSON_VERSIONS=${TOWER_RATELIMIT_REDISSON_VERSIONS:-4.7.0 3.27.2}
TOWER_RATELIMIT_REDISSON_HOME=$PWD/target/redisson
export TOWER_RATELIMIT_REDISSON_HOME
read -ra versions <<<"$TOWER_RATELIMIT_REDISSON_VERSIONS"
# Redisson 3.13.2 is not tested as the others are: it shares the window of a page.
tests/redisson/prepare.sh "$TOWER_RATELIMIT_REDISSON_HOME" "${versions[@]}" 3.13.2
if [[ -n $long ]]; then
    export TOWER_RATELIMIT_STEPS=${TOWER_RATELIMIT_STEPS:-100000}
    export TOWER_RATELIMIT_FLEET_SECONDS=${TOWER_RATELIMIT_FLEET_SECONDS:-60}
fi

if [[ -n $everything ]]; then
    all_tests "$@"
    set --
fi
if [[ -n $faults ]]; then
    cargo test "${cargo_args[@]}" --test matrix -- --ignored --nocapture long::
fi
# One after the other, as each is to have the machine for itself; and with the figures that they print.
if (($# == 0)); then
    set -- -- --test-threads=1 --nocapture
fi
exec cargo test "${cargo_args[@]}" --test redisson "$@"
