"""The limit for samples that take long to make: a few threads or processes, and no loader.

Each takes the number of the next unit of samples from a pipe, makes them, writes them into memory that all share, and
says so in another pipe. There is no collation, no hand-over, no order, and no wait until a batch was read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

UNIT = 8  # samples that are taken at once
KEPT = 4  # batches, into which all are written in turn


def batches(dataset: Any, batch: int, count: int, workers: int, processes: bool) -> Iterator[Any]:
    """Gives a kept batch each time that as many samples are made; `count` times.

    Samples are `(image, label)`, an image a tensor or an array. The order is drawn at the start.
    """
    import numpy as np

    image, _ = dataset[0]
    size = np.asarray(image).nbytes
    memory = mmap.mmap(-1, KEPT * batch * size)
    kept = np.frombuffer(memory, np.uint8).reshape(KEPT * batch, size)
    order = np.resize(np.random.default_rng(0).permutation(len(dataset)), count * batch).tolist()
    units, done = os.pipe(), os.pipe()

    def work() -> None:
        while number := os.read(units[0], 4):
            first = UNIT * int.from_bytes(number, "little")
            for place in range(first, first + UNIT):
                kept[place % len(kept)] = np.asarray(dataset[order[place]][0]).reshape(-1)
            os.write(done[1], b".")

    with contextlib.ExitStack() as ends:
        for descriptor in (units[0], *done):
            ends.callback(os.close, descriptor)
        numbers = np.arange(count * batch // UNIT, dtype="<u4").tobytes()
        if processes:
            for _ in range(workers):
                ends.callback(os.waitpid, _forked(work, units[1]), 0)
        else:
            threads = [threading.Thread(target=work) for _ in range(workers)]
            for thread in threads:
                ends.callback(thread.join)
                thread.start()
        # All fit into the pipe, which is closed at once: who finds it empty ends
        written = os.write(units[1], numbers)
        os.close(units[1])
        assert written == len(numbers) <= 16 * mmap.PAGESIZE
        for number in range(count):
            left = batch // UNIT
            while left:
                left -= len(os.read(done[0], left))
            first = number * batch % len(kept)
            yield kept[first : first + batch]


def _forked(work: Any, not_theirs: int) -> int:
    child = os.fork()
    if child:
        return child
    os.close(not_theirs)
    work()
    os._exit(0)
