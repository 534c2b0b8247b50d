"""Records of text files by index: what the datasets of lines, JSON Lines and CSV share."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.errors import CompressedFileError, FileChangedError, RecordError
from stoker.sources.hub_place import hub_fingerprint
from stoker.sources.index_file import Integers
from stoker.sources.lines.cutting import Cutting, begin_of_text
from stoker.sources.lines.index import STEP, index_of
from stoker.sources.lines.opened_text import compression_of
from stoker.sources.lines.parsing import BEGIN, TextParser
from stoker.sources.per_process import OpenFiles
from stoker.sources.source_files import SourceFiles
from stoker.sources.storage import Version


class IndexedRecords:
    """The records of files, by file and number, as bytes. Thread safe; each process opens its own files.

    Args:
        files: the files.
        cutting: how they are cut into records.
        encoding: of the text.
        stream: the name of the class that reads compressed files.
        parser: that checks the begin of each file; None for files that are checked elsewhere.

    Attributes:
        files: their names.
        counts: the number of records in each file.

    Raises:
        CompressedFileError: a file is compressed.
        FileChangedError: a file was written to while it was indexed.
        RecordError: the parser refuses a file.
        OSError: a file cannot be read.
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
        """Returns a record, with its line end and the empty lines behind it.

        Raises:
            OSError: the file cannot be read.
            FileChangedError: it was changed since the dataset was made.
        """
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
        records: of the files.
        parser: makes a sample of a record.
        first: the number of the first record of a file that is a sample.
        transform: a function of the sample.

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
