"""Connections to databases, which give rows in portions of bounded memory: of this process, or of a clean one."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import pickle
import signal
import subprocess
import sys
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from stoker.errors import DatabaseConnectionError, QueryError
from stoker.sources.sql.database import Cursor, Database, Parameters, Row

_MOST_ROWS = 8192
_BYTES = 4 << 20
"""Rows, and bytes of their values, that are fetched at once, about."""
_GROWTH = 4
"""How many times larger than the one before a portion may be: the rows behind may be larger."""

_inherited: list[Any] = []
"""Handles that a forked child has of its parent: closing them would speak to the parent's server."""


class Selection(ABC):
    """The rows that a query selects, in its order."""

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
    def select(self, query: str, parameters: Parameters, shown: str) -> Selection:
        """Runs a query.

        Raises:
            DatabaseConnectionError: the connection has ended.
            QueryError: the database refuses the query, or two columns have one name.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes it."""


class DirectConnection(Connection):
    """A connection in this process.

    Raises:
        FileNotFoundError, DatabaseConnectionError: it cannot be opened.
    """

    def __init__(self, database: Database, shown: str) -> None:
        self._database = database
        with database.telling(shown):
            self._handle = database.open()
        self._finalizer = weakref.finalize(self, _close, database, self._handle, os.getpid())

    def select(self, query: str, parameters: Parameters, shown: str) -> Selection:
        with self._database.telling(shown, self._handle):
            cursor = self._database.execute(self._handle, query, parameters)
        if not cursor.columns:
            raise QueryError(f"{shown!r} selects no columns of {self._database.shown}")
        if len(set(cursor.columns)) < len(cursor.columns):
            raise QueryError(f"{shown!r} selects two columns of one name: {cursor.columns}. Rename one with AS.")
        return _DirectSelection(self._database, self._handle, cursor, shown)

    def close(self) -> None:
        self._finalizer()


def _close(database: Database, handle: Any, process: int) -> None:
    if process != os.getpid():
        _inherited.append(handle)
        return
    with contextlib.suppress(*database.errors()):  # of a connection that the server has ended
        database.close(handle)


class _DirectSelection(Selection):
    def __init__(self, database: Database, handle: Any, cursor: Cursor, shown: str) -> None:
        self.columns = cursor.columns
        self._database = database
        self._handle = handle
        self._cursor = cursor
        self._told = shown
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


# Rows as records of bytes, which travel between processes. Imports little, for a clean interpreter's sake.


_PLAIN = {int, float, str, bytes, bool, type(None)}
"""Types that `marshal` gives back as they are. It takes others for bytes, such as NumPy's numbers."""
_PICKLE = 0x80
"""How a pickle begins. A tuple of marshal's begins otherwise."""


class RowRecords(NamedTuple):
    """Some rows.

    Attributes:
        lengths: the number of bytes of each, as 64-bit integers.
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


# A connection in a clean interpreter: this process may fork, so it must not have the threads of the driver.


_COMMAND = """import json, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from stoker.sources.sql.connection import serve
serve()
"""
_PATIENCE = 5.0
"""Seconds that the interpreter has to close the database after it was told to end. Then it is killed."""


class CleanConnection(Connection):
    """A connection in a clean interpreter, which is started for it and ends with it.

    The interpreter is sent the URL and the queries through a pipe, and returns rows as records. It reads ahead by what
    fits in the pipe and one portion. It ends when this process does, however that ends.

    Raises:
        FileNotFoundError, DatabaseConnectionError: it cannot be opened.
    """

    def __init__(self, database: Database, shown: str) -> None:
        self._shown = database.shown
        self._told = shown
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 16
        )
        self._finalizer = weakref.finalize(self, _end, self._process, os.getpid())
        try:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the answer says why
                self._process.stdin.write(json.dumps(sys.path).encode() + b"\n")
            self._send((database, shown))
            self._receive()
        except BaseException:
            self.close()
            raise

    def select(self, query: str, parameters: Parameters, shown: str) -> Selection:
        self._told = shown
        self._send((query, parameters, shown))
        return _CleanSelection(self, self._receive())

    def close(self) -> None:
        self._finalizer()

    def _send(self, what: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(pickle.dumps(what))
            self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            self.close()
            raise DatabaseConnectionError(
                f"the interpreter that ran {self._told!r} of {self._shown} ended with status "
                f"{self._process.returncode}: its output says why; a negative status is the number of a signal."
            ) from None
        except BaseException:  # an interrupt: the rest of the answer would be taken for the next one
            self.close()
            raise
        if isinstance(answer, BaseException):
            raise answer
        return answer


class _CleanSelection(Selection):
    def __init__(self, connection: CleanConnection, columns: list[str]) -> None:
        self.columns = columns
        self._connection = connection
        self._is_over = False

    def fetch(self) -> Sequence[Row]:
        return self.fetch_records().rows()

    def fetch_records(self) -> RowRecords:
        try:
            records: RowRecords = self._connection._receive()
        except BaseException:
            self._is_over = True
            raise
        self._is_over = not len(records.lengths)
        return records

    def close(self) -> None:
        if not self._is_over:  # what it still sends has no end that one could wait for
            self._connection.close()


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    for pipe in (process.stdout, process.stdin):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    if owner != os.getpid():
        process.returncode = 0  # it is the parent's to wait for
        return
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve() -> None:
    """Runs queries in the clean interpreter, until its peer has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks is told, and ends this one
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a driver prints is no answer
    connection: DirectConnection | None = None
    try:
        connection = DirectConnection(*pickle.load(asked))
        _send(answers, None)
        while True:
            query = pickle.load(asked)
            try:
                _run(connection, query, answers)
            except BrokenPipeError:
                raise
            except Exception as error:
                _send(answers, error)
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):
            _send(answers, error)
    finally:
        if connection is not None:
            connection.close()
        os._exit(0)


def _run(connection: DirectConnection, query: Any, answers: Any) -> None:
    selection = connection.select(*query)
    _send(answers, selection.columns)
    while True:
        records = selection.fetch_records()
        _send(answers, records)
        if not len(records.lengths):
            break
    selection.close()


def _send(answers: Any, what: Any) -> None:
    if isinstance(what, Exception):
        try:
            data = pickle.dumps(what)
            pickle.loads(data)
        except Exception:  # of a driver, that cannot be pickled
            data = pickle.dumps(RuntimeError(f"{type(what).__name__}: {what}"))
    else:
        data = pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
    answers.write(data)
    answers.flush()


def connect(database: Database, shown: str) -> Connection:
    """Returns a new connection.

    Raises:
        DatabaseConnectionError: the database cannot be opened or reached.
    """
    kind = CleanConnection if database.wants_clean_interpreter else DirectConnection
    return kind(database, shown)
