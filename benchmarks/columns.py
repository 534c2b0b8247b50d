"""What do rows take as `stoker.columns`, beside the list that they were?

A million rows: tuples (path, label), and dicts of a path, a label and a weight. The memory is by how much the process
grows (resident, private) when it makes them from a generator; what that left behind is given back first. Rows are read
one by one, in order and at random, and 64 at a time as a loader's worker does; the list beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

MEMORY, IN_ORDER, AT_RANDOM = "MB, grown by", "CPU-us per row, in order", "CPU-us per row, at random"
AT_ONCE = "CPU-us per row, at random, 64 at once"
TRIES = 7
NAMES = {"tuples of a path and a label": "tuples", "dicts of a path, a label and a weight": "dicts"}


def cases(options: argparse.Namespace) -> list[Case]:
    rows = 100_000 if options.quick else 1_000_000
    return [
        Case(
            name,
            {rival: {"kind": kind, "rival": rival, "rows": rows} for rival in ("columns", "list")},
            [Goal(MEMORY, "list", at_most=0.4), Goal(IN_ORDER, at_most=2), Goal(AT_RANDOM, at_most=2)],
        )
        for name, kind in NAMES.items()
    ]


def measure(kind: str, rival: str, rows: int) -> Figures:
    import stoker

    make: Callable[[Any], Any] = list if rival == "list" else stoker.columns
    make(KINDS[kind](10))  # what is imported and allocated once
    before = _private()
    made = make(KINDS[kind](rows))
    grown = _private() - before
    count = min(rows, 100_000)
    somewhere = random.Random(0).choices(range(rows), k=count)
    return {
        MEMORY: grown / 1e6,
        IN_ORDER: _usual(lambda: _one_by_one(made, range(count)), count),
        AT_RANDOM: _usual(lambda: _one_by_one(made, somewhere), count),
        AT_ONCE: _usual(lambda: _at_once(made, somewhere), count),
    }


def tuples(rows: int) -> Iterator[Any]:
    return ((f"train/class_{number % 1000:04d}/image_{number:08d}.jpg", number % 1000) for number in range(rows))


def dicts(rows: int) -> Iterator[Any]:
    return ({"path": path, "label": label, "weight": 1 / (1 + label)} for path, label in tuples(rows))


KINDS = {"tuples": tuples, "dicts": dicts}


def _one_by_one(rows: Any, indices: Any) -> None:
    for index in indices:
        rows[index]


def _at_once(rows: Any, indices: list[int]) -> None:
    fetch = getattr(rows, "__getitems__", lambda some: [rows[index] for index in some])
    for start in range(0, len(indices), 64):
        fetch(indices[start : start + 64])


def _usual(read: Callable[[], None], count: int) -> float:
    """Microseconds, the median of some tries."""
    took = []
    for _ in range(TRIES):
        began = time.thread_time()
        read()
        took.append(time.thread_time() - began)
    return 1e6 * statistics.median(took) / count


def _private() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = re.findall(r"^Private_\w+:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return 1024 * sum(map(int, found))


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
