"""Rows of an SQL query as a dataset by index."""

from __future__ import annotations

import contextlib
import marshal
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.column import TextColumn
from stoker.datasets.combining import absolute
from stoker.errors import QueryError

_PREFIX = "sqlite:///"
_ROWS = 8192
"""Rows fetched at once: about a megabyte, so that the query's result is never in memory as Python objects."""


class SQLDataset(Dataset[Any]):
    """Rows that a query of an SQLite database selects, by index, each as a dict by column name.

    The query runs once, when the dataset is made. Its rows lie encoded in two arrays, which all workers share, so
    workers hold no connection, and what happens to the database later changes nothing. Values are `int`, `float`,
    `str`, `bytes` or None. Rows keep the order of the query: without ORDER BY, the database decides it.

    Memory: 8 bytes for each row, 5 for an integer of 32 bits, 9 for a float, and some 2 bytes beside those of a text.
    Thread safe, except `refresh`.

    Args:
        query: a statement that selects rows.
        url: `sqlite:///relative/path`, or `sqlite:////absolute/path`. The database is opened for reading only.
        parameters: values that the database binds to `?` (a sequence) or `:name` (a mapping) in the query.
        transform: a function of the row, whose result is the sample.

    Raises:
        FileNotFoundError: there is no database at the path.
        TypeError: `transform` cannot be called.
        ValueError: the URL has another scheme.
        QueryError: the database refuses the query, or the query selects no rows, or two columns of one name.
    """

    stoker_protocol = True

    def __init__(
        self,
        query: str,
        url: str,
        *,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        if not url.startswith(_PREFIX):
            scheme = url.partition("://")[0] if "://" in url else "none"
            raise ValueError(f"the database's URL has the scheme {scheme!r}, expected {_PREFIX}path")
        self.query = query
        self._database = os.path.abspath(unquote(url[len(_PREFIX) :]))
        self._parameters = () if parameters is None else parameters
        self._transform = transform
        self.refresh()

    def refresh(self) -> None:
        """Runs the query again, and replaces the rows. Call it between epochs, in the process that made the dataset.

        The rows reach workers that start afterwards: with `persistent_workers=True`, running workers keep the old ones.

        Raises:
            FileNotFoundError, QueryError: as for the class. The rows stay as they were.
        """
        if not os.path.isfile(self._database):
            raise FileNotFoundError(f"{self._database} leads to no file, so {self.query!r} cannot run")
        try:
            uri = Path(self._database).as_uri() + "?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
                cursor = database.execute(self.query, self._parameters)
                columns = [column[0] for column in cursor.description or ()]
                if len(set(columns)) < len(columns):
                    raise QueryError(f"{self.query!r} selects two columns of one name: {columns}. Rename one with AS.")
                rows = _encoded(cursor)
        except (sqlite3.Error, OverflowError) as error:  # OverflowError: a parameter of more than 64 bits
            raise QueryError(f"{self._database} refuses {self.query!r}: {error}") from error
        if not len(rows):
            raise QueryError(f"{self.query!r} selects no rows of {self._database}")
        self._columns, self._rows = columns, rows

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        """Returns the row at `index`; a negative index counts from the end."""
        rows, number = self._rows, absolute(index, len(self._rows))
        begin, end = rows.offsets[number : number + 2].tolist()
        row = dict(zip(self._columns, marshal.loads(rows.buffer.data[begin:end]), strict=True))
        return row if self._transform is None else self._transform(row)

    def describe(self, index: int) -> str:
        """Returns the row's number, the query and the database."""
        return f"row {absolute(index, len(self))} of {self.query!r} in {self._database}"


def _encoded(cursor: sqlite3.Cursor) -> TextColumn:
    """Returns the rows that a cursor has left, each as a `marshal` record."""
    buffer, lengths = bytearray(), [np.zeros(1, np.int64)]
    while rows := cursor.fetchmany(_ROWS):
        records = [marshal.dumps(row) for row in rows]
        buffer += b"".join(records)
        lengths.append(np.fromiter(map(len, records), np.int64, len(records)))
    return TextColumn(np.frombuffer(buffer, np.uint8), np.cumsum(np.concatenate(lengths)), bytes, None)
