"""How fast are samples read from an LMDB and an HDF5 file, beside bare loops with the same library?

One process, page cache warm, samples by index in random order. LMDB: values of 10 kB; bare is `get` in one transaction
that stays open. HDF5: images of 64 x 64 bytes, in one piece and in compressed chunks of 16, which are read in the order
of the chunks; bare is `file[key][index]`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import method
import numpy as np
from method import Case, Figures, Goal

RATE = "samples/s"
SIDE, ROWS_OF_CHUNK = 64, 16


def cases(options: argparse.Namespace) -> list[Case]:
    samples = 2_000 if options.quick else 20_000
    how = {"data": str(options.data), "seconds": 0.3 if options.quick else 2.0}
    found = []
    for name, count in (("LMDB", samples), ("HDF5, one piece", samples), ("HDF5, chunks", samples)):
        runs = {rival: {"rival": rival, "store": name, "count": count, **how} for rival in ("stoker", "bare")}
        found.append(Case(name, runs, [Goal(RATE, against="bare", at_least=1 / 1.2)]))
    return found


def measure(rival: str, store: str, count: int, data: str, seconds: float) -> Figures:
    folder = Path(data)
    folder.mkdir(parents=True, exist_ok=True)
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


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/stores"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
