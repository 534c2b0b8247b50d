"""How fast are tar shards read, in sequence and shuffled?

Four shards in the WebDataset layout, page cache warm, whose samples are a member of 100 kB, 10 kB or 1 kB of random
bytes and a label of 3 bytes. Nothing is decoded: what is measured is to find the members and to hand out their bytes,
in one process. In sequence: `TarStream`, webdataset's `WebDataset`, the standard library's `tarfile`, SPDL's
`iter_tarfile`; the last two give members, not samples. SPDL's views are made bytes, as the others give them. "bare"
reads the shards into a kept buffer, without looking at them. Shuffled: `TarDataset`, every sample once in a random
order, beside webdataset in sequence. With two workers, which stay: batches of 32 samples in lists, ours by our loader,
webdataset's by torch's.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import method
import rivals
from method import Case, Figures, Goal

SHARDS = 4
RATE, CPU, MEMORY = "MB/s", "CPU-s per GB", "MB, all processes"
SIZES = {"100 kB": 100_000, "10 kB": 10_000, "1 kB": 1_000}
SHUFFLED = "stoker, shuffled by index"


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 2.0
    found = []
    for name, size in SIZES.items():
        total = (20_000_000 if options.quick else 400_000_000) // (1 if size > 5000 else 4)
        how = {"paths": shards(options.data, size, total), "seconds": seconds, "workers": 0}
        names = ["stoker", SHUFFLED, "webdataset", "tarfile", "SPDL", "bare"]
        goals = [Goal(RATE, against="webdataset", at_least=4), Goal(RATE, against="SPDL", at_least=1, headline=False)]
        found.append(
            Case(f"members of {name}, in sequence", {rival: {"rival": rival, **how} for rival in names}, goals)
        )
        shuffled = [SHUFFLED, "webdataset"]
        goals = [Goal(RATE, against="webdataset", at_least=1)]
        found.append(
            Case(f"members of {name}, shuffled", {rival: {"rival": rival, **how} for rival in shuffled}, goals)
        )
        if size == 100_000:
            how["workers"] = 2
            names = ["stoker", SHUFFLED, "webdataset"]
            goals = [Goal(RATE, against="webdataset", at_least=1)]
            found.append(
                Case(f"members of {name}, 2 workers", {rival: {"rival": rival, **how} for rival in names}, goals)
            )
    return found


def shards(folder: Path, size: int, total: int) -> list[str]:
    """Returns the paths of shards with members of `size` bytes, `total` in all; they are made once."""
    count = total // size // SHARDS
    paths = [folder / f"{size}-{count}" / f"{number}.tar" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with tarfile.open(partial, "w") as shard:
            for place in range(count):
                for extension, data in (("bin", os.urandom(size)), ("cls", b"%3d" % (place % 1000))):
                    member = tarfile.TarInfo(f"{number}/{place:07}.{extension}")
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
        partial.rename(path)
    return [str(path) for path in paths]


def measure(rival: str, paths: list[str], seconds: float, workers: int) -> Figures:
    try:
        epoch = epochs_of(rival, paths, workers)
    except ImportError:
        return dict.fromkeys((RATE, CPU, MEMORY), rivals.NOT_INSTALLED)
    size = sum(epoch())  # fills the page cache, and starts workers
    read, began, used = 0, time.perf_counter(), method.cpu_seconds()
    while time.perf_counter() - began < seconds:
        found = sum(epoch())
        assert found == size, f"{found} bytes in this epoch, {size} in the first"
        read += found
    took, used = time.perf_counter() - began, method.cpu_seconds() - used
    return {RATE: read / 1e6 / took, CPU: used / (read / 1e9), MEMORY: method.memory_of_all() / 1e6}


def epochs_of(rival: str, paths: list[str], workers: int) -> Callable[[], Iterable[int]]:
    """Returns a function that reads all shards once, and gives the number of bytes of each sample or member."""
    if rival in ("stoker", SHUFFLED):
        return ours(rival, paths, workers)
    if rival == "webdataset":
        return webdatasets(paths, workers)
    if rival == "tarfile":
        return lambda: (len(shard.extractfile(member).read()) for shard in map(tarfile.open, paths) for member in shard)  # type: ignore[union-attr]
    if rival == "SPDL":
        from spdl.io import iter_tarfile

        return lambda: (len(bytes(data)) for path in paths for _, data in iter_tarfile(opened(path)))
    buffer = memoryview(bytearray(256 << 10))
    payload = sum(member.size for path in paths for member in members_of(path))

    def bare() -> Iterator[int]:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        yield payload

    return bare


def opened(path: str) -> Any:
    return open(path, "rb")


def members_of(path: str) -> list[tarfile.TarInfo]:
    with tarfile.open(path) as shard:
        return shard.getmembers()


def ours(rival: str, paths: list[str], workers: int) -> Callable[[], Iterable[int]]:
    import numpy as np

    import stoker

    dataset: Any = stoker.TarStream(paths, decode=False)
    if rival == SHUFFLED:
        dataset = stoker.TarDataset(paths, decode=False)
    if workers:
        shuffle = True if rival == SHUFFLED else None
        loader = stoker.DataLoader(
            dataset, 32, shuffle=shuffle, num_workers=workers, persistent_workers=True, collate_fn=list
        )
        return lambda: (bytes_in(sample) for batch in loader for sample in batch)
    if rival == "stoker":
        return lambda: map(bytes_in, dataset)
    draw = np.random.default_rng(0)
    return lambda: (bytes_in(dataset[index]) for index in draw.permutation(len(dataset)).tolist())


def webdatasets(paths: list[str], workers: int) -> Callable[[], Iterable[int]]:
    import warnings

    import webdataset

    warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files open
    dataset = webdataset.WebDataset(paths, shardshuffle=False)
    if not workers:
        return lambda: map(bytes_in, dataset)
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, 32, num_workers=workers, persistent_workers=True, collate_fn=list)
    return lambda: (bytes_in(sample) for batch in loader for sample in batch)


def bytes_in(sample: dict[str, Any]) -> int:
    return len(sample["bin"]) + len(sample["cls"])


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/tar"), help="folder of the shards, made once")
    method.main(arguments, cases, measure)
