"""Batches with equally many samples of each of several classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from stoker.errors import StokerWarning
from stoker.samplers.by_class import ByClass
from stoker.samplers.draws import AnyGenerator
from stoker.samplers.keyed import KEPT, KeyedBatchSampler, keys, numbered, positive
from stoker.samplers.order import Int64Array
from stoker.samplers.permutation import Permutation


class BalancedBatchSampler(KeyedBatchSampler):
    """Batches of P classes with K samples each, for losses that compare the samples of a batch.

    Classes come equally often, whatever their size: after any batch of an epoch, the numbers of occurrences of two
    classes differ by at most one. The same holds for the samples of a class, and the samples of a class in a batch are
    distinct. When all samples of a class have come, they come again in another order. A class of fewer than K samples
    repeats them in a batch, as evenly as possible, and a warning is issued.

    A batch lists its classes one after another: rows 0 to K - 1 are of one class.

    Making an epoch and any batch of it takes constant time: about 30 us for each class of the batch, and 25 to 300 us
    more if a class with up to 4,096 samples is not among the 1,024 permutations used last. The constructor indexes the
    labels, in four bytes and 0.12 us each. Epochs are thread safe.

    Args:
        labels: the class of each sample: integers, strings, or any sortable values.
        classes_per_batch: P.
        samples_per_class: K.
        num_batches: batches of an epoch; by default about as many as one pass over the labels fills.
        generator: draws each epoch's order. Leave it out in a `DataLoader`: the order then follows from the loader's
            seed, and resuming does not iterate over the sampler.

    Raises:
        ValueError: a number is no positive integer, `classes_per_batch` exceeds the number of classes, or the labels
            are empty, not one-dimensional, or NaN.
        TypeError: the labels cannot be sorted.
    """

    def __init__(
        self,
        labels: Any,
        classes_per_batch: int,
        samples_per_class: int,
        num_batches: int | None = None,
        generator: AnyGenerator = None,
    ) -> None:
        self.labels = labels
        self.classes_per_batch = positive("classes_per_batch", classes_per_batch)
        self.samples_per_class = positive("samples_per_class", samples_per_class)
        self.generator = generator
        self._by_class = ByClass(labels)
        classes, counts = self._by_class.classes, self._by_class.counts
        if self.classes_per_batch > len(classes):
            raise ValueError(
                f"classes_per_batch={classes_per_batch}, but the {counts.sum()} labels are of {len(classes)} classes: "
                f"lower it to {len(classes)} or less"
            )
        size = self.classes_per_batch * self.samples_per_class
        self.num_batches = (
            max(1, int(counts.sum()) // size) if num_batches is None else positive("num_batches", num_batches)
        )
        small = np.flatnonzero(counts < self.samples_per_class)
        if len(small):
            least = small[counts[small].argmin()]
            warnings.warn(
                f"{len(small)} of {len(classes)} classes have fewer than samples_per_class={samples_per_class} "
                f"samples (class {classes[least]!s} has {counts[least]}): a batch repeats their samples. Lower "
                "samples_per_class, or leave these classes out.",
                StokerWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self.num_batches

    def batches(self, key: int) -> BalancedBatches:
        """Returns the epoch that belongs to `key`."""
        return BalancedBatches(self._by_class, self.classes_per_batch, self.samples_per_class, self.num_batches, key)


class BalancedBatches:
    """An epoch of a `BalancedBatchSampler`; a `BatchOrder`."""

    def __init__(self, by_class: ByClass, classes: int, samples: int, count: int, key: int) -> None:
        self._by_class = by_class
        self._samples = samples
        self._size = classes * samples
        self._count = count
        n, counts = len(by_class.classes), by_class.counts
        of_cycles, of_classes = (keys(keys(key)[i]) for i in range(2))
        self._classes = EvenGroups(n, classes, lru_cache(2)(lambda cycle: Permutation(n, of_cycles[cycle])))
        self._within = lru_cache(KEPT)(lambda one, cycle: Permutation(int(counts[one]), keys(of_classes[one])[cycle]))

    def __len__(self) -> int:
        return self._count

    def batch(self, number: int) -> list[int]:
        classes, times = self._classes.group(numbered(number, self._count))
        places = [self._places(*drawn) for drawn in zip(classes.tolist(), times.tolist(), strict=True)]
        indices: list[int] = self._by_class.samples(np.repeat(classes, self._samples), np.concatenate(places)).tolist()
        return indices

    def position(self, number: int) -> int:
        return number * self._size

    def _places(self, one: int, time: int) -> Int64Array:
        """Returns the samples of a class at its `time`-th occurrence, by their places in the class."""
        n = int(self._by_class.counts[one])
        rounds, rest = divmod(self._samples, n)
        places = [np.arange(n)] * rounds
        if rest:
            places.append(EvenGroups(n, rest, partial(self._within, one)).group(time)[0])
        return np.concatenate(places)


# Endless groups of numbers, with each number equally often.


class EvenGroups:
    """Groups of distinct numbers below n; before each group, the occurrences of two numbers differ by at most one.

    The numbers are arranged in cycles, each a permutation of all, and groups are cut from these. A group cut from two
    cycles could hold a number twice. Therefore a cycle postpones those of its first numbers that the group holds
    already. This changes the order of its first `size` numbers, never its end, on which the next cycle depends, so any
    group follows from two permutations. A cycle has room for this from n = 2 * size - 1 on; for smaller n, the numbers
    left out of each group are grouped in this way.

    Args:
        n: number of numbers.
        size: numbers in a group, from 1 to n.
        permutation: returns a permutation of n numbers for each cycle, counted from 0.
    """

    def __init__(self, n: int, size: int, permutation: Callable[[int], Permutation]) -> None:
        self._n = n
        self._size = size
        self._permutation = permutation
        self._left_out = EvenGroups(n, n - size, permutation) if n < 2 * size - 1 and size < n else None

    def group(self, number: int) -> tuple[Int64Array, Int64Array]:
        """Returns the numbers of a group, and for each the number of earlier groups with it."""
        if self._size == self._n:
            return np.arange(self._n), np.full(self._n, number)
        if self._left_out is not None:
            numbers = np.delete(np.arange(self._n), self._left_out.group(number)[0])
            return numbers, number - self._left_out._came(numbers, number)
        cycle, place = divmod(number * self._size, self._n)
        here = self._numbers(cycle, place, min(place + self._size, self._n))
        rest = self._size - len(here)
        numbers = np.concatenate([here, self._numbers(cycle + 1, 0, rest)]) if rest else here
        return numbers, cycle + (np.arange(self._size) >= len(here))

    def _came(self, numbers: Int64Array, number: int) -> Int64Array:
        """Returns, for each of these numbers, the number of groups before group `number` with it."""
        cycle, place = divmod(number * self._size, self._n)
        return cycle + np.isin(numbers, self._numbers(cycle, 0, place)).astype(np.int64)

    def _numbers(self, cycle: int, start: int, stop: int) -> Int64Array:
        """Returns the numbers at these places of a cycle."""
        numbers = self._permutation(cycle).take(np.arange(start, stop))
        begun = cycle * self._n % self._size  # numbers of the cycle's first group that lie in the previous cycle
        if begun and start < self._size:
            first = self._permutation(cycle).take(np.arange(self._size))
            again = np.isin(first, self._permutation(cycle - 1).take(np.arange(self._n - begun, self._n)))
            kept = np.concatenate([first[~again], first[again]])[start:stop]
            numbers[: len(kept)] = kept
        return numbers
