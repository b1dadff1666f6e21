#!/usr/bin/env bash
# Brings in the real Redisson and compiles Oracle.java against it: tests/run.sh --redisson calls this.
#
#   prepare.sh DIRECTORY VERSION...    makes DIRECTORY/VERSION/{lib,classes,patched} for each version
#
# lib are the jars, classes is the compiled Oracle, and patched one class of Redisson with the system's clock exchanged
# for one that the test sets. The patched class is made here each time and stands in no repository. Of 3.13.2, the last
# release that counts by windows, there are the jars alone: it lacks much of what Oracle.java calls.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if (($# < 2)); then
    echo "Usage: ${BASH_SOURCE[0]} DIRECTORY VERSION..." >&2
    exit 2
fi
# Absolute: Maven takes a relative one relative to pom.xml.
mkdir -p -- "$1"
directory=$(CDPATH='' cd -- "$1" && pwd)
shift

# Prints what is missing, and fails: without Java the interoperation would be left untested.
no_java() {
    cat >&2 <<'HINT'
tests/redisson: these tests need a JDK (17 or newer: `javac` and `java`) and Maven (`mvn`). One of these installs them:
    sudo apt-get install openjdk-17-jdk-headless maven
    sudo dnf install java-17-openjdk-devel maven
    sudo pacman -S jdk17-openjdk maven
    sudo apk add openjdk17 maven
    brew install openjdk@17 maven
HINT
    exit 1
}

have_java() {
    command -v mvn >/dev/null && command -v java >/dev/null && command -v javac >/dev/null
}

if ! have_java; then
    command -v apt-get >/dev/null || no_java
    as_root=()
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || no_java
        as_root=(sudo)
    fi
    echo 'tests/redisson: JDK or Maven is missing, installing them with apt-get' >&2
    # "${a[@]+...}": bash before 4.4 takes an empty array for an unset variable.
    ${as_root[@]+"${as_root[@]}"} apt-get update
    # A distribution that has no JDK 17 has a newer one by this name.
    for jdk in openjdk-17-jdk-headless default-jdk-headless; do
        ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
            apt-get install --yes --no-install-recommends "$jdk" maven && break
    done
    have_java || no_java
fi

for version; do
    home=$directory/$version
    # Kept when it was brought in before: this file is written last.
    if [[ ! -f $home/complete || $here/pom.xml -nt $home/complete || $here/Oracle.java -nt $home/complete ||
        ${BASH_SOURCE[0]} -nt $home/complete ]]; then
        echo "tests/redisson: bringing in Redisson $version" >&2
        rm -rf "$home"
        mvn --quiet --batch-mode --file "$here/pom.xml" "-Dredisson.version=$version" \
            dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$home/lib"
        if [[ $version != 3.13.2 ]]; then
            mkdir -p "$home/classes" "$home/patched"
            javac -nowarn -Xlint:-options --release 11 -cp "$home/lib/*" -d "$home/classes" "$here/Oracle.java"
            java -cp "$home/lib/*:$home/classes" Oracle patch "$home/patched"
        fi
        touch "$home/complete"
    fi
done
