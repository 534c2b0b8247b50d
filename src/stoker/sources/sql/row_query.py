"""A query whose rows are read in sequence, whole or by ranges of a key; key values in states, and the cuts between
ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from stoker.errors import QueryError, StateFormatError
from stoker.sources.sql.connection import Connection, connect
from stoker.sources.sql.database import Database, Parameters
from stoker.sources.sql.find_database import database_of


class RowQuery:
    """A query of a database: a value that can be pickled and holds no connection."""

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


# Values of a key column in a state, which holds plain values only.


_KINDS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    UUID: (str, UUID),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    Decimal: (str, Decimal),
    bytes: (bytes.hex, bytes.fromhex),
}
_NAMES = {kind.__name__: kind for kind in _KINDS}


def to_json(value: Any) -> Any:
    """Returns a key as JSON holds it: a number or text as it is, another value as `{kind: text}`."""
    kind = type(value)
    if kind in (int, float, str):
        return value
    if kind not in _KINDS:
        raise QueryError(
            f"a key has the value {value!r:.100} of type {kind.__name__}, which a state cannot hold: choose a column "
            "of numbers, texts, times or UUIDs, or convert it in the query"
        )
    return {kind.__name__: _KINDS[kind][0](value)}


def from_json(stored: Any) -> Any:
    """Returns the key."""
    if type(stored) in (int, float, str):
        return stored
    try:
        ((name, text),) = stored.items()
        return _KINDS[_NAMES[name]][1](text)
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise StateFormatError(f"a key was expected in a state, found {stored!r:.100}") from error


def cuts_between(
    connection: Connection, database: Database, query: str, parameters: Parameters, key: str, parts: int
) -> list[Any]:
    """Returns the keys at which equal parts of a query's rows begin, but the first: `parts - 1`, ascending.

    The database counts the rows and numbers them by the key. Of fewer rows than parts, keys come twice.
    """
    name, rows = database.quoted(key), _subquery(query)

    def all_of(text: str) -> list[Any]:
        selection = connection.select(text, parameters, query)
        pairs: list[Any] = []
        while some := selection.fetch():
            pairs += some
        selection.close()
        return pairs

    ((count, keys),) = all_of(f"SELECT COUNT(*) AS stoker_count, COUNT({name}) AS stoker_keys FROM {rows}")
    if not count:
        raise QueryError(f"{query!r} selects no rows of {database.shown}")
    if keys < count:
        raise _null_keys(f"{count - keys:,} of the {count:,} rows", query, key)
    numbers = [1 + count * part // parts for part in range(1, parts)]
    if not numbers:
        return []
    numbered = f"SELECT {name}, ROW_NUMBER() OVER (ORDER BY {name}) AS stoker_number FROM {rows}"
    wanted = ", ".join(map(str, sorted(set(numbers))))
    pairs = all_of(f"SELECT stoker_number, {name} FROM ({numbered}) stoker_numbered WHERE stoker_number IN ({wanted})")
    by_number = dict(pairs)
    missing = [number for number in numbers if number not in by_number]
    if missing:
        raise QueryError(f"{query!r} has lost rows while its keys were listed: there is no row {missing[0]:,} any more")
    return [by_number[number] for number in numbers]


def refuse_nulls(connection: Connection, database: Database, query: str, parameters: Parameters, key: str) -> None:
    """Raises QueryError if a row has no key."""
    name = database.quoted(key)
    selection = connection.select(f"SELECT {name} FROM {_subquery(query)} WHERE {name} IS NULL", parameters, query)
    row = selection.fetch()
    selection.close()
    if row:
        raise _null_keys("some rows", query, key)


def _null_keys(rows: str, query: str, key: str) -> QueryError:
    return QueryError(f"{rows} of {query!r} have NULL as key {key!r}: leave them out by WHERE, or choose another key")


def select_range(
    database: Database, query: str, parameters: Parameters, key: str, low: Any, high: Any
) -> tuple[str, Parameters]:
    """Returns the statement that selects the rows from key `low` on and below `high`, by key, and its parameters.

    Args:
        query: selects all rows.
        low: the first key; None for the beginning.
        high: the key behind the last; None for the end.
    """
    is_named = isinstance(parameters, Mapping) or not database.has_positions
    name = database.quoted(key)
    bound = {"stoker_low": (">=", low), "stoker_high": ("<", high)}
    bound = {parameter: pair for parameter, pair in bound.items() if pair[1] is not None}
    conditions = [
        f"{name} {sign} {database.placeholder(parameter, is_named)}" for parameter, (sign, _) in bound.items()
    ]
    if bound and parameters is None:
        query = database.with_parameters(query)
    if bound and is_named:
        parameters = {**dict(parameters or ()), **{parameter: value for parameter, (_, value) in bound.items()}}
    elif bound:
        parameters = [*(parameters or ()), *(value for _, value in bound.values())]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT * FROM {_subquery(query)}{where} ORDER BY {name}", parameters


def select_nothing(query: str) -> str:
    """Returns the statement that selects the columns of a query and none of its rows."""
    return f"SELECT * FROM {_subquery(query)} WHERE 1 = 0"


def _subquery(query: str) -> str:
    """Returns a query as a table. Its last line may be a comment."""
    return "(\n" + query.rstrip().rstrip(";") + "\n) stoker_rows"
