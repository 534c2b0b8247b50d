"""Kinds of databases: SQLite, DuckDB and PostgreSQL. Each opens a connection, runs a query, and explains errors."""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from stoker.errors import DatabaseConnectionError, MissingExtraError, QueryError, StokerError

Row = tuple[Any, ...]
Parameters = Sequence[Any] | Mapping[str, Any] | None


class Cursor(Protocol):
    """A running query. Its columns are known, its rows are fetched."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""

    def fetch(self, rows: int) -> Sequence[Any]:
        """Returns the next rows, at most `rows`; an empty sequence at the end."""

    def close(self) -> None:
        """Ends the query."""


class Database(ABC):
    """A database by its URL: a value that can be pickled and holds no connection. Its repr shows no secret.

    Attributes:
        shown: the database in messages, without user, password and options.
        is_plain: whether all values are `int`, `float`, `str`, `bytes` or None.
        wants_clean_interpreter: whether the driver may start threads, which would not survive a fork of the process.
        has_positions: whether parameters can be a sequence.
        advice: the first thing to check if there is no connection.
    """

    shown: str
    is_plain = False
    wants_clean_interpreter = False
    has_positions = True
    advice = "Is the server running, and do host, database, user and password of the URL fit?"
    _secrets: tuple[str, ...] = ()

    @abstractmethod
    def open(self) -> Any:
        """Returns a new connection of the driver's, for reading only."""

    @abstractmethod
    def execute(self, handle: Any, query: str, parameters: Parameters) -> Cursor:
        """Runs a query over an open connection."""

    @abstractmethod
    def close(self, handle: Any) -> None:
        """Closes a connection."""

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Returns the classes of the driver's errors."""

    @abstractmethod
    def is_lost(self, error: Exception, handle: Any) -> bool:
        """Returns whether an error means that there is no connection. `handle` is None if it was never open."""

    @abstractmethod
    def placeholder(self, name: str, is_named: bool) -> str:
        """Returns the text that stands for a parameter in a query, by its name or by its position."""

    def quoted(self, name: str) -> str:
        """Returns the name of a column as it stands in a query."""
        return '"' + name.replace('"', '""') + '"'

    def with_parameters(self, query: str) -> str:
        """Returns a query that was written without parameters in the form that it needs beside some."""
        return query

    @contextmanager
    def telling(self, query: str, handle: Any = None) -> Iterator[None]:
        """Raises the driver's errors as Stoker's, without secrets.

        Raises:
            DatabaseConnectionError: there is no connection.
            QueryError: the database refuses the query.
        """
        try:
            yield
        except StokerError:
            raise
        except self.errors() as error:
            text = " ".join(str(error).split())
            is_secret = any(secret in text for secret in self._secrets)
            for secret in self._secrets:
                text = text.replace(secret, "***")
            if self.is_lost(error, handle):
                raised: StokerError = DatabaseConnectionError(
                    f"{self.shown} cannot be reached, or has ended the connection: {text}. {self.advice} The query is "
                    f"{query!r}."
                )
            else:
                raised = QueryError(f"{self.shown} refuses {query!r}: {text}")
            raise raised from (None if is_secret else error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown}>"


