"""Values of a key column in a state, which holds plain values only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from stoker.errors import QueryError, StateFormatError

_KINDS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    UUID: (str, UUID),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    Decimal: (str, Decimal),
    bytes: (bytes.hex, bytes.fromhex),
}
_NAMES = {kind.__name__: kind for kind in _KINDS}


def to_json(value: Any) -> Any:
    """Returns a key as JSON holds it: a number or text as it is, another value as `{kind: text}`.

    Raises:
        QueryError: a state cannot hold a value of this type.
    """
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
    """Returns the key.

    Raises:
        StateFormatError: it is none.
    """
    if type(stored) in (int, float, str):
        return stored
    try:
        ((name, text),) = stored.items()
        return _KINDS[_NAMES[name]][1](text)
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise StateFormatError(f"a key was expected in a state, found {stored!r:.100}") from error
