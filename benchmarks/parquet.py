"""How fast are rows of Parquet files read, in sequence and shuffled?

Four files, page cache warm: small rows (four numbers, a text and a vector of 16 floats, 10,000 rows in a row group) and
rows of 10 kB of random bytes and a label (200 in a row group, more than the cache of decoded row groups holds). Every
sample is a dict of Python objects and arrays, read in one process. In sequence: `ParquetStream`, `ParquetDataset` by
index in order, Hugging Face `datasets` by index in order, and pyarrow's batches as `to_pylist` gives them. "bare"
decodes the row groups by pyarrow and makes no rows. Shuffled: `ParquetDataset` in a complete shuffle and in the order
of `RowGroupSampler`, beside `datasets` in a complete shuffle, whose conversion to Arrow files is not counted. With
`decoded_cache=`, `ParquetDataset` maps such files too, also written before.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import method
import numpy as np
import rivals
from method import Case, Figures, Goal

FILES = 4
RATE, CPU, MEMORY = "rows/s", "CPU-s per million rows", "MB, all processes"
BY_GROUPS, IN_ORDER = "stoker, shuffled by row groups", "stoker, by index"
DECODED = "stoker, decoded cache"


def cases(options: argparse.Namespace) -> list[Case]:
    found = []
    for name, rows, group in (("small rows", 400_000, 10_000), ("rows of 10 kB", 40_000, 200)):
        rows //= 20 if options.quick else 1
        how = {
            "paths": files(options.data, name, rows, group),
            "seconds": 0.3 if options.quick else 3.0,
            "data": str(options.data),
        }
        names = ["stoker", IN_ORDER, "datasets", "pyarrow", "bare"]
        goals = [Goal(RATE, against="datasets", at_least=5), Goal(RATE, against="pyarrow", at_least=1, headline=False)]
        runs = {rival: {"rival": rival, "shuffled": False, **how} for rival in names}
        found.append(Case(f"{name}, in sequence", runs, goals))
        names = [BY_GROUPS, "stoker", "datasets"]
        goals = [Goal(RATE, against="datasets", at_least=5)]
        runs = {rival: {"rival": rival, "shuffled": True, **how} for rival in names}
        found.append(Case(f"{name}, shuffled", runs, goals))
        runs = {rival: {"rival": rival, "shuffled": True, **how} for rival in (DECODED, "datasets")}
        found.append(Case(f"{name}, decoded cache, shuffled", runs, goals))
    return found


def files(folder: Path, name: str, rows: int, group: int) -> list[str]:
    """Returns the paths of files with `rows` rows in all; they are made once."""
    import pyarrow
    from pyarrow import parquet

    count = rows // FILES
    paths = [folder / f"{name.replace(' ', '-')}-{count}" / f"{number}.parquet" for number in range(FILES)]
    draw = np.random.default_rng(0)
    for path in paths:
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        columns: dict[str, Any] = {"label": draw.integers(0, 1000, count)}
        if name == "small rows":
            columns |= {f"x{number}": draw.random(count) for number in range(3)}
            columns["text"] = [f"the text of row {number}" for number in range(count)]
            vectors = pyarrow.array(draw.random(16 * count, np.float32))
            columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(vectors, 16)
        else:
            columns["data"] = [os.urandom(10_000) for _ in range(count)]
        partial = path.with_suffix(".partial")
        parquet.write_table(pyarrow.table(columns), partial, row_group_size=group)
        partial.rename(path)
    return [str(path) for path in paths]


def measure(rival: str, shuffled: bool, paths: list[str], seconds: float, data: str) -> Figures:
    try:
        epoch = epochs_of(rival, shuffled, paths, data)
    except ImportError:
        return dict.fromkeys((RATE, CPU, MEMORY), rivals.NOT_INSTALLED)
    next(iter(epoch()))  # imports, and fills the page cache in part
    read, began, used = 0, time.perf_counter(), method.cpu_seconds()
    while time.perf_counter() - began < seconds:
        for rows in epoch():
            read += rows
            if time.perf_counter() - began > 2 * seconds:  # a complete shuffle of large row groups takes hours
                break
    took, used = time.perf_counter() - began, method.cpu_seconds() - used
    return {RATE: read / took, CPU: used / (read / 1e6), MEMORY: method.memory_of_all() / 1e6}


def epochs_of(rival: str, shuffled: bool, paths: list[str], data: str) -> Callable[[], Iterator[int]]:
    """Returns a function that reads all rows once, and yields the number of rows read at a time."""
    if rival == "datasets":
        import datasets

        table = datasets.load_dataset("parquet", data_files=paths, split="train", cache_dir=f"{data}/datasets")
        return lambda: by_index(table, order(len(table), shuffled))
    if rival in ("pyarrow", "bare"):
        return lambda: by_batches(paths, rival == "pyarrow")
    import stoker

    if rival == "stoker" and not shuffled:
        return lambda: (1 for _ in stoker.ParquetStream(paths))
    folder = f"{data}/decoded" if rival == DECODED else None
    dataset = stoker.ParquetDataset(paths, decoded_cache=folder)
    if rival == DECODED:
        for place in accumulate(dataset.row_group_sizes):
            dataset[place - 1]
    if rival == BY_GROUPS:
        draw = np.random.default_rng(0)
        return lambda: by_index(dataset, stoker.RowGroupSampler(dataset.row_group_sizes, generator=draw))
    return lambda: by_index(dataset, order(len(dataset), shuffled))


def order(length: int, shuffled: bool) -> Any:
    return np.random.default_rng(0).permutation(length).tolist() if shuffled else range(length)


def by_index(dataset: Any, indices: Any) -> Iterator[int]:
    for index in indices:
        dataset[index]
        yield 1


def by_batches(paths: list[str], as_rows: bool) -> Iterator[int]:
    from pyarrow import parquet

    for path in paths:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                yield len(table.to_pylist()) if as_rows else len(table)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/parquet"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
