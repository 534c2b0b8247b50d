"""Batches of samples of similar lengths."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stoker.errors import StokerWarning
from stoker.samplers.base import described
from stoker.samplers.by_length import ByLength, checked_boundaries, checked_lengths, chosen_boundaries, some_sorted
from stoker.samplers.draws import AnyGenerator
from stoker.samplers.keyed import KeyedBatchSampler, flag, keys, numbered, permutations, positive
from stoker.samplers.order import Int64Array
from stoker.samplers.permutation import Permutation

_BUCKETS = 128
_TURNS = 4  # least number of batches in a bucket, so that its samples are combined anew in the next epoch
_TOO_MUCH = 0.4
_BLOCK = 512  # batches whose sizes are summed at once


class BucketBatchSampler(KeyedBatchSampler):
    """Batches of samples of similar lengths, to reduce padding; each sample once in an epoch.

    The samples are divided into buckets by length. An epoch shuffles each bucket, lines the buckets up from the longest
    to the shortest, cuts the line into batches, and shuffles these: a batch holds samples of one bucket, or of
    neighbours. It has `batch_size` samples, or as many as `max_tokens` allows for the longest of its bucket. The last
    batch of the line may be smaller, and is the last of the epoch.

    With given boundaries, for instance boundaries to pad to, the buckets stay separate: no batch crosses a boundary,
    each bucket has its own smaller batch, and the smaller batches may come anywhere.

    The number of batches does not depend on the key. Making an epoch and any batch of it takes constant time, 3 to 5 us
    for each sample. With `max_tokens` or boundaries, batches differ in size: the first `position` of an epoch then
    sums the sizes of all batches, in 0.3 us each (0.15 s for 10**8 lengths). The constructor counts the lengths in one
    pass, in 0.06 us each; later they are read on demand. An array or a memmap is never copied; 10**8 lengths take
    50 MB in addition. Epochs are thread safe.

    Args:
        lengths: one for each sample, in any unit, positive; kept, so they must not be changed.
        batch_size: samples in a batch. Either this or `max_tokens` is required.
        max_tokens: upper limit of the longest length in a batch times its samples.
        shuffle: draw the samples and the order of batches by the key; else samples of a bucket come in the order of the
            dataset, and the longest batches first, so that a lack of memory shows at once.
        drop_last: leave out smaller batches: without boundaries these are a few of the shortest samples, with
            boundaries a few of each bucket.
        buckets: number of buckets; by default 128, or fewer so that each has four batches. Or ascending boundaries:
            lengths up to the first, above that up to the second, …, above the last.
        generator: draws each epoch's order. Leave it out in a `DataLoader`: the order then follows from the loader's
            seed, and resuming does not iterate over the sampler.

    Warns:
        StokerWarning: more than 40 % of an epoch would be padding.

    Raises:
        ValueError: a length is not positive, not finite or above `max_tokens` (the message names it); the lengths are
            empty or not one-dimensional; `batch_size` or `max_tokens` is not positive, or not exactly one of them is
            given; the boundaries do not ascend, or all lengths fall into one bucket; no batch is left with `drop_last`.
        TypeError: the lengths are no numbers.
    """

    def __init__(
        self,
        lengths: Any,
        batch_size: int | None = None,
        max_tokens: float | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        buckets: int | Sequence[float] | None = None,
        generator: AnyGenerator = None,
    ) -> None:
        if (batch_size is None) == (max_tokens is None):
            given = "neither" if batch_size is None else f"batch_size={batch_size} and max_tokens={max_tokens}"
            raise ValueError(f"give exactly one of batch_size and max_tokens, but got {given}")
        self.batch_size = None if batch_size is None else positive("batch_size", batch_size)
        if max_tokens is not None and not 0 < max_tokens < np.inf:
            raise ValueError(f"max_tokens should be a positive number, but got max_tokens={max_tokens}")
        self.max_tokens = max_tokens
        self.shuffle = flag("shuffle", shuffle)
        self.drop_last = flag("drop_last", drop_last)
        self.lengths = checked_lengths(lengths, max_tokens)
        self.buckets = buckets
        self.generator = generator
        if np.ndim(buckets):  # type: ignore[arg-type]  # None has no dimension either
            boundaries, apart = checked_boundaries(buckets), True
        else:
            some = some_sorted(self.lengths)
            number = self._number_of_buckets(some) if buckets is None else positive("buckets", buckets)
            boundaries, apart = chosen_boundaries(some, number), False
        self._by_length = ByLength(self.lengths, boundaries)
        if apart and np.count_nonzero(self._by_length.counts) == 1:
            raise ValueError(
                f"the boundaries {boundaries.tolist()} put all samples into one bucket: lengths are from "
                f"{self.lengths.min()} to {self.lengths.max()}. Choose boundaries in this range, or a number of buckets"
            )
        self._cuts = _Cuts(self._by_length, self.batch_size, max_tokens, apart, self.drop_last)
        if not len(self):
            raise ValueError(
                f"no batch is left: {len(self.lengths)} samples do not fill one, and drop_last=True leaves it out"
            )
        share = self.padding_share()
        if share > _TOO_MUCH:
            warnings.warn(self._too_much(share), StokerWarning, stacklevel=2)

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._cuts.batches

    def batches(self, key: int) -> BucketBatches:
        """Returns the epoch that belongs to `key`."""
        return BucketBatches(self._by_length, self._cuts, key if self.shuffle else None)

    def padding_share(self, key: int = 0) -> float:
        """Returns the share of padding in an epoch, if each batch is padded to its longest sample.

        For an epoch of more than 128 batches or 32,768 samples, estimates it from about that many, in 0.1 s.
        """
        epoch = self.batches(key)
        batches, weights = self._cuts.some(max(16, min(128, 32768 * len(self) // len(self.lengths))))
        tokens = padded = 0.0
        for batch, weight in zip(batches.tolist(), weights.tolist(), strict=True):
            lengths = self.lengths[epoch.cut_from_line(batch)]
            tokens += weight * float(lengths.sum(dtype=np.float64))
            padded += weight * float(lengths.max()) * len(lengths)
        return 1 - tokens / padded

    def __repr__(self) -> str:
        return described(self, "batch_size", "max_tokens", "shuffle", "drop_last", "buckets", lengths=True)

    def _number_of_buckets(self, some: Any) -> int:
        mean = math.fsum(some.tolist()) / len(some)  # rounded once, independent of the order of summation
        size = self.batch_size or max(1, int(self.max_tokens // mean))  # type: ignore[operator]  # one is given
        return max(1, min(_BUCKETS, len(self.lengths) // size // _TURNS))

    def _too_much(self, share: float) -> str:
        counts = self._by_length.counts
        size = f"batch_size={self.batch_size}" if self.batch_size else f"max_tokens={self.max_tokens}"
        return (
            f"{share:.0%} of an epoch is padding: {len(self.lengths)} samples with lengths from {self.lengths.min()} "
            f"to {self.lengths.max()}, {size}, buckets used: {np.count_nonzero(counts)}. Lengths differ too much "
            "in a batch: make more buckets (buckets=), make batches smaller, or cut or leave out the longest samples."
        )


class _Cuts:
    """The cuts of the line of buckets into batches, before shuffling.

    Attributes:
        at_end: number of smaller batches kept at the end of the epoch: one or none.
        size: of all batches but one at the end; None if they differ.
        buckets: the buckets with samples, in the order of the line.
        ends: their ends in the line.
    """

    def __init__(
        self, by_length: ByLength, batch_size: int | None, max_tokens: float | None, apart: bool, drop_last: bool
    ) -> None:
        self.buckets: Int64Array = np.flatnonzero(by_length.counts)[::-1]
        self.ends = np.cumsum(by_length.counts[self.buckets])
        self.size = None if apart else batch_size
        self.batches = at = short = 0
        rows, heights = [], []
        for bucket, end in zip(self.buckets.tolist(), self.ends.tolist(), strict=True):
            longest = min(by_length.bounds[bucket + 1], by_length.bounds[-1]).item()
            size = batch_size or int(max_tokens // longest)
            limit = end if apart else int(self.ends[-1])
            count = max(0, -(-(end - at) // size))
            short = at + count * size > limit
            if short and drop_last:
                count, short = count - 1, False
            rows.append((self.batches, at, size, limit))
            heights.append(longest)
            self.batches += count
            at = end if apart else at + count * size
        self.at_end = int(short and not apart)
        self._firsts, self._starts, self._sizes, self._limits = np.array(rows).T
        self._longest = np.array(heights, np.float64)

    def some(self, count: int) -> tuple[Int64Array, Any]:
        """Returns `count` batches and their weights, preferring batches with more tokens, since few may hold most."""
        if self.batches <= count:
            return np.arange(self.batches), np.ones(self.batches)
        tokens = self._longest * self._sizes
        ends = np.cumsum(np.diff(self._firsts, append=self.batches) * tokens)
        marks = (np.arange(count) + 0.5) / count * ends[-1]
        row = np.searchsorted(ends, marks)
        before_end = np.append(self._firsts[1:], self.batches)[row] - 1
        return before_end - ((ends[row] - marks) // tokens[row]).astype(int), 1 / tokens[row]

    def cut(self, batches: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the starts and ends of batches in the line."""
        row = np.searchsorted(self._firsts, batches, side="right") - 1
        starts = self._starts[row] + (batches - self._firsts[row]) * self._sizes[row]
        return starts, np.minimum(starts + self._sizes[row], self._limits[row])


