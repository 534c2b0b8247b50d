"""Which database a URL names."""

from __future__ import annotations

from stoker.sources.sql.databases import duckdb_database, postgresql_database, sqlite_database
from stoker.sources.sql.databases.database import Database
from stoker.sources.sql.databases.duckdb_database import DuckDBDatabase
from stoker.sources.sql.databases.postgresql_database import PostgreSQLDatabase
from stoker.sources.sql.databases.sqlalchemy_database import SQLAlchemyDatabase
from stoker.sources.sql.databases.sqlite_database import SQLiteDatabase
from stoker.sources.urls import is_remote, shown


def database_of(url: str) -> Database:
    """Returns the database that a URL names. Nothing is opened.

    Raises:
        ValueError: it is no URL, or cannot be read. The message holds no part of it that may be secret.
        MissingExtraError: the driver is not installed.
    """
    if url.startswith(sqlite_database.PREFIX):
        return SQLiteDatabase(url)
    if url.startswith(postgresql_database.PREFIXES):
        return PostgreSQLDatabase(url)
    if url.startswith(duckdb_database.PREFIX):
        return DuckDBDatabase(url)
    if "://" not in url:
        raise ValueError(
            "the database is named by a URL: sqlite:///path, duckdb:///path, postgresql://host/database, or another "
            "of SQLAlchemy. The given text has no scheme."
        )
    if is_remote(url):
        raise ValueError(
            f"{shown(url)} is a file of a store, and databases are files of a local disk, which they lock, or servers: "
            "copy it, or export its rows to Parquet, which is read by URL (ParquetDataset)"
        )
    return SQLAlchemyDatabase(url)
