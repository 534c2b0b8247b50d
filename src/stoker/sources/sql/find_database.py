"""Finds the kind of database that a URL names; others are read through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.errors import MissingExtraError
from stoker.sources.sql import database
from stoker.sources.sql.database import Cursor, Database, DuckDBDatabase, Parameters, PostgreSQLDatabase, SQLiteDatabase
from stoker.sources.urls import is_remote, shown


def database_of(url: str) -> Database:
    """Returns the database that a URL names. Nothing is opened.

    Raises:
        ValueError: it is no URL, or cannot be read. The message holds no part of it that may be secret.
    """
    if url.startswith(database.SQLITE):
        return SQLiteDatabase(url)
    if url.startswith(database.PREFIXES):
        return PostgreSQLDatabase(url)
    if url.startswith(database.DUCKDB):
        return DuckDBDatabase(url)
    if "://" not in url:
        swapped = url.lstrip().lower().startswith(("select ", "with "))
        hint = "is a query: are the arguments swapped? The query comes first" if swapped else "has no scheme"
        raise ValueError(
            "the database is named by a URL: sqlite:///path, duckdb:///path, postgresql://host/database, or another "
            f"of SQLAlchemy. The given text {hint}."
        )
    if is_remote(url):
        raise ValueError(
            f"{shown(url)} is a file of a store, and databases are files of a local disk, which they lock, or servers: "
            "copy it, or export its rows to Parquet, which is read by URL (ParquetDataset)"
        )
    return SQLAlchemyDatabase(url)


class SQLAlchemyDatabase(Database):
    """A database by a URL of SQLAlchemy, such as `mysql+pymysql://user:password@host/database`.

    The result is fetched in portions where the driver can. Nothing is committed.

    Args:
        url: as for `sqlalchemy.create_engine`.
    """

    wants_clean_interpreter = True  # nothing is known of the driver
    has_positions = False

    def __init__(self, url: str) -> None:
        sqlalchemy = _sqlalchemy()
        scheme = url.partition("://")[0]
        try:
            parts = sqlalchemy.make_url(url)
            parts.get_dialect()
        except sqlalchemy.exc.ArgumentError:  # its text may quote the password; a subclass for an unknown scheme
            raise ValueError(
                f"SQLAlchemy cannot read a URL of scheme {scheme!r}: it needs a dialect of that name, the form "
                "dialect+driver://user:password@host:port/database, and special characters of user and password "
                "percent-encoded"
            ) from None
        self._url = url
        values = [parts.password, *(value for name, value in parts.query.items() if "pass" in name.lower())]
        self._secrets = tuple(str(value) for value in values if value)
        port = f":{parts.port}" if parts.port else ""
        self.shown = f"{parts.drivername}://{parts.host or ''}{port}/{parts.database or ''}"

    def open(self) -> Any:
        sqlalchemy = _sqlalchemy()
        try:
            engine = sqlalchemy.create_engine(self._url, poolclass=sqlalchemy.NullPool, hide_parameters=True)
        except ImportError as error:
            raise MissingExtraError(f"{self.shown} needs a driver: {error}. Install it beside SQLAlchemy.") from error
        return engine.connect().execution_options(stream_results=True)

    def execute(self, handle: Any, query: str, parameters: Parameters) -> Cursor:
        """Runs a query."""
        if parameters is not None and not isinstance(parameters, Mapping):
            raise TypeError(
                f"parameters for {self.shown} are a {type(parameters).__name__}, expected a dict: SQLAlchemy binds "
                "them by name, to :name in the query"
            )
        handle.rollback()
        return _ResultCursor(handle.execute(_sqlalchemy().text(query), parameters or {}))

    def close(self, handle: Any) -> None:
        handle.close()

    def errors(self) -> tuple[type[Exception], ...]:
        return (_sqlalchemy().exc.SQLAlchemyError,)

    def is_lost(self, error: Exception, handle: Any) -> bool:
        return handle is None or bool(getattr(error, "connection_invalidated", False))

    def placeholder(self, name: str, is_named: bool) -> str:
        return f":{name}"

    def quoted(self, name: str) -> str:
        dialect = _sqlalchemy().make_url(self._url).get_dialect()()
        quoted: str = dialect.identifier_preparer.quote_identifier(name)
        return quoted


class _ResultCursor:
    """A result of SQLAlchemy's, whose rows become tuples."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.columns = list(result.keys()) if result.returns_rows else []

    def fetch(self, rows: int) -> Sequence[Any]:
        return [tuple(row) for row in self._result.fetchmany(rows)]

    def close(self) -> None:
        self._result.close()


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise MissingExtraError(
            f"a URL of this kind needs the package sqlalchemy, which cannot be imported ({error}): install the extra "
            "stoker[sqlalchemy], and the driver of the database."
        ) from error
    return sqlalchemy