class BucketBatches:
    """An epoch of a `BucketBatchSampler`; a `BatchOrder`."""

    def __init__(self, by_length: ByLength, cuts: _Cuts, key: int | None) -> None:
        self._by_length = by_length
        self._cuts = cuts
        self._order = None
        if key is not None:
            self._order = Permutation(cuts.batches - cuts.at_end, keys(key)[0])
            self._within = permutations(by_length.counts, keys(key)[1])

    def __len__(self) -> int:
        return self._cuts.batches

    def batch(self, number: int) -> list[int]:
        return self.cut_from_line(self._placed(np.array([numbered(number, len(self))])).item())

    def cut_from_line(self, batch: int) -> list[int]:
        """Returns the indices of a batch, numbered in the order of the line of buckets."""
        cuts, indices = self._cuts, []
        start, stop = (int(place) for (place,) in cuts.cut(np.array([batch])))
        at = int(np.searchsorted(cuts.ends, start, side="right"))
        while start < stop:
            bucket, end = int(cuts.buckets[at]), min(stop, int(cuts.ends[at]))
            begin = cuts.ends[at] - self._by_length.counts[bucket]
            places = np.arange(start - begin, end - begin)
            if self._order is not None:
                places = self._within(bucket).take(places)
            indices += self._by_length.samples(bucket, places).tolist()
            start, at = end, at + 1
        return indices

    def position(self, number: int) -> int:
        if self._cuts.size is not None:
            return number * self._cuts.size
        block = number - number % _BLOCK
        starts, stops = self._cuts.cut(self._placed(np.arange(block, number)))
        return int(self._positions[number // _BLOCK] + (stops - starts).sum())

    @cached_property
    def _positions(self) -> Int64Array:
        """The position of each 512th batch."""
        sizes = [0]
        for block in range(0, len(self), _BLOCK):
            starts, stops = self._cuts.cut(self._placed(np.arange(block, min(block + _BLOCK, len(self)))))
            sizes.append((stops - starts).sum())
        return np.cumsum(sizes)

    def _placed(self, numbers: Int64Array) -> Int64Array:
        """Returns the numbers, in the line, of these batches of the epoch."""
        if self._order is not None:
            shuffled = numbers < len(self._order)
            numbers[shuffled] = self._order.take(numbers[shuffled])
        return numbers
