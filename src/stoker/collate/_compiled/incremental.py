"""Rows of a batch written as their samples arrive, so that a large sample need not wait for the others.

A photograph is copied into the batch while it is still in the processor's caches, and its own memory is free for the
next one. Its row, an ordinary array, replaces it in its sample meanwhile. If a later sample does not fit, the general
path therefore still finds complete samples, and nothing has to be undone.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from stoker._core import native
from stoker.collate import tensors

RowSink = Callable[[int, Any], Any]
"""Takes a sample's place in its batch and the sample; returns its substitute until the batch is collated."""

LARGE = 16 * 1024
"""Smallest leaf, in bytes, that is written early. Below this, bookkeeping costs as much as the copy."""
WORTH = 50e-6
"""Least time, in seconds, to make a sample that is written early. Such a sample has separate memory, and bookkeeping
costs less than a twentieth of this time."""
HEAVY = 8 << 20
"""Bytes of a batch that no worker should hold a second time as samples, because no memory is reserved for those."""
AT_ONCE = 10e-6
"""Seconds to look up a sample that lies in memory already."""
FILLED = 100e9
"""Bytes per second that no processor reaches when writing memory, even in caches. A sample that took longer than
`AT_ONCE` and this rate allow has separate memory."""
LOOKED_AT = 128 * 1024
"""Smallest large part of a sample, in bytes, from which on a batch that is not written early is compared with the last
one by its first sample. That costs a call for each sample, 0.12 us; a copy of this size takes 3.8 us."""

MISFITS = 4
"""Batches with an unlike sample after which early writing stops: each such batch requested its memory twice."""

_DO_NOT_FIT = (TypeError, ValueError, LookupError, AttributeError, RuntimeError)


class Unlike(ValueError):
    """A value does not fit the rows."""


