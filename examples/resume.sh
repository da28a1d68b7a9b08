#!/bin/sh
# A job in two steps. If its host is lost, it restarts and skips what it has finished.
# Submit it with: forebay submit --checkpoint --rerunnable resume.sh
set -eu
sorted=$WORK/sorted.csv
forebay checkpoint has sort || {
    tail -n +2 "${DATA:?}/sales.csv" | sort -t, -k6 -n -r -T "$TMPDIR" >"$sorted"
    forebay checkpoint done sort
}
forebay checkpoint has top || {
    head -n 3 "$sorted" >"$DATA/top-sales.csv"
    forebay checkpoint done top
}
forebay checkpoint list
