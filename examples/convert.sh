#!/bin/sh
# Converts the sales of one month with the exchange rate of that month.
set -eu
month=$(printf '2026-%02d' "$1")
rate=$(awk -F, -v month="$month" '$1 == month { print $2 }' "${DATA:?}/rates.csv")
awk -F, -v month="$month" -v rate="${rate:?no exchange rate for $month}" '
    $3 == month { total += $6 } END { printf "%s,%.2f\n", month, total * rate }' \
    "$DATA/sales.csv" >"$DATA/euros-$month.csv"
