"""DuckDB: a file of its own, or SQL over Parquet and CSV files."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote

from stoker.errors import MissingExtraError
from stoker.sources.sql.databases.database import Cursor, Database, DriverCursor, Parameters

PREFIX = "duckdb:///"


class DuckDBDatabase(Database):
    """A DuckDB file, opened for reading only.

    Args:
        url: `duckdb:///relative/path`, or `duckdb:////absolute/path`; `duckdb:///` for a database without tables, in
            which a query reads other files: `SELECT * FROM 'rows.parquet'`.
    """

    advice = "Is it a DuckDB file of this version, and does no process have it open for writing?"
    wants_clean_interpreter = True  # it runs queries in threads, and closes them only with its last connection

    def __init__(self, url: str) -> None:
        path = unquote(url[len(PREFIX) :])
        self._path = os.path.abspath(path) if path else ""
        self.shown = self._path or "duckdb:///"

    def open(self) -> Any:
        """Returns a connection.

        Raises:
            FileNotFoundError: there is no file at the path.
        """
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
