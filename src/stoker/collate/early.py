"""Rows of a batch that are written as their samples come, so that a large sample need not wait for the others.

A photograph lies in the batch as soon as it is made, while it is still in the processor's caches, and its own memory is
the next one's. What stands for it in its sample meanwhile is its row: an array like any other. So whatever turns out to
be wrong later, the general path finds samples, and nothing has to be undone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stoker.collate import memory

if TYPE_CHECKING:
    from stoker.collate.plan import Node

Keep = Callable[[int, Any], Any]
"""Takes a sample's place in its batch and the sample; gives what stands for it until the batch is collated."""

LARGE = 16 * 1024
"""Bytes of a leaf that is worth it: to copy it takes as long as to see to it."""
WORTH = 50e-6
"""Seconds that a sample takes to make: it has memory of its own then, and a twentieth is more than seeing to it."""


class Unlike(Exception):
    """A value is not what the rows are made for."""


class Rows:
    """A leaf of a plan whose rows may be written one by one.

    Attributes:
        large: whether that is worth it.
    """

    large = False
    _whole: Any = None
    _rows: Sequence[Any] = ()
    _is_lent = False

    def _sized(self, shape: Sequence[int], itemsize: int) -> None:
        self.large = math.prod(shape) * itemsize >= LARGE

    def _memory(self, count: int) -> tuple[Any, Sequence[Any], bool]:
        """Memory for so many rows, each of them, and whether it is lent."""
        raise NotImplementedError

    def _copied(self, rows: Any) -> Any:
        """The same in memory of its own."""
        raise NotImplementedError

    def _write(self, row: Any, value: Any) -> None:
        """Writes the value, or raises: it is not like those that the leaf is for."""
        raise NotImplementedError

    def _address(self, value: Any) -> int:
        raise NotImplementedError

    def begin(self, count: int) -> None:
        """A batch of at most so many samples is about to be made."""
        self._whole, self._rows, self._is_lent = self._memory(count)

    def end(self) -> None:
        """The batch is made, or will not be: its memory is nobody's here."""
        self._whole, self._rows = None, ()

    def put(self, place: int, value: Any) -> Any:
        """Writes the value of the sample at this place, and gives its row; raises where it does not fit."""
        row = self._rows[place]
        self._write(row, value)
        return row

    def written(self, column: Sequence[Any]) -> Any:
        """The memory of these rows, if they are the first that there are, in order; else None."""
        rows, count = self._rows, len(column)
        if not rows or count > len(rows) or not all(map(operator.is_, column, rows)):
            return None
        if count == len(rows):
            return self._whole
        fewer = self._whole[:count]  # what is not handed over must not keep, or save, more than it shows
        return fewer if self._is_lent else self._copied(fewer)

    def is_apart(self, column: Sequence[Any]) -> bool:
        """Whether each value has memory of its own. A dataset that fills one buffer again and again has batches of its
        last sample, as with any loader, and not now and then others."""
        return len({self._address(value) for value in column}) == len(column)


class Keeper:
    """Writes the samples of one batch as they come. Never raises but what interrupts it.

    Args:
        plan: of what is large in a sample.
        count: samples of the batch, at most.
        lender: gives the batch's memory.
    """

    def __init__(self, plan: Node, count: int, lender: memory.Lender | None) -> None:
        self._plan = plan
        self._count = count
        self._lender = lender
        self._begun = self._over = False
        self._places: list[int] = []  # of those that have rows

    def __call__(self, place: int, sample: Any) -> Any:
        """The sample with its rows in place of what is large; as it was, where it or one before it did not fit."""
        if self._over:
            return sample
        try:
            if not self._begun:
                with memory.lent_by(self._lender):
                    self._plan.begin(self._count)
                self._begun = True
            while self._places and self._places[-1] >= place:  # samples are made again
                self._places.pop()
            kept = self._plan.put(len(self._places), sample)  # some may have been left out: rows have no gaps
            self._places.append(place)
            return kept
        except Exception:  # whatever it is: collation finds it as well, and has the words
            self._over = True
            return sample
