"""Indices in random order, group by group: for data of which a whole group is read at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stoker.samplers.base import Sampler
from stoker.samplers.draws import AnyGenerator, draws_from
from stoker.samplers.keyed import keys, permutations, positive
from stoker.samplers.order import Int64Array, Order
from stoker.samplers.passes import WalkedInEpochs
from stoker.samplers.permutation import Permutation

_AT_ONCE = 1024  # indices computed at once when iterating


class RowGroupSampler(WalkedInEpochs, Sampler[int]):
    """Yields each index once: the groups in random order, and the rows of some groups shuffled together.

    For a dataset that reads a whole group for one row, as `ParquetDataset` does, where a complete shuffle would read a
    group for almost every row. The groups are put in random order; the rows of the first `groups_at_once` are shuffled
    together, then those of the next ones. So each group is read once in an epoch by each process.

    An epoch is a function of the loader's seed, as that of `RandomSampler`: resuming takes constant time. Resume
    with the same sizes and `groups_at_once`; the state does not hold them. Making an epoch takes time and memory in
    proportion to the number of groups.

    Args:
        sizes: the number of rows of each group, in the order of the dataset: `dataset.row_group_sizes`.
        groups_at_once: groups whose rows are shuffled together: more mix better, and need more memory.
        generator: draws each epoch's order. Leave it out in a `DataLoader`: the order then follows from the loader's
            seed.

    Raises:
        ValueError: `groups_at_once` is not positive, a size is negative, or there are no rows.
    """

    stoker_protocol = True

    def __init__(self, sizes: Sequence[int], groups_at_once: int = 4, generator: AnyGenerator = None) -> None:
        self.sizes: Int64Array = np.array(sizes, np.int64)
        self.groups_at_once = positive("groups_at_once", groups_at_once)
        self.generator = generator
        if self.sizes.ndim != 1 or not self.sizes.sum() or self.sizes.min() < 0:
            raise ValueError(f"sizes should be numbers of rows, at least one of them positive, but got {sizes!r:.200}")

    def __iter__(self) -> Iterator[int]:
        """Yields the indices; the order is drawn when the first is requested."""
        return self._drawn() if self._passes is None else self._passes.indices(self)

    def _drawn(self) -> Iterator[int]:
        order = self.order(draws_from(self.generator).below(2**63 - 1, 1)[0])
        for begin in range(0, len(order), _AT_ONCE):
            yield from order.take(np.arange(begin, min(begin + _AT_ONCE, len(order)))).tolist()

    def order(self, key: int) -> Order:
        """Returns the order that belongs to `key`; a loader uses it if there is no generator."""
        return _GroupOrder(self.sizes, self.groups_at_once, key)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return int(self.sizes.sum())


class _GroupOrder:
    """An epoch of a `RowGroupSampler`: the groups in a line, cut into blocks, each with a permutation of its rows."""

    def __init__(self, sizes: Int64Array, groups_at_once: int, key: int) -> None:
        of_groups, of_rows = keys(key)[0], keys(key)[1]
        line = Permutation(len(sizes), of_groups).take(np.arange(len(sizes)))
        ends = np.cumsum(sizes[line])
        self._begins = ends - sizes[line]  # of each group in the line, as a position
        self._firsts = (np.cumsum(sizes) - sizes)[line]  # the first index of each group in the line
        self._ends = ends
        self._block_begins = self._begins[::groups_at_once]
        self._block_sizes = np.diff(self._block_begins, append=ends[-1])
        self._permutation = permutations(self._block_sizes, of_rows)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, positions: Int64Array) -> Int64Array:
        blocks = np.searchsorted(self._block_begins, positions, side="right") - 1
        rows = positions - self._block_begins[blocks]
        for block in np.unique(blocks).tolist():
            inside = blocks == block
            rows[inside] = self._permutation(block).take(rows[inside])
        places = rows + self._block_begins[blocks]
        groups = np.searchsorted(self._ends, places, side="right")
        indices: Int64Array = self._firsts[groups] + places - self._begins[groups]
        return indices
