"""A connection in an interpreter of its own, so that the driver's threads are not in this process, which may fork."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from stoker.errors import DatabaseConnectionError
from stoker.sources.sql.connection import Connection, DirectConnection, Selection
from stoker.sources.sql.databases.database import Database, Parameters, Row
from stoker.sources.sql.records import RowRecords

_COMMAND = """import json, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from stoker.sources.sql.clean_connection import serve
serve()
"""
_PATIENCE = 5.0
"""Seconds that the interpreter has to close the database after it was told to end. Then it is killed."""


class CleanConnection(Connection):
    """A connection in a clean interpreter, which is started for it and ends with it.

    The interpreter is sent the URL and the queries through a pipe, and returns rows as records. It reads ahead by what
    fits in the pipe and one portion. It ends when this process does, however that ends.

    Args:
        database: the database.
        told: the query in messages.

    Raises:
        FileNotFoundError, DatabaseConnectionError: it cannot be opened.
    """

    def __init__(self, database: Database, told: str) -> None:
        self._shown = database.shown
        self._told = told
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 16
        )
        self._finalizer = weakref.finalize(self, _end, self._process, os.getpid())
        try:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the answer says why
                self._process.stdin.write(json.dumps(sys.path).encode() + b"\n")
            self._send((database, told))
            self._receive()
        except BaseException:
            self.close()
            raise

    def select(self, query: str, parameters: Parameters, told: str) -> Selection:
        self._told = told
        self._send((query, parameters, told))
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
