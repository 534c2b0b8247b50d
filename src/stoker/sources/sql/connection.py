"""Connections to databases, which give rows in portions of bounded memory."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stoker.errors import QueryError
from stoker.sources.sql.databases.database import Cursor, Database, Parameters, Row
from stoker.sources.sql.records import RowRecords, records_of

_MOST_ROWS = 8192
_BYTES = 4 << 20
"""Rows, and bytes of their values, that are fetched at once, about."""
_GROWTH = 4
"""How many times larger than the one before a portion may be: the rows behind may be larger."""

_inherited: list[Any] = []
"""Handles that a forked child has of its parent: closing them would speak to the parent's server."""


class Selection(ABC):
    """The rows that a query selects, in its order.

    Attributes:
        columns: the names of the columns.
    """

    columns: list[str]

    @abstractmethod
    def fetch(self) -> Sequence[Row]:
        """Returns the next rows; an empty sequence at the end.

        Raises:
            DatabaseConnectionError: the connection has ended.
            QueryError: the database cannot give them.
        """

    @abstractmethod
    def fetch_records(self) -> RowRecords:
        """Returns the next rows as records; none at the end. Raises as `fetch` does."""

    @abstractmethod
    def close(self) -> None:
        """Ends the query."""


class Connection(ABC):
    """A connection of one process, for one query at a time. It is closed with its last reference, too.

    A forked child must not use the one that it inherits, and never closes it.
    """

    @abstractmethod
    def select(self, query: str, parameters: Parameters, told: str) -> Selection:
        """Runs a query.

        Args:
            query: the statement.
            parameters: its parameters.
            told: the query in messages.

        Raises:
            DatabaseConnectionError: the connection has ended.
            QueryError: the database refuses the query, or two columns have one name.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes it."""


class DirectConnection(Connection):
    """A connection in this process.

    Args:
        database: the database.
        told: the query in messages.

    Raises:
        FileNotFoundError, DatabaseConnectionError: it cannot be opened.
    """

    def __init__(self, database: Database, told: str) -> None:
        self._database = database
        with database.telling(told):
            self._handle = database.open()
        self._finalizer = weakref.finalize(self, _close, database, self._handle, os.getpid())

    def select(self, query: str, parameters: Parameters, told: str) -> Selection:
        with self._database.telling(told, self._handle):
            cursor = self._database.execute(self._handle, query, parameters)
        if not cursor.columns:
            raise QueryError(f"{told!r} selects no columns of {self._database.shown}")
        if len(set(cursor.columns)) < len(cursor.columns):
            raise QueryError(f"{told!r} selects two columns of one name: {cursor.columns}. Rename one with AS.")
        return _DirectSelection(self._database, self._handle, cursor, told)

    def close(self) -> None:
        self._finalizer()


def _close(database: Database, handle: Any, process: int) -> None:
    if process != os.getpid():
        _inherited.append(handle)
        return
    with contextlib.suppress(*database.errors()):  # of a connection that the server has ended
        database.close(handle)


class _DirectSelection(Selection):
    def __init__(self, database: Database, handle: Any, cursor: Cursor, told: str) -> None:
        self.columns = cursor.columns
        self._database = database
        self._handle = handle
        self._cursor = cursor
        self._told = told
        self._rows = 1

    def fetch(self) -> Sequence[Row]:
        with self._database.telling(self._told, self._handle):
            rows: Sequence[Row] = self._cursor.fetch(self._rows)
        some = rows[:: 1 + len(rows) // 16]
        size = sum(sum(map(sys.getsizeof, row)) for row in some) // max(1, len(some))
        self._rows = max(1, min(_GROWTH * self._rows, _MOST_ROWS, _BYTES // max(1, size)))
        return rows

    def fetch_records(self) -> RowRecords:
        return records_of(self.fetch(), self._database.is_plain)

    def close(self) -> None:
        with contextlib.suppress(*self._database.errors()):
            self._cursor.close()
