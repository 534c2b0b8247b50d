"""The line index: the bytes at which the records of a file begin, kept in a file beside it.

The index holds a line of JSON, padded with spaces to a multiple of 64 bytes, and two columns of little-endian int64:
the byte at which each record begins and the size of the file (n + 1), and the line, counted from 1, of records 0, 1024,
2048, … The line of JSON holds the version of the format, the rule by which records were cut, size and time of
modification of the file, and a checksum of the columns. An index of another file, version or rule is made anew.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from stoker.errors import FileChangedError
from stoker.sources.lines.cutting import Cutting
from stoker.sources.storage import File, LocalStorage, Version

STEP = 1024
"""Records from one line number to the next."""
_BLOCK = 4 << 20
"""Bytes searched at once."""
_FORMAT = "stoker lines 1"
_ALIGNED = 64
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
_log = logging.getLogger("stoker")

Integers = np.ndarray[Any, np.dtype[np.int64]]


class LineIndex(NamedTuple):
    """The places of the records of a file.

    Attributes:
        offsets: the byte at which each record begins, and the size of the file: n + 1 times int64. A record ends before
            the next, with its line end and the empty lines behind it.
        lines: the line, counted from 1, of records 0, 1,024, 2,048, …: int64.
        version: of the file that was indexed.
    """

    offsets: Integers
    lines: Integers
    version: Version


def index_of(path: str, cutting: Cutting, begin: int, storage: LocalStorage) -> LineIndex:
    """Returns the index of a file: the one beside it, or a new one, which is written there if the folder allows it.

    Args:
        path: of the file.
        cutting: how it is cut into records.
        begin: the byte at which its text begins.
        storage: of the file.

    Raises:
        OSError: the file cannot be read.
        FileChangedError: it was written to meanwhile.
    """
    file = storage.open(path)
    index_path = place_of(path, cutting)
    head = {"format": _FORMAT, "rule": cutting.rule, "begin": begin, **file.version._asdict()}
    if (found := _loaded(index_path, head, file.version)) is not None:
        return found
    index = scanned(file, cutting, begin)
    if storage.open(path).version != file.version:
        raise FileChangedError(f"{path} was written to while its lines were indexed: index it when it is complete")
    try:
        _write(index, index_path, head)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        _log.info("the index of %s lives in memory, and is made anew the next time: %s", path, error)
    return index


def place_of(path: str, cutting: Cutting) -> str:
    """Returns the path of the index of a file."""
    if cutting.delimiter:
        return f"{path}.csv.index"
    return f"{path}.jsonl.index" if cutting.skips_blank else f"{path}.lines.index"


def scanned(file: File, cutting: Cutting, begin: int = 0) -> LineIndex:
    """Returns the index of a file, made from its bytes."""
    try:
        return _scanned(file, cutting, begin, _record_starts)
    except _StrayQuoteError:
        return _scanned(file, cutting, begin, _record_starts_by_line)


class _StrayQuoteError(Exception):
    """A quote within an unquoted field, or text behind a closing quote: quotes cannot be counted."""


def _scanned(file: File, cutting: Cutting, begin: int, starts_in: Any) -> LineIndex:
    offsets: list[Integers] = []
    numbers: list[Integers] = []
    records, line, is_open = 0, 1, False
    size = file.version.size
    for at, block in _blocks(file, begin):
        array = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(array == 10) + 1
        if not len(ends) or ends[-1] != len(array):
            ends = np.append(ends, len(array))
        starts = np.concatenate([[0], ends[:-1]])
        lines = len(starts)
        kept, is_open = starts_in(array, block, starts, cutting, is_open)
        places = np.arange(lines, dtype=np.int64) if kept is None else np.flatnonzero(kept)
        if cutting.skips_blank:
            places = places[~_are_blank(array, starts[places])]
        offsets.append(starts[places] + at)
        numbers.append(places[-records % STEP :: STEP] + line)
        records += len(places)
        line += lines
    offsets.append(np.array([size]))
    return LineIndex(
        np.concatenate(offsets).astype(np.int64),
        np.concatenate(numbers).astype(np.int64) if numbers else np.empty(0, np.int64),
        file.version,
    )


def _blocks(file: File, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yields the bytes of a file in blocks that end behind a line end, and the places of the blocks."""
    length, size = _BLOCK, file.version.size
    while begin < size and (data := file.read(begin, min(length, size - begin))):
        end = data.rfind(b"\n") + 1
        if begin + len(data) >= size:
            end = len(data)
        elif not end:
            length *= 2
            continue
        yield begin, data[:end]
        begin, length = begin + end, _BLOCK


