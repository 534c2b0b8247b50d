"""Rows as records of bytes, which travel between processes. Imports little, for a clean interpreter's sake."""

from __future__ import annotations

import marshal
import pickle
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from stoker.sources.sql.databases.database import Row

_PLAIN = {int, float, str, bytes, bool, type(None)}
"""Types that `marshal` gives back as they are. It takes others for bytes, such as NumPy's numbers."""
_PICKLE = 0x80
"""How a pickle begins. A tuple of marshal's begins otherwise."""


class RowRecords(NamedTuple):
    """Some rows.

    Attributes:
        lengths: the number of bytes of each, as 64-bit integers.
        data: all of them.
    """

    lengths: array[int]
    data: bytes

    def rows(self) -> list[Row]:
        """Returns the rows."""
        view, ends = memoryview(self.data), list(accumulate(self.lengths))
        return [row_of(view[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def records_of(rows: Sequence[Row], is_plain: bool) -> RowRecords:
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
    return RowRecords(array("q", map(len, records)), b"".join(records))


def row_of(record: memoryview) -> Row:
    """Returns the row of a record."""
    row: Row = pickle.loads(record) if record[0] == _PICKLE else marshal.loads(record)
    return row
