"""Opens a connection where the driver may live: in this process, or in an interpreter of its own."""

from __future__ import annotations

from stoker.sources.sql.clean_connection import CleanConnection
from stoker.sources.sql.connection import Connection, DirectConnection
from stoker.sources.sql.databases.database import Database


def connect(database: Database, told: str) -> Connection:
    """Returns a new connection.

    Args:
        database: the database.
        told: the query in messages.

    Raises:
        FileNotFoundError: there is no such file.
        DatabaseConnectionError: the database cannot be opened or reached.
        MissingExtraError: the driver is not installed.
    """
    kind = CleanConnection if database.wants_clean_interpreter else DirectConnection
    return kind(database, told)