class IncrementalLeaf(ABC):
    """A leaf of a plan whose rows may be written one by one.

    Attributes:
        large: bytes of a row, or 0 if a row is too small for early writing.
    """

    large = 0
    _whole: Any = None
    _rows: Sequence[Any] = ()
    _travels = False
    _streams: native.Functions | None = None  # set if rows should bypass the caches

    def _sized(self, shape: Sequence[int], itemsize: int) -> None:
        size = math.prod(shape) * itemsize
        self.large = size if size >= LARGE else 0

    @abstractmethod
    def _memory(self, count: int) -> tuple[Any, Sequence[Any]]:
        """Returns memory for `count` rows, and the rows."""

    @abstractmethod
    def _copied(self, rows: Any) -> Any:
        """Returns a copy in separate memory."""

    @abstractmethod
    def is_like(self, value: Any) -> bool:
        """Returns whether the value has the leaf's type; may raise if not."""

    @abstractmethod
    def _write(self, row: Any, value: Any) -> None:
        """Writes a value that has the leaf's type."""

    @abstractmethod
    def _address(self, value: Any) -> int:
        """Returns the address of the value's memory."""

    def begin(self, count: int, travels: int) -> None:
        """Allocates rows for at most `count` samples, for a batch of `travels` rows that is handed over to another
        process, or 0 if it stays here."""
        self._whole, self._rows = self._memory(count)
        self._travels = bool(travels)
        self._streams = native.for_large(self._whole.nbytes // count * travels) if travels else None

    def end(self) -> None:
        """Drops the memory of the batch, which is made or was given up."""
        self._whole, self._rows = None, ()

    def put(self, place: int, value: Any) -> Any:
        """Writes the value of the sample at this place, and returns its row; raises if the value does not fit."""
        row = self._rows[place]
        if not self.is_like(value):
            raise Unlike
        self._write(row, value)
        return row

    def written(self, column: Sequence[Any]) -> Any:
        """Returns the memory of the column if it consists of the first rows, in order; else None."""
        rows, count = self._rows, len(column)
        if not rows or count > len(rows) or not all(map(operator.is_, column, rows)):
            return None
        if count == len(rows):
            return self._whole
        fewer = self._whole[:count]  # a batch that stays here must not keep, or pickle, more than it shows
        return fewer if self._travels else self._copied(fewer)

    def is_apart(self, column: Sequence[Any]) -> bool:
        """Returns whether each value has separate memory. A dataset that reuses one buffer gives batches that repeat
        its last sample, with any loader; early writing must not change that now and then."""
        places = sorted((self._address(value), value.nbytes) for value in column)
        return all(at + size <= after for (at, size), (after, _) in itertools.pairwise(places))


def is_worth_it(seconds: float, size: int, count: int) -> bool:
    """Returns whether to write samples as they arrive.

    In heavy batches this also pays for faster samples: not in time, but in the memory that they would take.

    Args:
        seconds: to make a sample.
        size: large bytes of a sample.
        count: samples of the batch.
    """
    return seconds > WORTH or (size * count >= HEAVY and seconds > AT_ONCE + size / FILLED)


class SampleWriter:
    """Writes the samples of one batch as they arrive. Raises only on interruption, or if it is `strict`.

    Args:
        plan: of the large leaves of a sample.
        count: samples of the batch, at most.
        lender: gives the batch's memory.
        travels: rows of the batch, if it is handed over to another process.
        strict: whether the first sample raises the error if there is no memory for the batch.

    Attributes:
        is_over: whether a sample did not fit, so that the rest stay as they are.
        refusal: the error if there is no memory for the batch: its samples are dropped then, as they would take more.
        seconds: spent in calls.
    """

    def __init__(
        self, plan: Node, count: int, lender: tensors.Lender | None, travels: int = 0, strict: bool = False
    ) -> None:
        self._plan = plan
        self._strict = strict
        self._count = count
        self._lender = lender
        self._travels = travels
        self._begun = self.is_over = False
        self._places: list[int] = []  # of the samples that have rows
        self.refusal: Exception | None = None
        self.seconds = 0.0

    def __call__(self, place: int, sample: Any) -> Any:
        """Returns the sample with rows in place of its large leaves; unchanged once a sample did not fit."""
        began = time.perf_counter()
        copied = self._kept(place, sample)
        self.seconds += time.perf_counter() - began
        return copied

    def raise_refusal(self) -> None:
        """Raises the refusal, if any, and drops it. Otherwise its frames, which refer to this object, would form a
        cycle that keeps the samples until the garbage collector runs."""
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
            while self._places and self._places[-1] >= place:  # samples are made a second time
                self._places.pop()
            copied = self._plan.put(len(self._places), sample)  # rows have no gaps, though samples may be skipped
            self._places.append(place)
            return copied
        except _DO_NOT_FIT:  # collation raises it again, with a message
            self.is_over = True
            return sample

    def _begin(self) -> None:
        self._begun = True
        try:
            with tensors.lent_by(self._lender):
                self._plan.begin(self._count, self._travels)
        except Exception as error:  # raised after all samples, whose own errors come first
            if self._strict:
                raise
            self.is_over, self.refusal = True, error.with_traceback(None)  # frames would keep the samples alive


class Probe:
    """Takes the first samples of a batch. The first one shows whether the known plan fits this batch too; if there is
    no plan or it does not fit, the second shows whether to write samples as they arrive.

    The first sample is kept until then: two samples at one address reveal a dataset that reuses one buffer.

    Args:
        known: the plan of earlier batches, if any.
        plan: takes the first two samples and the seconds that the second took; returns a plan, or None.
        known_keeper: makes a `SampleWriter` of the known plan; None if samples that fit it are not written early.
        keeper: makes a `SampleWriter` of a new plan.

    Attributes:
        first: the first sample, and its substitute once the second has arrived; None if the known plan fits.
    """

    def __init__(
        self,
        known: Node | None,
        plan: Callable[[Any, Any, float], Node | None],
        known_keeper: Callable[[Node], RowSink] | None,
        keeper: Callable[[Node], RowSink],
    ) -> None:
        self._known = known
        self._plan = plan
        self._known_keeper = known_keeper
        self._keeper = keeper
        self._is_over = False
        self._keep: RowSink | None = None
        self._place = 0
        self._since = 0.0
        self.first: tuple[Any, Any] | None = None

    def __call__(self, place: int, sample: Any) -> Any:
        """Behaves like a `SampleWriter`."""
        if self._keep is not None:
            return self._keep(place, sample)
        if self._is_over:
            return sample
        known, self._known = self._known, None
        if known is not None and _is_like(known, sample):
            if self._known_keeper is None:
                self._is_over = True
                return sample
            self._keep = self._known_keeper(known)
            return self._keep(place, sample)
        now = time.perf_counter()
        if self.first is None or place <= self._place:  # the second: samples are made again
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


class Node(Protocol):
    """One field of the samples, with the fields inside it.

    Attributes:
        by_rows: whether the field consists of leaves with a row for each sample only, so that runs of its rows can be
            made separately.
        large: bytes of a sample's rows that are large enough for early writing, with `begin`, `put`, `end` and
            `is_apart` (see `IncrementalLeaf`).
    """

    by_rows: bool
    large: int

    def check(self, column: Sequence[Any]) -> Any:
        """Returns the column taken apart; raises any exception if it does not fit. Asks for no lent memory."""

    def make(self, checked: Any) -> Any:
        """Returns the field of the batch, from the result of `check`."""

    def begin(self, count: int, travels: int) -> None:
        """Allocates the memory of the rows."""

    def is_like(self, value: Any) -> bool:
        """Returns whether `put` would accept a sample's large leaves; may raise if not. Allocates no memory."""

    def put(self, place: int, value: Any) -> Any:
        """Writes a sample's rows, and returns the value with rows in place of its large leaves."""

    def end(self) -> None:
        """Drops the memory."""

    def is_apart(self, column: Sequence[Any]) -> bool:
        """Returns whether the samples of a batch share no large leaf."""


# Rows of large batches, written past the processor's caches if Stoker's compiled part is available.


Strides = tuple[int, ...]

_about_arrays = attrgetter("dtype", "shape", "flags.c_contiguous")
_about_tensors = attrgetter("dtype", "shape", "device.type", "requires_grad")

_CHANNELS = 3


def row_array(functions: native.Functions, row: Any, value: Any, beside: Strides | None) -> bool:
    """Writes an array as a row of its shape and dtype. Returns False, with nothing written, if its layout is unsuited.

    Args:
        functions: the compiled part.
        value: an array of NumPy's own classes.
        beside: the result of `strides_beside`.
    """
    if value.flags.c_contiguous:
        functions.stack(address_of_array(row), [address_of_array(value)], value.nbytes)
    elif value.strides == beside:
        functions.planes(address_of_array(row), address_of_array(value), value.nbytes // _CHANNELS)
    else:
        return False
    return True


def row_tensor(functions: native.Functions, row: Any, value: Any, beside: Strides | None) -> bool:
    """Does the same as `row_array`, for tensors of torch's own class."""
    if is_as_it_lies(value):
        functions.stack(row.data_ptr(), [value.data_ptr()], value.nbytes)
    elif value.stride() == beside and not value.is_neg():
        functions.planes(row.data_ptr(), value.data_ptr(), value.nbytes // _CHANNELS)
    else:
        return False
    return True


def strides_beside(shape: Sequence[int], is_of_bytes: bool) -> Strides | None:
    """Returns the strides, in bytes, of an image with three interleaved channels and the channel as first dimension, as
    decoded and transposed images have them; None for other shapes."""
    if not is_of_bytes or len(shape) < 2 or shape[0] != _CHANNELS:
        return None
    strides = [_CHANNELS]
    for size in reversed(shape[2:]):
        strides.append(strides[-1] * size)
    return (1, *reversed(strides))


def stack_arrays(column: Sequence[Any], out: Any) -> bool:
    """Writes arrays as the rows of `out`. Returns False, with nothing written, if their layout is unsuited.

    Args:
        column: arrays of NumPy's own classes.
        out: a contiguous array with a row for each.
    """
    functions = native.for_large(out.nbytes)
    if functions is None or set(map(_about_arrays, column)) != {(out.dtype, out.shape[1:], True)}:
        return False
    functions.stack(address_of_array(out), list(map(address_of_array, column)), out.nbytes // len(column))
    return True


def stack_tensors(column: Sequence[Any], out: Any) -> bool:
    """Does the same as `stack_arrays`, for tensors of torch's own class."""
    functions = native.for_large(out.nbytes)
    if functions is None or set(map(_about_tensors, column)) != {(out.dtype, out.shape[1:], "cpu", False)}:
        return False
    if not all(map(is_as_it_lies, column)):
        return False
    kind = type(out)
    functions.stack(out.data_ptr(), list(map(kind.data_ptr, column)), out.nbytes // len(column))
    return True


def is_as_it_lies(tensor: Any) -> bool:
    """Returns whether its memory is its values in order: no gaps, and no pending negation or conjugation."""
    return bool(tensor.is_contiguous()) and not (tensor.is_neg() or tensor.is_conj())


def address_of_array(array: Any) -> int:
    """Returns the address of the array's memory, in a third of the time of `array.ctypes.data`."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
