"""What is known of a kind of database: how to open it, run a query, and read its errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from stoker.errors import DatabaseConnectionError, QueryError, StokerError

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
        advice: what to check if there is no connection.
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
                told: StokerError = DatabaseConnectionError(
                    f"{self.shown} cannot be reached, or has ended the connection: {text}. {self.advice} The query is "
                    f"{query!r}."
                )
            else:
                told = QueryError(f"{self.shown} refuses {query!r}: {text}")
            raise told from (None if is_secret else error)

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
