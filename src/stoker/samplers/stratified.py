"""Batches in which each class has its proportion."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stoker.samplers.by_class import ByClass
from stoker.samplers.draws import AnyGenerator
from stoker.samplers.keyed import KeyedBatchSampler, flag, keys, numbered, permutations, positive
from stoker.samplers.order import Int64Array
from stoker.samplers.permutation import Permutation

_NEAR = 64  # steps tried on either side of the golden section


class StratifiedBatchSampler(KeyedBatchSampler):
    """Batches with each class in its proportion in the dataset, each sample once in an epoch.

    Of c samples of a class among n, a batch of b holds b * c / n, rounded down or up: the deviation is less than one,
    also in the last, smaller batch. So a class with at least as many samples as there are batches is in each of them. A
    class with fewer samples is in as many batches as it has samples, once in each, spread over the epoch (the gap
    between two is at most three times the mean). If the batch size is below the number of classes, this holds for all
    classes.

    Making an epoch takes time proportional to the number of classes, and any batch of it a time that depends on the
    batch size: 10 to 20 us for each class in the batch, and 25 to 300 us more if a class with up to 4,096 samples is
    not among the 1,024 permutations used last. The constructor indexes the labels, in four bytes and 0.12 us each.
    Epochs are thread safe.

    Args:
        labels: the class of each sample: integers, strings, or any sortable values.
        batch_size: samples in a batch.
        shuffle: draw the samples of a class, the batches of rare classes and the order in a batch by the key; else
            samples of a class come in the order of the dataset, and a batch is sorted.
        drop_last: leave out the last batch if it is smaller; each class loses its share of it.
        generator: draws each epoch's order. Leave it out in a `DataLoader`: the order then follows from the loader's
            seed, and resuming does not iterate over the sampler.

    Raises:
        ValueError: `batch_size` is no positive integer, a switch no bool, no batch is left with `drop_last`, or the
            labels are empty, not one-dimensional, or NaN.
        TypeError: the labels cannot be sorted.
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: AnyGenerator = None,
    ) -> None:
        self.labels = labels
        self.batch_size = positive("batch_size", batch_size)
        self.shuffle = flag("shuffle", shuffle)
        self.drop_last = flag("drop_last", drop_last)
        self.generator = generator
        self._quota = _Quota(ByClass(labels), self.batch_size)
        if not len(self):
            raise ValueError(
                f"no batch is left: {self._quota.rest} samples do not fill one of batch_size={batch_size}, and "
                "drop_last=True leaves it out"
            )

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._quota.full + int(self._quota.rest > 0 and not self.drop_last)

    def batches(self, key: int) -> StratifiedBatches:
        """Returns the epoch that belongs to `key`."""
        return StratifiedBatches(self._quota, self.batch_size, len(self), key if self.shuffle else None)


class _Quota:
    """The number of samples of each class in a batch.

    The last, smaller batch gets its samples by largest remainders. The remaining samples of a class, divided by the
    number of full batches, give the number in each of them (`each`); the remainder (`extra`) goes to some batches, one
    more in each. The remainders of all classes, lined up and wrapped around the batches, fill all batches equally.
    """

    def __init__(self, by_class: ByClass, batch_size: int) -> None:
        self.by_class = by_class
        counts = by_class.counts
        n = int(counts.sum())
        self.full, self.rest = divmod(n, batch_size)
        self.last, remainder = np.divmod(counts * self.rest, n)  # no overflow: 3 * 10**9 squared has 63 bits
        self.last[np.argsort(-remainder, kind="stable")[: self.rest - int(self.last.sum())]] += 1
        self.before_last: Int64Array = counts - self.last
        self.each, self.extra = np.divmod(self.before_last, max(self.full, 1))
        self.regular = _counted(self.each)
        self.step = _spreading_step(self.full)


class StratifiedBatches:
    """An epoch of a `StratifiedBatchSampler`; a `BatchOrder`."""

    def __init__(self, quota: _Quota, batch_size: int, count: int, key: int | None) -> None:
        self._quota = quota
        self._batch_size = batch_size
        self._count = count
        self._shuffle = key is not None
        self._line = np.arange(len(quota.extra))
        self._turn = 0
        if key is not None:
            line, self._turn, within, orders = (keys(key)[i] for i in range(4))
            self._line = Permutation(len(self._line), line).take(self._line)  # combines other rare classes
            self._within = permutations(quota.by_class.counts, within)
            self._orders = keys(orders)
        self._ends = np.cumsum(quota.extra[self._line])

    def __len__(self) -> int:
        return self._count

    def batch(self, number: int) -> list[int]:
        number = numbered(number, self._count)
        classes, places = self._full(number) if number < self._quota.full else self._last()
        if not self._shuffle:
            indices = np.sort(self._quota.by_class.samples(classes, places))
        else:
            for one in np.unique(classes).tolist():
                of_it = classes == one
                places[of_it] = self._within(one).take(places[of_it])
            order = Permutation(len(places), self._orders[number]).take(np.arange(len(places)))
            indices = self._quota.by_class.samples(classes, places)[order]
        batch: list[int] = indices.tolist()
        return batch

    def position(self, number: int) -> int:
        return number * self._batch_size

    def _full(self, number: int) -> tuple[Int64Array, Int64Array]:
        quota = self._quota
        classes, places = quota.regular
        places = places + number * quota.each[classes]
        slots = np.arange((number * quota.step + self._turn) % quota.full, self._ends[-1], quota.full)
        at = np.searchsorted(self._ends, slots, side="right")
        rare = self._line[at]
        extra = quota.each[rare] * quota.full + slots - (self._ends[at] - quota.extra[rare])
        return np.concatenate([classes, rare]), np.concatenate([places, extra])

    def _last(self) -> tuple[Int64Array, Int64Array]:
        classes, places = _counted(self._quota.last)
        return classes, places + self._quota.before_last[classes]


def _counted(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns each class `counts` times, and 0, 1, 2, … for each class."""
    classes = np.repeat(np.arange(len(counts)), counts)
    return classes, np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)


def _spreading_step(n: int) -> int:
    """Returns a step around a ring of n such that any few successive steps are spread evenly.

    Near the golden section, multiples spread evenly if the continued fraction of the step has only small quotients. The
    best of the nearest steps that reach all places never leaves a gap of three times the mean (tested).
    """
    golden = (math.isqrt(5 * n * n) - n) // 2
    steps = [step for step in range(max(1, golden - _NEAR), golden + _NEAR) if math.gcd(step, n) == 1]
    return min(steps, key=lambda step: _greatest_quotient(n, step), default=1)


def _greatest_quotient(a: int, b: int) -> int:
    greatest = 0
    while b:
        greatest = max(greatest, a // b)
        a, b = b, a % b
    return greatest
