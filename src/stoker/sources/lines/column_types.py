"""Types of CSV columns: functions from the text of a field to a Python value."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.errors import MissingColumnError

Convert = Callable[[str], Any]

_TRUE = {"true", "1", "yes"}
_FALSE = {"false", "0", "no"}


def functions_of(types: Mapping[str, Convert] | Convert | None, columns: Sequence[str]) -> dict[str, Convert]:
    """Returns the function of each column that has a type.

    `int`, `float` and `bool` are replaced by functions that refuse what Python accepts and a table does not mean.

    Raises:
        MissingColumnError: a type is given for a column that does not exist.
        TypeError: a type cannot be called.
    """
    if types is None:
        return {}
    given = dict(types) if isinstance(types, Mapping) else dict.fromkeys(columns, types)
    for name, convert in given.items():
        if name not in columns:
            raise missing_column(name, columns, "types names")
        if not callable(convert):
            raise TypeError(
                f"the type of column {name!r} is a {type(convert).__name__}, expected int, float, bool, or "
                "a function of the text"
            )
    return {name: _STRICT.get(convert, convert) for name, convert in given.items() if convert is not str}


def missing_column(name: str, columns: Sequence[str], who: str) -> MissingColumnError:
    """Returns the error of a column that does not exist, with similar names."""
    close = difflib.get_close_matches(str(name), columns)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {', '.join(map(repr, columns))}"
    return MissingColumnError(f"{who} a column {name!r}, which there is not: {hint}")


def _integer(text: str) -> int:
    if "_" in text or not text:
        raise _no_number(text)
    return int(text)


def _real(text: str) -> float:
    if "_" in text or not text:
        raise _no_number(text)
    return float(text)


def _no_number(text: str) -> ValueError:
    """Returns the error of a text that Python reads as a number ("1_0" as 10), or that is empty."""
    if text:
        return ValueError("it is no number")
    return ValueError("the field is empty. Give the column a function that says what an empty field means")


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("expected true, false, yes, no, 1 or 0")


_STRICT: dict[Any, Convert] = {int: _integer, float: _real, bool: _truth}
