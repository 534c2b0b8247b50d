"""TFRecord files as a stream."""

from __future__ import annotations

import io
import operator
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stoker.datasets.stream import StreamIterator
from stoker.errors import MissingExtraError, RecordError, ShardError, StateFormatError, StateMismatchError
from stoker.extend import ShardProgress, State, torchs_part
from stoker.sources.file_stream import FileStream, PartStream
from stoker.sources.lines.opened_text import check_zstd, decompressed, told_again
from stoker.sources.places import Place
from stoker.sources.storage_of import SourceFiles, source_files
from stoker.sources.tfrecord.dataset import decoder_of
from stoker.sources.tfrecord.records import HEAD, TAIL, ExampleDecoder, checksum, data_of, length_of

_MOST = 1 << 31
"""Bytes of a record, at most: protobuf's own limit. A longer one is a damaged length."""


class TFRecordStream(FileStream):
    """Records of TFRecord files, one file after another. Plain, gzip or zstd. TensorFlow is not needed.

    A sample is as in `TFRecordDataset`. The state is a byte position: a plain file is read from there, a compressed
    file is decompressed again up to there. It can be loaded with any number of workers. No file stays open between two
    records. After a damaged record, the iterator continues with the next; after a file that cannot be read further,
    with the next file. Needs `stoker[tfrecord]` for the checksums of the records, unless `check=False`.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these.
            Each worker reads its own files (`shard`), under torch's loader too.
        columns: as in `TFRecordDataset`, like the following.
        scalars: features of one value.
        decode: False for bytes.
        check: whether to compare checksums.
        transform: a function of the sample, whose result is the sample. Random numbers that it draws are the sample's
            own.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ValueError: there are no files or no columns, or `columns` or `scalars` are given with `decode=False`.
        MissingExtraError: `google-crc32c` is not installed, or `backports.zstd` for a zstd file.
        TypeError: `columns` or `scalars` is a single text, or `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.

    While iterating:
        ShardError: a record or a file is truncated or damaged, or the file is no TFRecord file.
        RecordError: as in `TFRecordDataset`.
        OSError: a file is deleted, or has changed while being read.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        scalars: Sequence[str] = (),
        decode: bool = True,
        check: bool = True,
        transform: Callable[[Any], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        decoder = decoder_of(columns, scalars, decode, transform)
        if check:
            checksum()
        source = source_files(files, storage_options, cache, cache_size)
        check_zstd(source.names)
        super().__init__(source.names, ExampleStream(source, decoder, check), transform)


class ExampleStream(PartStream[Any]):
    """The records of files, before a transform.

    Args:
        decoder: of the records; None for their bytes.
    """

    def __init__(self, files: SourceFiles, decoder: ExampleDecoder | None, check: bool) -> None:
        super().__init__(len(files.places))
        self.files = files
        self.decoder = decoder
        self.check = check

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        return _ExampleIterator(self, ShardProgress(torchs_part(self._numbers), len(self.files.places), state))


class _ExampleIterator(StreamIterator[Any]):
    """Iterator of records, at byte `_offset` of file `_number`."""

    def __init__(self, stream: ExampleStream, progress: ShardProgress) -> None:
        self._stream = stream
        self._progress = progress
        self._crc = checksum() if stream.check else None
        self._begun = {number: _byte(state) for number, state in progress.begun.items()}
        self._file: io.BufferedReader | None = None
        self._number: int | None = None
        self._offset = 0
        self._next_file()

    def __next__(self) -> Any:
        while (number := self._number) is not None:
            path, begin = self._stream.files.names[number], self._offset
            try:
                record = self._record(number, path)
            except (EOFError, zlib.error, OSError, MissingExtraError) as error:
                self._finish(number)
                if isinstance(error, ShardError | MissingExtraError):
                    raise
                message = f"{path} cannot be read beyond byte {begin}: {error}"
                raise told_again(error, message) from error
            if record is None:
                self._finish(number)
                continue
            data = data_of(record, len(record) - TAIL, path, begin, self._crc)
            try:
                return data if self._stream.decoder is None else self._stream.decoder(data)
            except RecordError as error:
                raise RecordError(f"the record at byte {begin} of {path}: {error}") from error.__cause__
        raise StopIteration

    def state_dict(self) -> State:
        here = {} if self._number is None or not self._offset else {self._number: self._offset}
        return self._progress.state((here | self._begun).items())

    def _record(self, number: int, path: str) -> bytes | None:
        """Returns the next record of the file behind its head, or None at the end of the file."""
        if self._file is None:
            self._file = decompressed(self._stream.files.in_sequence(number))
            if self._offset:
                self._file.seek(self._offset - 1)
                if not self._file.read(1):
                    raise StateMismatchError(f"the state stands at byte {self._offset} of {path}, which is shorter")
        head = self._file.read(HEAD)
        if not head:
            return None
        length = length_of(head, path, self._offset, self._crc)
        if length >= _MOST:
            raise ShardError(f"{path}, byte {self._offset}: a record of {length:,} bytes: is it a TFRecord file?")
        rest = self._file.read(length + TAIL)
        if len(rest) < length + TAIL:
            data_of(rest, length, path, self._offset, None)  # raises
        self._offset += HEAD + length + TAIL
        return rest

    def _finish(self, number: int) -> None:
        self._progress.finish(number)
        self._next_file()

    def _next_file(self) -> None:
        self._file = self._number = None
        self._offset = 0
        if self._begun:  # by this shard, or by others before a change of the number of workers
            self._number = next(iter(self._begun))
            self._offset = self._begun.pop(self._number)
        elif self._progress.waiting:
            self._number = self._progress.waiting.popleft()


def _byte(state: Any) -> int:
    try:
        return operator.index(state)
    except TypeError as error:
        raise StateFormatError(f"a byte was expected in a state, found {state!r}") from error
