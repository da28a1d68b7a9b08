#!/bin/sh
# Joins the parts that load.sh wrote into one table, and prints the total of each region.
set -eu
cd "${DATA:?DATA names the directory for data}"
{
    echo store,region,month,price,discount,amount
    cat parts/store-*.csv
} >sales.csv
tail -n +2 sales.csv | sort -t, -k2 -T "$TMPDIR" >"$WORK/sorted.csv"
awk -F, '{ total[$2] += $6 } END { for (region in total) printf "%-6s %14.2f\n", region, total[region] }' \
    "$WORK/sorted.csv" | sort
