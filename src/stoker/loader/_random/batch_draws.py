"""`batch_draws()`: random numbers for each sample of a batch, for a `batch_transform` that works on whole batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import BatchError
from stoker.loader._random.generators import mix
from stoker.loader._random.sample_rng import sample_rng

Keys = NDArray[np.uint64]


class BatchDraws:
    """Random numbers for one operation on a batch: a row for each image or sample of the batch.

    A row follows from the epoch's seed, the sample's position in the epoch, and the number of calls of `batch_draws()`
    before this one for the same batch. The numbers are drawn on the CPU. Not thread safe.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._drawn = 0  # numbers of each row

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Sequence[int] = ()) -> NDArray[np.float64]:
        """Returns uniform numbers of [low, high), shape (rows, *size), float64.

        Args:
            low: least number, or an array of them that fits the shape.
            high: bound above, likewise.
            size: numbers for each row.
        """
        count = math.prod(size)
        columns = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64)
        self._drawn += count
        unit = (_steps(self._keys[:, None], columns) >> np.uint64(11)).reshape(len(self), *size) * 2.0**-53
        return np.asarray(low + (np.asarray(high) - low) * unit)

    def generator(self, row: int) -> np.random.Generator:
        """Returns a generator for a row, for other distributions and for many numbers; the same at each call."""
        return np.random.Generator(np.random.PCG64(int(_steps(self._keys[[row]], _OF_GENERATORS)[0])))


_OF_GENERATORS = np.array([2**63], np.uint64)


def batch_draws(rows: int) -> BatchDraws:
    """Returns random numbers for each image or sample of the batch that is being transformed.

    For a `batch_transform=`: a sample's numbers follow from (seed, epoch, position in the epoch) and are the same with
    any number of workers, processes, threads and ranks, and after a resume. Each call returns other numbers. Elsewhere
    (in a notebook, a `collate_fn`, a sample) one number of `sample_rng()` takes the place of the epoch's seed, and the
    rows are counted from 0.

    Args:
        rows: images or samples in the batch: the number of its samples, or a multiple of it (views of one sample are
            neighbours, and each view has numbers of its own).

    Raises:
        BatchError: `rows` is no multiple of the batch's samples.
    """
    batch = _here.batch
    if batch is None:
        return BatchDraws(_steps(np.arange(rows, dtype=np.uint64), np.array([_other_seed()], np.uint64)))
    samples = len(batch.positions)
    if samples == 0 or rows % samples:
        raise BatchError(
            f"batch_draws({rows}): the batch has {samples} samples, and random numbers are drawn for each. Draw before "
            "the number of images changes, or keep it a multiple of the samples."
        )
    batch.calls += 1
    positions = np.repeat(np.asarray(batch.positions, np.uint64), rows // samples)
    views = np.tile(np.arange(rows // samples, dtype=np.uint64), samples)
    keys = _steps(_steps(np.array([batch.key], np.uint64), positions), views)
    return BatchDraws(_steps(keys, np.array([batch.calls], np.uint64)))


@dataclass
class _Batch:
    key: int
    positions: Sequence[int]
    calls: int = 0


class _Here(threading.local):
    batch: _Batch | None = None


_here = _Here()

_DRAWS = 4
"""Follows the purposes in `sample_seeding`, so that no generator there has these keys."""


@contextmanager
def of_batch(seed: int, positions: Sequence[int]) -> Iterator[None]:
    """Makes `batch_draws()` in this thread return the numbers of these samples.

    Args:
        seed: of the epoch.
        positions: of the batch's samples in the epoch, in the batch's order.
    """
    outer, _here.batch = _here.batch, _Batch(mix(seed, _DRAWS), positions)
    try:
        yield
    finally:
        _here.batch = outer


def _other_seed() -> int:
    rng = sample_rng()
    if rng.torch_generator is None:
        return rng.random_generator.getrandbits(64)
    import torch

    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=rng.torch_generator)) % 2**64


def _steps(keys: Keys, words: Keys) -> Keys:
    """`generators.step` of arrays."""
    keys = (keys ^ words) + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