def _are_blank(array: Any, starts: Any) -> Any:
    """Returns whether the line at each start is empty but for its end."""
    first = array[starts]
    behind = starts + 1
    second = array[np.minimum(behind, len(array) - 1)]
    return (first == 10) | ((first == 13) & ((behind == len(array)) | (second == 10)))


def _record_starts(array: Any, block: bytes, starts: Any, cutting: Cutting, is_open: bool) -> tuple[Any, bool]:
    """Returns whether a record begins at each start of a line (None for all), and whether the block ends in quotes.

    Raises:
        _StrayQuoteError: quotes are not used as they should.
    """
    if not cutting.quote or (not is_open and cutting.quote not in block):
        return None, False
    quote, delimiter = cutting.quote[0], cutting.delimiter[0]
    quotes = np.flatnonzero(array == quote)
    opening, closing = quotes[int(is_open) :: 2], quotes[1 - int(is_open) :: 2]
    before = array[np.maximum(opening, 1) - 1]
    behind = array[np.minimum(closing + 1, len(array) - 1)]
    opens = (opening == 0) | (before == delimiter) | (before == 10) | (before == quote)
    closes = (behind == delimiter) | (behind == 10) | (behind == 13) | (behind == quote)
    if not opens.all() or not closes.all():
        raise _StrayQuoteError
    inside = (np.searchsorted(quotes, starts) + is_open) & 1
    return inside == 0, bool((len(quotes) + is_open) & 1)


def _record_starts_by_line(array: Any, block: bytes, starts: Any, cutting: Cutting, is_open: bool) -> tuple[Any, bool]:
    """Returns the same as `_record_starts`, for quotes of any kind: by a look at each line."""
    if not is_open and cutting.quote not in block:
        return None, False
    kept = np.empty(len(starts), np.bool_)
    places = [*starts.tolist(), len(block)]
    for number in range(len(kept)):
        kept[number] = not is_open
        line = block[places[number] : places[number + 1]]
        if is_open or cutting.quote in line:
            is_open = cutting.is_open(line, is_open)
    return kept, is_open


def _write(index: LineIndex, path: str, head: dict[str, Any]) -> None:
    """Writes an index to a file, atomically, with the values of `head` that identify it.

    Raises:
        OSError: it cannot be written; no partial file is left.
    """
    columns = index.offsets.astype("<i8").tobytes() + index.lines.astype("<i8").tobytes()
    line = json.dumps(head | {"records": len(index.offsets) - 1, "check": crc32(columns)})
    line += " " * (-(len(line) + 1) % _ALIGNED) + "\n"
    partial = f"{path}.{secrets.token_hex(4)}.partial"
    try:
        with open(partial, "xb") as file:
            file.write(line.encode())
            file.write(columns)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _loaded(path: str, head: dict[str, Any], version: Version) -> LineIndex | None:
    """Returns the index in a file, or None if there is none that `head` identifies."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.readline())
            if {name: found[name] for name in head} != head:
                return None
            records, columns = int(found["records"]), file.read()
        if len(columns) != 8 * (records + 1 + -(-records // STEP)) or crc32(columns) != found["check"]:
            return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("the index %s is not used, and is made anew: %s", path, error)
        return None
    column = np.frombuffer(columns, "<i8").astype(np.int64, copy=False)
    return LineIndex(column[: records + 1], column[records + 1 :], version)