class DriverCursor:
    """The cursor of a driver that follows Python's database interface.

    Args:
        cursor: has run a query.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.columns = [column[0] for column in cursor.description or ()]

    def fetch(self, rows: int) -> Sequence[Any]:
        fetched: Sequence[Any] = self._cursor.fetchmany(rows)
        return fetched

    def close(self) -> None:
        self._cursor.close()


# SQLite, through the standard library.


SQLITE = "sqlite:///"


class SQLiteDatabase(Database):
    """An SQLite file, opened for reading only.

    Args:
        url: `sqlite:///relative/path`, or `sqlite:////absolute/path`.
    """

    is_plain = True

    def __init__(self, url: str) -> None:
        self.shown = os.path.abspath(unquote(url[len(SQLITE) :]))

    def open(self) -> sqlite3.Connection:
        if not os.path.isfile(self.shown):
            raise FileNotFoundError(f"{self.shown} leads to no file, so no query of it can run")
        uri = Path(self.shown).as_uri() + "?mode=ro"
        return sqlite3.connect(uri, uri=True, check_same_thread=False)  # an iterator may end in another thread

    def execute(self, handle: sqlite3.Connection, query: str, parameters: Parameters) -> Cursor:
        return DriverCursor(handle.execute(query, () if parameters is None else parameters))

    def close(self, handle: sqlite3.Connection) -> None:
        handle.close()

    def errors(self) -> tuple[type[Exception], ...]:
        return sqlite3.Error, OverflowError  # OverflowError: a parameter of more than 64 bits

    def is_lost(self, error: Exception, handle: object) -> bool:
        return False

    def placeholder(self, name: str, is_named: bool) -> str:
        return f":{name}" if is_named else "?"


# DuckDB: a file of its own, or SQL over Parquet and CSV files.


DUCKDB = "duckdb:///"


class DuckDBDatabase(Database):
    """A DuckDB file, opened for reading only.

    Args:
        url: `duckdb:///relative/path`, or `duckdb:////absolute/path`; `duckdb:///` for a database without tables, in
            which a query reads other files: `SELECT * FROM 'rows.parquet'`.
    """

    advice = "Is it a DuckDB file of this version, and does no process have it open for writing?"
    wants_clean_interpreter = True  # it runs queries in threads, and closes them only with its last connection

    def __init__(self, url: str) -> None:
        path = unquote(url[len(DUCKDB) :])
        self._path = os.path.abspath(path) if path else ""
        self.shown = self._path or "duckdb:///"

    def open(self) -> Any:
        duckdb = _duckdb()
        if not self._path:
            return duckdb.connect()
        if not os.path.isfile(self._path):
            raise FileNotFoundError(f"{self._path} leads to no file, so no query of it can run")
        return duckdb.connect(self._path, read_only=True)

    def execute(self, handle: Any, query: str, parameters: Parameters) -> Cursor:
        return DriverCursor(handle.cursor().execute(query, parameters))

    def close(self, handle: Any) -> None:
        handle.close()

    def errors(self) -> tuple[type[Exception], ...]:
        return (_duckdb().Error,)

    def is_lost(self, error: Exception, handle: Any) -> bool:
        return handle is None

    def placeholder(self, name: str, is_named: bool) -> str:
        return f"${name}" if is_named else "?"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            f"duckdb:/// needs the package duckdb, which cannot be imported ({error}): install the extra "
            "stoker[duckdb]."
        ) from error
    return duckdb


# PostgreSQL, through psycopg and a cursor of the server.


PREFIXES = ("postgresql://", "postgres://")


class PostgreSQLDatabase(Database):
    """A PostgreSQL database, in a transaction for reading only. The server keeps the result and gives it in portions.

    Args:
        url: `postgresql://user:password@host:port/database?option=value`, as libpq reads it. What is missing comes from
            the environment (`PGHOST`, `PGPASSWORD`, …) and from `~/.pgpass`.
    """

    def __init__(self, url: str) -> None:
        psycopg = _psycopg()
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            parts = {"port": "?"}
        host, port, name = (str(parts.get(key, "")) for key in ("host", "port", "dbname"))
        if not re.fullmatch("[0-9,]*", port) or "@" in host + name:  # parts of a password, perhaps: nothing is quoted
            raise ValueError(
                "a postgresql:// URL cannot be read: write it as postgresql://user:password@host:port/database, with "
                "characters such as @ : / % of user and password percent-encoded"
            )
        self._url = url
        self._secrets = tuple(str(parts[name]) for name in ("password", "sslpassword") if parts.get(name))
        self.shown = f"postgresql://{quote(host, safe=',:[]')}{port and ':' + port}/{name}"

    def open(self) -> Any:
        psycopg = _psycopg()
        handle = psycopg.connect(self._url)
        handle.read_only = True
        return handle

    def execute(self, handle: Any, query: str, parameters: Parameters) -> Cursor:
        handle.rollback()  # ends the transaction of the query before, and with it its cursor
        handle.execute(f"DECLARE stoker_rows CURSOR FOR {query}", parameters, prepare=False)
        return _ServerCursor(handle)

    def close(self, handle: Any) -> None:
        handle.close()

    def errors(self) -> tuple[type[Exception], ...]:
        return (_psycopg().Error,)

    def is_lost(self, error: Exception, handle: Any) -> bool:
        return handle is None or bool(handle.closed)

    def placeholder(self, name: str, is_named: bool) -> str:
        return f"%({name})s" if is_named else "%s"

    def with_parameters(self, query: str) -> str:
        return query.replace("%", "%%")


class _ServerCursor:
    """The cursor that a connection has declared. psycopg's own class warns if the connection ends before it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.columns = [column.name for column in self._fetched(0).description or ()]

    def fetch(self, rows: int) -> Sequence[Any]:
        fetched: Sequence[Any] = self._fetched(rows).fetchall()
        return fetched

    def _fetched(self, rows: int) -> Any:
        return self._handle.execute(f"FETCH FORWARD {rows} FROM stoker_rows", prepare=False)

    def close(self) -> None:
        self._handle.rollback()


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise MissingExtraError(
            f"postgresql:// needs the package psycopg, which cannot be imported ({error}): install the extra "
            "stoker[postgresql]."
        ) from error
    return psycopg
