"""A query whose rows are read in sequence, whole or by ranges of a key."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from stoker.errors import QueryError
from stoker.sources.sql.databases.database import Parameters
from stoker.sources.sql.databases.find_database import database_of
from stoker.sources.sql.key_json import to_json
from stoker.sources.sql.key_ranges import cuts_between, refuse_nulls, select_nothing, select_range
from stoker.sources.sql.open_connection import connect


class RowQuery:
    """A query of a database: a value that can be pickled and holds no connection.

    Args:
        text: the statement.
        url: of the database.
        key: a column, or None.
        parameters: of the statement.
    """

    def __init__(self, text: str, url: str, key: str | None, parameters: Parameters) -> None:
        self.text = text
        self.database = database_of(url)
        self.key = key
        self.parameters = parameters

    def cuts(self, parts: int | list[Any]) -> list[Any]:
        """Checks the query, and returns the keys at which its parts but the first begin; none without a key.

        Args:
            parts: the number of parts, or these keys.

        Raises:
            FileNotFoundError, DatabaseConnectionError, MissingExtraError: the database cannot be opened.
            QueryError: it refuses the query; there is no such column, no row, or a row without a key.
        """
        with closing(connect(self.database, self.text)) as connection:
            if self.key is None:
                connection.select(self.text, self.parameters, self.text).close()
                return []
            selection = connection.select(select_nothing(self.text), self.parameters, self.text)
            while selection.fetch():
                pass
            selection.close()
            if self.key not in selection.columns:
                raise QueryError(
                    f"{self.text!r} selects no column {self.key!r}, which is to be the key. Its columns are "
                    f"{selection.columns}"
                )
            if isinstance(parts, list):
                refuse_nulls(connection, self.database, self.text, self.parameters, self.key)
                return parts
            cuts = cuts_between(connection, self.database, self.text, self.parameters, self.key, parts)
        for cut in cuts:
            to_json(cut)
        return cuts

    def statement(self, low: Any, high: Any) -> tuple[str, Parameters]:
        """Returns the statement of a range of keys, and its parameters; without a key, the query itself."""
        if self.key is None:
            return self.text, self.parameters
        return select_range(self.database, self.text, self.parameters, self.key, low, high)
