"""The rows of Parquet files as a stream."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from stoker.datasets.stream import StreamIterator, not_the_end
from stoker.errors import ParquetFileError, SchemaMismatchError, StateFormatError, StateMismatchError
from stoker.extend import ShardProgress, State, torchs_part
from stoker.sources.file_stream import FileStream, PartStream
from stoker.sources.parquet.groups import RowGroups
from stoker.sources.parquet.values import DecodedGroup, transformed
from stoker.sources.places import Place

PIECES = 32
"""Pieces into which a stream can be shared out at least. Fewer row groups than this are cut into equal parts, so that a
single one keeps several workers busy; each of them decodes it. More pieces would make more workers decode each."""


class ParquetStream(FileStream):
    """Rows of Parquet files in sequence, one row group after another. Needs `stoker[parquet]` (pyarrow).

    A sample is a dict, as in `ParquetDataset`. Each row group is decoded once in an epoch, and one is held at a time;
    so memory is one row group, in the columns read, for each worker. `ParquetDataset` shuffles, and knows its length.
    `ShuffleDataset` around the stream shuffles within a buffer.

    Workers and ranks read row groups of their own: every n-th of all files. If there are fewer than 32, they read equal
    parts of them, and more than one may decode a row group. Under torch's loader, workers share them out too. Pass each
    rank its part: `stream.shard(num_shards=ranks, index=rank)`. The state holds a row for each part that is begun, and
    a bit for each that is done. It can be loaded with any number of workers. A damaged row group is raised once, at its
    place, and the iterator continues with the next one; after a file that cannot be opened, with the next file.

    Args:
        files: as in `ParquetDataset`.
        columns: as in `ParquetDataset`.
        transform: as in `ParquetDataset`. Random numbers that it draws are the sample's own.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.
        partitioning: as in `ParquetDataset`.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        TypeError: `columns` is a single text, or `transform` cannot be called.
        ValueError: there are no files, no columns, or no rows; or `partitioning` is another value.
        MissingExtraError: pyarrow is not installed.
        ParquetFileError: a file is truncated, damaged, or no Parquet file.
        MissingColumnError: there is no such column.
        SchemaMismatchError: two files have different columns, or types of them.

    Attributes:
        files: the paths of the files, in order.
        columns: the names of the columns.

    While iterating:
        FileChangedError: a file was changed since the stream was made.
        ParquetFileError: a row group is damaged, or has other rows than the footer promises.
        ParquetValueError: a value has no equivalent: a date out of the range of Python's, a text that is not UTF-8.
        SchemaMismatchError: the files have a column that is a partition too, with another value.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        partitioning: Literal["hive"] | None = "hive",
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        groups = RowGroups(files, columns, storage_options, cache, cache_size, partitioning=partitioning)
        super().__init__(groups.files, RowStream(groups, transform), None)
        self.columns = groups.columns


class RowStream(PartStream[Any]):
    """The rows of row groups, as dicts, or what a transform makes of them."""

    def __init__(self, groups: RowGroups, transform: Callable[[dict[str, Any]], Any] | None) -> None:
        self.groups = groups
        self.transform = transform
        self.pieces = -(-PIECES // len(groups.sizes))  # of each row group
        super().__init__(self.pieces * len(groups.sizes))

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        progress = ShardProgress(torchs_part(self._numbers), self.pieces * len(self.groups.sizes), state)
        return _Rows(self, progress)


class _Piece(NamedTuple):
    """A part of a row group. All first pieces are numbered before all second ones: so a share of every n-th piece has
    few row groups with all their pieces, rather than a piece of each.

    Attributes:
        end: the row behind its last.
    """

    number: int
    group: int
    begin: int
    end: int


class _Rows(StreamIterator[Any]):
    """Iterator of rows, at row `_row` of the row group of `_piece`; pieces of a row group come one after another."""

    def __init__(self, stream: RowStream, progress: ShardProgress) -> None:
        self._groups = stream.groups
        self._transform = stream.transform
        self._pieces = stream.pieces
        self._progress = progress
        self._begun = {number: self._row_of(number, state) for number, state in progress.begun.items()}
        self._waiting = deque(
            sorted(map(self._piece_of, progress.waiting), key=lambda piece: (piece.group, piece.begin))
        )
        self._lost: set[int] = set()  # row groups that cannot be read
        self._piece: _Piece | None = None
        self._row = 0
        self._decoded: DecodedGroup | None = None
        self._decoded_number = -1

    def __next__(self) -> Any:
        while self._piece is not None or self._next_piece():
            assert self._piece is not None
            if self._row < self._piece.end:
                return self._sample(self._piece)
            self._finish(self._piece)
        raise StopIteration

    def state_dict(self) -> State:
        begun = dict(self._begun)
        if self._piece is not None and self._row > self._piece.begin:
            begun = {self._piece.number: self._row} | begun
        return self._progress.state(
            (number, [row, self._groups.sizes[self._piece_of(number).group]]) for number, row in begun.items()
        )

    def _piece_of(self, number: int) -> _Piece:
        piece, group = divmod(number, len(self._groups.sizes))
        rows = self._groups.sizes[group]
        return _Piece(number, group, rows * piece // self._pieces, rows * (piece + 1) // self._pieces)

    def _next_piece(self) -> bool:
        while self._begun or self._waiting:
            if self._begun:  # by this share, or by others before a change of the number of workers
                number = next(iter(self._begun))
                piece, row = self._piece_of(number), self._begun.pop(number)
            else:
                piece = self._waiting.popleft()
                row = piece.begin
            if piece.group not in self._lost:
                self._piece, self._row = piece, row
                return True
            self._progress.finish(piece.number)
        return False

    def _sample(self, piece: _Piece) -> Any:
        if self._decoded is None or self._decoded_number != piece.group:
            self._decoded = None  # before the next is read: one is in memory at a time
            try:
                self._decoded = self._groups.read(piece.group)
            except (OSError, SchemaMismatchError) as error:
                self._lost |= self._lost_by(error, piece.group)
                self._finish(piece)
                raise
            self._decoded_number = piece.group
        row, self._row = self._row, self._row + 1
        sample = self._decoded.row(row)
        if self._transform is None:
            return sample
        try:
            return transformed(self._transform, sample, lambda: self._groups.origin(piece.group, row))
        except StopIteration as error:
            raise not_the_end("the transform of a ParquetStream") from error

    def _lost_by(self, error: Exception, group: int) -> set[int]:
        """Returns the row groups that cannot be read: one if it is damaged, else all of the file."""
        if isinstance(error, (ParquetFileError, SchemaMismatchError)):
            return {group}
        file = self._groups.place(group)[0]
        return {other for other in range(len(self._groups.sizes)) if self._groups.place(other)[0] == file}

    def _finish(self, piece: _Piece) -> None:
        self._progress.finish(piece.number)
        self._piece = None

    def _row_of(self, number: int, state: Any) -> int:
        try:
            row, rows = map(operator.index, state)
        except (TypeError, ValueError) as error:
            raise StateFormatError(f"a row and a number of rows were expected in a state, found {state!r}") from error
        piece = self._piece_of(number)
        here = self._groups.sizes[piece.group]
        if rows != here or not piece.begin <= row <= piece.end:
            file, group = self._groups.place(piece.group)
            raise StateMismatchError(
                f"the state stands at row {row} of {rows} in row group {group} of {self._groups.files[file]}, which "
                f"has {here} rows: the file is another one, or was changed"
            )
        return row
