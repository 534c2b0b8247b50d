"""Records of text files as a stream whose position is a byte: shared by the streams of lines, JSON Lines and CSV."""

from __future__ import annotations

import io
import operator
import zlib
from collections.abc import Callable
from typing import Any

from stoker.datasets.stream import StreamIterator
from stoker.errors import MissingExtraError, RecordError, StateFormatError
from stoker.extend import ShardProgress, State, torchs_part
from stoker.sources.file_stream import FileStream, PartStream
from stoker.sources.lines.opened_text import MOST_RECORD, UTF8_MARK, Cutting, check_zstd, is_utf8, text_of, told_again
from stoker.sources.lines.parsing import BEGIN, TextParser, not_closed
from stoker.sources.storage_of import SourceFiles


class RecordStream(FileStream):
    """Records of text files, in sequence: the base of the public classes."""

    def __init__(self, source: UntransformedRecords, transform: Callable[[Any], Any] | None) -> None:
        super().__init__(source.files.names, source, transform)


class UntransformedRecords(PartStream[Any]):
    """The samples of files, before a transform.

    Args:
        first: the number of the first record of a file that is a sample.
    """

    def __init__(self, files: SourceFiles, cutting: Cutting, parser: TextParser, encoding: str, first: int = 0) -> None:
        check_zstd(files.names)
        super().__init__(len(files.places))
        self.files = files
        self.cutting = cutting
        self.parser = parser
        self.first = first
        self.mark = UTF8_MARK if is_utf8(encoding) else b""

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        return _RecordIterator(self, ShardProgress(torchs_part(self._numbers), len(self.files.places), state))


class _RecordIterator(StreamIterator[Any]):
    """Iterator of samples, at byte `_offset` of the text of file `_number`, after `_line` lines."""

    def __init__(self, source: UntransformedRecords, progress: ShardProgress) -> None:
        self._source = source
        self._names = source.files.names
        self._cutting = source.cutting
        self._skips_blank = source.cutting.skips_blank
        self._quote = source.cutting.quote
        self._parser = source.parser.__call__
        self._progress = progress
        self._begun = {number: _place(state) for number, state in progress.begun.items()}
        self._next_file()

    def __next__(self) -> Any:
        while (number := self._number) is not None:
            begin = self._offset
            raw = self._read_line(number)
            if not raw:
                self._progress.finish(number)
                self._next_file()
                continue
            if begin == 0:
                if not (raw := raw.removeprefix(self._source.mark)):
                    continue
                self._check(raw, number)
            if self._skips_blank and self._cutting.is_blank(raw):
                continue
            line = self._line
            try:
                if self._quote and self._quote in raw:
                    raw = self._whole_record(raw, number)
                if not self._to_skip:
                    return self._parser(raw)
                self._to_skip -= 1
            except UnicodeDecodeError as error:
                error.reason += f" (line {line} of {self._names[number]}, which ends at byte {self._offset})"
                raise
            except RecordError as error:
                place = f"line {line} of {self._names[number]}, byte {begin}"
                raise RecordError(f"{place}: {error}") from error.__cause__
        raise StopIteration

    def state_dict(self) -> State:
        here = {} if self._number is None or not self._offset else {self._number: [self._offset, self._line]}
        return self._progress.state((here | self._begun).items())

    def _next_file(self) -> None:
        self._text: io.BufferedReader | None = None
        self._number: int | None = None
        self._offset = self._line = 0
        if self._begun:  # by this shard, or by others before a change of the number of workers
            self._number = next(iter(self._begun))
            self._offset, self._line = self._begun.pop(self._number)
        elif self._progress.waiting:
            self._number = self._progress.waiting.popleft()
        self._to_skip = 0 if self._offset else self._source.first

    def _check(self, raw: bytes, number: int) -> None:
        """Checks a file by its first line; one that is refused is left.

        Raises:
            RecordError: the file is refused.
        """
        text = self._text
        is_alone = not raw.endswith(b"\n") or (raw.startswith(b"[") and text is not None and not text.peek(1))
        try:
            self._source.parser.check(raw[:BEGIN], is_alone, self._names[number])
        except RecordError:
            self._progress.finish(number)
            self._next_file()
            raise

    def _read_line(self, number: int) -> bytes:
        try:
            if self._text is None:
                self._text = text_of(self._source.files.in_sequence(number), self._offset, self._names[number])
            raw = self._text.readline()
        except (EOFError, zlib.error, OSError, MissingExtraError) as error:
            message = f"{self._names[number]} cannot be read beyond byte {self._offset} of its text: {error}"
            self._progress.finish(number)
            self._next_file()
            if isinstance(error, MissingExtraError):
                raise MissingExtraError(message) from error
            raise told_again(error, message) from error
        if raw:
            self._offset += len(raw)
            self._line += 1
        return raw

    def _whole_record(self, raw: bytes, number: int) -> bytes:
        """Returns a record that begins with the line `raw`.

        Raises:
            RecordError: it is too long. It is read to its end.
        """
        is_open = self._cutting.is_open(raw)
        parts, size = [raw], len(raw)
        while is_open and (line := self._read_line(number)):
            is_open = self._cutting.is_open(line, True)
            size += len(line)
            if size <= MOST_RECORD:
                parts.append(line)
        if size > MOST_RECORD:
            raise not_closed(size)
        return b"".join(parts)


def _place(state: Any) -> list[int]:
    try:
        offset, line = map(operator.index, state)
    except (TypeError, ValueError) as error:
        raise StateFormatError(f"a byte and a line were expected in a state, found {state!r}") from error
    return [offset, line]
