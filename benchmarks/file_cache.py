"""What does the local cache of a store's files cost, and what does it save?

The store is simulated: a local file of which each request takes 20 ms and a byte 10 ns (100 MB/s), one at a time.
Samples are 100 kB at every 100 kB of shards of 64 MB.

*hit*: samples that are in the cache, at random, in one process, page cache warm, beside a bare `pread` of the same file
and fsspec's caches (`blockcache`, `filecache`: no limit on their size, no checksum).
*miss*: a shuffled epoch of an empty cache, by the size of its blocks: samples/s and requests, beside no cache.
*epoch 2*: a shuffled epoch after another one, where the cache holds half of the data: the share of bytes that were in
the cache, with `evict=True` and `False`.
*together*: four processes read all samples once, shuffled, each by itself, from an empty cache: the bytes that were
read from the store, as a multiple of the data.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import method
import numpy as np
import rivals
from method import Case, Figures, Goal

from stoker.sources.cached_storage import CachedStorage
from stoker.sources.storage import LocalFile

RATE, REQUESTS, SHARE, TIMES = "samples/s", "requests", "share of bytes in the cache", "bytes read by bytes of data"
CPU = "us of CPU for each sample"
SAMPLE, SHARD = 100_000, 64_000_000
LATENCY, BYTE = 0.020, 1e-8


def cases(options: argparse.Namespace) -> list[Case]:
    shards = 1 if options.quick else 2
    how = {"data": str(options.data), "shards": shards, "seconds": 0.3 if options.quick else 2.0}
    hits = {name: {"kind": "hit", "rival": name, **how} for name in ("stoker", "pread", "blockcache", "filecache")}
    sizes = {"stoker": 4 << 20, "1 MiB": 1 << 20, "256 KiB": 1 << 18, "16 MiB": 16 << 20, "no cache": 0}
    misses = {name: {"kind": "miss", "block": size, **how} for name, size in sizes.items()}
    twice = {name: {"kind": "epoch 2", "evict": name == "evict", **how} for name in ("evict", "keep")}
    return [
        Case("hit", hits),
        Case("miss", misses),
        Case("epoch 2", twice),
        Case("together", {"stoker": {"kind": "together", **how}}, [Goal(TIMES, at_most=1)]),
    ]


def measure(kind: str, data: str, shards: int, seconds: float, **arguments: Any) -> Figures:
    folder = Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"{number}.bin") for number in range(shards)]
    for number, path in enumerate(paths):
        if not os.path.exists(path):
            Path(path).write_bytes(np.random.default_rng(number).bytes(SHARD))
    cache = folder / f"cache-{os.getpid()}"
    try:
        if kind == "hit":
            return hit(paths, cache, seconds, **arguments)
        if kind == "miss":
            return miss(paths, cache, **arguments)
        if kind == "epoch 2":
            return second_epoch(paths, cache, **arguments)
        return together(paths, cache)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def samples_of(paths: list[str], seed: int) -> list[tuple[int, int]]:
    """Returns the shard and byte of every sample, shuffled."""
    samples = [(shard, begin) for shard in range(len(paths)) for begin in range(0, SHARD, SAMPLE)]
    return [samples[place] for place in np.random.default_rng(seed).permutation(len(samples))]


class FarFile(LocalFile):
    requests = 0
    bytes_read = 0
    waits = True

    def read(self, begin: int, length: int) -> bytes:
        FarFile.requests += 1
        FarFile.bytes_read += length
        if self.waits:
            time.sleep(LATENCY + BYTE * length)
        return super().read(begin, length)


class FarStorage:
    def open(self, path: str) -> FarFile:
        return FarFile(path)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return FarFile(path).read(begin, length)


def hit(paths: list[str], cache: Path, seconds: float, rival: str) -> Figures:
    read = readers(rival, paths, cache)
    if read is None:
        return dict.fromkeys((RATE, CPU), rivals.NOT_INSTALLED)
    order = samples_of(paths, 0)
    for shard, begin in order:
        read(shard, begin)
    done, began, before = 0, time.perf_counter(), time.process_time()
    while (took := time.perf_counter() - began) < seconds:
        for shard, begin in order[:200]:
            assert len(read(shard, begin)) == SAMPLE
        done += 200
    return {RATE: done / took, CPU: 1e6 * (time.process_time() - before) / done}


def readers(rival: str, paths: list[str], cache: Path) -> Callable[[int, int], bytes] | None:
    if rival == "pread":
        plain = [LocalFile(path) for path in paths]
        return lambda shard, begin: plain[shard].read(begin, SAMPLE)
    if rival == "stoker":
        FarFile.waits = False
        storage = CachedStorage(FarStorage(), cache, 1 << 34)
        files = [storage.open(path) for path in paths]
        return lambda shard, begin: files[shard].read(begin, SAMPLE)
    try:
        import fsspec
    except ImportError:
        return None
    store = fsspec.filesystem(rival, target_protocol="file", cache_storage=str(cache))
    opened = [store.open(path) for path in paths]

    def read(shard: int, begin: int) -> bytes:
        opened[shard].seek(begin)
        data: bytes = opened[shard].read(SAMPLE)
        return data

    return read


def miss(paths: list[str], cache: Path, block: int) -> Figures:
    storage: Any = CachedStorage(FarStorage(), cache, 1 << 34, block_size=block) if block else FarStorage()
    files = [storage.open(path) for path in paths]
    order = samples_of(paths, 1)
    began = time.perf_counter()
    for shard, begin in order:
        files[shard].read(begin, SAMPLE)
    return {RATE: len(order) / (time.perf_counter() - began), REQUESTS: FarFile.requests}


def second_epoch(paths: list[str], cache: Path, evict: bool) -> Figures:
    FarFile.waits = False
    size = SHARD * len(paths) // 2
    storage = CachedStorage(FarStorage(), cache, size, block_size=SAMPLE, evict=evict)  # a block for each sample
    files = [storage.open(path) for path in paths]
    for epoch in (1, 2):
        FarFile.bytes_read = 0
        for shard, begin in samples_of(paths, epoch):
            files[shard].read(begin, SAMPLE)
    return {SHARE: 1 - FarFile.bytes_read / (SHARD * len(paths))}


def read_all(paths: list[str], storage: CachedStorage, seed: int, total: Any) -> None:
    files = [storage.open(path) for path in paths]
    for shard, begin in samples_of(paths, seed):
        files[shard].read(begin, SAMPLE)
    with total.get_lock():
        total.value += FarFile.bytes_read


def together(paths: list[str], cache: Path) -> Figures:
    storage = CachedStorage(FarStorage(), cache, 1 << 34)
    context = multiprocessing.get_context("fork")
    total = context.Value("q", 0)
    processes = [context.Process(target=read_all, args=(paths, storage, seed, total)) for seed in range(4)]
    began = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    took = time.perf_counter() - began
    return {TIMES: total.value / (SHARD * len(paths)), RATE: 4 * len(paths) * SHARD / SAMPLE / took}


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/file_cache"), help="folder of the files, made once")
    method.main(arguments, cases, measure)
