"""Where records of a text begin and end: at lines, or where a CSV file has a line end outside of quotes."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cached_property

MOST_RECORD = 1 << 26
"""Bytes of a CSV record with quotes, at most. A longer one has a quote that is not closed."""
UTF8_MARK = b"\xef\xbb\xbf"
_STATEFUL = ("iso2022", "hz", "utf-7", "utf_7")


@dataclass(frozen=True)
class Cutting:
    """How a text is cut into records.

    Attributes:
        skips_blank: whether lines with nothing but a line end are no records.
        skips_spaces: whether lines of spaces and tabs are no records either.
        delimiter: of CSV fields, one byte; empty if lines are not CSV.
        quote: of CSV fields, one byte; empty if every line end ends a record.
    """

    skips_blank: bool = False
    delimiter: bytes = b""
    quote: bytes = b""
    skips_spaces: bool = False

    @property
    def rule(self) -> str:
        """The text that identifies these rules in an index."""
        if self.delimiter:
            return f"csv {self.delimiter.hex()} {self.quote.hex() or 'unquoted'}"
        if self.skips_spaces:
            return "lines that are not blank"
        return "lines that are not empty" if self.skips_blank else "lines"

    def is_blank(self, line: bytes) -> bool:
        """Returns whether a line, with its end, is no record because it is empty."""
        if self.skips_spaces:
            return line.isspace() and not line.strip(b" \t\r\n")
        return self.skips_blank and len(line) <= 2 and line in (b"\n", b"\r\n", b"\r")

    def is_open(self, line: bytes, was_open: bool = False) -> bool:
        """Returns whether a line ends within quotes, as Python's csv module reads it.

        A quote opens a field only at its begin, is doubled inside of quotes, and is a character like others elsewhere.

        Args:
            line: with its line end.
            was_open: whether the line begins within quotes.
        """
        if not was_open and (self.quote not in line or self._whole.fullmatch(line)):
            return False
        place = 0
        while True:
            if was_open or line.startswith(self.quote, place):
                match = self._quoted.match(line, place if was_open else place + 1)
                assert match is not None  # it matches nothing, too
                if match.end() == len(line):
                    return True
                was_open, place = False, match.end() + 1
            place = line.find(self.delimiter, place) + 1
            if not place:
                return False

    @cached_property
    def _whole(self) -> re.Pattern[bytes]:
        """Matches a line of fields with no quote, or in quotes that are closed before the delimiter."""
        quote, delimiter = re.escape(self.quote), re.escape(self.delimiter)
        inner = b"(?:[^" + quote + b"]++|" + quote + quote + b")*+"
        field = b"(?:" + quote + inner + quote + b"|[^" + quote + delimiter + b"]*+)"
        return re.compile(field + b"(?:" + delimiter + field + b")*+[\\r\\n]*+")

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        quote = re.escape(self.quote)
        return re.compile(b"(?:[^" + quote + b"]++|" + quote + quote + b")*+")


def begin_of_text(begin: bytes, encoding: str) -> int:
    """Returns the byte at which the text of a file begins: 3 behind a byte order mark in UTF-8, else 0."""
    return len(UTF8_MARK) if begin.startswith(UTF8_MARK) and is_utf8(encoding) else 0


def is_utf8(encoding: str) -> bool:
    """Returns whether an encoding is UTF-8, with or without a mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def check_encoding(encoding: str, errors: str) -> str:
    """Returns the encoding of a line: UTF-8 without a mark in place of "utf-8-sig".

    Raises:
        ValueError: the encoding or the error handler is unknown, or a text in it cannot be cut at bytes of value 10.
    """
    try:
        codecs.lookup_error(errors)
        ends_lines = b"\n".decode(encoding) == "\n"
    except LookupError as error:
        raise ValueError(str(error)) from error
    except UnicodeDecodeError:
        ends_lines = False
    if not ends_lines:
        raise ValueError(
            f"a text in {encoding} cannot be cut at bytes of value 10, so its lines cannot be found: convert the "
            "files, preferably to UTF-8"
        )
    return "utf-8" if is_utf8(encoding) else encoding


def one_byte(character: str, name: str, encoding: str) -> bytes:
    """Returns a delimiter or a quote as the byte that it is in a file.

    Raises:
        ValueError: it is not one ASCII character, is a line end, or the encoding uses its byte for others too.
    """
    if not isinstance(character, str) or len(character) != 1 or not character.isascii() or character in "\r\n":
        raise ValueError(f"{name} is {character!r}, expected one ASCII character that ends no line")
    byte = character.encode()
    if codecs.lookup(encoding).name.startswith(_STATEFUL) or byte.decode(encoding) != character:
        raise ValueError(
            f"a text in {encoding} cannot be cut at bytes of {name}={character!r}, because they are parts of other "
            "characters: convert the files, preferably to UTF-8"
        )
    return byte
