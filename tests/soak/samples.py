"""What a soak's loaders read: datasets with indices, and streams, whose samples draw numbers. Some misbehave.

Where a sample would end its worker, and there is no process to end, it raises: so the same dataset says what a calm run
without workers gives.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import stoker
from stoker.testing.streams import Numbers


def segfault() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os._exit(3)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    threading.Event().wait()


LETHAL: dict[str, Callable[[], None]] = {
    "segfaults": segfault,
    "leaves": leave,
    "is killed": be_killed,
    "hangs": hang,
}


def misbehave(fault: str, index: int) -> None:
    if fault == "skips":
        raise stoker.SkipSample(f"sample {index} is not wanted")
    if fault in LETHAL and (info := stoker.get_worker_info()) and info.worker_method == "multiprocessing":
        LETHAL[fault]()
    raise ValueError(f"sample {index} {fault}")


class Drawing:
    """Makes sample k: its index, numbers that are drawn for it, and a row of k.

    Args:
        size: of the row.
        draws: from "rng", which every backend seeds, from "globals", from "all", or from "nothing".
        faults: what is wrong with which samples.
    """

    def __init__(self, size: int, draws: str, faults: dict[int, str]) -> None:
        self.size = size
        self.draws = draws
        self.faults = faults

    def __call__(self, index: int) -> Any:
        drawn = [float(index)]
        if self.draws in ("rng", "all"):
            rng = stoker.sample_rng()
            drawn += [rng.random_generator.random(), rng.numpy_generator.random()]
        if self.draws in ("globals", "all"):
            drawn += [random.random(), np.random.rand()]
        if index in self.faults:
            misbehave(self.faults[index], index)
        return {"index": index, "drawn": np.array(drawn), "row": np.full(self.size, index)}


class Table(stoker.Dataset[Any]):
    """With indices."""

    def __init__(self, length: int, sample: Drawing) -> None:
        self.length = length
        self.sample = sample

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class AtOnce(Table):
    """Gives a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.sample(index) for index in indices]


class Plain(stoker.IterableDataset[Any]):
    """A stream that knows nothing of workers and states: its samples must not ask who they are either."""

    def __init__(self, length: int, sample: Drawing) -> None:
        self.length = length
        self.sample = sample

    def __iter__(self) -> Iterator[Any]:
        return map(self.sample, range(self.length))  # one that goes on behind a sample that raises


class Keeping(Plain):
    """A stream that shares itself out among the workers, and knows where it stands."""

    shards_itself = True

    def __init__(self, length: int, sample: Drawing) -> None:
        super().__init__(length, sample)
        self.next: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = stoker.get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begin, self.next = number if self.next is None else self.next, None
        return _Keeping(self, begin, workers)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class _Keeping(Iterator[Any]):
    def __init__(self, stream: Keeping, begin: int, step: int) -> None:
        self._stream = stream
        self._stream.next, self._step = begin, step

    def __next__(self) -> Any:
        index = self._stream.next
        assert index is not None
        if index >= self._stream.length:
            self._stream.next = None
            raise StopIteration
        self._stream.next = index + self._step
        return self._stream.sample(index)


def sharded(length: int, sample: Drawing) -> Any:
    """A stream of ours, in shards."""
    return stoker.MapDataset(Numbers(0, length, num_shards=5), sample)


TABLES: dict[str, Callable[[int, Drawing], Any]] = {"table": Table, "table, at once": AtOnce}
STREAMS: dict[str, Callable[[int, Drawing], Any]] = {"plain": Plain, "keeping": Keeping, "sharded": sharded}
