"""PostgreSQL, through psycopg and a cursor of the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from stoker.errors import MissingExtraError
from stoker.sources.sql.databases.database import Cursor, Database, Parameters

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
