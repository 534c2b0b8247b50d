"""Records of text files by index: the shared part of the datasets of lines, JSON Lines and CSV."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.errors import CompressedFileError, FileChangedError, RecordError
from stoker.sources.index_file import Integers, index_place, load_index, save_index
from stoker.sources.lines.opened_text import Cutting, begin_of_text, compression_of
from stoker.sources.lines.parsing import BEGIN, TextParser
from stoker.sources.per_process import OpenFiles
from stoker.sources.read_ahead import ahead
from stoker.sources.storage import File, Storage, Version
from stoker.sources.storage_of import SourceFiles
from stoker.sources.urls import hub_fingerprint, shown


class IndexedRecords:
    """The records of files, by file and number, as bytes. Thread safe; each process opens its own files.

    Args:
        stream: the name of the class that reads compressed files.
        parser: that checks the begin of each file; None for files that are checked elsewhere.

    Attributes:
        counts: the number of records in each file.

    Raises:
        CompressedFileError: a file is compressed.
        FileChangedError: a file was written to while it was indexed.
        RecordError: the parser refuses a file.
    """

    def __init__(
        self, files: SourceFiles, cutting: Cutting, encoding: str, stream: str, parser: TextParser | None = None
    ) -> None:
        self.files = files.names
        self._places = files.places
        self._open = OpenFiles(files.storage)
        self._begins: list[int] = []
        self._versions: list[Version] = []
        offsets: list[Integers] = []
        lines: list[Integers] = []
        for path, place, opened in zip(files.names, files.places, files.opened(), strict=True):
            first = opened.read(0, BEGIN)
            if (compression := compression_of(first)) is not None:
                raise CompressedFileError(
                    f"{path} is compressed with {compression}, so its records cannot be read by index. Read it with "
                    f"stoker.{stream}, which decompresses in sequence, or decompress it once."
                )
            begin = begin_of_text(first, encoding)
            index = index_of(place, cutting, begin, files.storage, opened)
            if parser is not None:
                parser.check(first[begin:], len(index.offsets) == 2, path)
            self._begins.append(begin)
            self._versions.append(index.version)
            offsets.append(index.offsets)
            lines.append(index.lines)
        self.counts = [len(column) - 1 for column in offsets]
        # one column for all files: record r of file f is at bases[f] + r
        self._bases = np.cumsum([0, *map(len, offsets)]).tolist()
        self._line_bases = np.cumsum([0, *map(len, lines)]).tolist()
        self._offsets = offsets[0] if len(offsets) == 1 else np.concatenate(offsets)
        self._lines = lines[0] if len(lines) == 1 else np.concatenate(lines)

    def read(self, file: int, number: int) -> bytes:
        """Returns a record, with its line end and the empty lines behind it."""
        path = self.files[file]
        opened = self._open.get(self._places[file], self._versions[file])
        begin, end = self._span(file, number)
        first = 0 if begin == self._begins[file] else 1  # the byte before it, which ends the line before
        data = opened.read(begin - first, end - begin + first)
        is_here = len(data) == end - begin + first and (not first or data[0] == 10)
        if not is_here or opened.version != self._versions[file]:
            self._open.close()
            raise FileChangedError(
                f"{path} was changed since the dataset was made, so byte {begin} is no longer where a record begins. "
                "Make the dataset anew, and give new data another name."
            )
        return data[first:]

    def place(self, file: int, number: int) -> str:
        """Returns the file, the line (counted from 1) and the byte of a record, for messages."""
        near = number // STEP
        begin, _ = self._span(file, number)
        start, _ = self._span(file, near * STEP)
        line = int(self._lines[self._line_bases[file] + near])
        try:
            line += self._open.get(self._places[file], self._versions[file]).read(start, begin - start).count(b"\n")
        except OSError:
            return f"line {line} or later of {self.files[file]}, byte {begin}"
        return f"line {line} of {self.files[file]}, byte {begin}"

    def _span(self, file: int, number: int) -> tuple[int, int]:
        row = self._bases[file] + number
        begin, end = self._offsets[row : row + 2].tolist()
        return begin, end


class RecordDataset(Dataset[Any]):
    """Records of text files by index: the base of the public classes.

    Args:
        first: the number of the first record of a file that is a sample.

    Raises:
        ValueError: there is no record.
    """

    stoker_protocol = True

    def __init__(
        self, records: IndexedRecords, parser: TextParser, first: int, transform: Callable[[Any], Any] | None
    ) -> None:
        self.files = records.files
        self._records = records
        self._parser = parser
        self._first = first
        self._transform = transform
        self._ends: list[int] = np.cumsum([max(0, count - first) for count in records.counts]).tolist()
        if not self._ends[-1]:
            raise ValueError(f"there is no record in {len(self.files)} files: {self.files[:3]}")

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.files)

    def __len__(self) -> int:
        """Returns the number of records in all files."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        """Returns the record at `index`; a negative index counts from the end."""
        file, number = self._place(absolute(index, len(self)))
        raw = self._records.read(file, number)
        try:
            sample = self._parser(raw)
        except UnicodeDecodeError as error:
            error.reason += f" ({self._records.place(file, number)})"
            raise
        except RecordError as error:
            raise RecordError(f"{self._records.place(file, number)}: {error}") from error.__cause__
        return sample if self._transform is None else self._transform(sample)

    def describe(self, index: int) -> str:
        """Returns the file, the line (counted from 1) and the byte of the sample at `index`."""
        number = absolute(index, len(self))
        return f"sample {number}: {self._records.place(*self._place(number))}"

    def _place(self, number: int) -> tuple[int, int]:
        """Returns the file of a sample, and the number of its record in it."""
        file = bisect.bisect_right(self._ends, number)
        return file, number - (self._ends[file - 1] if file else 0) + self._first


# The line index: the bytes at which the records of a file begin, kept in a file beside it.
#
# Its columns are the byte at which each record begins and the size of the file (n + 1), and the line, counted from 1,
# of records 0, 1024, 2048, … It is made anew if the file has changed since, or if records are cut by other rules.


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
    """

    offsets: Integers
    lines: Integers
    version: Version


def index_of(path: str, cutting: Cutting, begin: int, storage: Storage, opened: File | None = None) -> LineIndex:
    """Returns the index of a file: the one beside it, or a new one, which is written there if the folder allows it.

    The index of a remote file lies in the user's cache folder.

    Args:
        begin: the byte at which its text begins.
    """
    file = opened or storage.open(path)
    index_path = place_of(path, cutting)
    identity = {"format": _FORMAT, "rule": cutting.rule, "begin": begin, **file.version._asdict()}
    existing = load_index(index_path, identity)
    if existing is not None and len(existing) == 2:
        return LineIndex(existing[0], existing[1], file.version)
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
        in_block, is_open = starts_in(array, block, starts, cutting, is_open)
        places = np.arange(lines, dtype=np.int64) if in_block is None else np.flatnonzero(in_block)
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
    is_start = np.empty(len(starts), np.bool_)
    places = [*starts.tolist(), len(block)]
    for number in range(len(is_start)):
        is_start[number] = not is_open
        line = block[places[number] : places[number + 1]]
        if is_open or cutting.quote in line:
            is_open = cutting.is_open(line, is_open)
    return is_start, is_open
