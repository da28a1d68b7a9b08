#!/usr/bin/env python3
"""A query of DuckDB as a job of a grid: threads by its slots, memory by its limit, temporary files in its work area.

forebay submit -n 4 --mem 8G -- python3 duckdb_job.py 'data/sales/*.parquet'

DuckDB takes neither from the job by itself: without these settings it starts a thread for each processor of the host, takes 80 % of
its memory, and spills into the current directory.
"""

import os
import sys

# Part of the job's memory for DuckDB's buffers; the rest is for the interpreter and what DuckDB does not count.
PART = 0.8


def settings(environment, memory):
    """The settings of a connection for the job with this environment, and so much memory."""
    found = {"threads": int(environment.get("FOREBAY_SLOTS", "0")) or os.cpu_count()}
    spill = environment.get("DUCKDB_TEMP_DIRECTORY") or environment.get("UTIL")
    if spill:
        found["temp_directory"] = spill
    if memory:
        found["memory_limit"] = f"{int(memory * PART) // (1 << 20)}MiB"
    return found


def memory_bytes(groups="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """The memory that the control group of this job may use; None without a limit."""
    try:
        with open(groups) as file:
            paths = [line.split("::", 1)[1].strip() for line in file if line.startswith("0::")]
    except OSError:
        return None
    least, folder = None, os.path.join(root, paths[0].lstrip("/")) if paths else root
    while folder.startswith(root):
        try:
            with open(os.path.join(folder, "memory.max")) as file:
                limit = file.read().strip()
        except OSError:
            limit = "max"
        if limit != "max":
            least = min(int(limit), least or int(limit))
        folder = os.path.dirname(folder)
    return least


def connect():
    """A connection with these settings."""
    import duckdb

    return duckdb.connect(config=settings(os.environ, memory_bytes()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} 'FILES.parquet'")
    connect().sql(f"SUMMARIZE FROM read_parquet({sys.argv[1]!r})").show()
