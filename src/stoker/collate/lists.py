"""Lists of Python's numbers, all of one type: padded at once, and read without touching the numbers.

Whoever reads a number from a list counts a reference to it, also `np.asarray`. In a forked worker every page of numbers
becomes a copy of the trainer's that way: half of what a batch of texts took there. `marshal` is the one reader of the
standard library that counts none where it writes numbers, and what it writes is as quick to read as it is simple: a
byte for the type and the value, again and again. It is looked at, so that nothing is taken for what it is not.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_FORMAT = 2  # of marshal's, the last that writes each number where it stands
_HEAD = 5  # bytes before the items of a list


class _Form(NamedTuple):
    """How marshal writes a number of one type, and what it is collated to."""

    code: int
    item: np.dtype[Any]
    dtype: np.dtype[Any]


_FORMS = {
    int: _Form(ord("i"), np.dtype([("code", "u1"), ("value", "<i4")]), np.dtype(np.int64)),  # larger ones: otherwise
    float: _Form(ord("g"), np.dtype([("code", "u1"), ("value", "<f8")]), np.dtype(np.float64)),
}


class Numbers(NamedTuple):
    """The numbers of several lists.

    Attributes:
        values: those of the first list, then those of the second, and so on: int64 or float64.
        lengths: how many each list has.
    """

    values: Array
    lengths: Array

    def cut(self, longest: int, from_start: bool) -> Numbers:
        """Without those over `longest` in each list: the last ones, or the first ones."""
        if self.lengths.max() <= longest:
            return self
        kept = np.minimum(self.lengths, longest)
        ends = self.lengths.cumsum()
        begins = ends - kept if from_start else ends - self.lengths
        steps = np.arange(kept.sum()) - np.repeat(kept.cumsum() - kept, kept)
        return Numbers(self.values[np.repeat(begins, kept) + steps], kept)


def numbers_of(lists: Sequence[Any]) -> Numbers | None:
    """The numbers of these lists; None unless they are lists of ints of 32 bits, or of floats, and nothing else."""
    if {*map(type, lists)} != {list}:
        return None
    form = _FORMS.get(next((type(numbers[0]) for numbers in lists if numbers), type(None)))
    if form is None:
        return None
    try:
        written = [marshal.dumps(numbers, _FORMAT) for numbers in lists]
    except ValueError:
        return None  # there is something else in one
    lengths = np.array([*map(len, lists)])
    if (np.array([*map(len, written)]) != _HEAD + lengths * form.item.itemsize).any():
        return None
    items = np.frombuffer(b"".join([part[_HEAD:] for part in written]), form.item)
    # Each list has room for its items alone: so if all begin like such a number, they are such numbers
    return Numbers(items["value"].astype(form.dtype), lengths) if (items["code"] == form.code).all() else None
