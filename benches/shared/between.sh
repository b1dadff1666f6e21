#!/usr/bin/env bash
# Puts a file between the markers of this name in benches/README.md: benches/shared/between.sh NAME FILE
#
# Prose gets lines of at most 100 columns; what stood between the markers goes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
grep -qx "<!-- $1: begin -->" benches/README.md
grep -qx "<!-- $1: end -->" benches/README.md
awk -v name="$1" -v tables="$2" '
    function wrapped(line,    words, count, i, indent, text) {
        count = split(line, words, " ")
        indent = line ~ /^- / ? "  " : ""
        text = words[1]
        for (i = 2; i <= count; i++) {
            if (length(text) + length(words[i]) >= 100) {
                print text
                text = indent words[i]
            } else text = text " " words[i]
        }
        print text
    }
    $0 == "<!-- " name ": end -->" { within = 0 }
    !within { print }
    $0 == "<!-- " name ": begin -->" {
        within = 1
        print ""
        while ((getline line < tables) > 0) {
            if (line ~ /^\|/) print line
            else wrapped(line)
        }
        print ""
    }
' benches/README.md >"$2.page"
mv "$2.page" benches/README.md
