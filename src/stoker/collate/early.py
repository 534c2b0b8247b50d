"""Rows of a batch that are written as their samples come, so that a large sample need not wait for the others.

A photograph lies in the batch as soon as it is made, while it is still in the processor's caches, and its own memory is
the next one's. What stands for it in its sample meanwhile is its row: an array like any other. So whatever turns out to
be wrong later, the general path finds samples, and nothing has to be undone.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stoker import _native
from stoker.collate import memory

if TYPE_CHECKING:
    from stoker.collate.plan import Node

Keep = Callable[[int, Any], Any]
"""Takes a sample's place in its batch and the sample; gives what stands for it until the batch is collated."""

LARGE = 16 * 1024
"""Bytes of a leaf that is worth it: to copy it takes as long as to see to it."""
WORTH = 50e-6
"""Seconds that a sample takes to make: it has memory of its own then, and a twentieth is more than seeing to it."""
HEAVY = 8 << 20
"""Bytes of a batch that no worker should hold a second time, as samples that nobody has reserved memory for."""
AT_ONCE = 10e-6
"""Seconds in which a sample is looked up that lies in memory already, ..."""
FILLED = 100e9
"""... and bytes that no one fills in a second, in caches either: what takes longer than both has memory of its own."""

MISFITS = 4
"""Batches in which a sample was not like those before, from which on it is not tried any more: each has asked for its
memory twice."""

_DO_NOT_FIT = (TypeError, ValueError, LookupError, AttributeError, RuntimeError)


class Unlike(ValueError):
    """A value is not what the rows are made for."""


