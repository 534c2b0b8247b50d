"""Batches with equally many samples of each of several classes."""

from __future__ import annotations

import warnings
from functools import lru_cache, partial
from typing import Any

import numpy as np

from stoker.errors import StokerWarning
from stoker.samplers.by_class import ByClass
from stoker.samplers.draws import AnyGenerator
from stoker.samplers.groups import EvenGroups
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
        """Returns the number of batches."""
        return self._count

    def batch(self, number: int) -> list[int]:
        """Returns the indices of a batch."""
        classes, times = self._classes.group(numbered(number, self._count))
        places = [self._places(*drawn) for drawn in zip(classes.tolist(), times.tolist(), strict=True)]
        indices: list[int] = self._by_class.samples(np.repeat(classes, self._samples), np.concatenate(places)).tolist()
        return indices

    def position(self, number: int) -> int:
        """Returns the number of samples in the batches before this one."""
        return number * self._size

    def _places(self, one: int, time: int) -> Int64Array:
        """Returns the samples of a class at its `time`-th occurrence, by their places in the class."""
        n = int(self._by_class.counts[one])
        rounds, rest = divmod(self._samples, n)
        places = [np.arange(n)] * rounds
        if rest:
            places.append(EvenGroups(n, rest, partial(self._within, one)).group(time)[0])
        return np.concatenate(places)
