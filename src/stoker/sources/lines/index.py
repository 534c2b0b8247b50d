"""The line index: the bytes at which the records of a file begin, kept in a file beside it.

Its columns are the byte at which each record begins and the size of the file (n + 1), and the line, counted from 1, of
records 0, 1024, 2048, … It is made anew if the file has changed since, or if records are cut by other rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import FileChangedError
from stoker.sources.index_file import Integers, index_place, load_index, save_index
from stoker.sources.lines.cutting import Cutting
from stoker.sources.read_ahead import ahead
from stoker.sources.storage import File, Storage, Version
from stoker.sources.urls import shown

STEP = 1024
"""Records from one line number to the next."""
_BLOCK = 4 << 20
"""Bytes searched at once."""
_SPACES = np.frombuffer(b" \t\r\n", np.uint8)
_FORMAT = "stoker lines 1"


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


def index_of(path: str, cutting: Cutting, begin: int, storage: Storage, opened: File | None = None) -> LineIndex:
    """Returns the index of a file: the one beside it, or a new one, which is written there if the folder allows it.

    The index of a remote file lies in the user's cache folder.

    Args:
        path: of the file.
        cutting: how it is cut into records.
        begin: the byte at which its text begins.
        storage: of the file.
        opened: the file, if it is open.

    Raises:
        OSError: the file cannot be read.
        FileChangedError: it was written to meanwhile.
    """
    file = opened or storage.open(path)
    index_path = place_of(path, cutting)
    identity = {"format": _FORMAT, "rule": cutting.rule, "begin": begin, **file.version._asdict()}
    found = load_index(index_path, identity)
    if found is not None and len(found) == 2:
        return LineIndex(found[0], found[1], file.version)
    index = scanned(ahead(file), cutting, begin)
    if storage.open(path).version != file.version:
        raise FileChangedError(
            f"{shown(path)} was written to while its lines were indexed: index it when it is complete"
        )
    save_index(index_path, identity, [index.offsets, index.lines])
    return index


def place_of(path: str, cutting: Cutting) -> str:
    """Returns the path of the index of a file."""
    if cutting.delimiter:
        return index_place(path, ".csv.index")
    return index_place(path, ".jsonl.index" if cutting.skips_blank else ".lines.index")


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
        if cutting.skips_spaces:
            begins = np.isin(array[starts[places]], _SPACES)
            blank = [place for place in places[begins].tolist() if cutting.is_blank(block[starts[place] : ends[place]])]
            places = places[~np.isin(places, blank)] if blank else places
        elif cutting.skips_blank:
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
