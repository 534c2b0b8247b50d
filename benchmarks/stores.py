"""How fast are samples read from an LMDB and an HDF5 file, beside bare loops with the same library?

One process, page cache warm, samples by index in random order. LMDB: values of 10 kB; bare is `get` in one transaction
that stays open. HDF5: images of 64 x 64 bytes, in one piece and in gzip chunks of 16, which are read in the order of
the chunks; bare is `file[key][index]`. "zlib" is Stoker without the package isal.

"Batches" are of 256 such images, in the order of a `RowGroupSampler` that shuffles 64 chunks at once; bare stacks
`file[key][index]`. "Threads" are batches of 64 float32 images of 256 x 256 in that order, in chunks of 2 with shuffled
bytes, made by one worker of a loader; "torch" is torch's loader over `file[key][index]`, and "4 threads" decompress in
the worker.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import method
import numpy as np
from method import Case, Figures, Goal

RATE = "samples/s"
SIDE, ROWS_OF_CHUNK = 64, 16
LARGE_SIDE, ROWS_OF_LARGE_CHUNK, LARGE_BATCH = 256, 2, 64


def cases(options: argparse.Namespace) -> list[Case]:
    samples = 2_000 if options.quick else 20_000
    how = {"data": str(options.data), "seconds": 0.3 if options.quick else 2.0}
    found = []
    for name, count in (("LMDB", samples), ("HDF5, one piece", samples), ("HDF5, chunks", samples)):
        runs = {rival: {"rival": rival, "store": name, "count": count, **how} for rival in ("stoker", "bare")}
        if name == "HDF5, chunks":
            runs["zlib"] = {"rival": "zlib", "store": name, "count": count, **how}
        found.append(Case(name, runs, [Goal(RATE, against="bare", at_least=1 / 1.2)]))
    batches = {
        rival: {"rival": rival, "store": "HDF5, batches", "count": samples, **how}
        for rival in ("stoker", "zlib", "bare")
    }
    found.append(Case("HDF5, batches", batches, [Goal(RATE, against="bare", at_least=1 / 1.2)]))
    images = 256 if options.quick else 1_024
    threads = {
        rival: {"rival": rival, "store": "HDF5, threads", "count": images, **how}
        for rival in ("stoker", "4 threads", "zlib", "zlib, 4 threads", "torch")
    }
    found.append(Case("HDF5, threads", threads, [Goal(RATE, against="torch", at_least=1.2)]))
    return found


def measure(rival: str, store: str, count: int, data: str, seconds: float) -> Figures:
    folder = Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    if "zlib" in rival:
        sys.modules["isal"] = None  # type: ignore[assignment]  # as if it were not installed
    if store == "HDF5, threads":
        return {RATE: of_worker(rival, folder, count, seconds)}
    if store == "HDF5, batches":
        return {RATE: of_batches(rival, folder, count, seconds)}
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
    if rival != "bare":
        return stoker.HDF5Dataset(path).__getitem__, order
    images = h5py.File(path)["images"]
    return lambda index: images[index], order


def of_batches(rival: str, folder: Path, count: int, seconds: float) -> float:
    """Returns the samples/s of batches in this process, without a loader."""
    import h5py

    import stoker

    readers("bare", "HDF5, chunks", folder, count)
    path = folder / f"{count}-chunks.h5"
    order = list(stoker.RowGroupSampler([ROWS_OF_CHUNK] * (count // ROWS_OF_CHUNK), 64))
    dataset, images = stoker.HDF5Dataset(path), h5py.File(path, rdcc_nbytes=64 << 20)["images"]

    def read(indices: list[int]) -> Any:
        if rival == "bare":
            return np.stack([images[index] for index in indices])
        out = {"images": np.empty((len(indices), SIDE, SIDE), np.uint8)}
        dataset.gather(np.array(indices), out)
        return out

    done, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        begin = done % (count // 256 * 256)
        read(order[begin : begin + 256])
        done += 256
    return done / took


class Bare:
    """A dataset as written by hand."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count, self.images = path, count, None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.images is None:
            import h5py

            self.images = h5py.File(self.path, rdcc_nbytes=64 << 20)["images"]
        return self.images[index]


def of_worker(rival: str, folder: Path, count: int, seconds: float) -> float:
    """Returns the samples/s of a loader with one worker, from the second batch on."""
    import h5py
    import torch.utils.data

    import stoker

    path = folder / f"{count}-large.h5"
    if not path.exists():
        steps = np.random.default_rng(0).normal(size=(count, LARGE_SIDE, LARGE_SIDE)).astype(np.float32)
        chunks = (ROWS_OF_LARGE_CHUNK, LARGE_SIDE, LARGE_SIDE)
        with h5py.File(path, "w") as file:
            data = np.cumsum(steps, 2)
            file.create_dataset("images", data=data, chunks=chunks, compression="gzip", shuffle=True)
    sampler = list(stoker.RowGroupSampler([ROWS_OF_LARGE_CHUNK] * (count // ROWS_OF_LARGE_CHUNK), 64))
    settings: dict[str, Any] = {"batch_size": LARGE_BATCH, "num_workers": 1, "persistent_workers": True}
    if rival == "torch":
        loader: Any = torch.utils.data.DataLoader(Bare(path, count), sampler=sampler, **settings)
    else:
        dataset = stoker.HDF5Dataset(path, threads=4 if "4 threads" in rival else 1)
        loader = stoker.DataLoader(dataset, sampler=sampler, **settings)
    done, began = 0, 0.0
    while not began or time.perf_counter() - began < seconds:
        for _ in loader:
            if began:
                done += LARGE_BATCH
            began = began or time.perf_counter()
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/stores"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
