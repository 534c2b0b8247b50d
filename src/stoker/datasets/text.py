"""The lines of text files, plain or gzip, as a stream whose position is a byte."""

from __future__ import annotations

import codecs
import copy
import errno
import gzip
import io
import operator
import os
import zlib
from collections.abc import Iterable
from typing import Any

from stoker.datasets._stream.shards import ShardProgress, share_of, torchs_part
from stoker.datasets.stream import State, Stream, StreamIterator
from stoker.errors import StateFormatError, StateMismatchError

_BLOCK = 1 << 18
"""Bytes read at once. The file is opened for each block, which takes less than a tenth of the time of its lines."""
_GZIP = b"\x1f\x8b"

Path = str | os.PathLike[str]


class TextLineStream(Stream[str]):
    """The lines of text files, one file after another, without line ends (`\\n` or `\\r\\n`); empty lines are included.

    A gzip file is recognized by its first bytes, whatever its name. The state is a byte position in the text: a plain
    file is read from there, a gzip file is decompressed again up to there (about 500 MB of text per second). The state
    holds numbers of files, not their names, so files may be moved; it can be loaded with any number of workers.

    No file stays open between two lines: dropped iterators, or ten thousand of them side by side, hold no descriptors,
    and a fork shares none. A line that cannot be decoded, or a file that cannot be read further, raises an error at its
    place; the iterator continues with the next line or the next file.

    Args:
        paths: the files in order, or a single file. Each worker reads its own files (`shard`), under
            torch's loader too.
        encoding: of the text; in it, byte 10 must end a line, as in all but UTF-16 and UTF-32.
        errors: the handling of undecodable bytes, as in `open`: "strict", "replace", "ignore", ….

    Raises:
        FileNotFoundError: a path leads to no file; all paths are checked at once.
        ValueError: there is no path, the encoding is unknown, or its text cannot be cut at line ends.

    While iterating:
        UnicodeDecodeError: a line is not in the encoding. The message names the file, the line and its byte.
        OSError: a file is damaged (gzip), deleted, or has changed while being read.
    """

    def __init__(self, paths: Path | Iterable[Path], encoding: str = "utf-8", errors: str = "strict") -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        self.paths = [os.fspath(path) for path in given]
        self.encoding = encoding
        self.errors = errors
        self._numbers = range(len(self.paths))
        if not self.paths:
            raise ValueError("TextLineStream needs at least one path, and got none. Did a pattern match no file?")
        missing = [path for path in self.paths if not os.path.isfile(path)]
        if missing:
            raise FileNotFoundError(f"{len(missing)} of {len(self.paths)} paths lead to no file: {missing[:3]}")
        _check_encoding(encoding, errors)

    @property
    def num_shards(self) -> int:
        """The number of files."""
        return len(self._numbers)

    def shard(self, num_shards: int, index: int) -> TextLineStream:
        """Returns every `num_shards`-th file, from file `index` on.

        Raises:
            ValueError: there are fewer files than shards, or `index` is not a shard.
        """
        part = copy.copy(self)
        part._numbers = share_of(self._numbers, num_shards, index)
        return part

    def _begin(self, state: State | None) -> StreamIterator[str]:
        return _Lines(self, ShardProgress(torchs_part(self._numbers), len(self.paths), state))


class _Lines(StreamIterator[str]):
    """Iterator of lines, at byte `_offset` of the text of file `_number`, after `_line` lines."""

    def __init__(self, dataset: TextLineStream, progress: ShardProgress) -> None:
        self._dataset = dataset
        self._progress = progress
        self._begun = {number: _place(state) for number, state in progress.begun.items()}
        self._next_file()

    def __next__(self) -> str:
        while self._number is not None:
            raw = self._read(self._number)
            if raw:
                self._offset += len(raw)
                self._line += 1
                return self._decoded(raw, self._dataset.paths[self._number])
            self._progress.finish(self._number)
            self._next_file()
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

    def _read(self, number: int) -> bytes:
        path = self._dataset.paths[number]
        try:
            if self._text is None:
                self._text = _text_of(path, self._offset)
            return self._text.readline()
        except (EOFError, zlib.error, OSError) as error:
            told = f"{path} cannot be read beyond byte {self._offset} of its text: {error}"
            self._progress.finish(number)
            self._next_file()
            raise OSError(getattr(error, "errno", None) or errno.EIO, told) from error

    def _decoded(self, raw: bytes, path: str) -> str:
        if raw.endswith(b"\n"):
            raw = raw[: -2 if raw.endswith(b"\r\n") else -1]
        try:
            return raw.decode(self._dataset.encoding, self._dataset.errors)
        except UnicodeDecodeError as error:
            error.reason += f" (line {self._line} of {path}, which ends at byte {self._offset})"
            raise


def _place(state: Any) -> list[int]:
    try:
        offset, line = map(operator.index, state)
    except (TypeError, ValueError) as error:
        raise StateFormatError(f"a byte and a line were expected in a state, found {state!r}") from error
    return [offset, line]


def _text_of(path: str, offset: int) -> io.BufferedReader:
    """Returns the text of a file from `offset` on, which must be the start of a line, or the end."""
    text: io.BufferedReader = io.BufferedReader(_Reopened(path), _BLOCK)
    if text.peek(2).startswith(_GZIP):
        text = io.BufferedReader(_Gzip(fileobj=text), _BLOCK)
    if offset:
        text.seek(offset - 1)
        before = text.read(1)
        if before != b"\n" and (not before or text.peek(1)):
            raise StateMismatchError(
                f"the state stands at byte {offset} of {path}, but no line begins there: the file is another one"
            )
    return text


class _Gzip(gzip.GzipFile):
    """A gzip file that returns one block at a time, so that data before a damaged part is not lost with it."""

    def readinto(self, buffer: Any) -> int:
        return self.readinto1(buffer)


class _Reopened(io.RawIOBase):
    """A file that is open only during a read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._first_seen: tuple[int, ...] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only absolute positions are supported")
        self._offset = offset
        return offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: Any) -> int:
        with open(self._path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != (self._first_seen or seen):
                raise OSError(f"{self._path} has changed while it was read: its lines cannot be trusted")
            self._first_seen = seen
            file.seek(self._offset)
            size = file.readinto(buffer) or 0
        self._offset += size
        return size


def _check_encoding(encoding: str, errors: str) -> None:
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