class Rows(ABC):
    """A leaf of a plan whose rows may be written one by one.

    Attributes:
        large: bytes of a row, if that is worth it; else 0.
    """

    large = 0
    _whole: Any = None
    _rows: Sequence[Any] = ()
    _travels = False
    _streams: _native.Functions | None = None  # what copies a row past the caches, where that is better

    def _sized(self, shape: Sequence[int], itemsize: int) -> None:
        size = math.prod(shape) * itemsize
        self.large = size if size >= LARGE else 0

    @abstractmethod
    def _memory(self, count: int) -> tuple[Any, Sequence[Any]]:
        """Memory for so many rows, and each of them."""

    @abstractmethod
    def _copied(self, rows: Any) -> Any:
        """The same in memory of its own."""

    @abstractmethod
    def is_like(self, value: Any) -> bool:
        """Whether the value is like those that the leaf is for; may raise if it is not."""

    @abstractmethod
    def _write(self, row: Any, value: Any) -> None:
        """Writes a value that is."""

    @abstractmethod
    def _address(self, value: Any) -> int:
        """Where the value's memory begins."""

    def begin(self, count: int, travels: int) -> None:
        """At most so many samples are about to be made, for a batch of `travels` rows that is handed over to another
        process; of 0 where it stays here."""
        self._whole, self._rows = self._memory(count)
        self._travels = bool(travels)
        self._streams = _native.for_large(self._whole.nbytes // count * travels) if travels else None

    def end(self) -> None:
        """The batch is made, or will not be: its memory is nobody's here."""
        self._whole, self._rows = None, ()

    def put(self, place: int, value: Any) -> Any:
        """Writes the value of the sample at this place, and gives its row; raises where it does not fit."""
        row = self._rows[place]
        if not self.is_like(value):
            raise Unlike
        self._write(row, value)
        return row

    def written(self, column: Sequence[Any]) -> Any:
        """The memory of these rows, if they are the first that there are, in order; else None."""
        rows, count = self._rows, len(column)
        if not rows or count > len(rows) or not all(map(operator.is_, column, rows)):
            return None
        if count == len(rows):
            return self._whole
        fewer = self._whole[:count]  # what stays here must not keep, or save, more than it shows
        return fewer if self._travels else self._copied(fewer)

    def is_apart(self, column: Sequence[Any]) -> bool:
        """Whether each value has memory of its own. A dataset that fills one buffer again and again has batches of its
        last sample, as with any loader, and not now and then others."""
        places = sorted((self._address(value), value.nbytes) for value in column)
        return all(at + size <= after for (at, size), (after, _) in itertools.pairwise(places))


def is_worth_it(seconds: float, size: int, count: int) -> bool:
    """Whether samples that take so long to make, with so many large bytes, so many in a batch, are to be written as
    they come.

    Where the batch is heavy it is worth it for quicker ones too: not to be quicker, but for the memory that they take.
    """
    return seconds > WORTH or (size * count >= HEAVY and seconds > AT_ONCE + size / FILLED)


class Keeper:
    """Writes the samples of one batch as they come. Never raises but what interrupts it.

    Args:
        plan: of what is large in a sample.
        count: samples of the batch, at most.
        lender: gives the batch's memory.
        travels: rows of the batch, if it is handed over to another process.

    Attributes:
        is_over: whether a sample did not fit, so that the others are left as they are.
        refusal: why there is no memory for the batch: then nothing is kept of its samples, which would take more of it.
        seconds: that were spent here.
    """

    def __init__(self, plan: Node, count: int, lender: memory.Lender | None, travels: int = 0) -> None:
        self._plan = plan
        self._count = count
        self._lender = lender
        self._travels = travels
        self._begun = self.is_over = False
        self._places: list[int] = []  # of those that have rows
        self.refusal: Exception | None = None
        self.seconds = 0.0

    def __call__(self, place: int, sample: Any) -> Any:
        """The sample with its rows in place of what is large; as it was, where it or one before it did not fit."""
        began = time.perf_counter()
        kept = self._kept(place, sample)
        self.seconds += time.perf_counter() - began
        return kept

    def raise_refusal(self) -> None:
        """Raises it, if there is one, and has it no longer: else its frames, which have this object, would be a ring,
        and what they hold of the samples would stay until `gc` comes by."""
        if self.refusal is not None:
            try:
                raise self.refusal
            finally:
                self.refusal = None

    def _kept(self, place: int, sample: Any) -> Any:
        if not self._begun:
            self._begin()
        if self.is_over:
            return sample if self.refusal is None else None
        try:
            while self._places and self._places[-1] >= place:  # samples are made again
                self._places.pop()
            kept = self._plan.put(len(self._places), sample)  # some may have been left out: rows have no gaps
            self._places.append(place)
            return kept
        except _DO_NOT_FIT:  # collation finds it as well, and has the words
            self.is_over = True
            return sample

    def _begin(self) -> None:
        self._begun = True
        try:
            with memory.lent_by(self._lender):
                self._plan.begin(self._count, self._travels)
        except Exception as error:  # what the samples raise is told before it
            self.is_over, self.refusal = True, error.with_traceback(None)  # its frames hold the samples


class Opening:
    """What is given the samples of a batch first. The first of them shows whether the plan of those before holds for it
    as well; where there is none, or it does not, the second shows whether they are to be written as they come.

    The first of them is held until then: two that lie in one place tell that the dataset fills one buffer.

    Args:
        known: the plan of those before, if there is one.
        plan: takes the first two samples and the seconds that the second took; gives what to keep them by, or None.
        keeper: takes either.

    Attributes:
        first: the first sample, and what stands for it since the second came; None where the known plan held for it.
    """

    def __init__(
        self, known: Node | None, plan: Callable[[Any, Any, float], Node | None], keeper: Callable[[Node], Keep]
    ) -> None:
        self._known = known
        self._plan = plan
        self._keeper = keeper
        self._is_over = False
        self._keep: Keep | None = None
        self._place = 0
        self._since = 0.0
        self.first: tuple[Any, Any] | None = None

    def __call__(self, place: int, sample: Any) -> Any:
        """As a Keeper."""
        if self._keep is not None:
            return self._keep(place, sample)
        if self._is_over:
            return sample
        known, self._known = self._known, None
        if known is not None and _is_like(known, sample):
            self._keep = self._keeper(known)
            return self._keep(place, sample)
        now = time.perf_counter()
        if self.first is None or place <= self._place:  # or it is made again
            self.first, self._place, self._since = (sample, sample), place, now
            return sample
        first, self._is_over = self.first[0], True
        plan = self._plan(first, sample, now - self._since)
        if plan is None:
            return sample
        self._keep = self._keeper(plan)
        self.first = first, self._keep(self._place, first)
        return self._keep(place, sample)


def _is_like(plan: Node, sample: Any) -> bool:
    try:
        return plan.is_like(sample)
    except _DO_NOT_FIT:
        return False
