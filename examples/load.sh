#!/bin/sh
# One element of an array job: writes the sales of one store, 5,000 rows, as CSV.
set -eu
parts=${DATA:?DATA names the directory for data}/parts
store=${FOREBAY_INDEX:?run this as an element of an array job}
mkdir -p "$parts"
awk -v store="$store" '
    # Numbers of a fixed sequence (Park and Miller, 1988): every awk gives the same.
    function random(below) {
        seed = (seed * 16807) % 2147483647
        return seed % below
    }
    BEGIN {
        seed = store
        split("north east south west", region)
        for (row = 1; row <= 5000; row++) {
            price = 5 + random(95)
            discount = 5 * random(4)
            amount = price * (1 + random(20)) * (100 - discount) / 100
            printf "%d,%s,2026-%02d,%d,%d,%.2f\n", store, region[1 + store % 4], 1 + random(12), price,
                discount, amount
        }
    }' >"$parts/store-$store.csv"
