"""Runs one job of DuckDB or Polars: a description in JSON on standard input, what it did in JSON on standard output."""

import json
import os
import pathlib
import re
import sys
import threading
import time

LOOK_SECONDS = 0.05


class Spill(threading.Thread):
    """Looks at the size of the directory for temporary files; keeps the largest that it saw."""

    def __init__(self, directory):
        super().__init__(daemon=True)
        self.directory = directory
        self.largest = 0
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(LOOK_SECONDS):
            self.look()

    def look(self):
        size = 0
        for folder, _, files in os.walk(self.directory):
            for file in files:
                try:
                    size += os.stat(os.path.join(folder, file)).st_blocks * 512
                except FileNotFoundError:
                    pass
        self.largest = max(self.largest, size)

    def finish(self):
        self.over.set()
        self.join()
        return self.largest


def quoted(path):
    return "'" + str(path).replace("'", "''") + "'"


class DuckDb:
    def __init__(self, job):
        import duckdb

        self.version = duckdb.__version__
        self.connection = duckdb.connect(
            config={
                "threads": job["threads"],
                "memory_limit": f"{job['memory_bytes'] // 1024}KiB",
                "temp_directory": job["spill"],
            }
        )

    def count(self, path):
        counted = self.connection.execute(f"SELECT COUNT(*) FROM read_parquet({quoted(path)})")
        return counted.fetchall()[0][0]

    def convert(self, source, target):
        self.connection.execute("SET preserve_insertion_order = false")
        text = f"SELECT * FROM read_csv({quoted(source)}, header = true)"
        self.connection.execute(f"COPY ({text}) TO {quoted(target)} (FORMAT parquet)")
        return self.count(target)

    def query(self, tables, text, target):
        for name, path in tables.items():
            self.connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM read_parquet({quoted(path)})')
        form = "FORMAT parquet" if target.endswith(".parquet") else "FORMAT csv, HEADER"
        self.connection.execute(f"COPY ({text}) TO {quoted(target)} ({form})")
        return sum(self.count(path) for path in tables.values())


class Polars:
    def __init__(self, job):
        # Read when the module is loaded.
        os.environ["POLARS_MAX_THREADS"] = str(job["threads"])
        os.environ["POLARS_TEMP_DIR"] = job["spill"]
        import polars

        self.polars = polars
        self.version = polars.__version__

    def count(self, path):
        counted = self.polars.scan_parquet(path).select(self.polars.len())
        return counted.collect().item()

    def convert(self, source, target):
        self.polars.scan_csv(source, try_parse_dates=True).sink_parquet(target, engine="streaming")
        return self.count(target)

    def query(self, tables, text, target):
        frames = {name: self.polars.scan_parquet(path) for name, path in tables.items()}
        result = self.polars.SQLContext(frames).execute(text)
        if target.endswith(".parquet"):
            result.sink_parquet(target, engine="streaming")
        else:
            result.sink_csv(target, engine="streaming")
        return sum(self.count(path) for path in tables.values())


def main():
    job = json.load(sys.stdin)
    spill = Spill(job["spill"])
    spill.start()
    try:
        engine = {"duckdb": DuckDb, "polars": Polars}[job["engine"]](job)
        begin = time.monotonic()
        if "csv" in job:
            rows = engine.convert(job["csv"], job["output"])
        else:
            # Only the files that the query names: the rows that are counted are theirs.
            words = set(re.findall(r"\w+", job["sql"]))
            lake = pathlib.Path(job["lake"]).glob("*.parquet")
            tables = {path.stem: str(path) for path in lake if path.stem in words}
            rows = engine.query(tables, job["sql"], job["result"])
        seconds = time.monotonic() - begin
    except ModuleNotFoundError as error:
        sys.exit(f"the Python package {error.name} is not installed for {sys.executable}")
    except Exception as error:  # Whatever the engines raise: the step says it in one line.
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
    json.dump(
        {"version": engine.version, "rows": rows, "seconds": seconds, "spilled_bytes_max": spill.finish()},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
