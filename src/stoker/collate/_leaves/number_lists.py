"""Lists of Python's numbers, all of one type: read without changing reference counts, and padded together.

Reading a number from a list changes its reference count, even in `np.asarray`. In a forked worker this copies every
page of numbers: half of the memory of a batch of texts. `marshal` is the only reader in the standard library that
changes no count, and its output is simple: a type byte and the value for each number. The output is checked, so other
contents are never mistaken for numbers.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_FORMAT = 2  # of marshal: the last one without back references
_HEAD = 5  # bytes before the items of a list


class _Form(NamedTuple):
    """The form in which marshal writes a number of one type, and the dtype of the batch."""

    code: int
    item: np.dtype[Any]
    dtype: np.dtype[Any]


_FORMS = {
    int: _Form(ord("i"), np.dtype([("code", "u1"), ("value", "<i4")]), np.dtype(np.int64)),  # up to 32 bits
    float: _Form(ord("g"), np.dtype([("code", "u1"), ("value", "<f8")]), np.dtype(np.float64)),
}


class ListedNumbers(NamedTuple):
    """The numbers of several lists.

    Attributes:
        values: of the first list, then of the second, and so on: int64 or float64.
        lengths: of the lists.
    """

    values: Array
    lengths: Array

    def cut(self, longest: int, from_start: bool) -> ListedNumbers:
        """Returns at most `longest` numbers of each list: the last ones if `from_start`, else the first ones."""
        if self.lengths.max() <= longest:
            return self
        kept = np.minimum(self.lengths, longest)
        ends = self.lengths.cumsum()
        begins = ends - kept if from_start else ends - self.lengths
        steps = np.arange(kept.sum()) - np.repeat(kept.cumsum() - kept, kept)
        return ListedNumbers(self.values[np.repeat(begins, kept) + steps], kept)


def numbers_of(lists: Sequence[Any]) -> ListedNumbers | None:
    """Returns the numbers of the lists; None unless all are lists of 32-bit ints, or all are lists of floats."""
    if {*map(type, lists)} != {list}:
        return None
    form = _FORMS.get(next((type(numbers[0]) for numbers in lists if numbers), type(None)))
    if form is None:
        return None
    try:
        written = [marshal.dumps(numbers, _FORMAT) for numbers in lists]
    except ValueError:
        return None  # a list holds an object that marshal does not support
    lengths = np.array([*map(len, lists)])
    if (np.array([*map(len, written)]) != _HEAD + lengths * form.item.itemsize).any():
        return None
    items = np.frombuffer(b"".join([part[_HEAD:] for part in written]), form.item)
    # Each list has exactly the bytes of its numbers, so equal type bytes prove that all items are such numbers.
    return ListedNumbers(items["value"].astype(form.dtype), lengths) if (items["code"] == form.code).all() else None
