"""Rows as records of bytes, which lie in two arrays and travel between processes."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from stoker.datasets.column import Array, TextColumn
from stoker.sources.sql.database import Row

_PLAIN = {int, float, str, bytes, bool, type(None)}
"""Types that `marshal` gives back as they are. It takes others for bytes, such as NumPy's numbers."""
_PICKLE = 0x80
"""How a pickle begins. A tuple of marshal's begins otherwise."""


class Records(NamedTuple):
    """Some rows.

    Attributes:
        lengths: the number of bytes of each, as int64.
        data: all of them.
    """

    lengths: Array
    data: bytes

    def rows(self) -> list[Row]:
        """Returns the rows."""
        view, ends = memoryview(self.data), np.cumsum(self.lengths).tolist()
        return [row_of(view[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def records_of(rows: Sequence[Row], is_plain: bool) -> Records:
    """Returns rows as records: by `marshal` if all values of a row are plain, else by pickle.

    Args:
        rows: tuples.
        is_plain: whether all values are known to be plain.
    """
    if is_plain or set(map(type, chain.from_iterable(rows))) <= _PLAIN:
        records = list(map(marshal.dumps, rows))
    else:
        records = [
            marshal.dumps(row) if _PLAIN.issuperset(map(type, row)) else pickle.dumps(row, pickle.HIGHEST_PROTOCOL)
            for row in rows
        ]
    return Records(np.fromiter(map(len, records), np.int64, len(records)), b"".join(records))


def row_of(record: memoryview) -> Row:
    """Returns the row of a record."""
    row: Row = pickle.loads(record) if record[0] == _PICKLE else marshal.loads(record)
    return row


class RecordsInArrays:
    """Collects records in one buffer, which grows in place."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._lengths = [np.zeros(1, np.int64)]

    def add(self, records: Records) -> None:
        """Appends records."""
        self._buffer += records.data
        self._lengths.append(records.lengths)

    def column(self) -> TextColumn:
        """Returns all records."""
        offsets: Any = np.cumsum(np.concatenate(self._lengths))
        return TextColumn(np.frombuffer(self._buffer, np.uint8), offsets, bytes, None)
