"""Counts batches per second, and what they cost, for loaders that are compared while an epoch runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import method
from method import Figures

WARM_UP = 20  # batches
RATE, CPU, MEMORY = "batches/s", "CPU-ms per batch", "MB, all processes"


def counted(batches: Iterable[Any], seconds: float, read: Callable[[Any], Any] = id, warm_up: int = WARM_UP) -> Figures:
    """Takes batches for some seconds after a warm-up; `read` is what the trainer does with each.

    The processor time is that of all processes while it is counted. The memory is that of all processes at the end,
    the dataset's included.
    """
    began = used = 0.0
    iterator = iter(batches)
    for count, batch in enumerate(iterator, 1):
        read(batch)
        now = time.perf_counter()
        if count == warm_up:
            began, used = now, method.cpu_seconds()
        elif began and now - began > seconds:
            break
    used = method.cpu_seconds() - used
    memory = method.memory_of_all()
    if hasattr(iterator, "close"):  # a generator's loader, or Grain's iterator, which asks for it
        iterator.close()
    return {RATE: (count - warm_up) / (now - began), CPU: 1e3 * used / (count - warm_up), MEMORY: memory / 1e6}


def or_not_installed(make: Callable[[], Iterable[Any]], count: Callable[[Iterable[Any]], Figures]) -> Figures:
    """The figures, or words in their place where a rival's package is missing."""
    import rivals

    try:
        return count(make())
    except ImportError:
        return dict.fromkeys((RATE, CPU, MEMORY), rivals.NOT_INSTALLED)
