"""What an epoch delivers, decided before it is walked: see `docs/design/01-plan.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from stoker.errors import SamplerError
from stoker.samplers.permutation import Permutation

BLOCK = 4096
"""Positions of a permutation that are computed at once: a call costs as much as some thousand of its positions."""


class Step(NamedTuple):
    """One unit's share of the plan.

    Attributes:
        indices: a list of indices for a batch, a single index without batching, None for a stream.
        position: where in the epoch the first sample stands, counted from 0.
        worker: the worker that has to do it, or None for whoever is free.
    """

    indices: Any
    position: int
    worker: int | None


class Plan(Protocol):
    """Gives an epoch's steps, in order."""

    def next(self) -> Step | None:
        """The next step, or None at the end; raises what the user's sampler raises."""

    def ended(self, worker: int) -> None:
        """The worker's stream has ended."""


class ComputedPlan:
    """The loader's own order: step k follows from (n, batch size, key, k) alone.

    Args:
        n: samples in the dataset.
        batch_size: samples in a batch; None for single indices.
        drop_last: whether a last, smaller batch is left out.
        key: 64-bit key of the order; None for 0, 1, 2, ….
        bound_to: number of workers if step k belongs to worker k mod n.
    """

    def __init__(self, n: int, batch_size: int | None, drop_last: bool, key: int | None, bound_to: int | None) -> None:
        self._size = batch_size or 1
        self._single = batch_size is None
        self._n = n - n % self._size if drop_last else n
        self._order = None if key is None else Permutation(n, key)
        self._bound_to = bound_to
        self._next = 0
        self._block_start = 0
        self._block: list[int] = []

    def step(self, k: int) -> Step | None:
        """Step k, in constant time."""
        start = k * self._size
        if start >= self._n:
            return None
        indices = self._indices(start, min(start + self._size, self._n))
        return Step(indices[0] if self._single else indices, start, k % self._bound_to if self._bound_to else None)

    def next(self) -> Step | None:
        step = self.step(self._next)
        self._next += step is not None
        return step

    def ended(self, worker: int) -> None:
        raise AssertionError("only streams end")

    def _indices(self, start: int, stop: int) -> list[int]:
        if self._order is None:
            return list(range(start, stop))
        at = start - self._block_start
        if at < 0 or stop - self._block_start > len(self._block):
            end = min(self._n, start + max(BLOCK, stop - start))
            self._block = self._order.take(np.arange(start, end, dtype=np.int64)).tolist()
            self._block_start, at = start, 0
        return self._block[at : at + stop - start]


class StreamedPlan:
    """A sampler of the user's: it can only be walked."""

    def __init__(self, sampler: Iterator[Any], batched: bool, bound_to: int | None) -> None:
        self._sampler = sampler
        self._batched = batched
        self._bound_to = bound_to
        self._count = 0
        self._position = 0

    def next(self) -> Step | None:
        for indices in self._sampler:
            if self._batched and not isinstance(indices, list):
                indices = _as_list(indices)
            step = Step(indices, self._position, self._count % self._bound_to if self._bound_to else None)
            self._position += len(indices) if self._batched else 1
            self._count += 1
            return step
        return None

    def ended(self, worker: int) -> None:
        raise AssertionError("only streams end")


def _as_list(batch: Any) -> list[Any]:
    """A batch of indices as a list: arrays and tensors give Python's numbers."""
    if hasattr(batch, "tolist"):
        batch = batch.tolist()
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__iter__"):
        raise SamplerError(
            f"the batch sampler yielded {batch!r}, which is no batch: each item must be a list of indices. "
            "Pass a sampler of single indices as `sampler=`, with a `batch_size`."
        )
    return list(batch)


class TurnPlan:
    """Streams: workers make a batch each in turn, until theirs ends."""

    def __init__(self, workers: int) -> None:
        self._active = list(range(workers))
        self._turn = 0

    def next(self) -> Step | None:
        if not self._active:
            return None
        self._turn %= len(self._active)
        worker = self._active[self._turn]
        self._turn += 1
        return Step(None, 0, worker)

    def ended(self, worker: int) -> None:
        if worker in self._active:
            place = self._active.index(worker)
            self._active.remove(worker)
            self._turn -= place < self._turn
