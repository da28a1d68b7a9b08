#!/bin/sh
#FOREBAY -J month -n 2 --mem '64 MiB' --time-limit '10 min'
#FOREBAY -o month-%J.out
# The options of the job are in the lines above. Its argument is a month: forebay submit month.sh -- 2026-10
set -eu
awk -F, -v month="$1" '$3 == month { rows++; total += $6 }
    END { printf "%s: %d sales, %.2f in total\n", month, rows, total }' "${DATA:?}/sales.csv"
