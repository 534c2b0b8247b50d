"""SQLite, through the standard library."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import unquote

from stoker.sources.sql.databases.database import Cursor, Database, DriverCursor, Parameters

PREFIX = "sqlite:///"


class SQLiteDatabase(Database):
    """An SQLite file, opened for reading only.

    Args:
        url: `sqlite:///relative/path`, or `sqlite:////absolute/path`.
    """

    is_plain = True

    def __init__(self, url: str) -> None:
        self.shown = os.path.abspath(unquote(url[len(PREFIX) :]))

    def open(self) -> sqlite3.Connection:
        """Returns a connection.

        Raises:
            FileNotFoundError: there is no file at the path.
        """
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
