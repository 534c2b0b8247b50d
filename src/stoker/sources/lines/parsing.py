"""Records to samples: text, JSON values, and rows of CSV with the types of their columns."""

from __future__ import annotations

import csv
import difflib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.errors import MissingColumnError, RecordError
from stoker.sources.lines.opened_text import MOST_RECORD, Cutting

BEGIN = 4096
"""Bytes of a file at which a parser looks."""
_CR = "lines that end in CR alone are not found: convert the file (tr '\\r' '\\n' < old > new)"
_ONE_VALUE = (
    "it is no JSON Lines file, which has one value on each line: load it with json.load and pass the list as the "
    "dataset, or write one value on each line (jq -c '.[]' old.json > new.jsonl)"
)


class TextParser:
    """A line as `str`, without its end."""

    def __init__(self, encoding: str, errors: str) -> None:
        self._encoding = encoding
        self._errors = errors

    def __call__(self, raw: bytes) -> Any:
        """Returns the sample of a record.

        Raises:
            UnicodeDecodeError: it is not in the encoding.
            RecordError: it is no record.
        """
        if raw.endswith(b"\n"):
            raw = raw[: -2 if raw.endswith(b"\r\n") else -1]
        return raw.decode(self._encoding, self._errors)

    def check(self, begin: bytes, is_alone: bool, path: str) -> None:
        """Checks that a file has lines of this kind.

        Args:
            begin: of the file, its first bytes.
            is_alone: whether the file has a single record.
        """
        if is_alone and b"\n" not in begin and b"\r" in begin.rstrip(b"\r"):
            raise RecordError(f"{path} has a single line, with carriage returns in it: {_CR}")


class JSONParser(TextParser):
    """A line as the value that it holds in JSON.

    Args:
        columns: keys of the objects to keep; None for values of any kind, whole.
    """

    def __init__(self, encoding: str, errors: str, columns: Sequence[str] | None) -> None:
        super().__init__(encoding, errors)
        self._columns = columns

    def __call__(self, raw: bytes) -> Any:
        text = raw.decode(self._encoding, self._errors)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"no JSON value: {error}. It is {_short(text)}{_hint(text)}") from error
        if self._columns is None:
            return value
        if not isinstance(value, dict):
            raise RecordError(f"a JSON {type(value).__name__}, expected an object with {', '.join(self._columns)}")
        try:
            return {name: value[name] for name in self._columns}
        except KeyError as error:
            raise RecordError(f"an object without {error}; its keys are {_short(', '.join(value))}") from None

    def check(self, begin: bytes, is_alone: bool, path: str) -> None:
        line = begin.lstrip().partition(b"\n")[0].strip()
        if line in (b"[", b"{"):
            raise RecordError(f"{path} is one JSON value over several lines: {_ONE_VALUE}")
        if is_alone and line.startswith(b"[") and path.lower().endswith((".json", ".json.gz", ".json.zst")):
            raise RecordError(f"{path} is one JSON array: {_ONE_VALUE}")


def _hint(text: str) -> str:
    text = text.strip()
    if "\r" in text:
        return f". In it, {_CR}"
    is_part = text.endswith(("[", "{", ",")) or text in ("]", "}")
    return f". If the file is one JSON value, {_ONE_VALUE}" if is_part else ""


class CSVParser(TextParser):
    """A record as a dict by column name.

    Args:
        names: of all columns, in the file's order.
        columns: the names to keep, in the sample's order.
        types: of columns, functions of `str`; the others stay `str`.

    Attributes:
        columns: the names to keep.
    """

    def __init__(
        self,
        encoding: str,
        errors: str,
        cutting: Cutting,
        names: Sequence[str],
        columns: Sequence[str],
        types: dict[str, Callable[[str], Any]],
    ) -> None:
        super().__init__(encoding, errors)
        self._fields = FieldParser(encoding, errors, cutting)
        self._width = len(names)
        self.columns = list(columns)
        self._is_whole = self.columns == list(names)
        places = {name: place for place, name in enumerate(names)}
        self._places = [places[name] for name in columns]
        self._types = [(name, places[name], types[name]) for name in columns if name in types]

    def __call__(self, raw: bytes) -> dict[str, Any]:
        row: list[Any] = self._fields(raw)
        if len(row) != self._width:
            raise RecordError(f"a row of {len(row)} fields, expected {self._width}. It is {_short(repr(row))}")
        for name, place, convert in self._types:
            try:
                row[place] = convert(row[place])
            except (ValueError, TypeError, ArithmeticError, LookupError) as error:
                raise RecordError(
                    f"column {name!r} is {_short(repr(row[place]))}, which its type refuses: {error}"
                ) from error
        if not self._is_whole:
            row = [row[place] for place in self._places]
        return dict(zip(self.columns, row, strict=True))

    def check(self, begin: bytes, is_alone: bool, path: str) -> None:
        """Checks nothing: a field may hold carriage returns in quotes, and others are an error of the record."""


