"""PostgreSQL, through psycopg and a cursor of the server."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from stoker.errors import MissingExtraError
from stoker.sources.sql.database import Cursor, Database, DriverCursor, Parameters

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
        except psycopg.Error:  # its text may quote the password
            raise ValueError(
                "a postgresql:// URL cannot be read: write it as postgresql://user:password@host:port/database, with "
                "characters such as @ : / % of user and password percent-encoded"
            ) from None
        self._url = url
        self._secrets = tuple(str(parts[name]) for name in ("password", "sslpassword") if parts.get(name))
        host, port = str(parts.get("host", "")), str(parts.get("port", ""))
        self.shown = f"postgresql://{quote(host, safe=',:[]')}{port and ':' + port}/{parts.get('dbname', '')}"

    def open(self) -> Any:
        psycopg = _psycopg()
        handle = psycopg.connect(self._url)
        handle.read_only = True
        return handle

    def execute(self, handle: Any, query: str, parameters: Parameters) -> Cursor:
        handle.rollback()  # ends the transaction of the query before, and with it its cursor
        cursor = handle.cursor("stoker")
        try:
            return DriverCursor(cursor.execute(query, parameters))
        except BaseException:
            cursor.close()
            raise

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
