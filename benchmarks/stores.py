"""How fast are samples read from an LMDB, an HDF5 file and an SQL result, beside bare loops with the same library?

One process, page cache warm, samples by index in random order. LMDB: values of 10 kB; bare is `get` in one transaction
that stays open. HDF5: images of 64 x 64 bytes, in one piece and in compressed chunks of 16, which are read in the order
of the chunks; bare is `file[key][index]`. SQL: rows of an integer, a text and a float; rivals are a list of tuples and
a pandas DataFrame, and what counts is the time to have all rows and the memory.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import method
import numpy as np
import rivals
from method import Case, Figures, Goal

RATE, READY, MEMORY = "samples/s", "seconds until all rows are there", "MB of the process, grown by"
SIDE, ROWS_OF_CHUNK = 64, 16


def cases(options: argparse.Namespace) -> list[Case]:
    samples, rows = (2_000, 20_000) if options.quick else (20_000, 1_000_000)
    how = {"data": str(options.data), "seconds": 0.3 if options.quick else 2.0}
    found = []
    for name, count in (("LMDB", samples), ("HDF5, one piece", samples), ("HDF5, chunks", samples)):
        runs = {rival: {"rival": rival, "store": name, "count": count, **how} for rival in ("stoker", "bare")}
        found.append(Case(name, runs, [Goal(RATE, against="bare", at_least=1 / 1.2)]))
    names = ("stoker", "list of tuples", "pandas")
    runs = {rival: {"rival": rival, "store": "SQL", "count": rows, **how} for rival in names}
    return [*found, Case(f"SQL, {rows:,} rows", runs, [Goal(MEMORY, against="list of tuples", at_most=1)])]


def measure(rival: str, store: str, count: int, data: str, seconds: float) -> Figures:
    folder = Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    if store == "SQL":
        return rows_of(rival, database(folder, count))
    read, order = readers(rival, store, folder, count)
    read(0)
    done, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        for index in order[done % count : done % count + 100]:
            read(index)
        done += 100
    return {RATE: done / took}


def readers(rival: str, store: str, folder: Path, count: int) -> tuple[Callable[[int], Any], list[int]]:
    """Returns a function that reads a sample, and the order of the indices."""
    import stoker

    order = np.random.default_rng(0).permutation(count).tolist()
    if store == "LMDB":
        import lmdb

        path = folder / f"{count}.lmdb"
        if not path.exists():
            with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
                for number in range(count):
                    transaction.put(b"%08d" % number, bytes(10_000))
        if rival == "stoker":
            return stoker.LMDBDataset(path).__getitem__, order
        transaction = lmdb.open(str(path), readonly=True, lock=False, readahead=False).begin()
        keys = [b"%08d" % number for number in range(count)]
        return lambda index: transaction.get(keys[index]), order
    import h5py

    is_whole = store == "HDF5, one piece"
    path = folder / f"{count}-{'whole' if is_whole else 'chunks'}.h5"
    if not path.exists():
        images = np.random.default_rng(0).integers(0, 4, (count, SIDE, SIDE), np.uint8)
        stored = {} if is_whole else {"chunks": (ROWS_OF_CHUNK, SIDE, SIDE), "compression": "gzip"}
        with h5py.File(path, "w") as file:
            file.create_dataset("images", data=images, **stored)
    if not is_whole:
        order = list(range(count))
    if rival == "stoker":
        return stoker.HDF5Dataset(path).__getitem__, order
    images = h5py.File(path)["images"]
    return lambda index: images[index], order


def database(folder: Path, rows: int) -> Path:
    path = folder / f"{rows}.sqlite"
    if not path.exists():
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE rows (id INTEGER, name TEXT, score REAL)")
            values = ((number, f"name {number}", number / 3) for number in range(rows))
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", values)
        connection.close()
    return path


def rows_of(rival: str, path: Path) -> Figures:
    import stoker

    if rival == "pandas":
        try:
            import pandas
        except ImportError:
            return dict.fromkeys((READY, MEMORY), rivals.NOT_INSTALLED)
    query, connection = "SELECT * FROM rows ORDER BY id", sqlite3.connect(path)
    stoker.SQLDataset("SELECT 1 AS one", f"sqlite:///{path}")  # imports
    before, began = method.memory_of_all(), time.perf_counter()
    if rival == "stoker":
        rows: Any = stoker.SQLDataset(query, f"sqlite:///{path}")
    elif rival == "pandas":
        rows = pandas.read_sql(query, connection)
    else:
        rows = connection.execute(query).fetchall()
    took = time.perf_counter() - began
    grown = method.memory_of_all() - before
    assert len(rows)
    return {READY: took, MEMORY: grown / 1e6}


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/stores"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