class FieldParser(TextParser):
    """A CSV record as a list of its fields, as Python's csv module reads it, without that module's limit of length."""

    def __init__(self, encoding: str, errors: str, cutting: Cutting) -> None:
        super().__init__(encoding, errors)
        self._cutting = cutting
        self._delimiter = cutting.delimiter.decode()
        self._quote = cutting.quote.decode()

    def __call__(self, raw: bytes) -> list[str]:
        if len(raw) > MOST_RECORD and self._cutting.quote and self._cutting.quote in raw:
            raise not_closed(len(raw))
        text = raw.decode(self._encoding, self._errors).rstrip("\r\n")
        try:
            for row in csv.reader([text], _dialect(self._delimiter, self._quote)):
                return row
            return []
        except csv.Error:
            if self._quote and self._cutting.is_open(raw):
                raise not_closed(len(raw)) from None
            return self._loosely(text)

    def check(self, begin: bytes, is_alone: bool, path: str) -> None:
        """Checks nothing: a field may hold carriage returns in quotes, and others are an error of the record."""

    def _loosely(self, text: str) -> list[str]:
        """Returns the fields of a record that is longer than csv's limit, or has text behind a closing quote."""
        fields: list[str] = []
        place = 0
        while place >= 0:
            field = ""
            if self._quote and text.startswith(self._quote, place):
                end = place + 1
                while (end := text.index(self._quote, end)) >= 0 and text.startswith(self._quote, end + 1):
                    end += 2
                field = text[place + 1 : end].replace(self._quote * 2, self._quote)
                place = end + 1
            end = text.find(self._delimiter, place)
            rest = text[place:] if end < 0 else text[place:end]
            if "\r" in rest:
                raise RecordError(
                    f"a carriage return within a field that has no quotes; {_CR}. It is {_short(repr(text))}"
                )
            fields.append(field + rest)
            place = end + 1 if end >= 0 else -1
        return fields


@functools.lru_cache(8)
def _dialect(delimiter: str, quote: str) -> Any:
    """Returns a dialect of the csv module: to make one takes longer than to parse a short row. It cannot be pickled."""
    if quote:
        return csv.reader([], delimiter=delimiter, quotechar=quote, strict=True).dialect
    return csv.reader([], delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True).dialect


def not_closed(size: int) -> RecordError:
    """Returns the error of a record that does not end where its text does."""
    return RecordError(
        f"a quote is opened and not closed in {size:,} bytes: all of it is one record. Close the quote in the file; if "
        "quotes are characters like others in it, pass quote=None"
    )


def _short(text: str) -> str:
    text = text.rstrip("\r\n")
    return text if len(text) <= 100 else f"{text[:100]}…"


# Types of CSV columns: functions from the text of a field to a Python value.


Convert = Callable[[str], Any]

_TRUE = {"true", "1", "yes"}
_FALSE = {"false", "0", "no"}


def functions_of(types: Mapping[str, Convert] | Convert | None, columns: Sequence[str]) -> dict[str, Convert]:
    """Returns the function of each column that has a type.

    `int`, `float` and `bool` are replaced by functions that refuse what Python accepts and a table does not mean.

    Raises:
        MissingColumnError: a type is given for a column that does not exist.
    """
    if types is None:
        return {}
    by_column = dict(types) if isinstance(types, Mapping) else dict.fromkeys(columns, types)
    for name, convert in by_column.items():
        if name not in columns:
            raise missing_column(name, columns, "types names")
        if not callable(convert):
            raise TypeError(
                f"the type of column {name!r} is a {type(convert).__name__}, expected int, float, bool, or "
                "a function of the text"
            )
    return {name: _STRICT.get(convert, convert) for name, convert in by_column.items() if convert is not str}


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
